"""Tasks that wait: cheap, in their order, and whatever is killed meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import os
import re
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

from flowlite import Flow
from flowlite.cli.commands.queue import show
from flowlite.provider import slots_of_gang
from flowlite.state import clock
from flowlite.state.store import InstanceRecord, Store, UnfinishedTask
from flowlite.supervise.process import launch
from flowlite.supervise.queue import asleep, turn, waking
from flowlite.supervise.queue.backfill import Demand, demand_of
from flowlite.supervise.queue.current_queue import Queue
from flowlite.supervise.queue.turn import Turn
from flowlite.supervise.queue.waking import AWAKE_AHEAD
from flowlite.supervise.record import process_identity
from flowlite.supervise.record.paths import TaskPaths
from tests.crash.timeline import Timeline
from tests.gangs import Gang, let_go, shell, submit, waiting
from tests.helpers import eventually, process_alive
from tests.test_store import PLAN, task


def started(gangs: list[Gang]) -> list[Gang]:
    """Those that have started, in the order in which they did."""
    there = [gang for gang in gangs if gang.record.started_at is not None]
    return sorted(there, key=lambda gang: gang.record.started_at or 0.0)


def sleeping(gangs: list[Gang]) -> list[Gang]:
    return [gang for gang in gangs if asleep.is_asleep(gang.home, gang.id)]


def supervisor(gang: Gang) -> int:
    found = process_identity.noted_supervisor(gang.home, gang.id)
    assert found is not None
    return found.pid


@pytest.mark.slow
def test_many_wait_in_their_order_and_few_of_them_are_awake(flow_home: Path) -> None:
    first = submit(flow_home, waiting(), max_tasks=1, name="first")
    first.wait("running")
    gangs = [submit(flow_home, ["true"], max_tasks=1, name=f"t{n}") for n in range(10)]
    urgent = submit(flow_home, ["true"], max_tasks=1, name="urgent", priority="high")
    assert len(sleeping(gangs)) == 10 - AWAKE_AHEAD
    assert all(process_alive(supervisor(gang)) for gang in gangs)
    assert gangs[-1].record.reason == "waits for its turn; `flow queue` shows its place"
    eventually(lambda: ": 1 before it" in gangs[0].record.reason)
    # A supervisor that is asleep is a shell.
    status = Path(f"/proc/{supervisor(gangs[-1])}/status").read_text()
    rss = int(next(line for line in status.splitlines() if "VmRSS" in line).split()[1])
    assert rss < 4000
    let_go(flow_home)
    for gang in [first, urgent, *gangs]:
        gang.end(timeout=120)
    assert started([*gangs, urgent]) == [urgent, *gangs]


@pytest.mark.slow
def test_the_queue_goes_on_when_all_who_are_awake_are_killed(flow_home: Path) -> None:
    first = submit(flow_home, waiting(), max_tasks=1)
    first.wait("running")
    gangs = [submit(flow_home, ["true"], max_tasks=1) for n in range(AWAKE_AHEAD + 3)]
    awake = [gang for gang in gangs if gang not in sleeping(gangs)]
    for gang in [first, *awake, gangs[-2]]:
        os.kill(supervisor(gang), signal.SIGKILL)
    let_go(flow_home)
    # The client that waits for the last one keeps the others going.
    gangs[-1].end(timeout=120)
    for gang in [first, *gangs]:
        gang.end(timeout=120)
    assert len(started(gangs)) == len(gangs)


def test_a_client_that_waits_for_many_looks_after_all_of_them_once_a_second(
    flow_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A look at all reads each task, so that one for each of them would take minutes for some hundreds."""
    timeline = Timeline()
    looks: list[float] = []
    monkeypatch.setattr(waking, "wake_due", lambda *_: looks.append(timeline.now))
    kind = {"slots": ["host"], "count": 1}
    with clock.running_on(timeline):
        store = Store(flow_home / "state.db")
        names = [f"task{number}" for number in range(20)]
        for name in names:
            store.create_task(task(name, plan={**PLAN, "slots": [kind]}))
            assert store.acquire_lease(name, "somebody", 600.0)
        for _ in range(6):
            for name in names:
                assert launch.ensure_supervisors(store, flow_home, only=name) == []
            timeline.sleep(0.5)
        assert len(looks) == 3
        # Whoever asks for all of them gets that.
        launch.ensure_supervisors(store, flow_home)
        assert len(looks) == 4
        # As `flow cancel TASK...` does, which looks them all up first.
        for name in names:
            assert Flow().get_task(name).id == name
        assert len(looks) == 5


