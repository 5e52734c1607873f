"""`should_stop()`: the same on all ranks at the same step, with real agents and workers."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import re
import subprocess
import sys
import timeit
from pathlib import Path
from typing import Any, Self

import pytest

import flowlite
from flowlite.in_worker import should_stop
from flowlite.node.preemption import shared_page
from flowlite.node.preemption.shared_page import StopPage
from flowlite.node.protocol.messages import DEADLINE, PREEMPTED, MessageError
from flowlite.node.rendezvous.stop_vote import LEAST_GRACE, MARGIN, Hold, Resume, StopNow, Vote
from tests.checkpoints.remote import newest
from tests.helpers import eventually
from tests.node.agents import RealGang
from tests.node.test_rendezvous import SUPERVISOR, Leader

PROGRAM = Path(__file__).with_name("stopping_program.py")
ROOT = Path(__file__).parents[2]


def program(*arguments: object) -> dict[str, Any]:
    words = [sys.executable, str(PROGRAM), *map(str, arguments)]
    return {"kind": "command", "argv": words}


def signal_text(seconds: float = 300) -> str:
    import datetime

    end = datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=seconds)
    return f"instance_status: STATUS_PREEMPTING\nbid_status: Open\nend_time: {end.isoformat()}\n"


class Notified(RealGang):
    """A gang whose nodes look for a signal file each; `take_away` writes one."""

    def __init__(self, home: Path, call: dict[str, Any], **options: Any) -> None:
        environment = {"PYTHONPATH": str(ROOT)}
        super().__init__(home, call, environment=environment, **options)
        for config in self.configs:
            file = str(home / f"{config.instance}.yml")
            config.preemption = {"kind": "mithril", "file": file, "every": 0.05}

    def take_away(self, node: int, seconds: float = 300) -> None:
        file = self.home / f"{self.configs[node].instance}.yml"
        partial = file.with_suffix(".part")
        partial.write_text(signal_text(seconds))
        partial.rename(file)

    def __enter__(self) -> Self:
        super().__enter__()
        return self

    def run_until(self, word: str, then: Any) -> dict[str, Any]:
        """Starts all, does something once every worker has said a word, and follows to the end."""

        async def follow() -> dict[str, Any]:
            await self.until("started")
            said = [
                p.stream(r, "out")
                for c, p in zip(self.configs, self.paths, strict=True)
                for r in c.ranks
            ]
            await asyncio.to_thread(
                eventually,
                lambda: all(each.exists() and word in each.read_text() for each in said),
            )
            then()
            return await self.finish()

        self.start()
        return asyncio.run(follow())

    def stopped_at(self) -> list[int]:
        world = sum(len(config.ranks) for config in self.configs)
        found = [re.search(r"stopped at (\d+)", self.text(rank)) for rank in range(world)]
        assert all(found), [self.text(rank) for rank in range(world)]
        return [int(each[1]) for each in found if each]

    def kinds(self) -> list[str]:
        return [event["kind"] for event in self.events]


def test_all_ranks_stop_at_the_same_step(tmp_path: Path) -> None:
    with Notified(tmp_path, program(100_000, 0.02), grace=10.0) as gang:
        ended = gang.run_until("working", lambda: gang.take_away(1))
        assert ended["outcome"] == "preempted", gang.logs()
        assert len(set(gang.stopped_at())) == 1
        preempting = next(e for e in gang.events if e["kind"] == "preempting")
        assert preempting["instance"] == "i-001"
        assert 200 < preempting["seconds"] <= 300
        agreed = next(e for e in gang.events if e["kind"] == "should_stop")
        assert set(gang.stopped_at()) == {agreed["call"]}
        gang.assert_nothing_left()


def test_a_gang_that_never_asks_gets_the_signal_at_once(tmp_path: Path) -> None:
    with Notified(tmp_path, program(100_000, 0.02, "never"), grace=5.0) as gang:
        ended = gang.run_until("working", lambda: gang.take_away(0))
        assert ended["outcome"] == "preempted"
        assert [gang.text(rank).split("\n")[2] for rank in range(4)] == ["signal 15"] * 4


def test_whoever_does_not_come_to_its_next_step_gets_the_signal_in_time(tmp_path: Path) -> None:
    # One rank of each node is in a step that takes longer than the machine has.
    code = (
        "import os, signal, sys, time; sys.argv[1:] = []; from flowlite import should_stop;"
        "signal.signal(signal.SIGTERM, lambda *_: (print('signal', flush=True), sys.exit(0)));"
        "should_stop(); print('working', flush=True);"
        "[time.sleep(0.01) for _ in iter(lambda: should_stop(), True)]"
        " if os.environ['LOCAL_RANK'] == '0' else time.sleep(600)"
    )
    call = {"kind": "command", "argv": [sys.executable, "-c", code]}
    with Notified(tmp_path, call, grace=1.0) as gang:
        ended = gang.run_until("working", lambda: gang.take_away(1, seconds=6))
        assert ended["outcome"] == "preempted"
        assert all("signal" in gang.text(rank) for rank in range(4))
        assert "should_stop" not in gang.kinds()


def test_failing_after_notice_is_preemption_not_failure(tmp_path: Path) -> None:
    with Notified(tmp_path, program(100_000, 0.02, "fail")) as gang:
        ended = gang.run_until("working", lambda: gang.take_away(1))
        assert ended["outcome"] == "preempted"


def test_finishing_without_having_been_told_is_done(tmp_path: Path) -> None:
    with Notified(tmp_path, program(10, 0.01)) as gang:
        ended = gang.run_until("finished", lambda: None)
        assert ended["outcome"] == "done"


def test_it_is_true_shortly_before_the_deadline(tmp_path: Path) -> None:
    with Notified(tmp_path, program(100_000, 0.02), max_run_seconds=6.0) as gang:
        ended = gang.run()
        assert ended["outcome"] == "deadline"
        assert len(set(gang.stopped_at())) == 1


def test_outside_of_a_task_it_is_false_and_costs_nothing() -> None:
    assert flowlite.should_stop() is False
    assert flowlite.Flow.should_stop() is False


def test_a_call_costs_well_under_ten_microseconds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = StopPage(tmp_path / "stop", 2)
    monkeypatch.setenv(should_stop.VARIABLE, str(tmp_path / "stop"))
    monkeypatch.setattr(should_stop, "_share", None)
    assert flowlite.should_stop() is False
    assert [each.waits for each in page.callers()] == [False]
    best = min(timeit.repeat(flowlite.should_stop, number=10_000, repeat=5)) / 10_000
    assert best < 10e-6
    monkeypatch.setattr(should_stop, "_share", None)


def test_both_halves_agree_on_the_page() -> None:
    names = "MAGIC STATE AT PATIENCE SLOTS FIRST_SLOT SLOT_SIZE QUIET HOLD DECIDED".split()  # noqa: SIM905
    assert all(getattr(should_stop, name) == getattr(shared_page, name) for name in names)


def test_where_a_file_system_has_no_locks_each_rank_has_a_slot_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    page = StopPage(tmp_path / "stop", 4)
    monkeypatch.setattr(fcntl, "lockf", refuse)
    monkeypatch.setenv(should_stop.VARIABLE, str(tmp_path / "stop"))
    slots = set()
    for rank in ("0", "3", ""):
        monkeypatch.setenv("LOCAL_RANK", rank)
        share = should_stop._Share()
        assert not share.ask()
        slots.add(share.slot)
    assert len(slots) == 2
    assert len(page.callers()) == 2


def test_forked_processes_count_for_themselves(tmp_path: Path) -> None:
    page = StopPage(tmp_path / "stop", 1)
    code = (
        "import os; from flowlite import should_stop; should_stop();"
        "pid = os.fork() or (should_stop(), input()); print('up', flush=True); pid and os.waitpid(pid, 0)"
    )
    environment = {
        **os.environ,
        should_stop.VARIABLE: str(tmp_path / "stop"),
        "PYTHONPATH": str(ROOT),
    }
    child = subprocess.Popen(
        [sys.executable, "-c", code], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        eventually(lambda: len(page.callers()) == 2)
    finally:
        child.communicate(b"\n\n", timeout=90)
    assert page.callers() == []


def test_a_launcher_may_start_many_ranks_of_which_nothing_was_said(tmp_path: Path) -> None:
    """As `torchrun --nproc_per_node=64` without --processes-per-node. One that is not heard would go on alone."""
    page = StopPage(tmp_path / "stop", 1)
    code = (
        "import os; from flowlite import should_stop\n"
        "children = 64\n"
        "while children and os.fork(): children -= 1\n"
        "if children: should_stop(); print('up', flush=True); os.read(0, 1)\n"
        "else: [os.wait() for each in range(64)]"
    )
    environment = {
        **os.environ,
        should_stop.VARIABLE: str(tmp_path / "stop"),
        "PYTHONPATH": str(ROOT),
    }
    launcher = subprocess.Popen(
        [sys.executable, "-c", code], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert launcher.stdout is not None
    try:
        assert [launcher.stdout.readline() for _ in range(64)] == [b"up\n"] * 64
        assert len(page.callers()) == 64
    finally:
        launcher.communicate(timeout=90)


@pytest.mark.needs("own-mounts")
def test_the_last_copy_of_checkpoints_is_made_in_the_time_that_is_left(tmp_path: Path) -> None:
    code = (
        "import os, pathlib, time; from flowlite import should_stop; print('working', flush=True)\n"
        "while not should_stop(): time.sleep(0.01)\n"
        "pathlib.Path(os.environ['FLOW_CHECKPOINT_DIR'], 'last').write_text('state'); print('stopped at 1')"
    )
    asked = {"path": "/flowlite-ckpt", "sync": str(tmp_path / "remote"), "every": 60.0, "keep": 3}
    asked |= {"nodes": "leader", "final_seconds": 20.0}
    call = {"kind": "command", "argv": [sys.executable, "-c", code]}
    with Notified(tmp_path, call, nodes=1, processes_per_node=1, checkpoint=asked) as gang:
        ended = gang.run_until("working", lambda: gang.take_away(0, seconds=60))
        assert ended["outcome"] == "preempted", gang.logs()
        assert newest(tmp_path / "remote") == {"last": b"state"}


def holding() -> Leader:
    """A gang of two that runs, with a supervisor, and has been told to hold."""
    leader = Leader()
    leader.attach()
    leader.go()
    leader.say(1, "vanish", kind="preempted", reason="spot", seconds=120.0)
    assert [leader.heard(node)[-1] for node in (0, 1)] == ["hold", "hold"]
    return leader


def test_a_node_that_was_cut_off_learns_what_holds() -> None:
    leader = holding()
    leader.say(0, "calls", callers=1, waiting=[4])
    leader.leave(1)
    leader.join(11)
    assert leader.heard(11)[-1] == "hold"
    leader.say(11, "calls", callers=1, waiting=[6])
    assert leader.told[0][-1]["call"] == leader.told[11][-1]["call"] == 6
    leader.leave(0)
    leader.join(10)
    assert leader.told[10][-1]["call"] == 6


def test_a_machine_that_vanishes_before_all_have_stopped_was_preempted() -> None:
    leader = holding()
    leader.leave(1)
    leader.wait(2.0, 0, SUPERVISOR)
    leader.say(SUPERVISOR, "lost", instance="i-b", why="its machine is gone")
    leader.say(0, "stopped")
    ended = leader.events()[-1]
    assert (ended["kind"], ended["outcome"]) == ("ended", "preempted")
    assert "spot" in ended["reason"]


def test_before_the_start_notice_ends_the_attempt_at_once() -> None:
    leader = Leader()
    leader.attach()
    leader.join(0)
    leader.say(0, "vanish", kind="preempted", reason="spot", seconds=120.0)
    leader.say(0, "stopped")
    assert leader.events()[-1]["outcome"] == "preempted"


def test_the_stop_signal_carries_the_grace_that_is_left() -> None:
    leader = holding()
    for node in (0, 1):
        leader.say(node, "calls", callers=0, waiting=[])
    stop = leader.told[0][-1]
    assert stop["type"] == "stop"
    assert stop["grace"] == 120.0 - MARGIN
    # Longer than a gang usually takes to stop.
    leader.wait(60.0, 0, 1, SUPERVISOR)
    assert leader.machine.phase == "stopping"


@pytest.mark.parametrize(
    ("seconds", "after_stop", "last", "grace"),
    [
        (120.0, 20.0, 67.0, 30.0),
        # The last copy of checkpoints gets half of the time at most.
        (120.0, 100.0, 27.0, 30.0),
        (300.0, 0.0, 267.0, 30.0),
        (10.0, 20.0, 0.0, 2.0),
        (4.0, 20.0, 0.0, LEAST_GRACE),
    ],
)
def test_the_stop_signal_leaves_time_to_stop_and_for_the_last_copy(
    seconds: float, after_stop: float, last: float, grace: float
) -> None:
    vote = Vote(grace=30.0, after_stop=after_stop)
    step = vote.notice(PREEMPTED, "spot", seconds, now=0.0)
    if last > 0:
        assert step == Hold(last)
        # Each node has its own notice; one of more time changes nothing.
        assert vote.notice(PREEMPTED, "spot", seconds + 60.0, now=0.0) is None
        vote.tell(0, 1, [])
        assert vote.step([0], last - 0.1) is None
        step = vote.step([0], last)
    assert step == StopNow(grace)
    assert vote.step([0], last + 1.0) is None
    outcomes = [vote.outcome(each, last) for each in ("done", "failed", "lost", "stopped")]
    assert outcomes == ["done", "preempted", "preempted", "stopped"]


def test_before_a_deadline_whoever_waits_goes_on_at_its_last_moment() -> None:
    vote = Vote(grace=30.0, after_stop=20.0)
    assert vote.notice(DEADLINE, "over", 100.0, now=0.0) == Hold(100.0 - MARGIN)
    vote.tell(0, 2, [7])
    assert vote.step([0], 96.9) is None
    assert vote.step([0], 97.0) == Resume(None)
    assert vote.step([0], 98.0) is None


def test_the_stop_signal_is_sent_at_its_last_moment_though_nobody_says_anything() -> None:
    leader = holding()
    for node in (0, 1):
        leader.say(node, "calls", callers=1, waiting=[])
    # With the two seconds in which its workers stop.
    last = 120.0 - 2.0 - MARGIN
    leader.wait(last - 1.0, 0, 1, SUPERVISOR)
    assert leader.machine.phase == "running"
    leader.wait(1.5, 0, 1, SUPERVISOR)
    assert [leader.told[node][-1]["type"] for node in (0, 1)] == ["stop", "stop"]


def test_notice_of_what_nobody_knows_is_refused() -> None:
    leader = Leader()
    leader.go()
    with pytest.raises(MessageError, match="magic"):
        leader.say(1, "vanish", kind="magic", reason="", seconds=1.0)
    with pytest.raises(MessageError, match="not a number"):
        leader.say(1, "calls", callers=1, waiting=["x"])
