"""Mithril in the box, held to the contract: spot bids whose machines boot, cost and end like real ones."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from flowlite.api.adapters import adapter
from flowlite.errors import FlowError
from flowlite.provider import Instance, LaunchIntent, LaunchPending, Provider
from flowlite.testing.cloud import CloudInABox
from flowlite.testing.conformance import ProviderSuite, ProviderUnderTest
from flowlite.testing.launching import Intend
from tests.helpers import kill_processes_of_home


class Mithril(ProviderUnderTest):
    """Two nodes of the box, with some to spare; the client is on the laptop."""

    name = "mithril"
    together = True
    interfaces = ("file",)
    patience = 180.0

    def __init__(self, box: CloudInABox, home: Path) -> None:
        self.box = box
        box.mithril.rules(auction_seconds=0.1, stop_seconds=0.02)
        # A machine without an agent ends itself; not while a test looks at it.
        (home / "config.toml").write_text('[mithril]\nlease = "10m"\nregion = "us-central1-a"\n')

    def make(self) -> Provider:
        return adapter("mithril")

    def kill(self, instance: Instance) -> None:
        # A bid that has no machine yet is listed, too.
        if instance.id.startswith("inst_"):
            self.box.mithril.die(instance.id)

    def end(self, instances: Sequence[Instance]) -> None:
        """Waits for the bids, too: a machine that died is gone before those that end with it."""
        super().end(instances)
        bids = {instance.data["bid"] for instance in instances}
        tasks = {instance.task_id for instance in instances}
        self.eventually(
            lambda: not bids & {i.data["bid"] for task in tasks for i in self.listed(task)},
            "all bids have ended",
            every=0.2,
        )

    def left(self, task_id: str) -> list[str]:
        """Bids, machines and the nodes' keys, by the cloud's own account."""
        bids = {b["id"]: b["name"] for b in self.box.mithril.live_bids() if task_id in b["name"]}
        machines = [
            f"{each['id']} is {each['state']}"
            for each in self.box.mithril.instances()
            if task_id in each["name"] and each["there"]
        ]
        keys = [
            each["name"]
            for each in self.box.mithril.api_keys()
            if each["good"] and task_id in each["name"]
        ]
        return [*bids.values(), *machines, *keys]

    @contextmanager
    def scarcity(self) -> Iterator[None]:
        """One machine of each type is there, and not two."""
        self.box.mithril.capacity("*", 1)
        try:
            yield
        finally:
            self.box.mithril.capacity("*", None)


@pytest.mark.slow
@pytest.mark.timeout(400)
class TestMithril(ProviderSuite):
    @pytest.fixture
    def subject(self, home: Path, box: CloudInABox) -> Iterator[ProviderUnderTest]:
        yield Mithril(box, home)
        kill_processes_of_home(home)

    @pytest.fixture
    def create(self, subject: ProviderUnderTest) -> Iterator[Callable[[str], str]]:
        """Makes volumes that say how large they are to be: here that has a price."""
        made: list[str] = []

        def create(interface: str) -> str:
            made.append(f"conformance-{secrets.token_hex(3)}")
            subject.create_volume(made[-1], 10, interface)
            return made[-1]

        yield create
        for name in made:
            with suppress(FlowError):
                subject.make().delete_volume(name)

    # A bid is one thing. It waits for its machines instead of being refused, and its machines end together.

    def test_it_is_all_or_none(self, subject: ProviderUnderTest, intend: Intend) -> None:
        intent = intend()
        with subject.scarcity():
            self._no_machine(subject, intent)
            assert [(i.id[:4], i.state) for i in subject.listed(intent.task_id)] == [
                ("bid_", "starting")
            ]
        subject.end(subject.listed(intent.task_id))
        # An auction may have given it machines after the scarcity, which take a moment to stop.
        subject.nothing_is_left(intent.task_id)

    def test_what_was_refused_for_lack_of_nodes_can_be_had_later(
        self, subject: ProviderUnderTest, intend: Intend
    ) -> None:
        intent = intend()
        with subject.scarcity():
            self._no_machine(subject, intent)
        assert len(subject.launch(intent)) == subject.nodes

    def _no_machine(self, subject: ProviderUnderTest, intent: LaunchIntent) -> None:
        assert isinstance(subject, Mithril)
        for _ in range(3):
            with pytest.raises(LaunchPending) as waiting:
                subject.make().launch(intent)
            assert waiting.value.retry_after > 0
            subject.box.mithril.auction()
        assert waiting.value.queued
        assert subject.box.mithril.instances() == []
