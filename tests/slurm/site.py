"""Gangs on a real Slurm, reached from the laptop through SSH to the login node: submitted, watched, and hurt."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from flowlite.node.config.ranks import assign_ranks
from flowlite.state.store import Store, TaskRecord
from flowlite.testing.hosts import Host
from flowlite.testing.slurm import SlurmCluster
from tests.gangs import Gang
from tests.helpers import assert_no_process_left, eventually, whole_lines
from tests.slurm.traces import left_of

ROOT = Path(__file__).resolve().parent.parent.parent
# Says which attempt it is and where, and stays until it may go; the directory is one that all hosts see.
STAY = "echo attempt $FLOW_ATTEMPT on $(hostname); while [ ! -e /mnt/shared/go ]; do sleep 0.1; done; echo done"

COUNT = "i=0; while [ ! -e /mnt/shared/go ]; do i=$((i+1)); echo $i; sleep 0.1; done; echo done"


def shell(text: str) -> list[str]:
    """A command; `$RANK` and the like are there."""
    return ["sh", "-c", text]


class SlurmGang(Gang):
    """One task on Slurm."""

    def __init__(self, site: SlurmSite, record: TaskRecord) -> None:
        super().__init__(site.home, Store(site.home / "state.db"), record)
        self.site = site

    def wait(self, *states: str, timeout: float = 90.0) -> TaskRecord:
        # Whoever starts a supervisor again does so on the laptop.
        with self.site.slurm.enter_laptop():
            return super().wait(*states, timeout=timeout)

    def running(self, attempt: int = 1, timeout: float = 120.0) -> int:
        """Waits until every rank of an attempt has said its first word; gives the job's number."""

        def said() -> bool:
            record = self.wait("running", timeout=timeout)
            assert not record.final, self.story()
            if record.attempt != attempt or not record.roster:
                return False
            return len(self.words(attempt)) >= len(record.roster)

        self.until(said, timeout)
        return self.job

    def words(self, attempt: int) -> list[str]:
        """What the ranks of an attempt have said so far, in any order."""
        files = self.paths.logs.glob(f"a{attempt}.n*.r*.out")
        return [line for file in files for line in whole_lines(file)]

    def end(self, state: str = "completed", timeout: float = 120.0) -> TaskRecord:
        """Waits for the end. Nothing may be left of the task: no job, no process, no file."""
        record = self.wait(timeout=timeout)
        assert record.state == state, self.story()
        eventually(lambda: not self.left(), every=0.2, what=f"gone: {self.left()}")
        assert_no_process_left(self.id)
        assert all(instance.ended_at for instance in self.store.instances(self.id))
        return record

    def until(self, probe: Callable[[], object], timeout: float = 90.0) -> None:
        """Waits for something to be so; if it does not come to that, the message says how far things have come."""
        try:
            eventually(probe, timeout=timeout, every=0.2)
        except AssertionError as error:
            words = {file.name: file.read_text() for file in self.paths.logs.glob("*.out")}
            raise AssertionError(f"{error}; {self.story()}; {words}") from None

    def left(self) -> list[str]:
        """What can still be found of the task, in words."""
        return left_of(self.site.slurm, self.id)

    @property
    def job(self) -> int:
        """The job of the gang as it is now."""
        return int(self.record.roster[0].split(".")[0])

    def host(self, node: int) -> Host:
        """The host of a node, by what its workers and Slurm's order of nodes say."""
        ranks = assign_ranks(self.record.roster)
        assert ranks == self.record.roster
        slurm = self.site.slurm
        names = slurm.run("scontrol", "show", "hostnames", slurm.job(self.job)["NodeList"]).split()
        return next(host for host in slurm.nodes if host.name == names[node])

    def said(self, text: str) -> bool:
        """Whether an event, or the reason, has these words."""
        return text in self.record.reason or any(text in told for _, told in self.events)


class SlurmSite:
    """A FLOW_HOME on the laptop, which reaches the head of a Slurm and none of its nodes."""

    def __init__(
        self,
        slurm: SlurmCluster,
        home: Path,
        patch: pytest.MonkeyPatch,
        settings: str = "",
        python: str | Path = sys.executable,
    ) -> None:
        """
        Args:
            settings: More lines of the table `[slurm]`.
            python: What workers run in.
        """
        self.slurm = slurm
        self.home = home
        (home / "config.toml").write_text(
            f'provider = "slurm"\n[slurm]\nlogin = "{slurm.login}"\npython = "{python}"\n'
            f'shared_dir = "{slurm.shared}/flowlite"\n{settings}'
        )
        for name, value in slurm.hosts.client_environment().items():
            patch.setenv(name, value)
        patch.setenv("FLOW_HOME", str(home))
        patch.setenv("PYTHONPATH", str(ROOT))

    def submit(
        self, command: Sequence[str], *, nodes: int | tuple[int, int] = 2, **options: Any
    ) -> SlurmGang:
        """Submits a command from the laptop."""
        from flowlite import TaskConfig
        from flowlite.api.client import Flow

        given = {"processes_per_node": 1, "grace_seconds": 1.0, "name": "gang", **options}
        config = TaskConfig(command=list(command), num_instances=nodes, **given)
        with self.slurm.enter_laptop():
            task = Flow(notify=lambda _: None).submit(config)
        return SlurmGang(self, task.record)

    def go(self) -> None:
        """Lets those that stay go on."""
        (self.slurm.shared / "go").touch()


def signal_processes(pids: Sequence[int], number: int) -> None:
    """Sends a signal to processes by the numbers they have on this machine."""
    for pid in pids:
        os.kill(pid, number)
