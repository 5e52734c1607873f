"""Crash points on a simulated clock: whatever is killed, and whenever, nothing is left in the cloud.

`make test` plays some of them, drawn anew each time; `make test-all` every point, each with a sixth of the faults,
drawn anew as well, and some of failovers, hand-overs and elastic gangs; `make test-hours` every point with every fault,
and all of those.
`FLOW_CRASH_SEED` draws the same ones again; it stands in the message of what went wrong. `FLOW_CRASH_ONE_IN` says which
part of the faults each point meets, and `FLOW_CRASH_KILLS` how many tasks are killed at random; `make crash` sets both.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.crash.cases import BETWEEN, MARKETS, SEASONS, first_and_last, fresh_seed

pytest.importorskip("boto3")
pytest.importorskip("moto")
pytest.importorskip("httpx")

# They compute for a minute each: begun last, they would run on alone.
pytestmark = [pytest.mark.timeout(1800), pytest.mark.long]

# It takes six seconds before the first case is played, and each then takes a twelfth of one.
PARTS, SAMPLE, POINTS_OF_A_MARKET, MOMENTS_OF_A_SEASON = 3, 40, 4, 2
MOMENTS_OF_A_HAND_OVER = 12
ONE_IN = int(os.environ.get("FLOW_CRASH_ONE_IN", "6"))
KILLS, KILLS_OF_A_TEST = int(os.environ.get("FLOW_CRASH_KILLS", "20")), 500
SEED = fresh_seed()


def test_nothing_is_left_by_some(record_property: Any) -> None:
    sample = ("--sample", str(SAMPLE), "--seed", str(SEED))
    record_property("said", played("--calls", *sample))


@pytest.mark.slow
def test_a_clean_up_right_after_a_crash_launches_nothing(record_property: Any) -> None:
    sample = ("--sample", str(SAMPLE // 4), "--seed", str(SEED))
    record_property("said", played("--then-gc", *sample))


@pytest.mark.slow
def test_nothing_is_left_at_any_point(record_property: Any) -> None:
    record_property("said", played("--part", "0", "--one-in", str(ONE_IN), "--seed", str(SEED)))


@pytest.mark.hours
@pytest.mark.parametrize("part", range(PARTS))
def test_nothing_is_left_by_any(part: int, record_property: Any) -> None:
    record_property("said", played("--part", str(part), "--of", str(PARTS)))


@pytest.mark.slow
def test_a_failover_leaves_nothing_and_is_at_one_place_at_a_time(record_property: Any) -> None:
    markets = [word for name in MARKETS for word in ("--market", name)]
    sample = ("--sample", str(POINTS_OF_A_MARKET), "--seed", str(SEED))
    record_property("said", played(*markets, *sample))


@pytest.mark.hours
@pytest.mark.parametrize("market", MARKETS)
def test_a_failover_may_be_killed_at_any_call(market: str, record_property: Any) -> None:
    record_property("said", played("--market", market))


def test_calls_that_are_asked_again_and_again_are_played_at_their_first_and_last() -> None:
    assert first_and_last(["bid", *["look"] * 100, "end"]) == [0, 1, 2, 99, 100, 101]
    twos = ["bid", *["look", "price"] * 50, "end"]
    assert first_and_last(twos) == [0, 1, 2, 3, 98, 99, 100, 101]
    assert first_and_last(["a", "b", "c"]) == [0, 1, 2]


@pytest.mark.slow
def test_a_hand_over_leaves_nothing(record_property: Any) -> None:
    sample = ("--sample", str(MOMENTS_OF_A_HAND_OVER), "--seed", str(SEED))
    clouds = [word for name in BETWEEN for word in ("--hand-overs", name)]
    record_property("said", played(*clouds, *sample))


@pytest.mark.hours
@pytest.mark.parametrize("cloud", BETWEEN)
def test_a_hand_over_may_be_killed_at_any_step(cloud: str, record_property: Any) -> None:
    record_property("said", played("--hand-overs", cloud))


@pytest.mark.slow
def test_an_elastic_gang_leaves_nothing_and_never_has_too_many(record_property: Any) -> None:
    seasons = [word for name in SEASONS for word in ("--season", name)]
    sample = ("--sample", str(MOMENTS_OF_A_SEASON), "--seed", str(SEED))
    record_property("said", played(*seasons, *sample))


@pytest.mark.slow
def test_a_bid_that_is_being_withdrawn_is_known_to_whoever_takes_over(record_property: Any) -> None:
    (refusing,) = [name for name, season in SEASONS.items() if season.refuses]
    record_property("said", played("--withdrawals", refusing))


@pytest.mark.hours
@pytest.mark.parametrize("season", SEASONS)
def test_an_elastic_gang_may_be_killed_at_any_call(season: str, record_property: Any) -> None:
    # While a gang is asked to stop for half an hour, nearly all calls are the same look at a bid.
    some = ("--different",) if SEASONS[season].refuses else ()
    record_property("said", played("--season", season, *some))


@pytest.mark.slow
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
    assert done.returncode == 0, (
        f"FLOW_CRASH_SEED={SEED}\n{done.stdout[-6000:]}{done.stderr[-3000:]}"
    )
    return done.stdout
