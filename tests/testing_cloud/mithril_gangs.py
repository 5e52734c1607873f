"""Gangs of two machines at the fake Mithril."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from flowlite.api.client import Flow
from flowlite.api.task import Task
from flowlite.errors import FlowError
from flowlite.spec import TaskConfig
from flowlite.testing.cloud import CloudInABox

Submit = Callable[..., Task[Any]]
PATIENCE = 120.0


@pytest.fixture
def submit(box: CloudInABox, flow_home: Path) -> Iterator[Submit]:
    """Submits a shell script, for two nodes by default; whatever still runs after the test is cancelled."""
    (flow_home / "config.toml").write_text('[mithril]\nlease = "10m"\n')
    made: list[Task[Any]] = []

    def submit(script: str, **options: Any) -> Task[Any]:
        given = {"num_instances": 2, **options}
        config = TaskConfig(provider="mithril", command=["sh", "-c", script], **given)
        made.append(Flow(provider="mithril", notify=lambda _: None).submit(config))
        return made[-1]

    yield submit
    for task in made:
        with suppress(FlowError):
            if not task.done:
                task.cancel()
                task.wait(PATIENCE)
