"""Where the files of one task lie on this machine, under `FLOW_HOME/tasks/ID`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flowlite.settings.private_files import make_durable
from flowlite.settings.private_files import write_private as write_private


@dataclass(frozen=True, slots=True)
class TaskPaths:
    """The files of one task. Directories are 0700, secrets 0600."""

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
        """The task's configuration, for people; the store has it too."""
        return self.directory / "config.json"

    @property
    def plan(self) -> Path:
        """The plan, for people; the store has it too."""
        return self.directory / "plan.json"

    @property
    def call_text(self) -> Path:
        """The call as one would write it, for people."""
        return self.directory / "call.txt"

    @property
    def secret(self) -> Path:
        """The gang's shared secret, 64 hex digits."""
        return self.directory / "secret"

    @property
    def notify(self) -> Path:
        """Where notifications of the task go, a JSON object: targets, which have keys in them, and a directory."""
        return self.directory / "notify.json"

    @property
    def secrets(self) -> Path:
        """Secret variables of the workers, a JSON object."""
        return self.directory / "secrets.json"

    @property
    def storage(self) -> Path:
        """What opens the buckets of the task on its nodes, a JSON object: endpoints and credentials."""
        return self.directory / "storage.json"

    @property
    def packages(self) -> Path:
        """Where packages come from, for nodes that install some: variables for uv, a JSON object."""
        return self.directory / "packages.json"

    @property
    def outputs(self) -> Path:
        """Where its outputs are put on this machine, and later what came: {"to", "files", "bytes", ...}."""
        return self.directory / "outputs.json"

    def certificate(self, attempt: int) -> Path:
        """What the leader of an attempt shows, where its rendezvous is encrypted."""
        return self.directory / f"rendezvous-a{attempt}.crt"

    def certificate_key(self, attempt: int) -> Path:
        """Its key, until the leader has it."""
        return self.directory / f"rendezvous-a{attempt}.key"

    @property
    def supervisor_log(self) -> Path:
        """What the supervisor said."""
        return self.directory / "supervisor.log"

    @property
    def supervisor(self) -> Path:
        """Who was started last as supervisor: {"pid", "start"}."""
        return self.directory / "supervisor.json"

    @property
    def logs(self) -> Path:
        """Directory of the workers' output."""
        return self.directory / "logs"

    @property
    def results(self) -> Path:
        """Directory of the workers' results."""
        return self.directory / "results"

    def stream(self, attempt: int, node: int, rank: int, stream: str) -> Path:
        """The raw bytes of one stream ("out" or "err") of one rank."""
        return self.logs / f"a{attempt}.n{node}.r{rank}.{stream}"

    def result(self, attempt: int, rank: int) -> Path:
        """The result file of one rank."""
        return self.results / f"a{attempt}.r{rank}.result"

    def ended(self, attempt: int) -> Path:
        """How an attempt ended, for a supervisor that takes over while what it left is being collected."""
        return self.directory / f"ended-a{attempt}.json"

    def agent_log(self, attempt: int, node: int) -> Path:
        """What the agent of one node said; kept only where an attempt ended badly."""
        return self.logs / f"a{attempt}.n{node}.agent.log"

    def make_output_durable(self, attempt: int) -> None:
        """Returns when all that the ranks of an attempt wrote, as far as it is here, would outlive a crash.

        Called before a node is given back, or told to forget what it holds. Raises OSError.
        """
        for directory in (self.logs, self.results):
            make_durable(directory, f"a{attempt}.")

    def make(self) -> None:
        """Makes the directories, 0700 each."""
        for directory in (
            self.directory.parent,
            self.directory,
            self.bundle,
            self.logs,
            self.results,
        ):
            directory.mkdir(mode=0o700, exist_ok=True)


def local_call(call: dict[str, Any]) -> list[tuple[Path, str, str]]:
    """Files of a call that every node needs: (path here, name on the node, sha256)."""
    if call.get("kind") != "function":
        return []
    files = [(Path(call["bundle"]), "call.bin", str(call["sha256"]))]
    for source in call.get("source", ()):
        files.append((Path(source["zip"]), f"source-{source['sha256']}.zip", str(source["sha256"])))
    return files
