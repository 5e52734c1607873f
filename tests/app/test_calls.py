"""`.remote`, `.spawn`, `.map` and `.starmap`, with a client that starts nothing: what is asked of it, and when."""

from __future__ import annotations

import asyncio
import io
import os
import re
import signal
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import flowlite.api.client
from flowlite import ConfigError, FlowApp, FlowError, ProviderError, TaskConfig, TaskTimeout
from flowlite.api.sweeps.sweep import in_order
from flowlite.api.task import Ends
from flowlite.display.screen import Screen
from flowlite.display.sweep_display import SweepDisplay
from flowlite.state.store import Store
from tests.tasks_made_by_hand import HandMade


class FakeTask:
    """Runs its call when it has been looked at so many times, as a task that takes its time."""

    def __init__(self, flow: FakeFlow, config: TaskConfig) -> None:
        self.flow, self.config = flow, config
        self.name, self.id = str(config.name), f"t{len(flow.tasks)}"
        self.looks, self.cancelled, self.call = 0, False, "double(…)"
        call = config.call
        assert call is not None
        self._call: Callable[[], Any] = lambda: call.function(*call.args, **call.kwargs)

    @property
    def done(self) -> bool:
        self.looks += 1
        return self.cancelled or self.looks > self.flow.looks_until_done(self)

    @property
    def status(self) -> str:
        return "completed" if self.looks > self.flow.looks_until_done(self) else "running"

    def wait(self, timeout: float, *, show_logs: bool) -> None:
        self.flow.waits += 1
        if self.flow.on_wait:
            self.flow.on_wait()
        raise TaskTimeout("still running")

    def result(self, *, show_logs: bool | None = None) -> Any:
        if self.flow.on_result:
            self.flow.on_result()
        return self._call()

    def cancel(self) -> bool:
        if self.flow.cancel_fails:
            raise FlowError("the database is locked")
        self.cancelled = True
        return True


class FakeFlow:
    """Stands for `Flow`; counts what runs at a time."""

    def __init__(self) -> None:
        self.tasks: list[FakeTask] = []
        self.most, self.waits = 0, 0
        self.cancel_fails = False
        self.together = False
        self.elements: list[Any] = []
        self.on_submit: Callable[[], None] | None = None
        self.on_result: Callable[[], None] | None = None
        self.on_wait: Callable[[], None] | None = None
        self.looks_until_done: Callable[[FakeTask], int] = lambda task: 3

    def __call__(self, notify: Any = None) -> FakeFlow:
        return self

    def launches_together(self, config: TaskConfig) -> bool:
        return self.together

    def keeps_gangs(self, config: TaskConfig) -> bool:
        return False

    def ended_among(self, tasks: Sequence[FakeTask]) -> list[FakeTask]:
        return [each for each in tasks if each.done]

    def submit(self, config: TaskConfig, announce: Any = None, element: Any = None) -> FakeTask:
        self.elements.append(element)
        self.tasks.append(FakeTask(self, config))
        if announce:
            announce(self.tasks[-1])
        if self.on_submit:
            self.on_submit()
        running = [t for t in self.tasks if not t.cancelled and t.looks <= self.looks_until_done(t)]
        self.most = max(self.most, len(running))
        return self.tasks[-1]


@pytest.fixture
def flow(monkeypatch: pytest.MonkeyPatch) -> FakeFlow:
    fake = FakeFlow()
    monkeypatch.setattr(flowlite.api.client, "Flow", fake)
    # What is shown is tried with real tasks, in tests/display.
    monkeypatch.setenv("FLOW_SHOW_LOGS", "never")
    return fake


app = FlowApp()


@app.function(gpu="h100:2", num_instances=2)
def double(x: int, bonus: int = 0) -> int:
    if x < 0:
        raise ValueError(f"negative: {x}")
    return 2 * x + bonus


@app.function
async def later(x: int) -> int:
    return x


def test_spawn_and_remote(flow: FakeFlow) -> None:
    task = double.spawn(3, bonus=1)
    assert task.result() == 7
    assert double.remote(4) == 8
    assert [t.config.total_processes for t in flow.tasks] == [4, 4]
    assert double.options(provider="slurm").remote(1) == 2
    assert [t.config.provider for t in flow.tasks] == [None, None, "slurm"]


