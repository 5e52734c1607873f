"""`Task`: one run seen from outside, from rows and files that these tests write."""

from __future__ import annotations

import asyncio
import copy
import pickle
import signal
import threading
import time
from datetime import datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from flowlite import FlowApp
from flowlite.api.as_completed import as_completed
from flowlite.display import waiting
from flowlite.errors import (
    BundleError,
    ConfigError,
    NotFound,
    RemoteError,
    RemoteTraceback,
    ResultUnavailable,
    TaskCancelled,
    TaskFailed,
    TaskTimeout,
)
from flowlite.settings import flow_home as flow_home_settings
from flowlite.settings.flow_home import WriteProbe
from flowlite.state.store import Store
from tests.tasks_made_by_hand import HandMade

pytestmark = pytest.mark.usefixtures("flow_home")


class Diverged(Exception):
    """An exception of the user's, with arguments of its own."""

    def __init__(self, step: int, loss: float) -> None:
        super().__init__(f"step {step}: loss {loss}")
        self.step = step
        self.loss = loss


class Odd:
    """Travels only as a pickle."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Odd)


class Slotted(Exception):
    __slots__ = ()


# What is known


def test_a_task_that_is_to_be_pickled_says_what_to_hand_on_instead() -> None:
    task = HandMade().task
    for attempt in (pickle.dumps, copy.deepcopy):
        with pytest.raises(TypeError, match=rf"task {task.id} .*get_task\(id\)"):
            attempt(task)


@pytest.mark.timeout(30)
def test_a_signal_handler_looks_at_the_task_that_is_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = HandMade()
    task = made.task
    seen: list[str] = []
    version = Store.version

    def interrupted(store: Store) -> int:
        if not seen:
            seen.append("handled")
            signal.raise_signal(signal.SIGUSR1)
        return version(store)

    def handler(number: int, frame: object) -> None:
        seen.append(task.status)
        made.end("completed")

    monkeypatch.setattr(Store, "version", interrupted)
    before = signal.signal(signal.SIGUSR1, handler)
    try:
        task.wait(20, show_logs=False)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert seen == ["handled", "running"]


@pytest.mark.timeout(30)
def test_a_signal_handler_waits_while_it_is_found_out_whether_anything_can_be_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flow_home_settings, "_PROBE_EVERY", 0.0)
    probe = WriteProbe(tmp_path)
    heard: list[str] = []

    def look(path: Path) -> str:
        if not heard:
            heard.append("signal")
            signal.raise_signal(signal.SIGUSR1)
        return "the disk is full"

    monkeypatch.setattr(flow_home_settings, "not_recorded", look)
    before = signal.signal(signal.SIGUSR1, lambda number, frame: heard.append(probe.news()))
    try:
        probe.news()
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert heard == ["signal", "the disk is full"]


def test_properties_follow_the_store() -> None:
    made = HandMade(nodes=2, per_node=4, price=2.0, config={"max_price_per_hour": 3.5})
    task = made.task
    assert (task.name, task.status, task.num_instances, task.provider) == (
        "digits",
        "running",
        2,
        "local",
    )
    assert task.max_price_per_hour == 3.5
    assert task.finished_at is None
    assert not task.done
    made.change("stopping", "all ranks have ended")
    assert (task.status, task.reason) == ("stopping", "all ranks have ended")
    made.end()
    assert task.done
    assert isinstance(task.finished_at, datetime)
    assert task.created_at.tzinfo is not None
    assert task.created_at <= (task.started_at or task.created_at) <= task.finished_at
    assert repr(task) == f"<Task digits ({made.id}): completed>"


def test_nodes_and_cost_come_from_the_instances() -> None:
    made = HandMade(price=2.0)
    made.instance(1, price=2.0, hours=3, ended=True)
    made.instance(0, price=2.0, hours=1)
    task = made.task
    assert [(node.rank, node.state, node.address) for node in task.nodes] == [
        (0, "running", "10.0.0.0"),
        (1, "ended", "10.0.0.1"),
    ]
    assert task.estimated_cost == pytest.approx(8.0, abs=0.01)
    assert task.cost_per_hour == 2.0


def test_a_node_that_was_replaced_stands_before_the_one_that_replaced_it() -> None:
    made = HandMade()
    made.instance(0, name="z-first", hours=2, ended=True)
    made.instance(0, name="a-second", hours=1)
    made.instance(1, name="m-other", hours=2)
    assert [node.id for node in made.task.nodes] == ["z-first", "a-second", "m-other"]


def test_without_a_cap_the_price_stands_in_its_place() -> None:
    # The guide multiplies it by the number of instances.
    assert HandMade(price=2.5).task.max_price_per_hour == 2.5


def test_events_tell_what_happened() -> None:
    made = HandMade()
    made.end()
    assert [event.kind for event in made.task.events()] == ["running", "completed"]


# Waiting


def test_wait_returns_soon_after_the_end() -> None:
    made = HandMade()
    ended: list[float] = []

    def end() -> None:
        ended.append(time.monotonic())
        made.end()

    timer = threading.Timer(0.2, end)
    timer.start()
    task = made.task
    assert task.wait(timeout=90) is task
    # Generous for a busy machine; an idle one needs 50 ms at most.
    assert time.monotonic() - ended[0] < 20.0


def test_wait_gives_up_after_its_timeout_and_leaves_the_task_alone() -> None:
    made = HandMade()
    with pytest.raises(TaskTimeout, match=f"still running after 0.05 s.*flow cancel {made.id}"):
        made.task.wait(timeout=0.05)
    with pytest.raises(TimeoutError):
        made.task.result(timeout=0)
    assert made.task.status == "running"


@pytest.mark.parametrize("timeout", ["10m", "5", float("nan"), True, timedelta(minutes=1), [1]])
def test_a_timeout_that_is_no_number_of_seconds_is_refused(timeout: Any) -> None:
    """A text raised a TypeError from inside; NaN waited without end."""
    task = HandMade(nodes=1, per_node=1).task
    for wait in (task.wait, task.result, task.results, task.exception):
        with pytest.raises(ConfigError, match="give a number of seconds, as in 600, or None"):
            wait(timeout)
    with pytest.raises(ConfigError, match="give a number of seconds"):
        as_completed([task], timeout)
    with pytest.raises(TaskTimeout):
        task.wait(-1)


def test_waiting_looks_after_the_supervisor(monkeypatch: pytest.MonkeyPatch) -> None:
    made = HandMade()
    asked: list[str | None] = []
    monkeypatch.setattr("flowlite.api.task.ENSURE_EVERY", 0.05)

    def ensure(store: object, home: object, *, only: str | None = None) -> list[str]:
        asked.append(only)
        if len(asked) == 3:
            made.end()
        return []

    monkeypatch.setattr("flowlite.supervise.process.launch.ensure_supervisors", ensure)
    made.task.wait(timeout=90)
    assert len(asked) >= 3
    assert set(asked) == {made.id}


def test_await_gives_the_result() -> None:
    made = HandMade()
    made.returns(0, {"accuracy": 0.97})
    threading.Timer(0.1, made.end).start()

    async def main() -> Any:
        return await made.task

    assert asyncio.run(main()) == {"accuracy": 0.97}


# Results


def test_results_come_by_rank() -> None:
    made = HandMade()
    for rank in range(4):
        made.returns(rank, ("rank", rank))
    made.end()
    task = made.task
    assert task.result() == ("rank", 0)
    assert task.results() == [("rank", rank) for rank in range(4)]
    assert task.result_of(3) == ("rank", 3)
    assert task.exception() is None
    with pytest.raises(NotFound, match="no rank 4: it has ranks 0 to 3"):
        task.result_of(4)


def test_results_are_those_of_the_last_attempt() -> None:
    made = HandMade()
    made.returns(0, "first", attempt=1)
    made.returns(0, "second", attempt=2)
    made.change("running", attempt=2)
    made.end()
    assert made.task.result() == "second"


def test_a_task_as_an_argument_is_refused_and_its_result_asked_for() -> None:
    earlier = HandMade().task
    train = FlowApp().function(lambda tasks: tasks)
    with pytest.raises(BundleError) as refused:
        train.spawn([earlier])
    said = str(refused.value)
    assert "tasks[0] is a flowlite.api.task.Task" in said
    assert said.endswith("; pass what it returned, as in task.result()")


def test_a_command_returns_nothing() -> None:
    made = HandMade(call={"kind": "command", "argv": ["true"]})
    made.end()
    assert made.task.result() is None
    assert made.task.results() == [None] * 4


def test_plain_results_refuse_pickles() -> None:
    for config in ({}, {"results": "plain"}):
        made = HandMade(config=config)
        made.returns(0, Odd())
        made.end()
        with pytest.raises(ResultUnavailable, match="pickle"):
            made.task.result(allow_pickle=False)
        if config:
            with pytest.raises(ResultUnavailable, match="pickle"):
                made.task.result()
        else:
            assert made.task.result() == Odd()


def test_a_missing_result_is_named() -> None:
    made = HandMade()
    made.end()
    with pytest.raises(ResultUnavailable, match="node 0, rank 0 of task digits"):
        made.task.result()


# Failures


def test_a_workers_exception_is_raised_as_its_own_type() -> None:
    made = HandMade()
    made.raises(3, Diverged(7, 1e9), first=True)
    made.end("failed", "first failure: node 1, rank 3: Diverged: step 7")
    with pytest.raises(Diverged) as caught:
        made.task.result()
    error = caught.value
    assert (error.step, error.loss) == (7, 1e9)
    assert isinstance(error.__cause__, RemoteTraceback)
    assert any("node 1, rank 3 of task digits" in note for note in error.__notes__)
    assert made.task.exception().__class__ is Diverged
    with pytest.raises(Diverged):
        made.task.results()


def test_the_first_failure_is_raised_and_the_others_are_listed() -> None:
    made = HandMade()
    made.raises(0, ValueError("second"))
    made.raises(2, KeyError("first"), first=True)
    made.raises(2, KeyError("first"))
    made.fails(3, {"kind": "exit", "message": "exited with 7"}, code=7)
    made.fails(1, {"kind": "signal"}, signal=15)
    made.end("failed", "first failure: node 1, rank 2: KeyError: 'first'")
    with pytest.raises(KeyError, match="first") as caught:
        made.task.result()
    failures = caught.value.failures  # type: ignore[attr-defined]
    # Rank 1 was told to stop; it did not fail.
    assert list(failures) == [2, 0, 3]
    assert isinstance(failures[0], ValueError)
    assert isinstance(failures[3], TaskFailed)
    assert failures[2] is caught.value
    assert "also failed: rank 0, 3" in "\n".join(caught.value.__notes__)
    assert list(made.task.failures()) == [2, 0, 3]


def test_an_exception_that_takes_no_attribute_is_raised_all_the_same() -> None:
    made = HandMade()
    made.raises(0, Slotted("no room"), first=True)
    made.end("failed", "…")
    with pytest.raises(Slotted):
        made.task.result()


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"signal": 9}, "rank 3 on node 1 was killed by SIGKILL (out of memory?)"),
        ({"signal": 11}, "rank 3 on node 1 was killed by SIGSEGV (a crash in native code)"),
        ({"signal": 70}, "rank 3 on node 1 was killed by signal 70"),
        ({"code": 42}, "rank 3 on node 1 exited with 42"),
        (
            {"code": 137, "failure": {"kind": "exit", "message": "exited with 137 (a child …)"}},
            "rank 3 on node 1 exited with 137 (a child …)",
        ),
        (
            {"code": 1, "failure": {"kind": "exit", "type": "SystemExit", "message": "no data"}},
            "rank 3 on node 1 exited with 1\n",
        ),
    ],
)
def test_signals_and_exit_codes_are_named_with_the_last_lines(
    body: dict[str, Any], said: str
) -> None:
    made = HandMade()
    made.fails(3, first=True, tail=["step 1", "step 2"], **body)
    made.end("failed", "…")
    with pytest.raises(TaskFailed) as caught:
        made.task.result()
    text = str(caught.value)
    assert said in text
    assert "step 1\n  step 2" in text
    assert f"flow logs {made.id} --rank 3" in text
    assert caught.value.task_id == made.id
    assert list(caught.value.failures) == [3]


def test_a_launcher_has_no_rank_of_its_processes() -> None:
    made = HandMade(per_node=1, config={"distributed_mode": "manual"})
    made.fails(1, first=True, code=1)
    made.end("failed", "first failure: node 1, rank 1: exited with 1")
    with pytest.raises(TaskFailed, match="the command on node 1 exited with 1") as caught:
        made.task.result()
    assert f"flow logs {made.id} --node 1" in str(caught.value)


def test_a_worker_killed_by_the_stop_signal_before_any_stop_did_fail() -> None:
    made = HandMade()
    made.fails(0, first=True, signal=15)
    made.end("failed", "…")
    with pytest.raises(TaskFailed, match="killed by SIGTERM"):
        made.task.result()


@pytest.mark.parametrize(
    ("reason", "notes"),
    [
        ("first failure: node 0, rank 0: killed by SIGTERM", []),
        (
            "the job was cancelled; what was seen here: node 0, rank 0: killed by SIGTERM",
            [
                "the task failed: the job was cancelled; what was seen here: node 0, rank 0: killed by SIGTERM"
            ],
        ),
    ],
)
def test_a_cause_that_was_learned_of_elsewhere_is_told(reason: str, notes: list[str]) -> None:
    made = HandMade()
    made.fails(0, first=True, signal=15)
    made.end("failed", reason)
    with pytest.raises(TaskFailed) as caught:
        made.task.result()
    assert list(getattr(caught.value, "__notes__", ())) == notes


def test_without_its_file_an_exception_comes_as_remote_error() -> None:
    made = HandMade()
    failure = {"kind": "exception", "type": "my.Error", "message": "it broke"}
    made.fails(2, failure, first=True, code=1)
    made.end("failed", "…")
    with pytest.raises(RemoteError, match=r"rank 2 on node 1: my\.Error: it broke") as caught:
        made.task.result()
    assert caught.value.type_name == "my.Error"


def test_ranks_ended_at_the_deadline_did_not_fail_themselves() -> None:
    made = HandMade()
    for rank in range(4):
        made.fails(rank, {"kind": "signal"}, signal=15)
    made.end("failed", "max_run_time_hours: stopped after 5 s")
    with pytest.raises(TaskFailed, match="stopped after 5 s") as caught:
        made.task.result()
    assert caught.value.failures == {}


def test_a_failure_without_a_worker_says_why() -> None:
    made = HandMade()
    made.end("failed", "node 2 (i-7) is missing: it never joined")
    with pytest.raises(TaskFailed, match=f"never joined.*flow status {made.id}"):
        made.task.result()


def test_failures_of_an_earlier_attempt_are_forgotten() -> None:
    made = HandMade()
    made.fails(0, first=True, code=1)
    made.change("running", attempt=2)
    made.end("failed", "node 0 is lost")
    assert made.task.failures() == {}


def test_a_cancelled_task_says_so() -> None:
    made = HandMade()
    made.end("cancelled", "cancelled while waiting for nodes")
    with pytest.raises(TaskCancelled, match="was cancelled while waiting"):
        made.task.result()
    assert isinstance(made.task.exception(), TaskCancelled)
    assert made.task.cancel() is False


# Logs


def test_logs_print_and_end_with_the_first_failure() -> None:
    made = HandMade()
    made.write(3, b"ValueError: no\n", stream="err")
    made.end("failed", "first failure: node 1, rank 3: ValueError: no")
    text = str(made.task.logs())
    first, last = text.splitlines()
    assert first.startswith("[Node 1, rank 3] [")
    assert first.endswith("] ValueError: no")
    assert last == "first failure: node 1, rank 3: ValueError: no"


def test_logs_of_a_completed_task_end_with_its_own_words() -> None:
    made = HandMade()
    made.write(0, b"done\n")
    made.end()
    assert str(made.task.logs()).endswith("] done")


def test_following_ends_with_the_task_and_misses_nothing() -> None:
    made = HandMade()
    got: list[str] = []

    def follow() -> None:
        got.extend(line.text for line in made.task.logs(follow=True))

    reader = threading.Thread(target=follow)
    reader.start()
    for number in range(50):
        made.write(number % 4, f"line {number}\n".encode())
    made.write(0, b"cut off")
    made.end()
    reader.join(90)
    assert not reader.is_alive()
    assert sorted(got) == sorted([*(f"line {n}" for n in range(50)), "cut off"])


def test_logs_go_on_from_a_position() -> None:
    made = HandMade()
    made.write(0, b"one\ntwo\n")
    logs = made.task.logs()
    assert [line.text for line in logs] == ["one", "two"]
    made.write(0, b"three\n")
    assert [line.text for line in made.task.logs(after=logs.position)] == ["three"]


def test_places_that_do_not_exist_are_named() -> None:
    task = HandMade(nodes=1, per_node=2).task
    with pytest.raises(NotFound, match="no node 1: it has only node 0"):
        task.logs(node=1)
    with pytest.raises(NotFound, match="no rank 2: it has ranks 0 to 1"):
        task.logs(rank=2)
    with pytest.raises(ConfigError, match="rank='1' is no number; give an int"):
        task.logs(rank="1")
    with pytest.raises(ConfigError, match="after='x' is no position"):
        task.logs(after="x")
    with pytest.raises(ConfigError, match="as_completed takes tasks"):
        as_completed([5])
    assert repr(task.logs()).endswith("print it, or iterate over its lines>")
    with pytest.raises(NotFound, match=r"node 0 .* is not there yet; the task is running"):
        task.exec("true")


def test_a_check_that_takes_long_is_not_made_all_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """With hundreds of ranks or tasks, a program that only waited took a fifth of a core."""
    checks = [0]

    def slow(*_: Any, **__: Any) -> tuple[bool, bool]:
        checks[0] += 1
        time.sleep(0.02)
        return False, False

    task = HandMade(nodes=1, per_node=1).task
    display = SimpleNamespace(advance=lambda ended: slow()[1], pause=lambda: None)
    assert not waiting.wait_for_end(task, display, 0.8)  # type: ignore[arg-type]
    assert checks[0] <= 9
    checks[0] = 0
    monkeypatch.setattr(waiting, "display_in_program", lambda task, shown: None)
    monkeypatch.setattr("flowlite.api.as_completed.show_news", slow)
    with pytest.raises(TaskTimeout):
        list(as_completed([task], 0.8))
    assert checks[0] <= 9
