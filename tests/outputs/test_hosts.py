"""`outputs=` on hosts reached by SSH: brought through a network, also one that is cut; a lost node is named."""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path

import pytest

from flowlite.testing.hosts import Cluster
from tests.helpers import eventually
from tests.providers.lab import Lab


@pytest.fixture
def lab(hosts: Cluster, flow_home: Path) -> Lab:
    return Lab(hosts, flow_home, list(hosts)[:2])


def test_outputs_of_two_hosts_are_beside_the_submission(lab: Lab, tmp_path: Path) -> None:
    script = 'mkdir -p runs; echo "of $(hostname)" > runs/out.txt; echo no > not.txt'
    done = lab.flow(
        *("run", "-N", "2", "--name", "train", "--outputs", "runs/**", "--", "sh", "-c", script),
        cwd=tmp_path,
    )
    (place,) = (tmp_path / "flow-outputs").iterdir()
    found = {str(p.relative_to(place)): p.read_text() for p in place.rglob("*") if p.is_file()}
    assert found == {f"node{n}/runs/out.txt": f"of node0{n}\n" for n in range(2)}
    assert place.name.startswith("train-t")
    assert f"outputs: 2 files (20 B) in {place}" in done.stderr
    assert lab.held() == {}


def test_a_transfer_that_is_cut_goes_on_where_it_was(lab: Lab, tmp_path: Path) -> None:
    """The network is out for a while in the middle, and nothing that came is sent twice."""
    size = 60_000_000
    host = lab.hosts[0]
    host.delay(20)
    script = f"mkdir runs; head -c {size} /dev/urandom > runs/big; sha256sum < runs/big > runs/sum"
    with lab.cluster.enter_laptop():
        task = lab.flow(
            "run", "--detach", "--outputs", "runs/**", "--", "sh", "-c", script, cwd=tmp_path
        ).stdout.split()[-1]
    place = Path(json.loads((lab.home / "tasks" / task / "outputs.json").read_bytes())["to"])

    def part() -> int:
        return sum(each.stat().st_size for each in (place / ".flow-incoming").glob(".*.part"))

    before = eventually(part, timeout=90, every=0.001)
    # All sessions of sshd, and with them every connection.
    host.exec(["pkill", "-9", "-f", "sshd: .*@notty"])
    lab.wait(task, "completed", timeout=120)
    data = (place / "runs" / "big").read_bytes()
    assert before <= len(data) == size
    assert hashlib.sha256(data).hexdigest() == (place / "runs" / "sum").read_text().split()[0]
    assert sorted(path.name for path in place.iterdir()) == ["runs"]


def test_files_that_cannot_be_read_are_counted(
    hosts: Cluster, flow_home: Path, tmp_path: Path
) -> None:
    """As those of a container's root: what comes after them is brought, and the task does not wait for them."""
    lab = Lab(hosts, flow_home, [hosts[0]], f'user = "flow"\npython = "{sys.executable}"')
    script = (
        "mkdir runs; echo s > runs/a; head -c 2000000 /dev/zero > runs/b; chmod 0 runs/*; "
        "head -c 2000000 /dev/zero > runs/model; echo ready; [ ! -e wait ] || sleep 600"
    )
    done = lab.flow("run", "--outputs", "runs/**", "--", "sh", "-c", script, cwd=tmp_path)
    (place,) = (tmp_path / "flow-outputs").iterdir()
    assert [path.name for path in (place / "runs").iterdir()] == ["model"]
    assert f"1 file (2 MB) in {place}; left out: 2 files that cannot be read" in done.stderr
    # While it runs.
    with lab.cluster.enter_laptop():
        task = lab.submit("--", "sh", "-c", f"touch wait; {script}")
        eventually(lambda: "ready" in lab.flow("logs", task).stdout, timeout=90, every=0.3)
        done = lab.flow("cp", f"{task}:runs", str(tmp_path / "copy"))
    assert [path.name for path in (tmp_path / "copy").iterdir()] == ["model"]
    assert "not copied: 2 files that cannot be read" in done.stderr
    lab.flow("cancel", "-w", task)


def test_a_node_that_is_gone_is_named(lab: Lab, tmp_path: Path) -> None:
    script = 'mkdir runs; echo x > runs/x; touch begun; [ "$FLOW_NODE_RANK" = 0 ] || sleep 600; sleep 600'
    task = lab.flow(
        *("run", "-N", "2", "--detach", "--outputs", "runs/**", "--", "sh", "-c", script),
        cwd=tmp_path,
    ).stdout.split()[-1]
    lab.wait(task, "running", timeout=90)
    eventually(lambda: lab.flow("ssh", task, "--command", "ls", code=None).returncode == 0)
    lab.hosts[1].power_cut()
    ended = lab.wait(task, "failed", timeout=120)
    assert ended["status"] == "failed"
    found = json.loads((lab.home / "tasks" / task / "outputs.json").read_bytes())
    assert list(found["missing"]) == ["1"]
    assert (Path(found["to"]) / "node0" / "runs" / "x").read_text() == "x\n"
