"""Crash points on a simulated clock: whatever is killed, and whenever, nothing is left in the cloud.

`FLOW_CRASH_CHUNKS=100` plays every one of them, and `FLOW_CRASH_KILLS` says how many are killed at random.
`FLOW_CRASH_SEED` is the first seed of these; the seed of what went wrong stands in the message.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("boto3")
pytest.importorskip("moto")
pytest.importorskip("httpx")

pytestmark = [pytest.mark.timeout(1800), pytest.mark.slow]

# Each has some of everything. Every run of the tests plays the first ones, `make crash` all of them.
CHUNKS, CHUNKS_OF_A_TEST = 100, 10
PLAYED = int(os.environ.get("FLOW_CRASH_CHUNKS", "1"))
KILLS, KILLS_OF_A_TEST = int(os.environ.get("FLOW_CRASH_KILLS", "3")), 100
SEED = int(os.environ.get("FLOW_CRASH_SEED", "0"))


@pytest.mark.parametrize("first", range(0, PLAYED, CHUNKS_OF_A_TEST))
def test_nothing_is_left(first: int, record_property: Any) -> None:
    chunks = [str(each) for each in range(first, min(first + CHUNKS_OF_A_TEST, PLAYED))]
    record_property("said", played("--calls", "--of", str(CHUNKS), "--chunks", *chunks))


@pytest.mark.parametrize("first", range(0, KILLS, KILLS_OF_A_TEST))
def test_one_clean_up_after_kills_at_random(first: int, record_property: Any) -> None:
    count = min(KILLS_OF_A_TEST, KILLS - first)
    record_property("said", played("--seed", str(SEED + first), "--kills", str(count)))


def played(*asked: str) -> str:
    """What the player says; fails with it if anything was left."""
    foreign = ("AWS_", "MITHRIL_")
    environment = {k: v for k, v in os.environ.items() if not k.startswith(foreign)}
    done = subprocess.run(
        [sys.executable, "-m", "tests.crash.playing", *asked],
        cwd=Path(__file__).parents[2],
        env=environment,
        capture_output=True,
        text=True,
        timeout=1700,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-3000:]
    return done.stdout