def test_a_wrong_call_starts_nothing(flow: FakeFlow) -> None:
    with pytest.raises(ConfigError):
        double.remote("a", "b", "c")  # type: ignore[call-arg, arg-type]
    with pytest.raises(ConfigError):
        double.starmap([(1,), (1, 2, 3)])
    assert flow.tasks == []


def test_map_keeps_the_order_with_bounded_concurrency(flow: FakeFlow) -> None:
    flow.looks_until_done = lambda task: (7 * len(task.id) + 5 * int(task.id[1:])) % 11
    results = double.map(range(50), max_concurrent=4)
    assert flow.tasks == []
    assert list(results) == [2 * x for x in range(50)]
    assert 1 < flow.most <= 4
    assert not any(task.cancelled for task in flow.tasks)


def test_map_one_at_a_time(flow: FakeFlow) -> None:
    assert list(double.map([1, 2, 3], max_concurrent=1)) == [2, 4, 6]
    assert flow.most == 1


def test_a_map_whose_tasks_are_launched_together(flow: FakeFlow) -> None:
    """Whoever has the nodes keeps the limit, so all are submitted; what has no end, or one value, is not."""
    flow.together = True
    assert list(double.map(range(6), max_concurrent=2)) == [2 * x for x in range(6)]
    assert [(e["index"], e["size"], e["at_once"]) for e in flow.elements] == [
        (n, 6, 2) for n in range(6)
    ]
    assert len({each["id"] for each in flow.elements}) == 1
    assert flow.most == 6
    flow.elements.clear()
    assert list(double.map(iter([1, 2]))) == [2, 4]
    assert list(double.map([3])) == [6]
    assert flow.elements == [None, None, None]


def test_map_over_nothing(flow: FakeFlow) -> None:
    assert list(double.map([])) == []


def test_starmap(flow: FakeFlow) -> None:
    assert list(double.starmap([(1, 10), (2, 20)])) == [12, 24]
    assert list(double.starmap((x, x) for x in (1, 2))) == [3, 6]


def test_map_reads_no_further_ahead_than_needed(flow: FakeFlow) -> None:
    def endless() -> Iterator[int]:
        x = 0
        while True:
            yield x
            x += 1

    results = double.map(endless(), max_concurrent=3)
    assert [next(results) for _ in range(5)] == [0, 2, 4, 6, 8]
    assert len(flow.tasks) <= 5 + 2 * 3
    results.close()  # type: ignore[attr-defined]
    assert all(task.cancelled or task.done for task in flow.tasks)


def test_first_failure_is_raised_and_the_rest_cancelled(flow: FakeFlow) -> None:
    flow.looks_until_done = lambda task: 3 if task.id in {"t0", "t1"} else 10**9
    results = double.map([1, -1, 3, 4, 5], max_concurrent=4)
    assert next(results) == 2
    with pytest.raises(ValueError, match="negative: -1"):
        next(results)
    assert [task.cancelled for task in flow.tasks[2:]] == [True] * len(flow.tasks[2:])
    assert len(flow.tasks) > 2


def test_a_task_that_cannot_be_looked_at_is_cancelled_with_the_others(flow: FakeFlow) -> None:
    results: list[str] = []

    def looks(task: FakeTask) -> int:
        if len(results) == 2 and task.id == "t2":
            raise OSError("the disk is full")
        return 3 if task.id in {"t0", "t1"} else 10**9

    flow.looks_until_done = looks
    flow.on_result = lambda: results.append("asked for")
    with pytest.raises(ValueError, match="negative: -1"):
        list(double.map([1, -1, 3, 4, 5], max_concurrent=4))
    assert [task.cancelled for task in flow.tasks[2:]] == [True] * len(flow.tasks[2:])
    assert len(flow.tasks) > 3


def test_return_exceptions(flow: FakeFlow) -> None:
    first, second, third = double.map([1, -1, 3], return_exceptions=True)
    assert (first, third) == (2, 6)
    assert isinstance(second, ValueError)


def test_a_wrong_call_in_the_middle_of_an_iterator_cancels_the_rest(flow: FakeFlow) -> None:
    flow.looks_until_done = lambda task: 10**9
    with pytest.raises(ConfigError):
        list(double.starmap(iter([(1,), (2,), ()])))
    assert [task.cancelled for task in flow.tasks] == [True, True]


# Ctrl-C


def interrupt() -> None:
    assert threading.current_thread() is threading.main_thread()
    os.kill(os.getpid(), signal.SIGINT)


