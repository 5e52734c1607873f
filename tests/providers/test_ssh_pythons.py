"""Python on hosts reached by SSH: environments from an index on the laptop, other versions, nodes without network."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from flowlite.node.python_env import interpreters
from tests.components import need
from tests.own_python import serve_pythons
from tests.providers.lab import Lab
from tests.wheels import make_wheel, serve_index, use_no_index

if TYPE_CHECKING:
    pass

if TYPE_CHECKING:
    from flowlite.testing.hosts import Cluster

HERE = f"{sys.version_info.major}.{sys.version_info.minor}"
FUNCTION = """
import os, sys
from flowlite import FlowApp

app = FlowApp(provider="ssh")

@app.function(num_instances=2, dependencies=["flowlite-probe-one"])
def probe():
    import flowlite_probe_one
    return flowlite_probe_one.VERSION, sys.prefix, os.uname().nodename

if __name__ == "__main__":
    for each in probe.spawn().results():
        print(*each)
"""


@pytest.fixture
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    use_no_index(monkeypatch, tmp_path / "uv-cache")
    directory = tmp_path / "wheels"
    make_wheel(directory, "flowlite-probe-one", "1.5")
    return directory


@pytest.fixture
def index(wheels: Path, lab: Lab) -> Iterator[str]:
    """An index that listens on the laptop, where the hosts can reach it."""
    with lab.cluster.enter_laptop():
        serving = serve_index(wheels, address=lab.cluster.laptop.address)
        address = serving.__enter__()
    lab.environment.update({"UV_DEFAULT_INDEX": address, "PIP_CONFIG_FILE": os.devnull})
    lab.environment["UV_HTTP_RETRIES"] = "0"
    yield address
    serving.__exit__(None, None, None)


def run(lab: Lab, script: Path) -> subprocess.CompletedProcess[str]:
    with lab.cluster.enter_laptop():
        return subprocess.run(
            [sys.executable, str(script)],
            env=lab.environment,
            cwd=script.parent,
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )


@pytest.mark.usefixtures("index")
def test_an_environment_on_every_host(lab: Lab, tmp_path: Path) -> None:
    script = tmp_path / "probe.py"
    script.write_text(FUNCTION)
    done = run(lab, script)
    assert done.returncode == 0, f"{done.stderr}\n{lab.supervisor_logs()}"
    rows = [line.split() for line in done.stdout.splitlines()]
    assert [(row[0], row[2]) for row in rows] == [("1.5", "node00"), ("1.5", "node01")]
    assert all("/.flowlite-node/envs/" in row[1] for row in rows)
    # The second time nobody needs the index.
    lab.environment["UV_DEFAULT_INDEX"] = "http://192.0.2.1:9/simple"
    again = run(lab, script)
    assert again.stdout == done.stdout, again.stderr


@pytest.mark.usefixtures("index")
def test_an_index_out_of_reach_is_named_with_the_node(lab: Lab, tmp_path: Path) -> None:
    lab.environment["UV_DEFAULT_INDEX"] = "http://127.0.0.1:9/simple"
    script = tmp_path / "probe.py"
    script.write_text(FUNCTION)
    done = run(lab, script)
    assert done.returncode != 0
    assert "flowlite-probe-one" in done.stderr
    assert "http://127.0.0.1:9/simple cannot be reached" in done.stderr
    assert "node 0" in done.stderr or "node 1" in done.stderr
    assert lab.held() == {}


def test_a_version_that_the_host_has_not_is_refused_with_what_it_has(
    lab: Lab, tmp_path: Path
) -> None:
    task = tmp_path / "task.yaml"
    task.write_text("""python: "3.99"\ncommand: ["true"]\n""")
    done = lab.flow("run", str(task), code=1)
    assert "Python 3.99 is needed on this node, and it has" in done.stderr
    assert "node 0" in done.stderr
    assert f"{interpreters.version_here()} (" in done.stderr
    assert "Installing it failed: error: " in done.stderr


@pytest.fixture
def bare_host(fresh_hosts: Callable[..., Cluster], flow_home: Path) -> Lab:
    """A pool of one host on which PyPy is the only Python."""
    need("pypy")
    cluster = fresh_hosts(1, python=shutil.which("pypy3"), keep=())
    removed = cluster[0].exec(["sh", "-c", "rm -f /usr/bin/python3* /usr/local/bin/python3.*"])
    assert removed.returncode == 0, removed.stderr
    return Lab(cluster, flow_home, settings="")


class TestAHostWithoutAPython:
    def test_gets_one_when_a_task_gets_the_host(self, bare_host: Lab) -> None:
        lab = bare_host
        lab.environment.update({"UV_HTTP_RETRIES": "0", "PIP_CONFIG_FILE": os.devnull})
        with ExitStack() as stack:
            with lab.cluster.enter_laptop():
                address = lab.cluster.laptop.address
                served = stack.enter_context(serve_pythons(address))
            lab.environment["UV_PYTHON_DOWNLOADS_JSON_URL"] = served
            script = "echo this runs; ls ~/.flowlite-node/envs/python"
            done = lab.flow("run", "--", "sh", "-c", script)
            assert f"no Python 3.11 or newer is on {lab.hosts[0].name}" in done.stderr
            assert "this runs" in done.stdout
            assert f"cpython-{interpreters.version_here()}-linux" in done.stdout
        # It stays there, and the next task needs nobody.
        again = lab.flow("run", "--", "sh", "-c", "echo this runs")
        assert "this runs" in again.stdout
        assert "no Python" not in again.stderr
        assert lab.held() == {}

    def test_is_refused_where_none_can_be_had(self, bare_host: Lab) -> None:
        lab = bare_host
        lab.environment.update({"UV_HTTP_RETRIES": "0", "PIP_CONFIG_FILE": os.devnull})
        lab.environment["UV_PYTHON_INSTALL_MIRROR"] = "http://127.0.0.1:9"
        done = lab.flow("run", "--", "true", code=None)
        assert done.returncode != 0
        name = lab.hosts[0].name
        assert f"{name} has no Python 3.11 or newer (found: pypy-" in done.stderr
        assert "install one there" in done.stderr
        assert "cannot be installed with uv: error: " in done.stderr
        assert "Traceback" not in done.stderr
        assert lab.held() == {}


@pytest.mark.usefixtures("index")
def test_a_directory_in_which_no_program_runs_is_named(lab: Lab, tmp_path: Path) -> None:
    for host in lab.hosts:
        host.exec(["mkdir", "/root/.flowlite-node"])
        noexec = ("mount", "-t", "tmpfs", "-o", "noexec,mode=700", "none", "/root/.flowlite-node")
        assert host.exec(noexec).returncode == 0
    script = tmp_path / "probe.py"
    script.write_text(FUNCTION)
    done = run(lab, script)
    assert "programs cannot run where /root/.flowlite-node/" in done.stderr, done.stderr
    assert "noexec" in done.stderr
