"""Cases are drawn from their seeds alone, and the oracle sees what it must."""

from __future__ import annotations

import json
import struct
from dataclasses import asdict, replace
from types import SimpleNamespace

import pytest

from tests.attack.cases import CUTS, KINDS, NODES, PHASES, Case, cut, draw
from tests.attack.deciding import live_through
from tests.attack.oracle import _ranks_twice, _wrong_end, culprits
from tests.attack.playing import Finding, of
from tests.attack.stage import Life
from tests.attack.worker import case_of

LIFE = struct.Struct("<ddQQ")


def life(attempt: int, rank: int, first: float, last: float, pid: int = 1) -> Life:
    content = LIFE.pack(first, last, 3, 0)
    return Life(f"a{attempt}.r{rank}.node00.{pid}", content, SimpleNamespace(LIFE=LIFE))


@pytest.mark.parametrize("kind", ["all", *KINDS])
def test_a_seed_is_a_case(kind: str) -> None:
    drawn = [draw(seed, kind) for seed in range(200)]
    assert drawn == [draw(seed, kind) for seed in range(200)]
    assert len(set(drawn)) == 200
    for case in drawn:
        assert case_of(json.loads(json.dumps(asdict(case)))) == case
        assert kind in ("all", case.kind)


def test_every_cut_comes_in_every_phase() -> None:
    drawn = [draw(seed, "partition") for seed in range(2000)]
    seen = {(case.phase, case.faults[0].kind) for case in drawn}
    assert seen == {(phase, kind) for phase in PHASES for kind in CUTS}
    lengths = [fault.seconds for case in drawn for fault in case.faults]
    assert min(lengths) >= 5.0
    assert max(lengths) <= 120.0
    assert {10.0, 15.0, 20.0, 30.0, 90.0} <= set(lengths)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 200, 50))
def test_cuts_on_a_simulated_clock_lose_nothing_and_blame_nobody_else(first: int) -> None:
    for seed in range(first, first + 50):
        live_through(seed)


@pytest.mark.parametrize("seed", [200240, 200497, 300721, 301020, 303062, 307646, 308677, 312396])
def test_seeds_that_have_found_defects(seed: int) -> None:
    live_through(seed)


def test_a_rank_that_starts_twice_is_seen() -> None:
    assert _ranks_twice([life(1, 0, 1.0, 2.0), life(1, 0, 3.0, 4.0, pid=2)])


def test_two_attempts_at_the_same_time_are_seen() -> None:
    assert _ranks_twice([life(1, 0, 1.0, 3.0), life(2, 1, 2.0, 4.0)])
    assert not _ranks_twice([life(1, 0, 1.0, 2.0), life(2, 0, 2.5, 4.0)])


def test_who_may_be_given_up() -> None:
    def who(phase: str, kind: str) -> set[int]:
        return culprits(Case(0, "partition", phase, (cut(kind, 2, 90.0),)))

    assert who("running", "client-node") == set()
    assert who("bring-up", "client-node") == {2}
    assert who("running", "client-all") == set()
    assert who("running", "member-all") == {2}
    assert who("running", "leader-all") == {0}
    assert who("running", "all-pairs") == set(range(NODES))


def test_a_finding_survives_the_way_between_processes() -> None:
    found = replace(of(draw(1, "disk")), wrong=["something"], state="failed")
    assert Finding(**json.loads(json.dumps(found.to_json()))) == found


def _ended(case: Case, last: float) -> list[str]:
    """What the oracle says of a task that was cancelled at 110 s, and whose cut was over at 120 s."""
    stage = SimpleNamespace(
        case=case,
        cancelled_in=("running", "", 110.0),
        healed_at=120.0,
        record=SimpleNamespace(state="completed"),
        lives=lambda: [life(1, 0, 100.0, last)],
    )
    return _wrong_end(stage)  # type: ignore[arg-type]


def test_a_word_that_cannot_reach_the_leader_yet_ends_no_worker() -> None:
    behind = Case(1, "partition", "running", (cut("leader-all", seconds=20.0),), cancel_after=10.0)
    assert not _ended(behind, 121.0)
    assert _ended(behind, 141.0)
    beside = replace(behind, faults=(cut("pair", seconds=20.0),))
    assert not _ended(beside, 111.0)
    assert _ended(beside, 121.0)
