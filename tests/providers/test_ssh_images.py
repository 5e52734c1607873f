"""`image=` on hosts reached by SSH, with podman on the hosts."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.components import need
from tests.helpers import eventually
from tests.podman import IMAGE, set_up
from tests.providers.lab import Lab

if TYPE_CHECKING:
    from flowlite.testing.hosts import Cluster, Host

FUNCTION = f"""
import os, sys
from flowlite import FlowApp

app = FlowApp(provider="ssh")

@app.function(num_instances=2, processes_per_node=2, image="{IMAGE}")
def inside():
    assert not os.path.exists("/mnt/shared"), "the host's own root"
    return os.environ["RANK"], os.environ["WORLD_SIZE"], os.uname().nodename, sys.prefix

if __name__ == "__main__":
    for each in inside.spawn().results():
        print(*each)
"""


@pytest.fixture
def with_podman(fresh_hosts: Callable[..., Cluster], flow_home: Path) -> Lab:
    """A pool of two hosts that have podman and the image."""
    need("podman")
    cluster = fresh_hosts(2)
    for host in cluster:
        set_up(host, cluster.shared)
    return Lab(cluster, flow_home)


def containers(host: Host) -> list[str]:
    return host.exec(["podman", "ps", "--all", "--format", "{{.Names}}"]).stdout.split()


def test_a_function_in_containers_of_two_hosts(with_podman: Lab, tmp_path: Path) -> None:
    lab = with_podman
    script = tmp_path / "inside.py"
    script.write_text(FUNCTION)
    with lab.cluster.enter_laptop():
        done = subprocess.run(
            [sys.executable, str(script)],
            env=lab.environment,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
    assert done.returncode == 0, f"{done.stderr}\n{lab.supervisor_logs()}"
    rows = [line.split()[:3] for line in done.stdout.splitlines()]
    hosts = ["node00", "node00", "node01", "node01"]
    assert rows == [[str(rank), "4", host] for rank, host in enumerate(hosts)]
    for host in lab.hosts:
        eventually(lambda host=host: containers(host) == [])
    assert lab.held() == {}


def test_the_project_is_in_the_container(with_podman: Lab, tmp_path: Path) -> None:
    lab = with_podman
    lab.environment["FLOW_SYNC"] = "true"
    project = tmp_path / "project"
    (project / "data").mkdir(parents=True)
    (project / "pyproject.toml").touch()
    (project / "data" / "numbers.csv").write_text("1,2,3")
    (project / "go.sh").write_text(
        "#!/bin/sh\npwd; cat numbers.csv; echo $RANK > out-$RANK.txt; ls\n"
    )
    (project / "go.sh").chmod(0o755)
    words = ("-N", "2", "--image", IMAGE, "--outputs", "*.txt", "--", "../go.sh")
    said = lab.flow("run", *words, cwd=project / "data").stdout
    assert said.count("/project/data\n") == 2
    assert said.count("1,2,3") == 2
    (place,) = (project / "data" / "flow-outputs").iterdir()
    found = sorted(path.name for path in place.rglob("*.txt"))
    assert found == ["out-0.txt", "out-1.txt"]


def test_a_cancelled_task_leaves_no_container_on_its_host(with_podman: Lab, tmp_path: Path) -> None:
    lab = with_podman
    task_file = tmp_path / "task.yaml"
    task_file.write_text(f'image: {IMAGE}\ncommand: ["sh", "-c", "echo up; exec sleep 60"]\n')
    task = lab.submit(str(task_file))
    lab.wait(task, "running")
    host = next(each for each in lab.hosts if containers(each))
    lab.flow("cancel", task)
    lab.wait(task, "cancelled")
    eventually(lambda: containers(host) == [], what="the container to go")
    assert lab.held() == {}


def test_an_ordinary_user_runs_his_own_containers(
    fresh_hosts: Callable[..., Cluster], flow_home: Path, tmp_path: Path
) -> None:
    need("podman")
    cluster = fresh_hosts(1)
    set_up(cluster[0], cluster.shared, "flow")
    lab = Lab(cluster, flow_home, settings=f'user = "flow"\npython = "{sys.executable}"')
    task = tmp_path / "task.yaml"
    script = "id -u; echo written > $FLOW_OUT/file; ls /mnt; true"
    task.write_text(
        f"image: {IMAGE}\nworkdir: /home/flow\nenvironment: {{FLOW_OUT: /home/flow}}\n"
        f'command: ["sh", "-c", "{script}"]\n'
    )
    done = lab.flow("run", str(task))
    uid = cluster[0].exec(["id", "-u"], user="flow").stdout.strip()
    assert f"] {uid}\n" in done.stdout
    assert "shared" not in done.stdout
    owner = cluster[0].exec(["stat", "-c", "%U", "/home/flow/file"])
    assert owner.stdout == "flow\n"
    listing = ["podman", "ps", "--all", "--quiet"]
    eventually(lambda: cluster[0].exec(listing, user="flow").stdout == "")
    assert lab.held() == {}


def test_a_host_without_an_engine_says_so(lab: Lab, tmp_path: Path) -> None:
    task = tmp_path / "task.yaml"
    task.write_text(f'image: {IMAGE}\ncommand: ["true"]\n')
    for host in lab.hosts:
        host.exec(["rm", "-f", "/usr/bin/podman", "/usr/local/bin/docker", "/usr/bin/docker"])
    done = lab.flow("run", str(task), code=2)
    assert f"{lab.hosts[0].name} has neither docker nor podman" in done.stderr
    assert lab.held() == {}
