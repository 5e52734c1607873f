"""Spot machines of the box: told by their metadata service, stopped at one step, replaced, and gone on with."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

import pytest

from flowlite import FlowApp, Task, should_stop
from flowlite.testing.cloud import CloudInABox
from tests.helpers import eventually

app = FlowApp(provider="aws")


@app.function(num_instances=2, spot=True, max_price_per_hour=1.0)
def work() -> str:
    """Counts until it is told to stop; done in the second attempt."""
    if os.environ["FLOW_ATTEMPT"] != "1":
        return "went on"
    step = 0
    print("works", flush=True)
    while not should_stop():
        step += 1
        time.sleep(0.01)
    print(f"stops at {step}", flush=True)
    return "not finished"


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_spot_machine_is_taken_away(box: CloudInABox, flow_home: Path) -> None:
    task: Task[str] = work.spawn()
    eventually(lambda: str(task.logs()).count("works") == 2, timeout=120, every=0.2)
    taken = sorted(node.id for node in task.nodes)[1]
    box.aws.preempt([taken], 120)
    assert task.result(timeout=120) == "went on"
    steps = re.findall(r"stops at (\d+)", str(task.logs()))
    assert len(steps) == 2
    assert len(set(steps)) == 1
    told = [event.text for event in task.events() if event.kind == "preempting"]
    assert any(taken in text and "spot interruption (terminate)" in text for text in told)
    eventually(lambda: not any(box.aws.leftovers().values()), every=0.2)
    assert all(each["state"] == "terminated" for each in box.aws.instances())