def test_first_interrupt_cancels_and_says_so(
    flow: FakeFlow, capsys: pytest.CaptureFixture[str]
) -> None:
    flow.on_result = interrupt
    with pytest.raises(KeyboardInterrupt):
        double.remote(1)
    assert flow.tasks[0].cancelled
    said = capsys.readouterr().err
    assert "Interrupted: task double (t0) is being cancelled" in said
    assert "flow status t0" in said
    assert "flow logs t0" in said


def test_interrupt_while_submitting_cancels_what_is_recorded(
    flow: FakeFlow, capsys: pytest.CaptureFixture[str]
) -> None:
    flow.on_submit = interrupt
    with pytest.raises(KeyboardInterrupt):
        double.remote(1)
    assert flow.tasks[0].cancelled
    assert "(t0) is being cancelled" in capsys.readouterr().err


def test_interrupt_when_it_cannot_be_cancelled(
    flow: FakeFlow, capsys: pytest.CaptureFixture[str]
) -> None:
    flow.on_result, flow.cancel_fails = interrupt, True
    with pytest.raises(KeyboardInterrupt):
        double.remote(1)
    said = capsys.readouterr().err
    assert "task double (t0) could not be cancelled and goes on: the database is locked" in said
    assert "cancel it: flow cancel t0" in said


def test_interrupt_during_a_map_cancels_all(
    flow: FakeFlow, capsys: pytest.CaptureFixture[str]
) -> None:
    flow.looks_until_done = lambda task: 10**9
    flow.on_wait = interrupt
    with pytest.raises(KeyboardInterrupt):
        list(double.map([1, 2, 3]))
    assert [task.cancelled for task in flow.tasks] == [True] * 3
    said = capsys.readouterr().err
    assert all(f"(t{n}) is being cancelled" in said for n in range(3))


# On a node


