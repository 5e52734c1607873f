"""Whatever is killed, and whenever: nothing that costs money is left in the cloud.

With real processes and machines this is a dozen cases, which differ as much as a dozen can; `test_simulated` plays all
of them on a simulated clock. `FLOW_CRASH=60` plays more, with a fresh seed in the names of the tests
(`FLOW_CRASH_SEED=…` repeats it). `FLOW_CRASH_REAL_KILLS=200` kills so many tasks at random moments, in clouds that go
wrong by chance.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

from tests.components import need
from tests.crash.cases import MACHINE, Case, all_cases, fresh_seed, sample
from tests.crash.clouds import POINTS
from tests.crash.harness import Harness

pytest.importorskip("boto3")
pytest.importorskip("moto")
pytest.importorskip("httpx")

pytestmark = [pytest.mark.timeout(300), pytest.mark.slow]
CASES = all_cases(POINTS)
KILLS, SEED = int(os.environ.get("FLOW_CRASH_REAL_KILLS", "2")), fresh_seed()


@pytest.fixture(scope="session")
def harness(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Harness]:
    """A box of this process's own, for all its cases."""
    need("hosts")
    from flowlite.testing.cloud import CloudInABox

    with CloudInABox(machines=3, boot_seconds=0.3) as box:
        yield Harness(box, tmp_path_factory.mktemp("crash"))


@pytest.mark.parametrize("case", [pytest.param(case, id=name) for name, case in sample(CASES)])
def test_nothing_is_left(
    harness: Harness, case: Case, monkeypatch: pytest.MonkeyPatch, record_property: Any
) -> None:
    for name, value in harness.box.environment().items():
        monkeypatch.setenv(name, value)
    cloud = harness.cloud(case.cloud)
    home, hit = harness.crash(cloud, case)
    record_property("hit", hit)
    try:
        if case.lost == MACHINE:
            record_property("ended_by", harness.be_gone(cloud, home))
        else:
            harness.recover(cloud, case, home)
    finally:
        harness.forget(home)


# The harness has limits of work; this one is for what hangs.
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("number", range(KILLS))
def test_one_clean_up_after_kills_at_random(
    harness: Harness, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in harness.box.environment().items():
        monkeypatch.setenv(name, value)
    harness.kill_at_random(SEED + number)


def test_there_are_500_of_them() -> None:
    assert len(CASES) >= 500
    assert len({str(case) for case in CASES}) == len(CASES)


@pytest.mark.parametrize("name", list(POINTS))
def test_every_call_of_a_task_is_a_point(
    harness: Harness, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards the cases above: what a task asks of a cloud, from its intent to its end, is in their lists."""
    for key, value in harness.box.environment().items():
        monkeypatch.setenv(key, value)
    cloud = harness.cloud(name)
    made, home = harness.uneventful(cloud)
    harness.forget(home)
    points = POINTS[name]
    known = {*points.boot, *points.end, *points.run}
    assert made <= known | points.harmless, sorted(made - known)
