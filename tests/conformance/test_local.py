"""The local provider, held to the contract."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from flowlite.api.adapters import adapter
from flowlite.node.system import processes
from flowlite.provider import Instance, LaunchIntent, Provider
from flowlite.supervise.record import process_identity
from flowlite.testing.conformance import ProviderSuite, ProviderUnderTest
from tests.helpers import describe, kill_processes_of_home, processes_of

PLACES = 3
pytestmark = pytest.mark.both


class Local(ProviderUnderTest):
    """Nodes are directories with processes, on this machine."""

    name = "local"
    interfaces = ("file",)

    def __init__(self, home: Path) -> None:
        self._home = home
        (home / "config.toml").write_text(f"local_tasks = {PLACES}\n")

    def make(self) -> Provider:
        return adapter("local")

    def kill(self, instance: Instance) -> None:
        """Ends the node's agents with all below them; the reaper of its workers, not below, ends with its agent."""
        home = self._home / "tasks" / instance.task_id / "nodes" / instance.id
        for note in home.glob("a*/agent.pid"):
            pid = int(json.loads(note.read_bytes())["pid"])
            for each in (pid, *processes.descendants([pid])):
                processes.send(each, signal.SIGKILL)

    def left(self, task_id: str) -> list[str]:
        """Processes, and directories of nodes."""
        running = describe(processes_of(task_id))
        directories = self._home / "tasks" / task_id / "nodes"
        return running + [f"directory {path}" for path in directories.glob("*")]

    @contextmanager
    def scarcity(self) -> Iterator[None]:
        """Other tasks have all places of the machine."""
        others = [f"tother0000{number}" for number in range(PLACES)]
        provider = self.make()
        held = []
        for task in others:
            # Of a task without supervisor and processes, the place would be taken back.
            note = self._home / "tasks" / task / "supervisor.json"
            note.parent.mkdir(parents=True, exist_ok=True)
            note.write_text(json.dumps(process_identity.of_process(os.getpid()).to_json()))
            plan = provider.plan(self.config(num_instances=1))
            held += provider.launch(LaunchIntent(f"{task}-launch-1", task, 1, plan.to_json()))
        try:
            yield
        finally:
            provider.terminate(held)


@pytest.mark.slow
@pytest.mark.timeout(180)
class TestLocal(ProviderSuite):
    @pytest.fixture
    def subject(self, home: Path) -> Iterator[ProviderUnderTest]:
        yield Local(home)
        kill_processes_of_home(home)