def test_who_waits_looks_after_the_others_once_a_second_and_not_in_its_own_turn(
    flow_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That takes a look at each task of the queue, at a time at which a free host may stand idle."""
    timeline = Timeline()
    looks: list[float] = []
    waits: list[str] = []
    monkeypatch.setattr(turn, "wake_due", lambda *_: looks.append(timeline.now))
    kind = {"slots": ["host"], "count": 1}
    with clock.running_on(timeline):
        store, other = Store(flow_home / "state.db"), Store(flow_home / "state.db")
        for name in ("first", "second"):
            store.create_task(task(name, plan={**PLAN, "slots": [kind]}))
            assert store.acquire_lease(name, "somebody", 600.0)

        async def sleep(seconds: float) -> None:
            timeline.sleep(seconds)
            # Something changes all the time, so that the queue is read all the time.
            other.add_event("first", "note", "something")

        def turn_of(name: str) -> Turn:
            return Turn(store, name, sleep, waits.append, lambda: False)

        until = clock.now() + 3.05
        assert not asyncio.run(turn_of("second").to_launch(until))
        assert len(waits) >= 25
        assert 3 <= len(looks) <= 4
        looks.clear()
        assert asyncio.run(turn_of("first").to_launch())
        assert looks == []


def test_who_waits_in_a_long_queue_spends_a_tenth_of_a_core_on_it(
    flow_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Eight supervisors are awake, and a queue of 2,000 takes 60 ms to read."""
    timeline = Timeline()
    read, reads = Queue.read, 0

    def slowly(store: Store) -> Queue:
        nonlocal reads
        reads += 1
        until = time.thread_time() + 0.05
        while time.thread_time() < until:
            pass
        return read(store)

    monkeypatch.setattr(Queue, "read", slowly)
    with clock.running_on(timeline):
        store, other = Store(flow_home / "state.db"), Store(flow_home / "state.db")
        for name in ("first", "second"):
            store.create_task(task(name, plan={**PLAN, "slots": [{"slots": ["host"], "count": 1}]}))
            assert store.acquire_lease(name, "somebody", 600.0)

        async def sleep(seconds: float) -> None:
            timeline.sleep(seconds)
            other.add_event("first", "note", "something")

        turn_of_second = Turn(store, "second", sleep, lambda _: None, lambda: False)
        assert not asyncio.run(turn_of_second.to_launch(clock.now() + 10.0))
    assert 10 <= reads <= 21


@pytest.mark.slow
def test_a_task_that_sleeps_is_cancelled(flow_home: Path) -> None:
    first = submit(flow_home, waiting(), max_tasks=1)
    first.wait("running")
    gangs = [submit(flow_home, ["true"], max_tasks=1) for _ in range(AWAKE_AHEAD + 12)]
    asleep_ones = sleeping(gangs)
    assert len(asleep_ones) == 12
    for gang in gangs:
        assert launch.cancel(gang.store, flow_home, gang.id)
    for gang in gangs:
        gang.end("cancelled", timeout=120)
    launch.cancel(first.store, flow_home, first.id)
    first.end("cancelled")


def test_who_waited_too_long_says_for_whom(flow_home: Path) -> None:
    """It is next, and nobody is before it: the place was in use."""
    first = submit(flow_home, waiting(), max_tasks=1, name="first")
    first.wait("running")
    late = submit(flow_home, ["true"], max_tasks=1, max_wait_hours=2 / 3600).end("failed")
    used = rf"waiting for a place \(.*in use by first \({first.id}\)\): it is next"
    told = f"max_wait_hours: no room within 2 s; at last {used}"
    assert re.fullmatch(told, late.reason), late.reason
    let_go(flow_home)
    first.end()


def test_a_task_begins_after_others_have_completed(flow_home: Path) -> None:
    one = submit(flow_home, waiting(), name="one")
    two = submit(flow_home, ["true"], name="two")
    later = submit(flow_home, shell("echo later"), after=[one.id, two.id])
    last = submit(flow_home, ["true"], after=[later.id])
    two.end()
    assert asleep.is_asleep(flow_home, later.id)
    assert later.record.state == "pending"
    assert later.record.reason.startswith(f"begins after one ({one.id})")
    os.kill(supervisor(later), signal.SIGKILL)
    let_go(flow_home)
    last.end()
    assert later.record.state == "completed"
    assert (later.record.started_at or 0) >= (one.record.finished_at or 0)


def test_a_task_after_one_that_failed_says_so_and_does_not_start(flow_home: Path) -> None:
    failing = submit(flow_home, waiting("exit 3"), name="bad")
    later = submit(flow_home, ["true"], name="later", after=[failing.id])
    last = submit(flow_home, ["true"], name="last", after=[later.id])
    let_go(flow_home)
    failing.end("failed")
    reason = later.end("failed").reason
    assert reason.startswith(f"not started: it was to begin after bad ({failing.id}), which failed")
    assert f"after later ({later.id}), which failed" in last.end("failed").reason
    assert last.record.started_at is None


def test_a_task_does_not_wait_for_others_when_one_has_failed(flow_home: Path) -> None:
    long = submit(flow_home, waiting(), name="long")
    failing = submit(flow_home, ["false"], name="bad")
    before = submit(flow_home, ["true"], after=[long.id, failing.id])
    failing.end("failed")
    after = submit(flow_home, ["true"], after=[long.id, failing.id])
    for gang in (before, after):
        assert f"after bad ({failing.id}), which failed" in gang.end("failed").reason
    assert not long.record.final
    let_go(flow_home)
    long.end()


def test_what_flow_queue_shows(flow_home: Path) -> None:
    first = submit(flow_home, waiting(), max_tasks=1, name="first", max_run_seconds=3600.0)
    first.wait("running")
    gangs = [submit(flow_home, ["true"], max_tasks=1, name=name) for name in ("one", "two")]
    later = submit(flow_home, ["true"], max_tasks=1, name="later", after=[gangs[1].id])
    done = subprocess.run(
        [sys.executable, "-m", "flowlite.cli", "queue", "--json"],
        env={**os.environ, "FLOW_HOME": str(flow_home)},
        capture_output=True,
        text=True,
        timeout=90,
        check=True,
    )
    rows = json.loads(done.stdout)["data"]
    assert [(row["place"], row["name"]) for row in rows] == [
        (1, "one"),
        (2, "two"),
        (None, "later"),
    ]
    assert [user["id"] for user in rows[0]["in_use_by"]] == [first.id]
    assert rows[0]["expected_start"] is not None
    assert rows[1]["expected_start"] is None
    assert rows[2]["waits_for"] == f"the end of two ({gangs[1].id})"
    let_go(flow_home)
    for gang in [first, *gangs, later]:
        gang.end()


def test_the_users_of_the_same_hosts_are_looked_up_once(
    flow_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For 2,000 tasks that wait for 200 hosts, that took 10 s."""
    store = Store(flow_home / "state.db")
    slots = [{"slots": ["a", "b"], "count": 1}]
    for number in range(20):
        store.create_task(task(f"t{number}", plan={**PLAN, "slots": slots}))
        store.count_as_led(f"t{number}")
    monkeypatch.setattr(Queue, "is_led", lambda queue, task_id: True)
    asked: list[str] = []

    def users_of(queue: Queue, of: UnfinishedTask) -> list[UnfinishedTask]:
        asked.append(of.id)
        return [of]

    monkeypatch.setattr(Queue, "users_of", users_of)
    rows = show._rows(Queue.read(store))
    assert [row["place"] for row in rows] == list(range(1, 21))
    assert len(asked) == 1


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("config", {"after": 5}),
        ("config", {"after": [[]], "priority": []}),
        ("plan", {"slots": [1]}),
        ("plan", {"slots": [{"slots": 3, "count": "x"}]}),
        ("plan", {"slots": [{"slots": ["a"], "count": 1}], "max_run_seconds": "long"}),
        ("plan", {"slots": [{"slots": ["a"], "count": 1}], "max_run_seconds": math.inf}),
        ("plan", {"slots": [{"slots": ["a"], "count": math.inf}]}),
        ("plan", {"slots": [{"slots": ["a"], "count": 1, "most": "2"}]}),
        ("created_at", "yesterday"),
        ("lease_expires", "never"),
    ],
)
def test_a_damaged_row_does_not_hold_up_the_queue_of_others(
    flow_home: Path, field: str, value: object
) -> None:
    store = Store(flow_home / "state.db")
    for name in ("broken", "whole"):
        store.create_task(task(name))
    store.close()
    stored = value if field in ("created_at", "lease_expires") else json.dumps(value)
    with contextlib.closing(sqlite3.connect(flow_home / "state.db", isolation_level=None)) as db:
        db.execute(f"UPDATE tasks SET {field} = ? WHERE id = 'broken'", (stored,))
    assert list(Queue.read(Store(flow_home / "state.db")).tasks) == ["whole"]


def test_a_gang_that_may_grow_asks_the_queue_for_as_many_nodes_as_it_may_have(
    flow_home: Path,
) -> None:
    """What the queue reads of a plan has the most nodes too, or the gang would take hosts that others wait for."""
    store = Store(flow_home / "state.db")
    kind = slots_of_gang(["a", "b", "c", "d"], 1, 3)
    store.create_task(task("grows", plan={**PLAN, "slots": [kind]}))
    queue = Queue.read(store)
    [read] = queue.tasks.values()
    assert [demand_of(each) for each in read.slots] == [Demand(("a", "b", "c", "d"), 1, 3, 1)]
    [place] = queue.places(all_times=False, counts=lambda _: True)
    assert place.nodes == 3


def test_tasks_that_wait_for_one_another_are_shown_and_can_be_cancelled(flow_home: Path) -> None:
    """No command makes such a ring; a changed store can have one."""
    first = submit(flow_home, waiting(), max_tasks=1)
    first.wait("running")
    gangs = [submit(flow_home, ["true"], max_tasks=1, after=[first.id]) for _ in range(2)]
    for gang, other in zip(gangs, reversed(gangs), strict=True):
        with contextlib.closing(sqlite3.connect(flow_home / "state.db")) as db, db:
            config = json.dumps({**gang.record.config, "after": [other.id]})
            db.execute("UPDATE tasks SET config = ? WHERE id = ?", (config, gang.id))
    let_go(flow_home)
    first.end(timeout=120)
    assert len(Queue.read(first.store).tasks) == 2
    for gang in gangs:
        launch.cancel(gang.store, flow_home, gang.id)
    for gang in gangs:
        gang.end("cancelled", timeout=120)


def _many_that_wait(home: Path, names: list[str]) -> Store:
    """Tasks that wait for one host, which the first of them has."""
    store = Store(home / "state.db")
    plan = {**PLAN, "slots": [{"slots": ["host"], "count": 1}]}
    for number, name in enumerate(names):
        TaskPaths(home, name).make()
        state = "pending" if number else "running"
        store.create_task(task(name, plan=plan, state=state, created_at=clock.now() + number))
    lease = store.acquire_lease(names[0], "somebody", 600.0)
    assert lease is not None
    data = {"id": "i-1", "task_id": names[0], "slot": "host"}
    store.put_instances(
        lease, [InstanceRecord("i-1", names[0], "local", "running", 0.0, 1.0, data)]
    )
    return store


def _sleeper(home: Path, task_id: str, *argv: str) -> subprocess.Popen[bytes]:
    """A sleeping supervisor that becomes this program."""
    with open(os.devnull, "wb") as log:
        return asleep.start(TaskPaths(home, task_id), argv, os.environ, log)


def _counted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Each reading of the queue."""
    read, reads = Queue.read, list[str]()

    def counting(store: Store, growing: str = "") -> Queue:
        reads.append("read")
        return read(store, growing)

    monkeypatch.setattr(Queue, "read", counting)
    return reads


def test_who_cancels_many_does_not_read_the_queue_for_each(
    flow_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A queue of 2,000 took 0.15 s to read, for each of the hundreds that `flow cancel` may be given."""
    with clock.running_on(Timeline()):
        names = [f"task{number}" for number in range(20)]
        store = _many_that_wait(flow_home, names)
        for name in names[1:]:
            assert store.acquire_lease(name, "somebody", 600.0)
        reads = _counted(monkeypatch)
        for name in names:
            assert launch.cancel(store, flow_home, name)
        # A look at all tasks, as once a second.
        assert len(reads) <= 1


def test_a_few_supervisors_at_a_time_are_woken_to_be_cancelled(flow_home: Path) -> None:
    names = [f"task{number}" for number in range(waking._CANCELLING + 3)]
    store = _many_that_wait(flow_home, names)
    shells = {name: _sleeper(flow_home, name, "sleep", "600") for name in names[1:]}
    for name, shell_of_it in shells.items():
        noted = process_identity.of_process(shell_of_it.pid)
        process_identity.note_supervisor(flow_home, name, noted)

    def cancel(name: str) -> bool:
        """Whether its supervisor is awake then."""
        store.request_cancel(name)
        waking.wake_cancelled(store, name)
        if name in still:
            return not asleep.is_asleep(flow_home, name)
        eventually(lambda: not asleep.is_asleep(flow_home, name))
        return True

    still = names[-2:]
    try:
        assert [cancel(name) for name in names[1:]] == [True] * waking._CANCELLING + [False] * 2
        # One that has ended, or was killed, makes room.
        shells[names[1]].kill()
        shells[names[1]].wait()
        still = names[-1:]
        assert [cancel(name) for name in names[-2:]] == [True, False]
    finally:
        for each in shells.values():
            each.kill()
            each.wait()


def test_the_queue_is_read_once_for_all_that_have_lost_their_supervisors(
    flow_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a restart of the machine: with 2,000 that wait, the next command took minutes."""
    names = [f"task{number:02}" for number in range(AWAKE_AHEAD + 20)]
    store = _many_that_wait(flow_home, names)
    for name in names:
        noted = process_identity.Process(os.getpid(), "before the restart")
        process_identity.note_supervisor(flow_home, name, noted)
    here = process_identity.of_process(os.getpid())
    started: dict[str, bool] = {}

    def start(home: Path, task_id: str, *, sleeping: bool = False, **_: object) -> int:
        started[task_id] = sleeping
        process_identity.note_supervisor(home, task_id, here)
        return here.pid

    monkeypatch.setattr(launch, "start_supervisor", start)
    reads = _counted(monkeypatch)
    assert sorted(launch.ensure_supervisors(store, flow_home)) == names[1:]
    assert [name for name in names[1:] if not started[name]] == names[1 : AWAKE_AHEAD + 1]
    assert len(reads) == 2
    assert store.get_task(names[-1]).reason == "waits for its turn; `flow queue` shows its place"


def test_whether_a_task_may_begin_after_others_is_asked_of_these_alone(
    flow_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every task that there ever was took 60 ms to read, for each of eight supervisors each second."""
    store = Store(flow_home / "state.db")
    store.create_task(task("good", state="completed"))
    store.create_task(task("bad", state="failed"))
    store.create_task(task("long", state="running"))
    for name, before in (("later", ["good", "long"]), ("never", ["bad", "long"])):
        store.create_task(task(name, config={"after": before}))
        store.count_as_led(name)
    monkeypatch.delattr(Store, "task_keys")
    assert waking._due(store, Queue.read(store)) == ["never"]


def test_a_supervisor_that_sleeps_is_seen_without_looking_for_its_process(
    flow_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = _many_that_wait(flow_home, ["first", "second"])
    sleeper = _sleeper(flow_home, "second", "true")
    monkeypatch.delattr(process_identity, "has_supervisor")
    try:
        assert Queue.read(store).is_led("second")
    finally:
        sleeper.kill()
        sleeper.wait()
