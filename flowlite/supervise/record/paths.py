"""Paths of one task's files on this machine, below `FLOW_HOME/tasks/ID`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from flowlite.node.quick_dataclass import dataclass
from flowlite.output.log_files import Stream
from flowlite.settings.private_files import make_durable


@dataclass(frozen=True, slots=True)
class TaskPaths:
    """The files of one task. Directories have mode 0700, secrets 0600."""

    home: Path
    task_id: str

    @property
    def directory(self) -> Path:
        """`tasks/ID`."""
        return self.home / "tasks" / self.task_id

    @property
    def bundle(self) -> Path:
        """Directory of the call and its sources."""
        return self.directory / "bundle"

    @property
    def config(self) -> Path:
        """The task's configuration, for people. The store has it too. It is there once the task is in the store."""
        return self.directory / "config.json"

    @property
    def plan(self) -> Path:
        """The plan, for people. The store has it too."""
        return self.directory / "plan.json"

    @property
    def call_text(self) -> Path:
        """The call as a user would write it, for people."""
        return self.directory / "call.txt"

    @property
    def secret(self) -> Path:
        """The gang's shared secret, 64 hex digits."""
        return self.directory / "secret"

    @property
    def notify(self) -> Path:
        """Targets of the task's notifications, which contain keys, and the directory of commands. A JSON object."""
        return self.directory / "notify.json"

    @property
    def secrets(self) -> Path:
        """Secret variables of the workers. A JSON object."""
        return self.directory / "secrets.json"

    @property
    def storage(self) -> Path:
        """Endpoints and credentials for the task's buckets on its nodes. A JSON object."""
        return self.directory / "storage.json"

    @property
    def packages(self) -> Path:
        """Package indexes for nodes that install packages, as variables for uv. A JSON object."""
        return self.directory / "packages.json"

    @property
    def outputs(self) -> Path:
        """Where the outputs are put on this machine and, later, what was fetched: {"to", "files", "bytes", ...}."""
        return self.directory / "outputs.json"

    def certificate(self, attempt: int) -> Path:
        """The certificate of the leader of an attempt, if its rendezvous is encrypted."""
        return self.directory / f"rendezvous-a{attempt}.crt"

    def certificate_key(self, attempt: int) -> Path:
        """The key of that certificate, until the leader has it."""
        return self.directory / f"rendezvous-a{attempt}.key"

    @property
    def trace(self) -> Path:
        """What the processes of the task did and when, in Chrome's trace format, if FLOW_TRACE was set."""
        return self.directory / "trace.json"

    @property
    def supervisor_log(self) -> Path:
        """The supervisor's log."""
        return self.directory / "supervisor.log"

    @property
    def supervisor(self) -> Path:
        """The process last started as supervisor: {"pid", "start"}."""
        return self.directory / "supervisor.json"

    @property
    def cancel(self) -> Path:
        """An empty file: the task was cancelled while the store could not be written."""
        return self.directory / "cancel"

    @property
    def asleep(self) -> Path:
        """The FIFO that a supervisor reads from while it is asleep (`queue/asleep.py`)."""
        return self.directory / "asleep"

    @property
    def logs(self) -> Path:
        """Directory of the workers' output."""
        return self.directory / "logs"

    @property
    def results(self) -> Path:
        """Directory of the workers' results."""
        return self.directory / "results"

    def stream(self, attempt: int, node: int, rank: int, stream: str) -> Path:
        """The raw bytes of one stream of one rank."""
        return self.logs / Stream(attempt, node, rank, stream).file

    def result(self, attempt: int, rank: int) -> Path:
        """The result file of one rank."""
        return self.results / f"a{attempt}.r{rank}.result"

    def ended(self, attempt: int) -> Path:
        """How an attempt ended, for a supervisor that takes over while its files are still being collected."""
        return self.directory / f"ended-a{attempt}.json"

    def agent_log(self, attempt: int, node: int) -> Path:
        """The log of one node's agent. Fetched only if the attempt did not end well."""
        return self.logs / f"a{attempt}.n{node}.agent.log"

    def make_output_durable(self, attempt: int) -> None:
        """Syncs the output of an attempt that was fetched to disk.

        Called before a node is given back, or told to delete its files. Raises OSError.
        """
        make_durable((self.logs, self.results), f"a{attempt}.")

    def make(self) -> None:
        """Creates the directories, with mode 0700."""
        for directory in (
            self.directory.parent,
            self.directory,
            self.bundle,
            self.logs,
            self.results,
        ):
            directory.mkdir(mode=0o700, exist_ok=True)


def local_call(call: dict[str, Any]) -> list[tuple[Path, str, str]]:
    """Returns the files of a call that every node needs: (path here, name on the node, sha256)."""
    if call.get("kind") != "function":
        return []
    files = [(Path(call["bundle"]), "call.bin", str(call["sha256"]))]
    for source in call.get("source", ()):
        files.append((Path(source["zip"]), f"source-{source['sha256']}.zip", str(source["sha256"])))
    return files
