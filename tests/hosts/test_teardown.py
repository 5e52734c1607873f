"""Nothing of a cluster is left, however it ended."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from flowlite.testing.hosts import Cluster
from flowlite.testing.hosts.probes import Traces, interfaces
from tests.helpers import eventually

pytestmark = pytest.mark.needs("hosts")
ROOT = Path(__file__).resolve().parent.parent.parent
OWNER = """
import time
from flowlite.testing.hosts import Cluster

hosts = Cluster(2)
{trouble}
print(hosts.directory, flush=True)
time.sleep(1000)
"""
TROUBLE = {
    "nothing special": "",
    "a frozen host": "hosts[0].pause()",
    "a slow cable, a cut one, and a full disk": (
        "hosts[0].delay(100, 5); hosts[1].partition(); hosts[1].fill_disk()"
    ),
    "a program on the laptop": (
        "import subprocess\nwith hosts.enter_laptop(): subprocess.Popen(['sleep', '1000'])"
    ),
    "a host without power": "hosts[0].power_cut()",
}


def owner(trouble: str) -> tuple[subprocess.Popen[str], Traces]:
    """A process that owns a cluster, and what the cluster consists of."""
    process = subprocess.Popen(
        [sys.executable, "-c", OWNER.format(trouble=trouble)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    return process, Traces(Cluster.attach(Path(process.stdout.readline().strip())))


def assert_nothing_left(traces: Traces) -> None:
    with contextlib.suppress(AssertionError):
        eventually(lambda: not traces.left(), every=0.05)
    assert traces.left() == []
    traces.close()


def test_what_is_looked_for_is_found_while_it_is_there(hosts: Cluster) -> None:
    traces = Traces(hosts)
    left = "\n".join(traces.left())
    traces.close()
    for kind in ("process", "directory", "namespace", "mount"):
        assert kind in left


def test_nothing_is_left_after_the_block() -> None:
    before = interfaces()
    with Cluster(2) as hosts:
        hosts[0].delay(10)
        hosts[1].pause()
        traces = Traces(hosts)
    # Another process of this machine may be seen in the moment in which it ends.
    assert_nothing_left(traces)
    eventually(lambda: interfaces() <= before)


def test_nothing_is_left_after_an_exception() -> None:
    seen = []

    def fail() -> None:
        with Cluster(2) as hosts:
            seen.append(Traces(hosts))
            raise KeyError("in the test")

    with pytest.raises(KeyError):
        fail()
    assert seen[0].left() == []
    seen[0].close()


def test_closing_again_is_no_error() -> None:
    hosts = Cluster(1)
    hosts.close()
    hosts.close()
    with pytest.raises(ConnectionError):
        hosts[0].kill()


@pytest.mark.parametrize("trouble", TROUBLE.values(), ids=TROUBLE.keys())
def test_nothing_is_left_when_the_owner_is_killed(trouble: str) -> None:
    process, traces = owner(trouble)
    process.kill()
    process.communicate()
    assert_nothing_left(traces)


def test_nothing_is_left_when_the_owner_ends_without_a_word() -> None:
    # It stays until it is told to go, and then does not even run its exit handlers.
    code = OWNER.replace("time.sleep(1000)", "import os; os._exit(len(input()))")
    process = subprocess.Popen(
        [sys.executable, "-c", code.format(trouble="")],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    traces = Traces(Cluster.attach(Path(process.stdout.readline().strip())))
    process.communicate("go\n")
    assert process.returncode == 2
    assert_nothing_left(traces)


def test_when_the_room_is_killed_the_next_cluster_clears_up() -> None:
    process, traces = owner(TROUBLE["a program on the laptop"])
    os.kill(traces.room, signal.SIGKILL)
    # The hosts die with their room; what a killed process cannot remove are its directory and its groups.
    eventually(lambda: not any(text.startswith("process") for text in traces.left()))
    assert traces.directory.is_dir()
    with Cluster(1):
        assert_nothing_left(traces)
    process.kill()
    process.communicate()


def test_a_cluster_in_use_is_not_swept(hosts: Cluster) -> None:
    with Cluster(1):
        assert hosts.directory.is_dir()
    assert hosts[0].exec(["true"]).returncode == 0


def test_hosts_that_do_not_come_up_say_why_and_leave_nothing(tmp_path: Path) -> None:
    before = set(tmp_path.parent.iterdir())
    with pytest.raises(RuntimeError, match="NoSuchOption"):
        Cluster(1, sshd={"NoSuchOption": "x"})
    assert set(tmp_path.parent.iterdir()) == before


def test_hosts_of_nobody_stay_until_they_are_closed() -> None:
    code = "from flowlite.testing.hosts import Cluster; print(Cluster(1, owned=False).directory)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True
    )
    hosts = Cluster.attach(Path(done.stdout.strip()))
    traces = Traces(hosts)
    assert hosts[0].exec(["hostname"]).stdout == "node00\n"
    hosts.close()
    assert_nothing_left(traces)
