"""No rank runs twice: a node that nobody can reach has stopped its workers before others may start in their place."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from flowlite.node.config import fencing
from flowlite.node.config.agent_config import AgentConfig
from flowlite.node.config.fencing import FENCE_AFTER, SLACK
from flowlite.node.protocol.messages import GangSettings
from flowlite.node.rendezvous.member import Member, Stop

TICK = 0.25
times = st.floats(0, 1e6)
durations = st.floats(0.1, 600)


@given(word=times, later=durations, fence=durations, grace=durations)
def test_a_replacement_starts_after_the_last_worker_was_killed(
    word: float, later: float, fence: float, grace: float
) -> None:
    """The leader's last word to a node is never younger than the moment at which the node was given up."""
    given_up = word + later
    stopped, replaced = word + fence + grace, fencing.replaced_from(given_up, fence, grace)
    assert stopped + SLACK <= replaced + 1e-3


@given(silence=durations, fence=durations, grace=durations)
def test_a_node_that_is_late_has_less_grace_or_none(
    silence: float, fence: float, grace: float
) -> None:
    assume(silence >= fence)
    left = fencing.grace_left(silence, fence, grace)
    assert 0 <= left <= grace
    assert left == 0 or silence + left <= fence + grace + 1e-6


def test_both_ends_count_with_the_same_silence() -> None:
    config = AgentConfig("t", "t", 1, "a", ["a"], 1, {"kind": "command", "argv": ["true"]})
    assert config.fence_after == GangSettings("t", 1, ("a",)).fence_after == FENCE_AFTER
    assert config.lost_after < config.fence_after


def running_member(grace: float = 10.0) -> Member:
    """A member whose workers run, at time 0."""
    settings = GangSettings("t", 1, ("a", "b"), grace=grace)
    member = Member(settings, "b", "one", 0.0)
    order = {"task": "t", "attempt": 1}
    member.connected({})
    member.receive({**order, "type": "welcome", "rank": 1, "roster": settings.digest}, 0.0)
    prepare = {"type": "prepare", "master_addr": "x", "master_port": 1, "volume_token": ""}
    member.receive({**order, **prepare}, 0.0)
    member.prepared({})
    go = {"type": "go", "roster": settings.digest, "master_addr": "x", "master_port": 1}
    member.receive({**order, **go, "addresses": ["x", "y"]}, 0.0)
    member.started()
    return member


def beat(member: Member, now: float) -> None:
    member.receive({"type": "beat", "task": "t", "attempt": 1}, now)


def stop_of(member: Member, times: list[float]) -> tuple[float, Stop]:
    """When it stops its workers, if it ticks at these times."""
    for now in times:
        for action in member.tick(now):
            if isinstance(action, Stop):
                return now, action
    raise AssertionError(f"its workers run on at {times[-1]}")


def ticks(first: float, count: int, every: float = TICK) -> list[float]:
    return [first + number * every for number in range(count)]


@given(
    words=st.lists(st.floats(0.05, 1.5), max_size=40),
    gaps=st.lists(st.floats(0.01, 1.9), min_size=80, max_size=80),
    grace=st.floats(0, 30),
)
def test_a_partitioned_node_stops_in_time_however_unevenly_it_ticks(
    words: list[float], gaps: list[float], grace: float
) -> None:
    member, now, last_word = running_member(grace), 0.0, 0.0
    for pause in words:
        now += pause
        beat(member, now)
        member.tick(now)
        last_word = now
    times = []
    for gap in (*gaps, *[1.0] * 60):
        now += gap
        times.append(now)
    stopped, order = stop_of(member, times)
    killed = stopped + order.grace
    assert killed <= last_word + FENCE_AFTER + grace + 2.0
    assert killed < fencing.replaced_from(last_word, FENCE_AFTER, grace)
    assert stopped >= last_word + FENCE_AFTER


@pytest.mark.parametrize("slept", [35.0, 300.0])
def test_a_node_that_slept_past_its_time_stops_without_grace(slept: float) -> None:
    member = running_member(grace=5.0)
    ran = ticks(TICK, 8)
    for now in ran:
        member.tick(now)
    woken = ran[-1] + slept
    stopped, order = stop_of(member, ticks(woken, 20))
    # It listens for a moment whether its leader is still there.
    assert woken < stopped <= woken + 2.0
    assert order.grace == 0.0


def test_a_node_that_slept_and_hears_its_leader_goes_on() -> None:
    member = running_member()
    member.tick(1.0)
    woken = 400.0
    member.tick(woken)
    beat(member, woken + 0.5)
    with pytest.raises(AssertionError, match="run on"):
        stop_of(member, ticks(woken + TICK, 60))


def test_a_word_that_waited_while_the_node_slept_is_no_sign_of_life() -> None:
    """What the kernel took in before the leader died, and the agent reads only now."""
    member = running_member()
    member.tick(1.0)
    woken = 400.0
    beat(member, woken)
    stopped, _ = stop_of(member, ticks(woken, 20))
    assert stopped <= woken + 2.0
