"""EC2 in the box, held to the contract: machines that boot, cost and end like those of AWS."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from flowlite.api.adapters import adapter
from flowlite.provider import Instance, Provider
from flowlite.testing.cloud import CloudInABox
from flowlite.testing.conformance import ProviderSuite, ProviderUnderTest
from tests.helpers import kill_processes_of_home

ZONES = [f"us-east-1{letter}" for letter in "abcdef"]
TYPE = "c7i.large"


class Aws(ProviderUnderTest):
    """Two nodes of the box, with some to spare; the client is on the laptop."""

    name = "aws"
    interfaces = ("file",)
    patience = 180.0

    def __init__(self, box: CloudInABox, home: Path) -> None:
        self._box = box
        # A machine without an agent ends itself; not while a test looks at it.
        (home / "config.toml").write_text('[aws]\nlease = "10m"\n')

    def make(self) -> Provider:
        return adapter("aws")

    def kill(self, instance: Instance) -> None:
        self._box.aws.die(instance.id)

    def left(self, task_id: str) -> list[str]:
        """Machines and whatever else of the task the cloud has, by its own account."""
        machines = [
            f"{each['id']} is {each['state']}"
            for each in self._box.aws.instances()
            if each["tags"].get("flowlite:task") == task_id and each["state"] != "terminated"
        ]
        others = self._box.aws.leftovers()
        return machines + [f"{kind}: {names}" for kind, names in others.items() if names]

    @contextmanager
    def scarcity(self) -> Iterator[None]:
        """One instance can be had in each zone, and not two."""
        for zone in ZONES:
            self._box.aws.capacity(TYPE, zone, 1)
        try:
            yield
        finally:
            for zone in ZONES:
                self._box.aws.capacity(TYPE, zone, None)


@pytest.mark.slow
@pytest.mark.timeout(400)
class TestAws(ProviderSuite):
    @pytest.fixture
    def subject(self, home: Path, box: CloudInABox) -> Iterator[ProviderUnderTest]:
        yield Aws(box, home)
        kill_processes_of_home(home)
