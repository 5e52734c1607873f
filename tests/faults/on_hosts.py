"""Gangs on test hosts, reached by SSH from the laptop: submitted, watched, and hurt."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from flowlite.state.store import Store, TaskRecord
from tests.gangs import Gang
from tests.helpers import assert_no_process_left, eventually

if TYPE_CHECKING:
    from flowlite.testing.hosts import Cluster, Host

ROOT = Path(__file__).resolve().parent.parent.parent

# Counts aloud until it may go. What arrives shows by itself whether anything was lost, doubled or put out of order.
COUNT = 'echo $$; i=0; while [ ! -e /tmp/go ]; do i=$((i+1)); echo "$i"; sleep 0.05; done; echo "end $i"'


def shell(text: str) -> list[str]:
    """A command; `$RANK` and the like are there."""
    return ["sh", "-c", text]


class HostGang(Gang):
    """One task on hosts."""

    def __init__(self, site: Site, record: TaskRecord) -> None:
        super().__init__(site.home, Store(site.home / "state.db"), record)
        self.site = site

    def wait(self, *states: str, timeout: float = 90.0) -> TaskRecord:
        # Whoever starts a supervisor again does so on the laptop.
        with self.site.cluster.enter_laptop():
            return super().wait(*states, timeout=timeout)

    def end(self, state: str = "completed", timeout: float = 90.0) -> TaskRecord:
        """Waits for the end; nothing may be left of the task on hosts that run."""
        record = self.wait(timeout=timeout)
        assert record.state in state.split("|"), self.story()
        assert_no_process_left(self.id)
        return record

    @contextmanager
    def where(self, node: int, attempt: int = 1) -> Iterator[Path]:
        """The directory of an attempt on the host of a node, as seen from here."""
        yield next(iter(self.directories(node, attempt)))

    def directories(self, node: int, attempt: int = 1) -> list[Path]:
        """That directory, once it is there."""
        tasks = self.site.hosts[node].root / "root" / ".flowlite-node" / "tasks"
        return list(tasks.glob(f"{self.id}-*/a{attempt}"))

    def has(self, node: int, name: str, text: str = "") -> bool:
        """Whether a file of the first attempt is on the host of a node, with that in it."""
        with suppress(OSError):
            return any(text in (each / name).read_text() for each in self.directories(node))
        return False

    def agent_on(self, node: int, attempt: int = 1) -> int:
        """The agent's process id as this machine counts."""
        host = self.site.hosts[node]
        (directory,) = eventually(lambda: self.directories(node, attempt))
        inside = int(json.loads((directory / "agent.pid").read_bytes())["pid"])
        return next(pid for pid in host.pids() if _inner(pid) == inside)

    def counted(self, rank: int, attempt: int = 1) -> int:
        """How far a rank has counted; fails if a line of it is missing, doubled or out of order."""
        if not list(self.paths.logs.glob(f"a{attempt}.n*.r{rank}.out")):
            return 0
        # The last line may have arrived in part.
        lines = self.output(rank, attempt).split("\n")[:-1]
        numbers = lines[1:-1] if lines[-1:] and lines[-1].startswith("end") else lines[1:]
        assert numbers == [str(number) for number in range(1, len(numbers) + 1)], numbers
        return len(numbers)

    def counted_to_the_end(self, rank: int, attempt: int = 1) -> None:
        """The whole output of a rank that has ended is here."""
        text = self.output(rank, attempt)
        assert text.endswith(f"end {self.counted(rank, attempt)}\n"), text[-100:]

    def signal_supervisor(self, number: signal.Signals) -> None:
        """Sends a signal to the living supervisor."""
        os.kill(eventually(self.supervisor, what="a supervisor"), number)


class Site:
    """A FLOW_HOME on the laptop, with a pool of hosts."""

    def __init__(
        self,
        cluster: Cluster,
        home: Path,
        patch: pytest.MonkeyPatch,
        hosts: Sequence[Host] | None = None,
        settings: str | None = None,
        entries: str | None = None,
    ) -> None:
        """
        Args:
            hosts: Those of the pool; all.
            settings: Lines of the pool's table, beside its hosts.
            entries: Its hosts as TOML, where their names alone will not do.
        """
        self.cluster = cluster
        self.home = home
        self.hosts = list(cluster) if hosts is None else list(hosts)
        names = entries or json.dumps([host.name for host in self.hosts])
        settings = f'python = "{sys.executable}"' if settings is None else settings
        (home / "config.toml").write_text(
            f'provider = "ssh"\n[ssh.pools.lab]\nhosts = {names}\n{settings}\n'
        )
        for name, value in cluster.client_environment().items():
            patch.setenv(name, value)
        patch.setenv("FLOW_HOME", str(home))
        patch.setenv("PYTHONPATH", str(ROOT))

    def submit(
        self, command: Sequence[str], *, nodes: int | tuple[int, int] = 2, **options: Any
    ) -> HostGang:
        """Submits a command from the laptop."""
        from flowlite import TaskConfig
        from flowlite.api.client import Flow

        config = TaskConfig(
            command=list(command),
            num_instances=nodes,
            **{"processes_per_node": 1, "grace_seconds": 1.0, "name": "gang", **options},
        )
        with self.cluster.enter_laptop():
            task = Flow().submit(config)
        return HostGang(self, task.record)

    def go(self) -> None:
        """Lets those that count go on."""
        for host in self.hosts:
            if host.alive:
                (host.root / "tmp" / "go").touch()


def soon(condition: Callable[[], object], timeout: float = 90.0) -> None:
    """Waits for a moment that does not last."""
    eventually(condition, timeout=timeout, every=0.002)


def pause(seconds: float) -> None:
    """Lets a fault last."""
    time.sleep(seconds)


def _inner(pid: int) -> int:
    """The number a process has in its own namespace."""
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("NSpid:"):
                return int(line.split()[-1])
    return 0
