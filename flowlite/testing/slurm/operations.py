"""What a test, or a person, does to a Slurm: looks at its jobs and nodes, and gets in their way."""

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
    """The handles of a cluster that is up."""

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
        """Submits a batch script, with further options of sbatch; returns the job's number."""
        text = f"#!/bin/sh\n{script}\n"
        done = self.run(
            "sbatch", "--parsable", "--output=/dev/null", *options, user=user, input=text
        )
        return int(done.strip().partition(";")[0])

    def submit_higher(self, *options: str, nodes: int | None = None) -> int:
        """A job that needs whole nodes and may take them from others; it sleeps until it is cancelled."""
        count = len(self.nodes) if nodes is None else nodes
        more = (f"--qos={QOS_HIGH}", f"--nodes={count}", "--exclusive")
        return self.submit("sleep 100000", *more, *options, user="root")

    def job(self, number: int | str) -> dict[str, str]:
        """What `scontrol show job` says; empty when Slurm has forgotten it."""
        done = self.head.exec(["scontrol", "--oneliner", "show", "job", str(number)])
        words = (word.partition("=") for word in done.stdout.split())
        return {key: value for key, equals, value in words if equals}

    def jobs(self, *states: str) -> list[int]:
        """Numbers of the jobs that are not over, or are in one of these states."""
        chosen = [f"--states={','.join(states)}"] if states else []
        return [int(line) for line in self.run("squeue", "-h", "-o", "%A", *chosen).split()]

    def cancel(self, number: int) -> None:
        """Ends a job."""
        self.run("scancel", str(number))

    def requeue(self, number: int, *, at_once: bool = True) -> None:
        """Has a job begin again; Slurm would let it wait for some time first."""
        self.run("scontrol", "requeue", str(number))
        if at_once:
            self.start_now(number)

    def start_now(self, number: int) -> None:
        """Ends the wait of a job that was requeued."""
        # Not within the second of its end: slurmd takes it for the one that it was told to kill.
        pending = self.wait(
            lambda: self.job(number).get("JobState") in ("PENDING", "RUNNING"), f"{number} waits"
        )
        if pending and self.job(number)["JobState"] == "PENDING":
            self.run("scontrol", "update", f"jobid={number}", "StartTime=now+2")

    def limit(self, number: int, minutes: int) -> None:
        """Gives a job another time limit."""
        self.run("scontrol", "update", f"jobid={number}", f"TimeLimit={minutes}")

    # Nodes

    def states(self) -> dict[str, str]:
        """The state of each node, in Slurm's word; `*` behind it says that it does not answer."""
        words = self.run("sinfo", "-h", "-N", "-p", PARTITION, "-o", "%N %T").split()
        return dict(zip(words[::2], words[1::2], strict=True))

    def drain(self, host: Host, reason: str = "maintenance") -> None:
        """Lets no new job onto a node."""
        self.run("scontrol", "update", f"nodename={host.name}", "state=drain", f"reason={reason}")

    def undrain(self, host: Host) -> None:
        """The opposite."""
        self.run("scontrol", "update", f"nodename={host.name}", "state=resume")

    def kill_node(self, host: Host) -> None:
        """A power cut. Slurm finds out after `SlurmdTimeout`."""
        host.power_cut()

    def revive(self, host: Host) -> None:
        """Starts a node again after that, on the disk it had, and slurmd on it."""
        host.start()
        self.start_slurmd(host)

    def restart_controller(self) -> None:
        """slurmctld ends and comes again; returns when it answers."""
        self.stop_controller()
        self.start_controller()
        self.wait_controller()

    def wait_controller(self) -> None:
        """Returns when slurmctld answers."""
        self.wait(lambda: "is UP" in self.run("scontrol", "ping"), "slurmctld answers")

    def wait_idle(self) -> None:
        """Returns when every node is there for a job."""
        self.wait(lambda: set(self.states().values()) == {"idle"}, "all nodes are idle", timeout=90)

    # Between tests

    def reset(self) -> None:
        """No jobs, every node there, no file of a user anywhere. Numbers of jobs go on."""
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
        # What lies on another file system is not the host's own, such as the interpreter, or what all hosts share.
        words = ["-xdev", "-depth", "-mindepth", "1", "!", "-path", "*/.ssh*", "-delete"]
        for host in (self.head, *self.nodes):
            host.exec(["find", *places, *words])
        for entry in self.shared.iterdir():
            shutil.rmtree(entry) if entry.is_dir() and not entry.is_symlink() else entry.unlink()
        (self.shared / "home").mkdir()
