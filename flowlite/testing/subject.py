"""What an adapter's author implements for the suite: make the provider, kill its machines, find what is left."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from typing import Any, TypeVar

import pytest

from flowlite.connect.base import Connection
from flowlite.errors import NodeUnreachable, ProviderError
from flowlite.provider import Instance, LaunchIntent, LaunchPending, Provider, VolumeInfo
from flowlite.spec import TaskConfig
from flowlite.testing.polling import pause_after

Value = TypeVar("Value")

# Runs in another process, which has the adapter's class, its settings and the intent, and nothing else.
_LAUNCH = """
import importlib, json, sys
from pathlib import Path
from flowlite.provider import LaunchIntent
from flowlite.settings.provider_settings import ProviderSettings
adapter = getattr(importlib.import_module(sys.argv[1]), sys.argv[2])
told = json.load(sys.stdin)
made = adapter(Path(told["home"]), ProviderSettings.from_json(told["settings"]))
made.launch(LaunchIntent.from_json(told["intent"]))
"""


class ProviderUnderTest(ABC):
    """A provider as the suite handles it. Each test gets a fresh one, with a FLOW_HOME of its own.

    Attributes:
        name: The provider's name in the registry.
        nodes: The largest number of nodes that a test may have at a time; at least 2.
        spare: Whether the provider has one more node to replace one that died.
        together: Whether the nodes of a launch can only end together, as those of a Slurm job.
        interfaces: The kinds of volumes that the provider has: "file", "block", or both; empty for none.
        patience: The timeout in seconds for each operation, such as a launch or the detection of a dead node.
    """

    name: str
    nodes: int = 2
    spare: bool = True
    together: bool = False
    interfaces: tuple[str, ...] = ()
    patience: float = 60.0

    @abstractmethod
    def make(self) -> Provider:
        """Returns a new object of the adapter, with no state beyond what is on disk or known to the provider."""

    @abstractmethod
    def kill(self, instance: Instance) -> None:
        """Kills a machine and all its processes at once, without a shutdown.

        For providers whose nodes are not machines of their own: kills all processes of the node.
        """

    def left(self, task_id: str) -> list[str]:
        """Describes what is left of a task: processes, machines, disks.

        Implementations must not ask the adapter. Nodes that were killed may be left out.
        """
        return []

    def scarcity(self) -> AbstractContextManager[None]:
        """A context in which `nodes` nodes cannot be launched, but fewer can, if the provider allows that."""
        pytest.skip(f"nobody has said how to make nodes of {self.name!r} scarce (`scarcity`)")

    def options(self) -> dict[str, Any]:
        """Options that every task needs on this provider, such as a region."""
        return {}

    def config(self, **options: Any) -> TaskConfig:
        """The config of a task with `nodes` nodes, unless `options` says otherwise."""
        given = {"command": ["true"], "num_instances": self.nodes, **self.options(), **options}
        return TaskConfig(provider=self.name, **given)

    def start_launch(self, intent: LaunchIntent) -> subprocess.Popen[bytes]:
        """Launches in another process, which the test can kill during the launch."""
        here = self.make()
        adapter = type(here)
        told = {
            "home": str(here.home),
            "settings": here.settings.to_json(),
            "intent": intent.to_json(),
        }
        process = subprocess.Popen(
            [sys.executable, "-c", _LAUNCH, adapter.__module__, adapter.__qualname__],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        assert process.stdin is not None
        process.stdin.write(json.dumps(told).encode())
        process.stdin.close()
        return process

    # Used by the tests

    def launch(self, intent: LaunchIntent) -> list[Instance]:
        """Launches as the supervisor does: asks the provider again while machines boot.

        Raises:
            CapacityUnavailable: There is no room. Nothing was launched.
            ProviderError: The provider refused the launch.
        """
        provider = self.make()

        def launched() -> list[Instance] | None:
            try:
                return provider.launch(intent)
            except LaunchPending:
                return None

        return self.eventually(launched, "the machines have booted", every=0.1)

    def listed(self, task_id: str) -> list[Instance]:
        """The instances of a task that have not ended, as a new process sees them."""
        found = self.make().list_instances(task_id)
        return sorted((i for i in found if i.state != "ended"), key=lambda each: each.id)

    def reach(self, instance: Instance) -> Connection:
        """Connects to a node, waiting for it if it is still starting."""

        def connect() -> Connection | None:
            try:
                connection = self.make().connect(instance)
                connection.run(["true"])
            except NodeUnreachable:
                return None
            return connection

        return self.eventually(connect, f"{instance.id} can be reached")

    def end(self, instances: Sequence[Instance]) -> None:
        """Terminates instances as the supervisor does: repeatedly, until the provider lists none of them."""
        names = {instance.id for instance in instances}
        tasks = {instance.task_id for instance in instances}
        provider = self.make()

        def ended() -> bool:
            try:
                provider.terminate(instances)
            except ProviderError:
                return False
            return not names & {i.id for task in tasks for i in self.listed(task)}

        self.eventually(ended, "all instances have ended", every=0.2)

    def create_volume(self, name: str, size_gb: float | None, interface: str) -> VolumeInfo:
        """Creates a volume, asking again while it is not known whether it was made."""

        def created() -> VolumeInfo | None:
            with suppress(LaunchPending):
                return self.make().create_volume(name, size_gb, interface)
            return None

        return self.eventually(created, f"the volume {name} is there", every=0.2)

    def nothing_is_left(self, task_id: str) -> None:
        """Waits until nothing of a task is listed or left. A listing may show for some seconds what has ended."""
        self.eventually(
            lambda: not self.listed(task_id) and not self.left(task_id),
            f"nothing of {task_id} is left",
            every=0.2,
        )

    def eventually(
        self, probe: Callable[[], Value | None], what: str, every: float = 0.02
    ) -> Value:
        """Polls until `probe` returns a true value. Raises AssertionError after `patience` seconds."""
        began = time.monotonic()
        deadline = began + self.patience
        while not (value := probe()):
            ended = time.monotonic()
            assert ended < deadline, f"not within {self.patience:g} s: {what}"
            time.sleep(pause_after(ended - began, every))
            began = time.monotonic()
        return value