def test_a_worker_starts_no_tasks(flow: FakeFlow, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLOW_TASK_ID", "t9")
    for start in (
        lambda: double.remote(1),
        lambda: double.spawn(1),
        lambda: list(double.map([1])),
    ):
        with pytest.raises(ConfigError, match="called by a worker of task t9"):
            start()
    assert double(1) == 2
    monkeypatch.setenv("FLOW_NESTED", "1")
    assert double.remote(1) == 2


def test_a_worker_submits_no_command_either(
    flow_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = flowlite.api.client.Flow()
    monkeypatch.setenv("FLOW_TASK_ID", "t9")
    with pytest.raises(ConfigError, match="called by a worker of task t9"):
        client.run(TaskConfig(command="true"))
    assert client.list_tasks() == []


def test_a_coroutine_function_is_sent_as_it_is(flow: FakeFlow) -> None:
    config = later.build_task_config(3)
    assert config.call is not None
    assert config.call.args == (3,)


@pytest.mark.parametrize("call", ["double.map([1, 2])", "double.starmap([(1, 2)])"])
def test_results_that_nobody_asks_for_are_warned_of(flow: FakeFlow, call: str) -> None:
    method = call.split(".")[1].partition("(")[0]
    with pytest.warns(RuntimeWarning, match=rf"write list\(double\.{method}\(…\)\)") as told:
        eval(call)
    assert told[0].filename == "<string>"
    assert flow.tasks == []


# Sweeps in an event loop


def collected(results: AsyncIterator[Any]) -> list[Any]:
    async def collect() -> list[Any]:
        return [each async for each in results]

    return asyncio.run(collect())


def test_a_sweep_in_an_event_loop_keeps_the_order_with_bounded_concurrency(flow: FakeFlow) -> None:
    flow.looks_until_done = lambda task: (7 * len(task.id) + 5 * int(task.id[1:])) % 11
    results = double.map.aio(range(20), max_concurrent=4)
    assert flow.tasks == []
    assert collected(results) == [2 * x for x in range(20)]
    assert 1 < flow.most <= 4
    assert flow.waits == 0, "a thread waited for a task"
    assert collected(double.starmap.aio([(1, 10), (2, 20)])) == [12, 24]
    assert not any(task.cancelled for task in flow.tasks)


def test_a_failed_call_of_a_sweep_in_an_event_loop(flow: FakeFlow) -> None:
    found = collected(double.map.aio([1, -1, 2], return_exceptions=True))
    assert [found[0], found[2]] == [2, 4]
    assert isinstance(found[1], ValueError)
    flow.tasks.clear()
    flow.looks_until_done = lambda task: 3 if task.id == "t0" else 10**9
    with pytest.raises(ValueError, match="negative"):
        collected(double.map.aio([-1, 1, 2]))
    assert [task.cancelled for task in flow.tasks] == [False, True, True]


def test_a_sweep_in_an_event_loop_that_is_cancelled_cancels_its_tasks(flow: FakeFlow) -> None:
    flow.looks_until_done = lambda task: 10**9

    async def main() -> None:
        async def sweep() -> None:
            async for _ in double.map.aio([1, 2, 3], max_concurrent=2):
                raise AssertionError("no task has ended")

        running = asyncio.create_task(sweep())
        while len(flow.tasks) < 2 or flow.tasks[-1].looks == 0:
            await asyncio.sleep(0.01)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    asyncio.run(main())
    assert [task.cancelled for task in flow.tasks] == [True, True]


def test_a_sweep_in_an_event_loop_that_is_left_early_cancels_its_tasks(flow: FakeFlow) -> None:
    flow.looks_until_done = lambda task: 3 if task.id == "t0" else 10**9

    async def main() -> int:
        async for each in double.map.aio([1, 2, 3]):
            return int(each)
        raise AssertionError("no result came")

    assert asyncio.run(main()) == 2
    assert [task.cancelled for task in flow.tasks] == [False, True, True]


def test_a_sweep_in_an_event_loop_that_nobody_iterates_is_warned_of(flow: FakeFlow) -> None:
    with pytest.warns(RuntimeWarning, match=r"async for result in double\.map\.aio\(…\)") as told:
        double.map.aio([1, 2])
    assert told[0].filename == __file__
    assert flow.tasks == []


async def forever() -> AsyncIterator[int]:
    yield 1


@pytest.mark.parametrize(
    ("call", "advice"),
    [
        (lambda: double.map(5), "double.map([5]) or double.map(range(5))"),  # type: ignore[call-overload]
        # A text is iterable, and would be one task for each of its characters.
        (lambda: double.map("a.yaml"), "as in double.map(['a.yaml'])"),  # type: ignore[call-overload]
        (lambda: double.starmap("ab"), "as in double.starmap([('ab',)])"),
        (lambda: double.map(2.5), "double.map([2.5])"),  # type: ignore[call-overload]
        (lambda: double.starmap(5), "double.starmap([(5,)])"),  # type: ignore[call-overload]
        (lambda: double.map.aio(5), "double.map.aio([5])"),  # type: ignore[call-overload]
        (lambda: double.map([1, 2], [3, 4]), "double.starmap(zip(a, b))"),  # type: ignore[call-overload]
        (lambda: double.map([1], c=5), "double.starmap([(x, y) for x in …])"),  # type: ignore[call-overload]
        (lambda: double.starmap.aio([(1,)], retries=2), "by name, and got retries"),  # type: ignore[call-overload]
        (lambda: double.map(forever()), "double.map([x async for x in …])"),  # type: ignore[call-overload]
    ],
)
def test_a_sweep_over_what_is_no_list_says_what_to_write(
    flow: FakeFlow, call: Callable[[], object], advice: str
) -> None:
    with pytest.raises(ConfigError, match=re.escape(advice)):
        call()


def test_a_sweep_is_taken_with_the_loop_that_it_is_for(flow: FakeFlow) -> None:
    async def awaited() -> None:
        await double.map.aio([1])  # type: ignore[misc]

    with pytest.raises(TypeError, match=r"write: async for result in double\.map\.aio"):
        asyncio.run(awaited())
    with pytest.raises(TypeError, match=r"write: async for result in double\.map\.aio"):
        list(double.map.aio([1]))  # type: ignore[call-overload]
    with pytest.raises(TypeError, match=r"double\.map\.aio"):
        asyncio.run(_loop_over(double.map([1])))


async def _loop_over(results: Any) -> None:
    async for _ in results:
        pass


class _Step:
    """A task of a sweep that is in one state after the other, each time somebody looks whether it is done."""

    def __init__(self, *states: str) -> None:
        self._states = list(states)
        self.status = states[0]

    @property
    def done(self) -> bool:
        if self._states:
            self.status = self._states.pop(0)
        return self.status == "completed"

    def result(self, *, show_logs: bool) -> str:
        return self.status

    def cancel(self) -> None:
        raise AssertionError("nobody cancels it")

    def wait(self, timeout: float, *, show_logs: bool) -> None:
        raise TaskTimeout("not yet")


def _done(tasks: Sequence[_Step]) -> list[_Step]:
    return [task for task in tasks if task.done]


def test_machines_are_ended_only_when_no_task_may_take_them_over() -> None:
    """The last task has no nodes yet when the one before it ends, and may take over those."""
    first = _Step("running", "completed")
    last = _Step(*["provisioning"] * 9, "running", "running", "completed")
    seen: list[str] = []
    starts = [lambda: first, lambda: last]
    ended = in_order(
        starts, max_concurrent=2, ended_among=_done, when_idle=lambda: seen.append(last.status)
    )
    assert list(ended) == ["completed"] * 2
    assert seen[0] == "running", seen
    assert seen[-1] == "completed", seen


class _Told:
    """A display that notes which tasks have ended."""

    def __init__(self) -> None:
        self.ended_ones: list[_Step] = []
        self.not_started_ones: list[Exception] = []

    def started(self, task: _Step) -> None: ...

    def not_started(self, error: Exception) -> None:
        self.not_started_ones.append(error)

    def ended(self, task: _Step, *, tell: bool) -> None:
        self.ended_ones.append(task)

    def input_of(self, task: _Step) -> str:
        return "input"

    def advance(self) -> None: ...

    def pause(self) -> None: ...


@pytest.mark.parametrize("at_once", [1, 3])
@pytest.mark.parametrize("looks", range(6))
def test_each_end_is_told_once_and_before_its_result(looks: int, at_once: int) -> None:
    """A task may end between any two looks at it."""
    tasks = [_Step(*["running"] * looks, "completed") for _ in range(3)]
    told = _Told()
    starts = [lambda task=task: task for task in tasks]
    ended = in_order(starts, max_concurrent=at_once, ended_among=_done, display=told)
    for number, _ in enumerate(ended):
        assert tasks[number] in told.ended_ones
    assert len(told.ended_ones) == 3


def test_a_task_that_cannot_be_started_ends_no_others() -> None:
    """`_Step.cancel` fails the test."""
    outage = ProviderError("no answer")

    def cannot() -> _Step:
        raise outage

    def steps(*starts: Callable[[], _Step]) -> list[object]:
        how = {"max_concurrent": 2, "ended_among": _done, "return_exceptions": True}
        return list(in_order(starts, display=told, **how))

    def fine() -> _Step:
        return _Step(*["running"] * 3, "completed")

    told = _Told()
    assert steps(fine, cannot, fine, cannot) == ["completed", outage, "completed", outage]
    assert (len(told.ended_ones), told.not_started_ones) == (2, [outage, outage])
    # That of the first may be a mistake which all have in common.
    with pytest.raises(ProviderError):
        steps(cannot, fine)


def test_a_task_that_could_not_be_started_counts_as_a_failed_input() -> None:
    written = io.StringIO()
    display = SweepDisplay("train", 2, Screen(lambda: written, lambda: written))
    error = ProviderError("no answer")
    display.not_started(error)
    display.close()
    assert error.__notes__ == ["this is input 0, whose task could not be started"]
    assert written.getvalue().splitlines() == [
        "input 0: not started: no answer",
        "train: 1 of 2 done, 1 failed",
    ]


@pytest.mark.usefixtures("flow_home")
def test_the_tasks_of_a_sweep_are_looked_at_with_one_question(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whenever anything was written, all of 200 were read: that took most of 0.4 of a core."""
    made = [HandMade() for _ in range(5)]
    tasks = [each.task for each in made]
    ends = Ends()
    assert ends.among(tasks) == []
    read: list[str] = []
    get_task = Store.get_task
    monkeypatch.setattr(
        Store, "get_task", lambda store, name: read.append(name) or get_task(store, name)
    )
    for round_ in range(3):
        made[1].store.add_event(made[1].id, "note", f"{round_}")
        assert ends.among(tasks) == []
    assert read == []
    made[3].end()
    made[0].end("failed")
    assert ends.among(tasks) == [tasks[0], tasks[3]]
    # A task that is added between two writes is looked at, too.
    added = HandMade()
    added.end()
    assert ends.among([*tasks[1:3], added.task]) != []
