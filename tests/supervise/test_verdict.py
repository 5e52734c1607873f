"""When a node is lost: two sources, seen again and again, and never because our own network is gone."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowlite.supervise.verdict import (
    HANGS,
    PATIENCE,
    PATIENCE_AFTER,
    PATIENCE_ALONE,
    UNANSWERED,
    Life,
    Sight,
    Verdict,
    Word,
    judge,
)

SILENCE = Sight(
    Life.UNREACHABLE,
    UNANSWERED,
    PATIENCE_ALONE,
    Word.SILENT,
    witness=True,
    proven=UNANSWERED,
    proven_for=PATIENCE_ALONE,
)


@pytest.mark.parametrize(
    ("sight", "verdict"),
    [
        (Sight(Life.ALIVE, word=Word.SILENT), Verdict.WAIT),
        (Sight(Life.ALIVE, word=Word.SILENT, speechless_for=HANGS), Verdict.LOST),
        (Sight(Life.ALIVE, word=Word.HEARD, speechless_for=9 * HANGS), Verdict.WAIT),
        (Sight(Life.ALIVE, speechless_for=9 * HANGS), Verdict.WAIT),
        (Sight(Life.DEAD), Verdict.LOST),
        (Sight(Life.ABSENT), Verdict.LOST),
        (Sight(Life.GONE), Verdict.LOST),
        (SILENCE, Verdict.LOST),
        (replace(SILENCE, unanswered=UNANSWERED - 1), Verdict.WAIT),
        (replace(SILENCE, silent_for=PATIENCE - 0.1), Verdict.WAIT),
        (replace(SILENCE, word=Word.HEARD), Verdict.WAIT),
        (replace(SILENCE, word=Word.HEARD, witness=False), Verdict.WAIT),
        (replace(SILENCE, witness=False), Verdict.CUT_OFF),
        (replace(SILENCE, word=Word.NONE), Verdict.LOST),
        (replace(SILENCE, word=Word.NONE, proven_for=PATIENCE), Verdict.WAIT),
        (replace(SILENCE, proven=UNANSWERED - 1), Verdict.WAIT),
        (replace(SILENCE, proven_for=PATIENCE - 0.1), Verdict.WAIT),
        (replace(SILENCE, was_cut_off=True), Verdict.WAIT),
        (replace(SILENCE, was_cut_off=True, proven_for=PATIENCE_AFTER), Verdict.LOST),
        (replace(SILENCE, word=Word.NONE, witness=False, silent_for=1e6), Verdict.CUT_OFF),
    ],
)
def test_the_table(sight: Sight, verdict: Verdict) -> None:
    assert judge(sight) is verdict


sights = st.builds(
    Sight,
    life=st.sampled_from(Life),
    unanswered=st.integers(0, 10),
    silent_for=st.floats(0, 1000),
    word=st.sampled_from(Word),
    witness=st.booleans(),
    proven=st.integers(0, 10),
    proven_for=st.floats(0, 1000),
    was_cut_off=st.booleans(),
    speechless_for=st.floats(0, 1000),
)
silent = sights.filter(lambda sight: sight.life is Life.UNREACHABLE)


@given(silent)
def test_silence_alone_never_ends_a_node(sight: Sight) -> None:
    """Without a second source, and without proof that our own network works, nothing is lost."""
    if judge(sight) is Verdict.LOST:
        assert sight.witness
        assert sight.word is not Word.HEARD
        assert min(sight.unanswered, sight.proven) >= UNANSWERED
        assert min(sight.silent_for, sight.proven_for) >= PATIENCE


@given(silent)
def test_a_single_unanswered_probe_ends_nothing(sight: Sight) -> None:
    assert judge(replace(sight, unanswered=1)) is Verdict.WAIT


@given(silent)
def test_whoever_is_cut_off_waits_however_long(sight: Sight) -> None:
    assert judge(replace(sight, witness=False)) in (Verdict.WAIT, Verdict.CUT_OFF)


@given(sights)
def test_a_node_that_is_heard_by_its_gang_is_lost_only_if_its_machine_says_so(sight: Sight) -> None:
    verdict = judge(replace(sight, word=Word.HEARD))
    assert verdict is not Verdict.LOST or sight.life in (Life.DEAD, Life.ABSENT, Life.GONE)


@given(silent, st.integers(0, 5), st.floats(0, 100))
def test_longer_silence_never_makes_a_lost_node_less_lost(
    sight: Sight, more: int, longer: float
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
