"""What cannot get better by waiting ends a task with its reason, unless enough other hosts will do."""

from __future__ import annotations

import errno
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from flowlite.errors import HostKeyError, NodeUnreachable, ProviderError
from provider_adapters.ssh import patience
from provider_adapters.ssh.patience import Patience
from tests.providers.lab import Lab, left_on

if TYPE_CHECKING:
    from flowlite.testing.hosts import Cluster, Host

ROOT = "/root/.flowlite-node"
PYTHON = f'python = "{sys.executable}"'


def another_key(host: Host) -> None:
    host.change_host_key()


def no_sessions(host: Host) -> None:
    host.restart_sshd(sessions=True, MaxSessions="0")


def shell_that_runs_nothing(host: Host) -> None:
    host.restart_sshd(sessions=True, ForceCommand="/bin/false")


def full_disk(host: Host) -> None:
    host.fill_disk()


def full_disk_without_our_files(host: Host) -> None:
    host.exec(["rm", "-rf", ROOT]).check_returncode()
    host.fill_disk()


def read_only_home(host: Host) -> None:
    script = f"mount --bind {ROOT} {ROOT} && mount -o remount,bind,ro {ROOT}"
    host.exec(["sh", "-c", script]).check_returncode()


def login_refused(host: Host) -> None:
    host.restart_sshd(sessions=True, AuthorizedKeysFile="/nowhere")


TROUBLES: dict[Callable[[Host], None], str] = {
    another_key: "flow hosts trust node01",
    no_sessions: "MaxSessions",
    shell_that_runs_nothing: "its login shell did not run a command",
    full_disk: "No space left on device",
    full_disk_without_our_files: "No space left on device",
    read_only_home: "Read-only file system",
    login_refused: "was refused; tried",
}

# These are waited for a while before they count.
LONG = (no_sessions, shell_that_runs_nothing, login_refused)


@pytest.fixture
def lab(fresh_hosts: Callable[..., Cluster], flow_home: Path) -> Iterator[Lab]:
    """Three hosts that have been used before, so that nothing is asked of them when a task is planned."""
    lab = Lab(fresh_hosts(3), flow_home, settings=PYTHON)
    lab.flow("run", "-N", "3", "--", "true")
    yield lab
    for host in lab.hosts:
        host.free_disk()


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "trouble",
    [
        pytest.param(each, id=each.__name__, marks=[pytest.mark.slow] if each in LONG else [])
        for each in TROUBLES
    ],
)
def test_one_host_in_trouble(lab: Lab, trouble: Callable[[Host], None]) -> None:
    trouble(lab.hosts[1])

    # Two of three are enough: the others are taken, and the one that will not do is named.
    task = lab.submit("-N", "2", "--", "hostname")
    assert lab.wait(task, "completed", "failed", timeout=120)["status"] == "completed"
    assert {"node00", "node02"} <= set(lab.flow("logs", task).stdout.split())
    events = [str(each["text"]) for each in lab.task(task)["events"]]
    [told] = [each for each in events if each.startswith("passed over: ")]
    assert "node01" in told
    assert TROUBLES[trouble] in told

    # All three are needed: the task ends, and says why.
    task = lab.submit("-N", "3", "--", "hostname")
    found = lab.wait(task, "failed", timeout=180)
    assert "node01" in found["reason"]
    assert TROUBLES[trouble] in found["reason"]
    for host in (lab.hosts[0], lab.hosts[2]):
        assert left_on(host) == []


@pytest.mark.timeout(300)
def test_what_waiting_may_change_is_waited_for(lab: Lab) -> None:
    lab.hosts[1].stop_sshd(sessions=True)
    task = lab.submit("-N", "3", "--", "hostname")
    assert "node01" in lab.waits(task)
    lab.hosts[1].start_sshd()
    assert lab.wait(task, "completed", "failed", timeout=120)["status"] == "completed"


class TestPatience:
    @pytest.mark.parametrize(
        ("error", "waits"),
        [
            (NodeUnreachable("silent"), True),
            (ConnectionRefusedError(errno.ECONNREFUSED, "refused"), True),
            (TimeoutError(), True),
            (OSError(errno.EMFILE, "too many open files here"), True),
            (HostKeyError("another key"), False),
            (NodeUnreachable("no sessions", patience=0.0), False),
            (OSError(errno.ENOSPC, "full"), False),
            (OSError(errno.EROFS, "read-only"), False),
            (OSError(errno.EFBIG, "a limit of the size of files"), False),
            (PermissionError(errno.EACCES, "no"), False),
            (ProviderError("no Python"), False),
        ],
        ids=repr,
    )
    def test_which_trouble_may_pass(self, error: Exception, waits: bool) -> None:
        assert Patience().is_left("h", error) is waits

    def test_some_is_waited_for_a_while(self, monkeypatch: pytest.MonkeyPatch) -> None:
        now = 100.0
        monkeypatch.setattr(patience.time, "monotonic", lambda: now)
        one, refused = Patience(), NodeUnreachable("refused", patience=60.0)
        assert one.is_left("h", refused)
        now += 59
        assert one.is_left("h", refused)
        assert one.is_left("other", refused)
        now += 1
        assert not one.is_left("h", refused)
        assert one.is_left("other", refused)
        # It was away in between, as a host that is started anew: from the beginning.
        assert one.is_left("h", NodeUnreachable("silent"))
        assert one.is_left("h", refused)
        now += 30
        one.forget("h")
        now += 31
        assert one.is_left("h", refused)
