"""Volumes: found by name, shared by the nodes of a task, and kept after its end."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest

from flowlite.errors import FlowError, NotFound, ProviderError
from flowlite.testing.running import Submit, TaskSuite
from flowlite.testing.subject import ProviderUnderTest

Create = Callable[[str], str]


class VolumeTests(TaskSuite):
    """Tests of `create_volume`, `list_volumes`, `delete_volume`, and of tasks that use volumes."""

    @pytest.fixture
    def create(self, subject: ProviderUnderTest) -> Iterator[Create]:
        """Creates a volume of one kind and returns its name. The volume is deleted after the test."""
        made: list[str] = []

        def create(interface: str) -> str:
            if interface not in subject.interfaces:
                pytest.skip(f"{subject.name!r} has no volumes of the kind {interface!r}")
            made.append(f"conformance-{secrets.token_hex(3)}")
            subject.make().create_volume(made[-1], None, interface)
            return made[-1]

        yield create
        for name in made:
            with suppress(FlowError):
                subject.make().delete_volume(name)

    def test_a_volume_is_made_once(self, subject: ProviderUnderTest, create: Create) -> None:
        interface = _some_kind(subject)
        name = create(interface)
        again = subject.make().create_volume(name, None, interface)
        found = [volume for volume in subject.make().list_volumes() if volume.name == name]
        assert len(found) == 1
        assert (again.name, again.provider) == (name, subject.name)
        assert (found[0].interface, found[0].location) == (again.interface, again.location)

    def test_a_volume_that_was_deleted_is_gone(
        self, subject: ProviderUnderTest, create: Create
    ) -> None:
        name = create(_some_kind(subject))
        subject.make().delete_volume(name)
        assert name not in [volume.name for volume in subject.make().list_volumes()]
        with pytest.raises(NotFound):
            subject.make().delete_volume(name)

    def test_all_nodes_see_one_volume_and_the_next_task_too(
        self, subject: ProviderUnderTest, create: Create, submit: Submit
    ) -> None:
        name, path = create("file"), f"/tmp/conformance-{secrets.token_hex(4)}"
        both = " && ".join(f"[ -e {path}/r{rank} ]" for rank in range(subject.nodes))
        write = f"echo from $RANK > {path}/r$RANK; until {both}; do sleep 0.05; done"
        volumes = {path: name}
        assert submit(write, volumes=volumes).wait(subject.patience).status == "completed"
        reading = submit(f"cat {path}/r*", volumes=volumes, num_instances=1)
        assert reading.wait(subject.patience).status == "completed"
        said = [line.text for line in reading.logs()]
        assert said == [f"from {rank}" for rank in range(subject.nodes)]

    def test_without_volumes_a_task_with_one_is_refused(self, subject: ProviderUnderTest) -> None:
        if subject.interfaces:
            return
        with pytest.raises((FlowError, ValueError), match="olume"):
            subject.make().plan(subject.config(volumes={"/data": "conformance"}))
        with pytest.raises((NotFound, ProviderError, FlowError)):
            subject.make().create_volume("conformance", None, "file")


def _some_kind(subject: ProviderUnderTest) -> str:
    return "file" if "file" in subject.interfaces or not subject.interfaces else "block"
