"""The vote of a gang that is asked to stop so that it may grow: nothing is lost if it does not stop."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowlite.node.protocol.messages import DEADLINE, GROWING, PREEMPTED
from flowlite.node.rendezvous.stop_vote import (
    ANSWER_SECONDS,
    FIRST_PATIENCE,
    LONGEST_PATIENCE,
    PAUSES,
    Hold,
    Resume,
    Step,
    StopNow,
    Vote,
)
from tests.node.test_rendezvous import SUPERVISOR, Leader

RANKS = (0, 1)
NOW = 1e6


def asked(now: float = 0.0) -> Vote:
    vote = Vote(grace=10, after_stop=0)
    assert isinstance(vote.grow("room for 1 node", now), Hold)
    return vote


def hold_of(vote: Vote, now: float) -> int:
    step = vote.step(RANKS, now)
    assert isinstance(step, Hold), step
    return step.round


def test_all_stop_at_the_highest_call_and_that_is_no_failure() -> None:
    vote = asked()
    vote.tell(0, 1, [7])
    assert vote.step(RANKS, 1.0) is None
    vote.tell(1, 1, [8])
    assert vote.step(RANKS, 2.0) == Resume(8)
    assert vote.outcome("done", NOW) == GROWING
    assert vote.outcome("failed", NOW) == GROWING
    assert vote.outcome("lost", NOW) == "lost"
    assert vote.step(RANKS, 1e6) is None
    assert vote.grow("again", 1e6) is None


def test_whoever_never_asks_is_not_disturbed() -> None:
    vote = asked()
    vote.tell(0, 0, [])
    vote.tell(1, 0, [])
    assert vote.step(RANKS, 1.0) == Resume(None)
    assert vote.step(RANKS, 1.0 + PAUSES * FIRST_PATIENCE - 0.1) is None
    assert hold_of(vote, 1.0 + PAUSES * FIRST_PATIENCE) == 1
    assert vote.outcome("done", NOW) == "done"
    assert vote.outcome("failed", NOW) == "failed"


def test_those_that_wait_go_on_if_the_others_do_not_come() -> None:
    vote, now, waited = asked(), 0.0, []
    for number in range(1, 10):
        vote.tell(0, 1, [number], hold=number - 1)
        vote.tell(1, 1, [], hold=number - 1)
        assert vote.step(RANKS, now) is None
        began = now
        while (step := vote.step(RANKS, now)) is None:
            now += 0.5
        assert step == Resume(None)
        waited.append(now - began)
        while (again := vote.step(RANKS, now)) is None:
            now += 0.5
        assert isinstance(again, Hold)
        assert now - began >= (1 + PAUSES) * waited[-1] - 1.0
    assert waited[:3] == [5.0, 10.0, 20.0]
    assert max(waited) == LONGEST_PATIENCE
    assert vote.outcome("done", NOW) == "done"


def test_a_hold_during_which_nobody_waits_lasts() -> None:
    vote = asked()
    vote.tell(0, 1, [])
    vote.tell(1, 1, [])
    # One step takes an hour.
    assert vote.step(RANKS, 3600.0) is None
    vote.tell(0, 1, [3])
    assert vote.step(RANKS, 3600.0) is None
    vote.tell(1, 1, [3])
    assert vote.step(RANKS, 3601.0) == Resume(3)


def test_a_late_report_of_an_earlier_round_is_ignored() -> None:
    vote = asked()
    vote.tell(0, 1, [5])
    vote.tell(1, 1, [])
    assert vote.step(RANKS, 0.0) is None
    assert vote.step(RANKS, FIRST_PATIENCE) == Resume(None)
    assert hold_of(vote, FIRST_PATIENCE * (1 + PAUSES)) == 1
    vote.tell(1, 1, [6], hold=1)
    vote.tell(0, 1, [5], hold=0)
    assert vote.step(RANKS, 26.0) is None
    vote.tell(0, 1, [9], hold=1)
    assert vote.step(RANKS, 26.0) == Resume(9)


def test_those_that_listen_are_told_once() -> None:
    vote = asked()
    vote.tell(0, 0, [], listeners=1)
    vote.tell(1, 0, [])
    assert vote.step(RANKS, 1.0) == Resume(None)
    assert vote.step(RANKS, NOW) is None
    assert vote.outcome("done", NOW) == GROWING
    assert vote.outcome("failed", NOW) == GROWING


def signalled() -> Vote:
    """A gang with a process that got SIGUSR2 and goes on."""
    vote = asked()
    vote.tell(0, 0, [], listeners=1)
    vote.tell(1, 0, [])
    assert vote.step(RANKS, 1.0) == Resume(None)
    return vote


def test_those_that_ignore_the_signal_are_a_gang_like_any_other_when_it_is_taken_back() -> None:
    vote = signalled()
    vote.stop_growing(NOW)
    assert vote.step(RANKS, NOW + 1e6) is None
    assert vote.outcome("failed", NOW) == "failed"
    assert vote.outcome("lost", NOW) == "lost"
    assert vote.outcome("done", NOW + ANSWER_SECONDS) == "done"
    assert isinstance(vote.grow("room again", NOW + 1e6), Hold)


def test_a_good_end_soon_after_it_is_taken_back_is_not_taken_for_a_complete_run() -> None:
    vote = signalled()
    vote.stop_growing(NOW)
    assert vote.outcome("done", NOW + ANSWER_SECONDS - 1) == GROWING
    assert vote.reason == "room for 1 node"


def test_the_deadline_counts_for_those_that_ignore_the_signal() -> None:
    vote = signalled()
    assert isinstance(vote.notice(DEADLINE, "time", 60, now=NOW), Hold)
    vote.tell(0, 1, [5], hold=1)
    vote.tell(1, 1, [5], hold=1)
    assert vote.outcome("done", NOW) == GROWING
    assert vote.step(RANKS, NOW) == Resume(5)
    assert vote.outcome("done", NOW) == DEADLINE


def test_no_round_follows_when_it_is_taken_back() -> None:
    vote = asked()
    vote.tell(0, 1, [], listeners=1)
    vote.tell(1, 1, [3])
    assert vote.step(RANKS, 0.0) is None
    assert vote.step(RANKS, FIRST_PATIENCE) == Resume(None)
    assert vote.stop_growing(FIRST_PATIENCE) is None
    assert vote.kind == ""
    assert vote.step(RANKS, NOW) is None
    assert vote.decided is None


def test_what_is_decided_is_not_taken_back() -> None:
    vote = asked()
    vote.tell(0, 1, [5])
    vote.tell(1, 1, [5])
    assert vote.step(RANKS, 1.0) == Resume(5)
    assert vote.stop_growing(2.0) is None
    assert vote.notice(DEADLINE, "time", 60, now=NOW) is None
    assert vote.outcome("done", NOW) == GROWING


def test_the_question_is_taken_back() -> None:
    vote = asked()
    assert vote.stop_growing(NOW) == Resume(None)
    assert vote.kind == ""
    assert vote.step(RANKS, 1e6) is None
    assert vote.outcome("failed", NOW) == "failed"
    assert isinstance(vote.grow("room again", 1e6), Hold)


@pytest.mark.parametrize("kind", [PREEMPTED, DEADLINE])
def test_what_is_urgent_comes_first(kind: str) -> None:
    vote = asked()
    vote.tell(0, 1, [4])
    # Those that wait would not wait for long enough, so that they are let go and held anew.
    assert vote.notice(kind, "soon", 100, now=1.0) == Resume(None)
    step = vote.step(RANKS, 1.5)
    assert isinstance(step, Hold)
    assert step.round == 1
    assert step.seconds > 50
    assert vote.grow("room", 2.0) is None
    vote.tell(0, 1, [5], hold=1)
    vote.tell(1, 1, [5], hold=1)
    assert vote.step(RANKS, 3.0) == Resume(5)
    assert vote.outcome("done", NOW) == kind


def test_no_time_is_left_for_a_step() -> None:
    vote = asked()
    assert isinstance(vote.notice(PREEMPTED, "now", 2, now=1.0), StopNow)


class Process:
    """A process that calls `should_stop()` after each step, as `in_worker/should_stop.py` does."""

    def __init__(self, steps: list[int]) -> None:
        self.steps = steps
        self.call = 0
        self.left = 1
        self.waits = False
        self.stopped_at: int | None = None

    def tick(self, held: bool, decided: int | None) -> None:
        if self.stopped_at is not None:
            return
        if not self.waits:
            self.left -= 1
            if self.left > 0:
                return
            self.call += 1
        self.waits = decided is None and held
        if self.waits:
            return
        if decided is not None and self.call >= decided:
            self.stopped_at = self.call
        self.left = self.steps[self.call % len(self.steps)]


@given(
    st.lists(st.lists(st.integers(1, 30), min_size=1, max_size=4), min_size=1, max_size=4),
    st.booleans(),
)
def test_all_stop_in_the_same_call_or_go_on(speeds: list[list[int]], collective: bool) -> None:
    processes = [Process(steps) for steps in speeds]
    vote = Vote(10, 0)
    held, decided, hold = False, None, 0

    def follow(step: Step | None) -> None:
        nonlocal held, decided, hold
        match step:
            case Hold(_, number):
                held, hold = True, number
            case Resume(call):
                held, decided = False, call
            case StopNow():
                raise AssertionError("a gang that may grow is never stopped")

    for now in range(5, 20_000):
        slowest = min(each.call for each in processes)
        for each in processes:
            if collective and each.call > slowest and not each.waits:
                # A step needs all ranks.
                continue
            each.tick(held, decided)
        follow(vote.grow("room", now) if now == 20 else None)
        if held:
            for rank, each in enumerate(processes):
                vote.tell(rank, 1, [each.call] if each.waits else [], hold=hold)
        if vote.kind:
            follow(vote.step(range(len(processes)), now))
        if all(each.stopped_at is not None for each in processes):
            break
    stopped = {each.stopped_at for each in processes}
    assert len(stopped) == 1
    assert stopped == {vote.decided}


def test_the_leader_passes_the_question_on_and_ends_the_gang_for_it() -> None:
    leader = Leader()
    leader.attach()
    leader.go()
    leader.say(0, "stoppable")
    leader.say(1, "stoppable")
    assert [event["kind"] for event in leader.events()].count("stoppable") == 1
    leader.say(SUPERVISOR, "grow", reason="the gang grows")
    leader.say(SUPERVISOR, "grow", reason="the gang grows")
    assert [leader.heard(node).count("hold") for node in (0, 1)] == [1, 1]
    for node, call in ((0, 4), (1, 5)):
        leader.say(node, "calls", callers=1, waiting=[call], listeners=0, round=0)
    assert leader.told[1][-1]["call"] == 5
    for node in (0, 1):
        leader.say(node, "worker", rank=node, code=0, failure=None, sizes={"out": 0, "err": 0})
    for node in (0, 1):
        leader.say(node, "stopped")
    ended = leader.events()[-1]
    assert (ended["kind"], ended["outcome"]) == ("ended", "growing")
    assert ended["reason"] == "the gang grows"


def test_a_node_that_missed_the_end_of_a_hold_is_told_when_it_comes_back() -> None:
    leader = Leader()
    leader.attach()
    leader.go()
    leader.say(SUPERVISOR, "grow", reason="the gang grows")
    assert leader.told[1][-1]["type"] == "hold"
    assert leader.told[1][-1]["growing"] is True
    leader.leave(1)
    leader.say(SUPERVISOR, "grow", reason="")
    assert leader.heard(0)[-1] == "resume"
    leader.join(11)
    assert leader.told[11][-1] == {**leader.told[0][-1], "call": 0}
    assert leader.heard(11)[-1] == "resume"
