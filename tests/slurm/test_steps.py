"""The way to the nodes of a job, and their step daemons, on a real Slurm: bytes, terminals, signals, kills."""

from __future__ import annotations

import os
import pty
import select
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from flowlite.api.adapters import adapter
from flowlite.connect.base import Connection
from flowlite.provider import Instance
from flowlite.testing.hosts import Host
from tests.helpers import eventually
from tests.slurm.site import STAY, SlurmGang, SlurmSite, shell, signal_processes

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

BIG = os.urandom(1 << 16) * 40


@contextmanager
def reach(gang: SlurmGang, node: int) -> Iterator[Connection]:
    """The way to a node, from the laptop."""
    with gang.site.slurm.enter_laptop():
        held = next(i for i in gang.store.instances(gang.id) if i.node_rank == node)
        with adapter("slurm").connect(Instance.from_json(held.data)) as connection:
            yield connection


def flowlite_processes(host: Host, what: bytes) -> list[int]:
    """Those of our program on a host that run one subcommand."""
    found = []
    for pid in host.pids():
        with suppress(OSError):
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            if what in words and b"-I" in words[:2]:
                found.append(pid)
    return found


def test_the_way_to_a_node(slurm_site: SlurmSite) -> None:
    gang = slurm_site.submit(shell(STAY))
    gang.running()
    with reach(gang, 1) as connection:
        assert connection.run(["cat"], input=BIG, timeout=120).stdout == BIG
        assert connection.run(["printf", "no newline"], timeout=90).stdout == b"no newline"
        assert connection.run(["sh", "-c", "kill -9 $$"], timeout=90).code == -9
        connection.put(BIG, "/tmp/flowlite-bytes")
        assert b"".join(connection.read("/tmp/flowlite-bytes", 7)) == BIG[7:]
    _use_a_terminal(gang)
    _kill_the_ways(gang)
    slurm_site.go()
    gang.end()
    assert gang.record.attempt == 1


def _use_a_terminal(gang: SlurmGang) -> None:
    words = ["-m", "flowlite.cli", "ssh", gang.id, "--node", "1", "-c", "tty; hostname; exit 5"]
    with gang.site.slurm.enter_laptop():
        code, said = _on_terminal([sys.executable, *words])
    assert code == 5, said
    assert "/dev/pts/" in said
    assert gang.host(1).name in said


def _on_terminal(argv: list[str]) -> tuple[int, str]:
    pid, terminal = pty.fork()
    if pid == 0:
        os.execvp(argv[0], argv)
    said = b""
    while select.select([terminal], [], [], 100)[0]:
        try:
            block = os.read(terminal, 65536)
        except OSError:
            break
        said += block
    os.close(terminal)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), said.decode(errors="replace")


def _kill_the_ways(gang: SlurmGang) -> None:
    """The supervisor's own, too, which makes new ones."""
    for node in range(2):
        host = gang.host(node)
        found = eventually(lambda host=host: flowlite_processes(host, b"mux-server"))  # type: ignore[misc]
        signal_processes(found, signal.SIGKILL)
    with reach(gang, 0) as connection:
        assert connection.run(["echo", "word"], timeout=90).stdout == b"word\n"


def test_a_warning_reaches_those_who_listen_and_nobody_else(slurm_site: SlurmSite) -> None:
    listen = 'if [ $RANK = 1 ]; then trap "echo warned" USR2; fi'
    gang = slurm_site.submit(shell(f"{listen}; {STAY}"))
    job = gang.running()
    # As Slurm does some time before its time limit, because of `--signal=B:USR2@…`.
    slurm_site.slurm.run("scancel", "--batch", "--signal=USR2", str(job))
    eventually(lambda: "warned" in gang.words(1), what=gang.story())
    slurm_site.go()
    gang.end()
    assert sorted(gang.words(1))[-3:] == ["done", "done", "warned"]


def test_a_step_daemon_is_killed(slurm_site: SlurmSite) -> None:
    gang = slurm_site.submit(shell(STAY), retries=2)
    before = gang.running()
    (daemon,) = flowlite_processes(gang.host(1), b"step-daemon")
    signal_processes([daemon], signal.SIGKILL)

    # The step ends with it on all nodes, and the job with the step; the task goes on in another. An attempt may begin
    # on the nodes of the first before Slurm says that it ends.
    def elsewhere() -> bool:
        assert not gang.record.final, gang.story()
        return bool(gang.record.roster) and gang.record.state == "running" and gang.job != before

    gang.until(elsewhere, 120)
    assert slurm_site.slurm.job(before)["JobState"] != "RUNNING"
    slurm_site.go()
    gang.end()
