"""The table of states: closed, every state with a way on or final, and no way to be lost in it."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from flowlite.state.store import FINAL_STATES
from flowlite.supervise.record import lifecycle
from flowlite.supervise.record.lifecycle import (
    GONE,
    TABLE,
    ImpossibleTransition,
    State,
    TaskEvent,
)

# Those of the store; a state that the table does not know would be an error here.
FINAL = frozenset(map(State, FINAL_STATES))

WORDS = {"why": "{braces} and 100 %", "nodes": "2 nodes"}


def possible(state: str) -> list[TaskEvent]:
    return [event for (at, event) in TABLE if at == state]


def test_every_state_has_a_way_on_or_is_final() -> None:
    for state in State:
        assert bool(possible(state)) != (state in FINAL), state


def test_a_task_that_has_begun_is_final_only_after_it_was_stopping() -> None:
    for (state, happening), (following, _) in TABLE.items():
        if following in FINAL:
            assert state is State.STOPPING, (state, happening)


def test_every_final_state_can_be_reached_from_every_other_state() -> None:
    for start in State:
        if start in FINAL:
            continue
        assert reachable(start) >= {State.FAILED, State.CANCELLED}, start


def reachable(start: State) -> set[State]:
    found, todo = {start}, [start]
    while todo:
        at = todo.pop()
        following = {TABLE[at, happening][0] for happening in possible(at)} - found
        found |= following
        todo += following
    return found


def test_cancel_and_failure_are_possible_whenever_a_task_is_not_final() -> None:
    for state in State:
        if state not in FINAL:
            assert TaskEvent.CANCEL in possible(state)
            assert TaskEvent.FAILURE in possible(state) or state is State.PENDING


def test_reasons_are_filled_and_not_read_as_templates() -> None:
    step = lifecycle.step("running", TaskEvent.FAILURE, why="KeyError: '{x}'")
    assert (step.state, step.reason) == (State.STOPPING, "KeyError: '{x}'")
    assert lifecycle.step("pending", TaskEvent.BEGIN, nodes="1 node").reason == "asking for 1 node"


@pytest.mark.parametrize("state", ["completed", "failed", "cancelled"])
def test_nothing_happens_to_a_final_task(state: str) -> None:
    for happening in TaskEvent:
        with pytest.raises(ImpossibleTransition, match=f"a task that is {state}"):
            lifecycle.step(state, happening, **WORDS)


class Lives(RuleBasedStateMachine):
    """Any sequence of what can happen, with the bookkeeping that a supervisor does beside it."""

    def __init__(self) -> None:
        super().__init__()
        self.state: str = "pending"
        self.reason = ""
        self.outcome = ""
        self.attempts = 0
        self.began = False

    @precondition(lambda self: self.state not in FINAL)
    @rule(data=st.data())
    def happen(self, data: st.DataObject) -> None:
        choices = [h for h in possible(self.state) if h not in GONE.values()]
        happening = data.draw(st.sampled_from(choices))
        self.take(happening)
        if happening is TaskEvent.LAUNCHED:
            self.attempts += 1
            self.outcome = ""
        self.began = self.began or self.attempts > 0

    @precondition(lambda self: self.state == "stopping" and not self.outcome)
    @rule(outcome=st.sampled_from(sorted(GONE)))
    def conclude(self, outcome: str) -> None:
        self.outcome = outcome

    @precondition(lambda self: self.state == "stopping" and self.outcome)
    @rule()
    def nodes_are_gone(self) -> None:
        self.take(GONE[self.outcome])
        assert self.state in FINAL

    @rule(happening=st.sampled_from(sorted(TaskEvent)))
    def impossible_is_refused(self, happening: TaskEvent) -> None:
        if (State(self.state), happening) not in TABLE:
            with pytest.raises(ImpossibleTransition):
                lifecycle.step(self.state, happening, **WORDS)

    def take(self, happening: TaskEvent) -> None:
        step = lifecycle.step(self.state, happening, **WORDS)
        self.state, self.reason = step.state.value, step.reason

    @invariant()
    def a_final_state_agrees_with_the_outcome(self) -> None:
        if self.state in FINAL:
            expected = {"done": "completed", "failed": "failed", "cancelled": "cancelled"}
            assert self.state == expected[self.outcome]

    @invariant()
    def a_task_that_runs_has_nodes(self) -> None:
        if self.state in ("starting", "running"):
            assert self.attempts > 0

    @invariant()
    def whoever_waits_says_why(self) -> None:
        if self.state not in ("pending", "completed"):
            assert self.reason


TestLives = Lives.TestCase
