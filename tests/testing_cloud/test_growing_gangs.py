"""Gangs on rented machines that grow while they run, at EC2 and at Mithril in the box."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from flowlite.api.adapters import adapter
from flowlite.api.candidates.capped_plan import capped_plan
from flowlite.api.client import Flow
from flowlite.api.task import Task
from flowlite.errors import FlowError
from flowlite.spec import TaskConfig
from flowlite.testing.cloud import CloudInABox
from tests.helpers import eventually

# It asks for machines half a minute after its start, and once more within the next minute.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
PATIENCE = 300.0
# Ends with the second attempt, and in the first one when it is asked to.
SCRIPT = (
    "trap 'echo told; exit 0' USR2; echo attempt $FLOW_ATTEMPT rank $RANK of $WORLD_SIZE; "
    "[ $FLOW_ATTEMPT = 1 ] || exit 0; while :; do sleep 0.1; done"
)
Limit = Callable[[str, int | None], None]


@pytest.fixture(params=["aws", "mithril"])
def cloud(request: pytest.FixtureRequest, box: CloudInABox, flow_home: Path) -> str:
    (flow_home / "config.toml").write_text(f'[{request.param}]\nlease = "10m"\n')
    return str(request.param)


def limit(box: CloudInABox, cloud: str, kind: str, more: int, there: int) -> None:
    """There is room for so many machines beside those that are there, at EC2 in one zone."""
    if cloud == "mithril":
        box.mithril.capacity(kind, there + more)
        return
    for zone in "abcdef":
        box.aws.capacity(kind, f"us-east-1{zone}", more if zone == "b" else 0)


@pytest.fixture
def gang(box: CloudInABox, cloud: str) -> Iterator[Task[Any]]:
    """A gang of 2 to 3 machines, for which there is room for 2."""
    config = TaskConfig(
        provider=cloud,
        command=["sh", "-c", SCRIPT],
        num_instances=(2, 3),
        settle_seconds=1.0,
        heal_seconds=1.0,
        grow="checkpoint",
        grace_seconds=1.0,
        max_run_time_hours=1,
    )
    limit(box, cloud, capped_plan(config, adapter(cloud)).instance_type, 2, 0)
    task = Flow(provider=cloud, notify=lambda _: None).submit(config)
    yield task
    with suppress(FlowError):
        if not task.done:
            task.cancel()
            task.wait(PATIENCE)


def left(box: CloudInABox, cloud: str) -> list[Any]:
    if cloud == "aws":
        return [each for each in box.aws.instances() if each["state"] != "terminated"]
    return [*box.mithril.live_bids(), *(i for i in box.mithril.instances() if i["there"])]


def said(gang: Task[Any]) -> list[str]:
    return [line.text for line in gang.logs()]


def begun(attempt: int, ranks: int) -> set[str]:
    return {f"attempt {attempt} rank {rank} of {ranks}" for rank in range(ranks)}


# A launch that is made again may come later than another one.
@pytest.mark.no_random_faults
def test_it_grows_when_there_is_room(box: CloudInABox, cloud: str, gang: Task[Any]) -> None:
    eventually(lambda: set(said(gang)) == begun(1, 2), timeout=PATIENCE)
    limit(box, cloud, gang.record.plan["instance_type"], 1, 2)
    assert gang.wait(PATIENCE).status == "completed", gang.reason
    assert set(said(gang)) == begun(1, 2) | begun(2, 3) | {"told"}
    assert (gang.record.attempt, gang.record.retries_used) == (2, 0)
    eventually(lambda: not left(box, cloud))
