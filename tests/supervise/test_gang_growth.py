"""When a gang that runs asks for more nodes, and when it is asked to stop for them."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import sqlite3
import tempfile
from collections.abc import Collection, Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowlite.api.candidates.capped_plan import capped_plan
from flowlite.errors import CapacityUnavailable, ConfigError
from flowlite.node.protocol import messages
from flowlite.provider import Instance, LaunchIntent, LaunchPending
from flowlite.spec import TaskConfig
from flowlite.state import clock
from flowlite.supervise.attempt.outcome import End
from flowlite.supervise.gang_growth import (
    GIVE_UP_SECONDS,
    LEAST_SECONDS,
    GrowthState,
    GrowthStep,
)
from flowlite.supervise.process.growth import GROWN, GROWTH, Growth, count
from flowlite.supervise.process.journal import Journal
from flowlite.supervise.process.led_task import LedTask
from flowlite.supervise.process.machines_without_rank import each_of
from flowlite.supervise.process.resuming import has_machines
from flowlite.supervise.process.supervisor import Supervisor
from flowlite.supervise.provision import Provisioner
from flowlite.supervise.queue.turn import Turn
from flowlite.supervise.record.lifecycle import JOINING
from flowlite.supervise.record.paths import TaskPaths
from flowlite.supervise.record.task_view import TaskView
from flowlite.supervise.threads import Threads
from tests.supervise.test_gang_size import HEAL, SETTLE, Market, Scene

DAY = 86_400.0

RUNS = GrowthState(
    size=2,
    most=4,
    joining=0,
    ready=0,
    leaving=False,
    stoppable=True,
    told=False,
    ending=False,
    is_open=False,
    coming=False,
    settled=0.0,
    settle_seconds=30.0,
    asked_for=None,
    seconds_left=1e9,
    seconds_with_all=1e9,
    is_due=True,
    over=False,
    given_up=False,
)


def step(**changes: object) -> GrowthStep:
    return dataclasses.replace(RUNS, **changes).next_step()  # type: ignore[arg-type]


def test_it_asks_for_nodes_brings_them_up_and_has_the_ranks_stop() -> None:
    assert step() is GrowthStep.LAUNCH
    assert step(joining=1, is_due=False) is GrowthStep.WAIT
    assert step(joining=1, ready=1, settled=29.0, is_due=False) is GrowthStep.WAIT
    assert step(joining=1, ready=1, settled=29.0) is GrowthStep.LAUNCH
    assert step(joining=1, ready=1, settled=30.0) is GrowthStep.ASK
    assert step(joining=2, ready=1, settled=99.0) is GrowthStep.WAIT
    assert step(joining=2, ready=2) is GrowthStep.ASK
    assert step(joining=1, ready=1, settled=99.0, coming=True, is_due=False) is GrowthStep.WAIT
    assert step(joining=2, ready=2, asked_for=5.0) is GrowthStep.WAIT


def test_ranks_are_not_stopped_while_a_node_that_was_given_up_is_still_there() -> None:
    assert step(joining=2, ready=2, leaving=True) is GrowthStep.WAIT


def test_nodes_that_are_lost_or_useless_are_not_waited_for() -> None:
    assert step(asked_for=5.0) is GrowthStep.ASK_NO_MORE
    assert step(joining=1, ready=1, asked_for=GIVE_UP_SECONDS) is GrowthStep.GIVE_UP
    assert step(joining=1, given_up=True, over=True) is GrowthStep.GIVE_UP


@pytest.mark.parametrize("why", [{"stoppable": False}, {"ending": True}, {"told": True}])
def test_nothing_is_done_for_a_program_that_cannot_stop_or_ends(why: dict[str, bool]) -> None:
    for joining in (0, 1, 2):
        assert step(joining=joining, ready=joining, settled=1e6, **why) is GrowthStep.WAIT


def test_it_does_not_grow_shortly_before_its_end() -> None:
    assert step(seconds_with_all=LEAST_SECONDS) is GrowthStep.LAUNCH
    assert step(seconds_with_all=LEAST_SECONDS - 1) is GrowthStep.WAIT
    late = LEAST_SECONDS - 1
    ready = {"joining": 2, "ready": 2}
    assert step(**ready, seconds_left=late) is GrowthStep.GIVE_UP
    assert step(**ready, seconds_left=late, asked_for=5.0) is GrowthStep.GIVE_UP
    assert step(is_open=True, seconds_with_all=late) is GrowthStep.WITHDRAW


def test_a_program_that_was_told_to_stop_and_goes_on_keeps_no_nodes() -> None:
    told = {"told": True, "joining": 1, "ready": 1}
    assert step(**told, asked_for=5.0) is GrowthStep.WAIT
    assert step(**told, asked_for=GIVE_UP_SECONDS) is GrowthStep.GIVE_UP
    assert step(told=True, asked_for=5.0) is GrowthStep.WAIT


def test_what_is_open_is_looked_at_or_withdrawn_whatever_the_gang_does() -> None:
    asked = {"is_open": True, "joining": 1, "ready": 1, "asked_for": 5.0}
    assert step(**asked) is GrowthStep.LAUNCH
    assert step(**asked, is_due=False) is GrowthStep.WAIT
    assert step(**asked, over=True) is GrowthStep.WITHDRAW
    assert step(is_open=True, over=True, coming=True, stoppable=False) is GrowthStep.WITHDRAW
    assert step(is_open=True, stoppable=False) is GrowthStep.LAUNCH
    # What boots is for the next attempt. A bid would only delay it.
    for how in ({"ending": True}, {"told": True}):
        assert step(is_open=True, coming=True, **how) is GrowthStep.LAUNCH
        assert step(is_open=True, **how) is GrowthStep.WITHDRAW


counts = st.integers(0, 6)
seconds = st.floats(0, 4000)


@given(
    st.builds(
        GrowthState,
        size=counts,
        most=counts,
        joining=counts,
        ready=counts,
        leaving=st.booleans(),
        stoppable=st.booleans(),
        told=st.booleans(),
        ending=st.booleans(),
        is_open=st.booleans(),
        coming=st.booleans(),
        settled=seconds,
        settle_seconds=seconds,
        asked_for=st.none() | seconds,
        seconds_left=seconds,
        seconds_with_all=seconds,
        is_due=st.booleans(),
        over=st.booleans(),
        given_up=st.booleans(),
    )
)
def test_whatever_it_is_like(state: GrowthState) -> None:
    found = state.next_step()
    if found is GrowthStep.LAUNCH:
        assert state.size + state.joining < state.most
        assert state.is_due
        assert not state.over
        assert state.seconds_with_all >= LEAST_SECONDS
        assert state.is_open or not (state.told or state.ending)
    if state.is_open and state.is_due and found is GrowthStep.WAIT:
        raise AssertionError("nobody looks whether what is open has come")
    if found is GrowthStep.WITHDRAW:
        assert state.is_open
    if found is GrowthStep.ASK:
        assert state.joining == state.ready > 0
        assert not state.leaving
        assert state.asked_for is None
        assert state.seconds_left >= LEAST_SECONDS
    if found is GrowthStep.ASK_NO_MORE:
        assert state.asked_for is not None
    if found is GrowthStep.GIVE_UP:
        assert state.joining
        late = (state.asked_for or 0.0) >= GIVE_UP_SECONDS
        assert late or state.given_up or state.seconds_left < LEAST_SECONDS
    if found in (GrowthStep.ASK, GrowthStep.ASK_NO_MORE):
        assert state.stoppable
        assert not state.ending
        assert not state.told


class Held(Market):
    """A market as Slurm is: what its bids may have, those that are asked later may have and earlier ones not.

    Attributes:
        only_after_withdrawal: Whether bids that are open now get nothing.
        stubborn: Machines that do not end.
    """

    only_after_withdrawal = False
    stubborn: Collection[str] = ()

    def terminate(self, instances: Sequence[Instance]) -> None:
        super().terminate([each for each in instances if each.id not in self.stubborn])

    def launch(self, intent: LaunchIntent) -> list[Instance]:
        if self.only_after_withdrawal and intent.token in self.waiting:
            raise LaunchPending("in a queue", 5.0, queued=True)
        return super().launch(intent)


class Growing(Scene):
    """The scene of an elastic gang, whose attempt also asks for more while it runs."""

    def __init__(self, home: Path, fewest: int = 2, most: int = 5, spares: int = 0) -> None:
        super().__init__(home, fewest, most, spares)
        self.market: Held = Held(home)

    async def sleep(self, seconds: float) -> None:
        await super().sleep(seconds)
        assert self.now < 10 * DAY, "it waits for ever"

    def wait_at_most(self, hours: float) -> None:
        """Has the task wait for room no longer than that."""
        self._configure(max_wait_hours=hours)

    def grow_at_checkpoints(self) -> None:
        """Has the gang grow while it runs."""
        self._configure(grow="checkpoint")

    def _configure(self, **changes: object) -> None:
        config = {**self.store.get_task("t1").config, **changes}
        with sqlite3.connect(self.home / "state.db") as db:
            db.execute("UPDATE tasks SET config = ?", (json.dumps(config),))

    def provisioner(self) -> Provisioner:
        view = TaskView.of(self.store.get_task("t1"))
        return Provisioner(self.store, self.lease, self.market, view, Threads(), self.turn())

    def launch(self, count: int) -> list[str]:
        """Asks for nodes, as the supervisor does; a new supervisor each time."""
        record = self.store.get_task("t1")
        rows, settled = asyncio.run(self.provisioner().launch_joining(record, count, Path("/a")))
        self.store.transition(self.lease, record.state, "", instances=rows, settled=settled)
        return [row.id for row in rows]


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Growing:
    made = Growing(tmp_path)
    monkeypatch.setattr(clock, "now", lambda home=None: made.now)
    return made


def test_the_next_attempt_takes_the_nodes_that_join(scene: Growing) -> None:
    scene.market.room = 2
    before = scene.attempt()
    scene.market.room = 1
    joined = scene.launch(3)
    assert list(scene.provisioner().joining()) == joined
    began = scene.now
    assert scene.attempt() == [*before, *joined]
    assert scene.now == began
    assert scene.provisioner().joining() == {}


def test_a_node_that_joins_takes_the_rank_of_one_that_is_lost(scene: Growing) -> None:
    scene.market.room = 3
    before = scene.attempt()
    scene.market.room = 1
    joined = scene.launch(2)
    scene.market.take_away(before[1:2])
    assert scene.attempt() == [before[0], *joined, before[2]]


def test_there_is_no_room(scene: Growing) -> None:
    scene.market.room = 2
    before = scene.attempt()
    with pytest.raises(CapacityUnavailable):
        scene.launch(3)
    assert scene.open_launches() == []
    assert scene.attempt() == before


def test_a_bid_stays_open_while_it_runs_and_no_longer(scene: Growing) -> None:
    scene.market.room = 2
    before = scene.attempt()
    scene.market.queues = True
    for _ in range(3):
        with pytest.raises(LaunchPending):
            scene.launch(3)
    assert len(scene.open_launches()) == len(scene.market.waiting) == 1
    assert scene.attempt() == before
    assert scene.open_launches() == []
    assert scene.market.waiting == {}


def test_a_bid_that_is_old_is_waited_for_as_long_as_a_new_one(scene: Growing) -> None:
    before = open_bid(scene, 3, 2)
    scene.now += 1e4
    scene.market.take_away(before[:1])
    began = scene.now
    assert scene.attempt() == before[1:]
    # A second more for the bid to be gone.
    assert began + HEAL <= scene.now <= began + HEAL + 2


def open_bid(scene: Growing, room: int, more: int) -> list[str]:
    """A gang with a bid for more nodes that stays open. Returns its nodes."""
    scene.market.room = room
    before = scene.attempt()
    scene.market.queues = True
    with pytest.raises(LaunchPending):
        scene.launch(more)
    return before


def lose_to_a_bid(scene: Growing, most: int, lost: int) -> list[str]:
    """A gang, of which so many nodes are lost while a bid for more has been open for two days. Returns the others."""
    before = open_bid(scene, most, 5 - most)
    scene.now += 2 * DAY
    scene.market.take_away(before[:lost])
    return before[lost:]


def test_a_bid_that_is_old_does_not_count_as_the_wait_for_nodes_that_are_needed(
    scene: Growing,
) -> None:
    scene.wait_at_most(1.0)
    left, began = lose_to_a_bid(scene, 4, 3), scene.now

    def more() -> None:
        if scene.now > began + 600:
            scene.market.room = 1
            scene.meanwhile = lambda: None

    scene.meanwhile = more
    roster = scene.attempt()
    assert roster[-1:] == left or roster[:1] == left
    assert len(roster) == 2
    assert scene.open_launches() == []
    assert sorted(scene.market.there()) == sorted(roster)


def test_what_a_gang_needs_is_asked_for_in_a_launch_of_its_own(scene: Growing) -> None:
    lose_to_a_bid(scene, 3, 2)
    scene.market.only_after_withdrawal = True
    scene.market.room = 2
    assert len(scene.attempt()) == 3
    assert scene.market.waiting == {}


def test_hosts_that_have_become_free_are_asked_for_too(scene: Growing) -> None:
    left, began = lose_to_a_bid(scene, 4, 1), scene.now
    scene.market.only_after_withdrawal = True
    scene.market.room = 1
    roster = scene.attempt()
    assert len(roster) == 4
    assert set(left) < set(roster)
    assert scene.now <= began + HEAL


def test_a_launch_that_boots_is_waited_for(scene: Growing) -> None:
    scene.market.room = 3
    before = scene.attempt()
    scene.market.room, scene.market.boots = 1, 3
    with pytest.raises(LaunchPending):
        scene.launch(2)
    scene.market.take_away(before[:1])
    assert len(scene.attempt()) == 3
    assert scene.open_launches() == []


def test_an_open_bid_for_more_is_no_turn_in_the_queue(
    scene: Growing, monkeypatch: pytest.MonkeyPatch
) -> None:
    lose_to_a_bid(scene, 3, 2)
    asked: list[float] = []

    async def to_launch(turn: Turn, tell: object, until: float = 0.0) -> bool:
        asked.append(until)
        return True

    monkeypatch.setattr(Turn, "to_launch", to_launch)
    scene.market.only_after_withdrawal = True
    scene.market.room = 2
    scene.attempt()
    assert len(asked) == 1


def withdraw(scene: Growing, roster: Collection[str]) -> None:
    """Withdraws what is open so that a gang grows, as the supervisor does, until that is done."""
    for _ in range(5):
        if asyncio.run(scene.provisioner().withdraw_joining(roster)):
            return
    raise AssertionError("it is never withdrawn")


def test_a_bid_that_is_withdrawn_wins_nothing(scene: Growing) -> None:
    before = open_bid(scene, 2, 3)
    assert scene.provisioner().is_joining()
    withdraw(scene, before)
    assert not scene.provisioner().is_joining()
    assert scene.market.waiting == {}
    assert asyncio.run(scene.provisioner().end_left_over(before))
    assert sorted(scene.market.there()) == sorted(before)


def test_what_a_lost_launch_has_won_anew_is_ended_beside_an_open_bid(scene: Growing) -> None:
    before = open_bid(scene, 2, 3)
    (brought_by,) = [row.token for row in scene.store.intents("t1") if row.state == "done"]
    anew = Instance("won-anew", "t1", price_per_hour=1.0, launched_at=60.0)
    scene.market.made[brought_by].append(anew)
    asyncio.run(scene.provisioner().end_beside(before, doomed_too=False))
    assert sorted(scene.market.there()) == sorted(before)
    assert len(scene.market.waiting) == 1, "the bid is still of use"
    assert scene.provisioner().is_joining()


def test_what_no_launch_is_known_of_is_kept_as_long_as_one_is_open(scene: Growing) -> None:
    scene.market.knows_launches = False
    before = open_bid(scene, 2, 3)
    provisioner = scene.provisioner()
    asyncio.run(provisioner.end_beside(before, doomed_too=False))
    assert not asyncio.run(provisioner.end_left_over(before))
    assert len(scene.market.waiting) == 1
    withdraw(scene, before)
    assert asyncio.run(provisioner.end_left_over(before))
    assert sorted(scene.market.there()) == sorted(before)


def test_a_launch_is_open_until_all_is_ended_that_it_may_bring(scene: Growing) -> None:
    scene.market.room = 2
    before = scene.attempt()
    scene.market.room, scene.market.boots = 2, 9
    with pytest.raises(LaunchPending):
        scene.launch(3)
    boots = sorted({*scene.market.there()} - {*before})
    scene.market.stubborn = boots[:1]
    assert not asyncio.run(scene.provisioner().withdraw_joining(before))
    assert not asyncio.run(scene.provisioner().withdraw_joining(before))
    assert scene.provisioner().is_joining(), "a supervisor that takes over would ask for others"
    assert sorted(scene.market.there()) == sorted([*before, *boots[:1]])
    scene.market.stubborn = ()
    withdraw(scene, before)
    assert sorted(scene.market.there()) == sorted(before)


def test_a_job_that_returns_is_not_withdrawn_with_a_bid(scene: Growing) -> None:
    before = open_bid(scene, 2, 3)
    scene.market.made["t1-launch-1"].append(Instance("job", "t1", "returning"))
    withdraw(scene, before)
    assert sorted(scene.market.there()) == sorted([*before, "job"])


def test_machines_that_boot_are_withdrawn_too_and_those_with_rows_stay(scene: Growing) -> None:
    scene.market.room = 2
    before = scene.attempt()
    scene.market.room = 1
    joined = scene.launch(3)
    scene.market.room, scene.market.boots = 2, 9
    with pytest.raises(LaunchPending):
        scene.launch(2)
    withdraw(scene, before)
    assert sorted(scene.market.there()) == sorted([*before, *joined])
    scene.market.boots = scene.market.room = 0
    assert scene.attempt() == [*before, *joined]


def test_nodes_that_are_given_back_are_gone_and_their_end_is_recorded(scene: Growing) -> None:
    scene.market.room = 2
    before = scene.attempt()
    scene.market.room = 2
    scene.launch(2)
    provisioner = scene.provisioner()
    asyncio.run(provisioner.give_back(list(provisioner.joining().values())))
    assert sorted(scene.market.there()) == sorted(before)
    rows = scene.store.instances("t1")
    assert sorted(row.id for row in rows if row.ended_at is None) == sorted(before)


@given(st.lists(st.tuples(st.sampled_from("lgb"), st.integers(0, 3)), max_size=8), st.booleans())
@settings(max_examples=30, deadline=None)
def test_whatever_joins_and_is_lost(events: list[tuple[str, int]], queues: bool) -> None:
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as home:
        scene = Growing(Path(home), 2, 5)
        patch.setattr(clock, "now", lambda home=None: scene.now)
        market = scene.market
        market.room = 3
        roster = scene.attempt()
        market.queues = queues
        for kind, number in events:
            joining = scene.provisioner().joining()
            market.room = number
            if kind == "g" and (lacking := 5 - len(roster) - len(joining)) > 0:
                try:
                    scene.launch(lacking)
                except (CapacityUnavailable, LaunchPending):
                    continue
                assert len(market.there()) <= 5
            elif kind == "b":
                provisioner = scene.provisioner()
                asyncio.run(provisioner.give_back(list(joining.values())))
                assert sorted(market.there()) == sorted(roster)
            elif kind == "l":
                lost = roster[: min(number, len(roster) - 2)]
                market.take_away(lost)
                stay = [name for name in roster if name not in lost]
                roster = scene.attempt()
                assert [name for name in roster if name in stay] == stay
                assert set(joining) <= set(roster)
                assert len(roster) <= 5
                assert sorted(roster) == sorted(market.there())
                assert scene.open_launches() == []
        scene.store.close()


class Growths(Growth):
    """The growth of a gang whose program can stop, pass by pass."""

    def __init__(self, scene: Growing) -> None:
        self.scene = scene
        self.asked: list[str] = []
        record = scene.store.get_task("t1")
        view = TaskView.of(record)
        journal = Journal(scene.store, scene.lease, record)
        journal._started.add(record.attempt)
        task = LedTask(
            scene.market,
            view,
            TaskPaths(scene.home, "t1"),
            journal,
            scene.provisioner(),
            Threads(),
            (Path("/a"), ""),
        )
        super().__init__(task, self.asked.append)
        self.heard({"kind": "stoppable"})

    async def one_pass(self) -> None:
        """What is done every two seconds."""
        self._launch_at = 0.0
        await self._go_on()


@pytest.fixture
def growing(scene: Growing) -> Growths:
    scene.grow_at_checkpoints()
    scene.market.room = 2
    scene.attempt()
    scene.market.queues = True
    return Growths(scene)


def test_a_gang_that_is_being_ended_asks_for_no_more_and_withdraws_its_bid(
    growing: Growths,
) -> None:
    asyncio.run(growing.one_pass())
    assert len(growing.scene.market.waiting) == 1
    growing.end()
    asyncio.run(growing.one_pass())
    asyncio.run(growing.one_pass())
    assert growing.scene.market.waiting == {}
    assert growing.scene.open_launches() == []


def test_a_supervisor_that_takes_over_does_not_ask_what_was_given_up(growing: Growths) -> None:
    scene = growing.scene
    scene.market.room = 1
    scene.launch(3)
    (joined,) = scene.provisioner().joining().values()
    asyncio.run(growing._give_up([joined]))
    assert scene.provisioner().joining() == {}
    successor = Growths(scene)
    assert successor._journal.noted(GROWTH, "given_up")
    assert not successor._journal.noted(GROWTH, "asked")


def test_an_error_that_nobody_expects_withdraws_the_bid(
    growing: Growths, monkeypatch: pytest.MonkeyPatch
) -> None:
    asyncio.run(growing.one_pass())

    async def breaks(joining: int) -> None:
        raise ValueError("a defect")

    async def keep() -> None:
        growing._launch_at = 0.0
        keeping = asyncio.create_task(growing._keep())
        async with asyncio.timeout(90):
            while growing.scene.open_launches():
                await asyncio.sleep(0.01)
        growing._closing.set()
        await keeping

    monkeypatch.setattr(growing, "_launch", breaks)
    asyncio.run(keep())
    assert growing.scene.market.waiting == {}


def test_a_node_that_is_given_up_is_ended_until_it_has_gone(scene: Growing) -> None:
    scene.market.room = 2
    roster = scene.attempt()
    scene.market.room = 2
    lost, stays = scene.launch(2)
    provisioner, stubborn = scene.provisioner(), {lost}
    scene.market.stubborn = stubborn
    asyncio.run(provisioner.end_without_rank(provisioner.joining()[lost], answers=True))
    assert list(provisioner.joining()) == [stays]
    assert asyncio.run(provisioner.end_given_back(roster))
    stubborn.clear()
    assert not asyncio.run(provisioner.end_given_back(roster))
    assert sorted(scene.market.there()) == sorted([*roster, stays])
    assert lost not in {row.id for row in scene.store.instances("t1") if row.ended_at is None}


def test_machines_of_one_launch_that_fail_count_once(growing: Growths) -> None:
    growing._came_together(["a", "b"])
    for name in ("a", "b", "c"):
        growing._count_failure(Instance(name, "t1"))
    assert growing.failures == 2


def test_refused_launches_leave_one_row_and_no_number_is_used_again(scene: Growing) -> None:
    scene.market.room = 2
    scene.attempt()
    tokens = []
    for _ in range(4):
        with pytest.raises(CapacityUnavailable):
            scene.launch(3)
        rows = [row for row in scene.store.intents("t1") if row.data.get("purpose") == JOINING]
        assert [row.state for row in rows] == ["refused"]
        tokens.append(rows[0].token)
    assert len(set(tokens)) == 4


def test_a_task_without_machines_is_handed_back_without_its_bid(scene: Growing) -> None:
    lose_to_a_bid(scene, 2, 2)
    bid = scene.market.list_instances()
    assert len(bid) == 1
    assert has_machines(scene.store, "t1", bid) is False
    record = scene.store.get_task("t1")
    supervisor = Supervisor(scene.store, scene.home, record, scene.lease, scene.market)
    asyncio.run(supervisor._hand_back())
    assert scene.market.list_instances() == []
    assert scene.open_launches() == []


def test_what_was_given_back_is_ended_beside_a_bid_too(scene: Growing) -> None:
    scene.market.room = 2
    before = scene.attempt()
    scene.market.room = 1
    (joined,) = scene.launch(3)
    scene.market.queues, scene.market.stubborn = True, {joined}
    provisioner = scene.provisioner()
    asyncio.run(provisioner.give_back(list(provisioner.joining().values())))
    with pytest.raises(LaunchPending):
        scene.launch(3)
    scene.market.stubborn = ()
    asyncio.run(scene.provisioner().end_beside(before, doomed_too=False))
    assert sorted(scene.market.there()) == sorted(before)


def test_a_node_that_ends_while_others_are_waited_for_is_not_in_the_attempt(
    scene: Growing,
) -> None:
    scene.market.room = 4
    before = scene.attempt()
    scene.market.take_away(before[:1])

    def more() -> None:
        if scene.now > 1000 + HEAL / 2 + SETTLE:
            scene.market.take_away(before[1:2])
            scene.meanwhile = lambda: None

    scene.meanwhile = more
    assert scene.attempt() == before[2:]


def test_growth_makes_no_pause_after_a_preemption(scene: Growing) -> None:
    scene.store.add_event("t1", GROWTH, "the ranks have stopped", {GROWN: True, "attempt": 1})
    scene.store.add_event("t1", GROWTH, "the gang goes on", {"attempt": 2})
    assert count(scene.store, "t1") == 1


def end_of(scene: Growing) -> End:
    """How a supervisor takes it that the ranks of the present attempt have stopped to grow."""
    record = scene.store.get_task("t1")
    supervisor = Supervisor(scene.store, scene.home, record, scene.lease, scene.market)
    return supervisor._as_asked(End(messages.GROWING, "it grows"))


def test_growth_that_nobody_has_asked_for_is_a_failure(scene: Growing) -> None:
    scene.grow_at_checkpoints()
    scene.market.room = 2
    scene.attempt()
    end = end_of(scene)
    assert end.outcome == messages.FAILED
    assert "nobody has asked for that: it grows" in end.reason
    # What was asked for in an earlier attempt, and lost since, is no reason for this one.
    scene.store.add_event("t1", GROWTH, "asked", {"asked": True, "attempt": 0})
    assert end_of(scene).outcome == messages.FAILED
    scene.store.add_event("t1", GROWTH, "asked", {"asked": True, "attempt": 1})
    assert end_of(scene).outcome == messages.GROWING


def test_a_gang_of_full_size_does_not_grow_whatever_its_leader_says(scene: Growing) -> None:
    scene.grow_at_checkpoints()
    scene.market.room = 5
    assert len(scene.attempt()) == 5
    scene.store.add_event("t1", GROWTH, "asked", {"asked": True, "attempt": 1})
    assert end_of(scene).outcome == messages.FAILED


def test_what_goes_on_is_awaited_before_an_error_is_raised() -> None:
    done: list[str] = []

    async def fails() -> None:
        raise OSError("no")

    async def goes_on() -> None:
        for _ in range(5):
            await asyncio.sleep(0)
        done.append("equipped")

    with pytest.raises(OSError, match="no"):
        asyncio.run(each_of([fails(), goes_on()]))
    assert done == ["equipped"]


def test_a_provider_without_elastic_gangs_refuses_and_one_size_gets_a_note(tmp_path: Path) -> None:
    market = Market(tmp_path)
    whole = TaskConfig(command="true", num_instances=4, grow="checkpoint")
    assert "grow: no effect on a gang of one size" in " ".join(capped_plan(whole, market).notes)
    market.elastic = False
    with pytest.raises(ConfigError, match="market launches all nodes of a gang or none"):
        capped_plan(TaskConfig(command="true", num_instances=(2, 4), grow="checkpoint"), market)
