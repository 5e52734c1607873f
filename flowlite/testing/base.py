"""The fixtures that all groups of tests share."""

from __future__ import annotations

import functools
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from flowlite.bundle.agent_zip import build_agent_zip
from flowlite.errors import FlowError
from flowlite.provider import Instance, LaunchIntent
from flowlite.supervise.process.launch import new_task_id
from flowlite.testing.subject import ProviderUnderTest


@functools.cache
def home_with_agent() -> tempfile.TemporaryDirectory[str]:
    """A directory with the agent's zip. Cached, since building the zip takes a second."""
    made = tempfile.TemporaryDirectory(prefix="flow-agent-")
    build_agent_zip(Path(made.name))
    return made


class Suite:
    """The base of all groups: tests of one provider."""

    @pytest.fixture
    def home(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
        """A FLOW_HOME for one test. `FLOW_` variables of the environment are unset, and no project is sent to nodes."""
        for name in [name for name in os.environ if name.startswith("FLOW_")]:
            monkeypatch.delenv(name)
        # The project of these tasks would be the checkout that the tests are run in, which none of them reads.
        monkeypatch.setenv("FLOW_SYNC", "false")
        made = Path(tempfile.mkdtemp(prefix="flow-"))
        shutil.copytree(home_with_agent().name, made, dirs_exist_ok=True)
        monkeypatch.setenv("FLOW_HOME", str(made))
        yield made
        shutil.rmtree(made, ignore_errors=True)

    @pytest.fixture
    def subject(self, home: Path) -> ProviderUnderTest:
        """The provider under test. A derived class overrides this fixture."""
        raise NotImplementedError("override the fixture `subject` to give a ProviderUnderTest")

    @pytest.fixture
    def intend(
        self, subject: ProviderUnderTest, home: Path
    ) -> Iterator[Callable[..., LaunchIntent]]:
        """Makes intents like the supervisor's: `intend(count=2)`. Their instances are ended after the test."""
        made: list[LaunchIntent] = []

        def intend(
            count: int | None = None, *, task_id: str | None = None, **options: object
        ) -> LaunchIntent:
            plan = subject.make().plan(subject.config(**options))
            task = task_id or new_task_id()
            number = 1 + sum(intent.task_id == task for intent in made)
            intent = LaunchIntent(
                token=f"{task}-launch-{number}",
                task_id=task,
                count=plan.num_instances if count is None else count,
                plan=plan.to_json(),
                preload={"agent": str(build_agent_zip(home).path)},
            )
            made.append(intent)
            return intent

        yield intend
        for task in {intent.task_id for intent in made}:
            with suppress(FlowError):
                subject.make().terminate(subject.make().list_instances(task))

    @pytest.fixture
    def nodes(
        self, subject: ProviderUnderTest, intend: Callable[..., LaunchIntent]
    ) -> list[Instance]:
        """The largest number of nodes that a test may have."""
        return subject.launch(intend())
