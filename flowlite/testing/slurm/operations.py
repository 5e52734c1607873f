"""Operations on a Slurm cluster for tests and people: inspect jobs and nodes, and disturb them."""

from __future__ import annotations

import shutil
from abc import abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from flowlite.testing.hosts import Host
from flowlite.testing.hosts.root import USER
from flowlite.testing.slurm.configuration import PARTITION, QOS_HIGH

Value = TypeVar("Value")
_GOOD = ("idle", "mixed", "allocated", "completing")


class Operations:
    """The operations of a running cluster."""

    @property
    @abstractmethod
    def head(self) -> Host: ...
    @property
    @abstractmethod
    def shared(self) -> Path: ...
    @property
    @abstractmethod
    def nodes(self) -> Sequence[Host]: ...
    @abstractmethod
    def run(self, *argv: str, user: str = "root", input: str | None = None) -> str: ...
    @abstractmethod
    def start_slurmd(self, host: Host) -> None: ...
    @abstractmethod
    def start_controller(self) -> None: ...
    @abstractmethod
    def stop_controller(self) -> None: ...
    @abstractmethod
    def wait(self, probe: Callable[[], Value | None], what: str, timeout: float = 60) -> Value: ...

    # Jobs

    def submit(self, script: str, *options: str, user: str = USER) -> int:
        """Submits a batch script with further sbatch options. Returns the job's number."""
        text = f"#!/bin/sh\n{script}\n"
        done = self.run(
            "sbatch", "--parsable", "--output=/dev/null", *options, user=user, input=text
        )
        return int(done.strip().partition(";")[0])

    def submit_higher(self, *options: str, nodes: int | None = None) -> int:
        """Submits a job that needs whole nodes and may preempt others. It sleeps until cancelled."""
        count = len(self.nodes) if nodes is None else nodes
        more = (f"--qos={QOS_HIGH}", f"--nodes={count}", "--exclusive")
        return self.submit("sleep 100000", *more, *options, user="root")

    def job(self, number: int | str) -> dict[str, str]:
        """The output of `scontrol show job` as a mapping; empty when Slurm has purged the job."""
        done = self.head.exec(["scontrol", "--oneliner", "show", "job", str(number)])
        words = (word.partition("=") for word in done.stdout.split())
        return {key: value for key, equals, value in words if equals}

    def jobs(self, *states: str) -> list[int]:
        """The numbers of the jobs that have not ended, or of those in the given states."""
        chosen = [f"--states={','.join(states)}"] if states else []
        return [int(line) for line in self.run("squeue", "-h", "-o", "%A", *chosen).split()]

    def cancel(self, number: int) -> None:
        """Cancels a job."""
        self.run("scancel", str(number))

    def requeue(self, number: int, *, at_once: bool = True) -> None:
        """Requeues a job. With `at_once`, it is released from the delay that Slurm imposes."""
        self.run("scontrol", "requeue", str(number))
        if at_once:
            self.start_now(number)

    def start_now(self, number: int) -> None:
        """Ends the delay of a requeued job."""
        # Not in the second in which the job ended, or slurmd would take it for the run that it was told to kill.
        pending = self.wait(
            lambda: self.job(number).get("JobState") in ("PENDING", "RUNNING"), f"{number} waits"
        )
        if not pending or self.job(number)["JobState"] != "PENDING":
            return
        try:
            self.run("scontrol", "update", f"jobid={number}", "StartTime=now+2")
        except RuntimeError as error:
            # It has started by itself in the meantime.
            if "no longer pending" not in str(error):
                raise

    def limit(self, number: int, minutes: int) -> None:
        """Sets a job's time limit."""
        self.run("scontrol", "update", f"jobid={number}", f"TimeLimit={minutes}")

    # Nodes

    def states(self) -> dict[str, str]:
        """The state of each node as Slurm names it. A trailing `*` means that the node does not respond."""
        words = self.run("sinfo", "-h", "-N", "-p", PARTITION, "-o", "%N %T").split()
        return dict(zip(words[::2], words[1::2], strict=True))

    def drain(self, host: Host, reason: str = "maintenance") -> None:
        """Drains a node: it gets no new jobs."""
        self.run("scontrol", "update", f"nodename={host.name}", "state=drain", f"reason={reason}")

    def undrain(self, host: Host) -> None:
        """Ends the drain."""
        self.run("scontrol", "update", f"nodename={host.name}", "state=resume")

    def kill_node(self, host: Host) -> None:
        """Cuts a node's power. Slurm notices after `SlurmdTimeout`."""
        host.power_cut()

    def revive(self, host: Host) -> None:
        """Restarts a killed node on its old disk, with slurmd."""
        host.start()
        self.start_slurmd(host)

    def restart_controller(self) -> None:
        """Restarts slurmctld, and waits until it answers."""
        self.stop_controller()
        self.start_controller()
        self.wait_controller()

    def wait_controller(self) -> None:
        """Waits until slurmctld answers."""
        self.wait(lambda: "is UP" in self.run("scontrol", "ping"), "slurmctld answers")

    def wait_idle(self) -> None:
        """Waits until every node is idle."""
        self.wait(lambda: set(self.states().values()) == {"idle"}, "all nodes are idle", timeout=90)

    # Between tests

    def reset(self) -> None:
        """Removes all jobs and all users' files, and restores every node. Job numbers are not reset."""
        if not self._answers():
            self.start_controller()
            self.wait_controller()
        while numbers := self.jobs():
            self.head.exec(["scancel", "--signal=KILL", *map(str, numbers)])
            self.run("scancel", *map(str, numbers))
            if not self.jobs():
                break
        for host in self.nodes:
            if not host.alive:
                self.revive(host)
        for name, state in self.states().items():
            if not state.startswith(_GOOD) or state.endswith("*"):
                self.head.exec(["scontrol", "update", f"nodename={name}", "state=resume"])
        self.wait_idle()
        self._tidy()

    def _answers(self) -> bool:
        return "is UP" in self.head.exec(["scontrol", "ping"]).stdout

    def _tidy(self) -> None:
        places = [f"/home/{USER}", "/root", "/tmp", "/var/tmp"]
        # Other file systems hold what is not the host's own, such as the interpreter and the shared directory.
        words = ["-xdev", "-depth", "-mindepth", "1", "!", "-path", "*/.ssh*", "-delete"]
        for host in (self.head, *self.nodes):
            host.exec(["find", *places, *words])
        for entry in self.shared.iterdir():
            shutil.rmtree(entry) if entry.is_dir() and not entry.is_symlink() else entry.unlink()
        (self.shared / "home").mkdir()
