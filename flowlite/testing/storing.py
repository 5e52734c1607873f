"""Volumes: found by name, shared by the nodes of a task, and kept after its end."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest

from flowlite.api.task import Task
from flowlite.errors import ConfigError, FlowError, NotFound, ProviderError
from flowlite.provider import VolumeInfo
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
            subject.create_volume(made[-1], None, interface)
            return made[-1]

        yield create
        for name in made:
            with suppress(FlowError):
                subject.make().delete_volume(name)

    def test_a_volume_is_made_once(self, subject: ProviderUnderTest, create: Create) -> None:
        interface = _some_kind(subject)
        name = create(interface)

        def create_again() -> VolumeInfo | None:
            # A new volume may be listed late, and a provider may then ask for its size.
            with suppress(ConfigError):
                return subject.make().create_volume(name, None, interface)
            return None

        again = subject.eventually(create_again, "the volume is known", every=0.2)
        found = subject.eventually(lambda: _named(subject, name), "it is listed", every=0.2)
        assert len(found) == 1
        assert (again.name, again.provider) == (name, subject.name)
        assert (found[0].interface, found[0].location) == (again.interface, again.location)

    def test_a_volume_that_was_deleted_is_gone(
        self, subject: ProviderUnderTest, create: Create
    ) -> None:
        name = create(_some_kind(subject))

        def delete() -> bool:
            # A new volume may be listed late.
            with suppress(NotFound):
                subject.make().delete_volume(name)
                return True
            return False

        subject.eventually(delete, "it is deleted", every=0.2)
        subject.eventually(lambda: not _named(subject, name), "it is not listed", every=0.2)

        subject.eventually(lambda: not delete(), "it is known to be gone", every=0.2)

    def test_all_nodes_see_one_volume_and_the_next_task_too(
        self, subject: ProviderUnderTest, create: Create, submit: Submit
    ) -> None:
        name, path = create("file"), f"/tmp/conformance-{secrets.token_hex(4)}"
        both = " && ".join(f"[ -e {path}/r{rank} ]" for rank in range(subject.nodes))
        write = f"echo from $RANK > {path}/r$RANK; until {both}; do sleep 0.05; done"

        def submitted(script: str, **options: Any) -> Task[Any] | None:
            # A new volume may be listed late.
            with suppress(ConfigError):
                return submit(script, volumes={path: name}, **options)
            return None

        writing = subject.eventually(lambda: submitted(write), "the volume is known")
        assert writing.wait(subject.patience).status == "completed"
        read = f"cat {path}/r*"
        reading = subject.eventually(lambda: submitted(read, num_instances=1), "it is known still")
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


def _named(subject: ProviderUnderTest, name: str) -> list[VolumeInfo]:
    return [volume for volume in subject.make().list_volumes() if volume.name == name]


def _some_kind(subject: ProviderUnderTest) -> str:
    return "file" if "file" in subject.interfaces or not subject.interfaces else "block"
