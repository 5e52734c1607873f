"""Planning beside an EC2 that is slow, and of which nothing is remembered yet: by `flow`, as users start it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flowlite.api.candidates.planning import ANSWER_SECONDS
from tests.helpers import eventually

pytest.importorskip("boto3")
pytest.importorskip("moto")

from tests.crash.paper import Paper

# A first plan takes eight calls, most of them one after the other; one with a filled catalog takes none.
LATE = 1.5


@pytest.fixture(scope="module")
def up() -> Iterator[Paper]:
    with Paper() as paper:
        yield paper


@pytest.fixture
def paper(up: Paper) -> Paper:
    up.aws.reset()
    up.aws.fault("*", late=LATE, times=-1)
    return up


def dry_run(paper: Paper, *words: str) -> tuple[dict[str, Any], str]:
    ran = subprocess.run(
        [sys.executable, "-m", "flowlite.cli", "run", "--dry-run", "--json", *words, "--", "true"],
        env={**os.environ, **paper.environment()},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    return json.loads(ran.stdout)["data"], ran.stderr


def providers(found: dict[str, Any]) -> list[str]:
    return [each["provider"] for each in found["candidates"]]


def test_a_cold_cloud_is_left_out_named_and_read_on_for_the_next_plan(
    paper: Paper, flow_home: Path
) -> None:
    found, _ = dry_run(paper, "--provider", "local,aws")
    assert providers(found) == ["local"]
    (left,) = found["left_out"]
    assert left["options"]["provider"] == "aws"
    assert left["why"].startswith(f"aws did not answer within {ANSWER_SECONDS:g} s; ")
    # Nobody asks any more but the process that has been left behind.
    (catalog,) = eventually(
        lambda: [
            path
            for path in (flow_home / "aws" / "catalog").glob("*.json")
            if "disk storage" in path.read_text()
        ],
        timeout=180,
    )
    made = len(paper.aws.calls)
    assert made >= 6, catalog.read_text()[:2000]
    # All is remembered now, so that a plan asks EC2 for nothing.
    found, _ = dry_run(paper, "--provider", "aws")
    assert found["plan"]["provider"] == "aws"
    assert len(paper.aws.calls) == made


def test_a_cold_cloud_that_is_the_only_place_is_waited_for(paper: Paper, flow_home: Path) -> None:
    found, said = dry_run(paper, "--provider", "aws")
    assert found["plan"]["provider"] == "aws"
    assert "aws has not answered for 5 s; it is waited for, since it is the only place" in said
