"""When a node is lost: two sources, seen again and again, and never because our own network is gone."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowlite.node.config import fencing
from flowlite.supervise.attempt.node_verdict import (
    HANGS,
    PATIENCE,
    TELL_AFTER,
    UNANSWERED,
    GangOpinion,
    NodeInDoubt,
    ProbeAnswer,
    Verdict,
    judge,
)

SILENCE = NodeInDoubt(
    ProbeAnswer.UNREACHABLE,
    UNANSWERED,
    PATIENCE,
    GangOpinion.SILENT,
    witness=True,
    proven=UNANSWERED,
    proven_for=PATIENCE,
)


@pytest.mark.parametrize(
    ("sight", "verdict"),
    [
        (NodeInDoubt(ProbeAnswer.ALIVE, word=GangOpinion.SILENT), Verdict.WAIT),
        (
            NodeInDoubt(ProbeAnswer.ALIVE, word=GangOpinion.SILENT, speechless_for=HANGS),
            Verdict.LOST,
        ),
        (
            NodeInDoubt(ProbeAnswer.ALIVE, word=GangOpinion.HEARD, speechless_for=9 * HANGS),
            Verdict.WAIT,
        ),
        (NodeInDoubt(ProbeAnswer.ALIVE, speechless_for=9 * HANGS), Verdict.WAIT),
        (NodeInDoubt(ProbeAnswer.DEAD), Verdict.LOST),
        (NodeInDoubt(ProbeAnswer.ABSENT), Verdict.LOST),
        (NodeInDoubt(ProbeAnswer.GONE), Verdict.LOST),
        (SILENCE, Verdict.LOST),
        (replace(SILENCE, unanswered=UNANSWERED - 1), Verdict.WAIT),
        (replace(SILENCE, silent_for=TELL_AFTER - 0.1), Verdict.WAIT),
        (replace(SILENCE, word=GangOpinion.HEARD), Verdict.WAIT),
        (replace(SILENCE, word=GangOpinion.HEARD, witness=False), Verdict.WAIT),
        (replace(SILENCE, witness=False), Verdict.CUT_OFF),
        (replace(SILENCE, word=GangOpinion.NONE), Verdict.LOST),
        (replace(SILENCE, word=GangOpinion.NONE, proven_for=PATIENCE - 0.1), Verdict.WAIT),
        (replace(SILENCE, proven=UNANSWERED - 1), Verdict.WAIT),
        (replace(SILENCE, proven_for=PATIENCE - 0.1), Verdict.WAIT),
        (replace(SILENCE, word=GangOpinion.NONE, witness=False, silent_for=1e6), Verdict.CUT_OFF),
    ],
)
def test_the_table(sight: NodeInDoubt, verdict: Verdict) -> None:
    assert judge(sight) is verdict


sights = st.builds(
    NodeInDoubt,
    life=st.sampled_from(ProbeAnswer),
    unanswered=st.integers(0, 10),
    silent_for=st.floats(0, 1000),
    word=st.sampled_from(GangOpinion),
    witness=st.booleans(),
    proven=st.integers(0, 10),
    proven_for=st.floats(0, 1000),
    speechless_for=st.floats(0, 1000),
)
silent = sights.filter(lambda sight: sight.life is ProbeAnswer.UNREACHABLE)


@given(silent)
def test_silence_alone_never_ends_a_node(sight: NodeInDoubt) -> None:
    """Without a second source, and without proof that our own network works, nothing is lost."""
    if judge(sight) is Verdict.LOST:
        assert sight.witness
        assert sight.word is not GangOpinion.HEARD
        assert min(sight.unanswered, sight.proven) >= UNANSWERED
        assert sight.proven_for >= PATIENCE


@given(silent, st.floats(0, 20))
def test_an_outage_of_20_seconds_ends_no_node(sight: NodeInDoubt, seconds: float) -> None:
    """Whoever it is, whatever the gang says: leader and member have the same time, and some to recover in."""
    silent_for = seconds + 4.0
    assert judge(replace(sight, silent_for=silent_for, proven_for=silent_for)) is not Verdict.LOST


def test_the_supervisor_decides_before_a_node_stops_by_itself() -> None:
    assert PATIENCE < fencing.FENCE_AFTER


@given(silent)
def test_a_single_unanswered_probe_ends_nothing(sight: NodeInDoubt) -> None:
    assert judge(replace(sight, unanswered=1)) is Verdict.WAIT


@given(silent)
def test_whoever_is_cut_off_waits_however_long(sight: NodeInDoubt) -> None:
    assert judge(replace(sight, witness=False)) in (Verdict.WAIT, Verdict.CUT_OFF)


@given(sights)
def test_a_node_that_is_heard_by_its_gang_is_lost_only_if_its_machine_says_so(
    sight: NodeInDoubt,
) -> None:
    verdict = judge(replace(sight, word=GangOpinion.HEARD))
    assert verdict is not Verdict.LOST or sight.life in (
        ProbeAnswer.DEAD,
        ProbeAnswer.ABSENT,
        ProbeAnswer.GONE,
    )


@given(silent, st.integers(0, 5), st.floats(0, 100))
def test_longer_silence_never_makes_a_lost_node_less_lost(
    sight: NodeInDoubt, more: int, longer: float
) -> None:
    if judge(sight) is Verdict.LOST:
        later = replace(
            sight,
            unanswered=sight.unanswered + more,
            silent_for=sight.silent_for + longer,
            proven=sight.proven + more,
            proven_for=sight.proven_for + longer,
        )
        assert judge(later) is Verdict.LOST
