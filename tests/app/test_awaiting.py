"""`await task`, `flowlite.as_completed` and `async for` over logs, with tasks of the local provider."""

from __future__ import annotations

import asyncio
import inspect
import subprocess
import sys
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

import pytest

from flowlite import Flow, FlowApp, TaskConfig, TaskTimeout, as_completed
from flowlite.api import async_wait
from flowlite.api.task import Task
from tests.display.programs import environment, ran, unlabelled
from tests.helpers import eventually

T = TypeVar("T")
app = FlowApp()


@app.function
def fail(x: int) -> int:
    raise ValueError(f"no {x}")


@app.function
def exhausted() -> int:
    return next(iter([]))


@pytest.fixture(autouse=True)
def home(flow_home: Path) -> Path:
    return flow_home


@app.function
def hold(path: str) -> None:
    import os
    import time

    while not os.path.exists(path):
        time.sleep(0.02)


@app.function
async def later(x: int) -> int:
    return x + 1


def until(path: Path, says: str = "seen") -> Task[Any]:
    """A task that ends once a file is there."""
    script = f"echo begun; while [ ! -e '{path}' ]; do sleep 0.02; done; echo {says}"
    return Flow().run(TaskConfig(name=says, command=["sh", "-c", script]))


def run(what: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(asyncio.wait_for(what, 90))


def test_a_program_whose_await_timed_out_ends_at_once(tmp_path: Path) -> None:
    """The task is there for hours, and nothing of the program waits for it."""
    (tmp_path / "program.py").write_text(
        """
import asyncio, time
from flowlite import FlowApp
app = FlowApp()
@app.function
def slow():
    time.sleep(600)
async def main():
    task = slow.spawn()
    try:
        await asyncio.wait_for(task, 0.5)
    except TimeoutError:
        print(task.id)
if __name__ == "__main__":
    asyncio.run(main())
"""
    )
    done = subprocess.run(
        [sys.executable, "program.py"],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=90,
        check=True,
    )
    task = Flow().get_task(done.stdout.strip())
    assert not task.record.final, "cancelling an await must not cancel the task"
    task.cancel()
    task.wait(60, show_logs=False)


def test_two_hundred_awaited_tasks_share_one_thread(tmp_path: Path) -> None:
    go = tmp_path / "go"
    tasks = [until(go, f"t{n}") for n in range(2)]
    flow = Flow()
    many = [flow.get_task(tasks[n % 2].id) for n in range(200)]
    seen: list[int] = []

    async def wait_for_one(task: Task[Any]) -> Any:
        return await task

    async def everything() -> list[Any]:
        waits = [asyncio.ensure_future(wait_for_one(task)) for task in many]
        while not all(task.status == "running" for task in tasks):
            await asyncio.sleep(0.05)
        seen.append(threading.active_count())
        go.touch()
        return await asyncio.gather(*waits)

    before = threading.active_count()
    assert run(everything()) == [None] * 200
    assert seen[0] <= before + 1


def test_await_gives_the_result_and_raises_the_workers_exception() -> None:
    async def both() -> int:
        with pytest.raises(ValueError, match="no 3"):
            await fail.spawn(3)
        return 1

    assert run(both()) == 1


def test_an_await_ends_after_an_exception_that_no_future_can_hold() -> None:
    for call in (exhausted.remote.aio, exhausted.spawn):

        async def wait(call: Callable[[], Any] = call) -> None:
            await asyncio.wait_for(call(), 20)

        with pytest.raises(RuntimeError, match="StopIteration") as caught:
            run(wait())
        assert isinstance(caught.value.__cause__, StopIteration)


def test_waiting_alone_raises_nothing() -> None:
    async def wait() -> str:
        return (await fail.spawn(1).wait_async()).status

    assert run(wait()) == "failed"


def test_a_task_can_be_awaited_in_several_loops_at_a_time(tmp_path: Path) -> None:
    go = tmp_path / "go"
    task = until(go)
    ended: list[str] = []

    def in_a_loop() -> None:
        run(task.wait_async())
        ended.append(task.status)

    threads = [threading.Thread(target=in_a_loop) for _ in range(3)]
    for thread in threads:
        thread.start()
    go.touch()
    for thread in threads:
        thread.join(90)
    assert ended == ["completed"] * 3


def test_an_awaited_task_is_shown(tmp_path: Path) -> None:
    done = ran(
        """
import asyncio
from flowlite import FlowApp
app = FlowApp()
@app.function
def talk(word):
    print("saying", word)
    return word.upper()
async def main():
    print(await asyncio.gather(talk.spawn("a"), talk.spawn("b")))
if __name__ == "__main__":
    asyncio.run(main())
""",
        tmp_path,
    )
    assert done.stdout == "['A', 'B']\n", done.stderr
    lines = unlabelled(done.stderr)
    assert sum(line.endswith("): talk") for line in lines) == 2
    assert sorted(line.rpartition(") ")[2] for line in lines if "saying" in line) == [
        "saying a",
        "saying b",
    ]
    assert sum("completed in" in line for line in lines) == 2


# remote.aio


def test_remote_from_an_event_loop() -> None:
    async def both() -> list[int]:
        with pytest.raises(ValueError, match="no 3"):
            await fail.remote.aio(3)
        return await asyncio.gather(later.remote.aio(1), later.remote.aio(2))

    assert run(both()) == [2, 3]


def test_cancelling_a_remote_call_cancels_its_task(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def give_up() -> None:
        call = asyncio.ensure_future(hold.remote.aio(str(tmp_path / "go")))
        while not any(task.status == "running" for task in Flow().list_tasks()):
            await asyncio.sleep(0.05)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call

    run(give_up())
    (task,) = Flow().list_tasks()
    assert f"({task.id}) is being cancelled, since its await was" in capsys.readouterr().err
    assert task.wait(60, show_logs=False).status == "cancelled"


def test_cancelling_a_remote_call_while_it_is_submitted_cancels_its_task(tmp_path: Path) -> None:
    async def give_up() -> None:
        call = asyncio.ensure_future(hold.remote.aio(str(tmp_path / "go")))
        await asyncio.sleep(0)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call

    run(give_up())
    # The program has ended its loop, and with it waited for the thread that submits.
    for task in Flow().list_tasks():
        assert task.wait(60, show_logs=False).status == "cancelled"


async def _as_completed(task: Task[Any]) -> None:
    async for _ in as_completed([task]):
        pass


async def _logs(task: Task[Any]) -> None:
    async for _ in task.logs(follow=True):
        pass


async def _await(task: Task[Any]) -> None:
    await task


@pytest.mark.parametrize(
    "wait",
    [
        _await,
        lambda task: task.wait_async(),
        lambda task: asyncio.gather(task, task),
        _as_completed,
        _logs,
    ],
    ids=["await", "wait_async", "gather", "as_completed", "logs"],
)
def test_cancelling_any_await_ends_the_waiting_alone(
    tmp_path: Path, wait: Callable[[Task[Any]], Any]
) -> None:
    go = tmp_path / "go"
    task = until(go)

    async def give_up() -> None:
        waiting = asyncio.ensure_future(wait(task))
        await asyncio.sleep(0.1)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    # The loop joins the threads it has lent, so a thread that waited for the task would hold it here.
    run(give_up())
    assert not async_wait._watcher._watched
    assert not task.record.final
    go.touch()
    assert task.wait(60, show_logs=False).status == "completed"


def test_a_wrong_call_is_told_with_the_signature() -> None:
    async def wrong() -> None:
        await later.remote.aio("a", "b")  # type: ignore[call-arg, arg-type]

    with pytest.raises(TypeError, match="later"):
        run(wrong())
    assert str(inspect.signature(hold.remote)) == "(path: 'str') -> 'None'"


# as_completed


def test_tasks_come_in_the_order_in_which_they_end(tmp_path: Path) -> None:
    last, first = until(tmp_path / "last"), until(tmp_path / "first")
    (tmp_path / "first").touch()
    order = []
    for task in as_completed([last, first], timeout=90):
        order.append(task.id)
        (tmp_path / "last").touch()
    assert order == [first.id, last.id]


def test_tasks_come_in_the_order_in_which_they_end_in_a_loop(tmp_path: Path) -> None:
    last, first = until(tmp_path / "last"), until(tmp_path / "first")
    (tmp_path / "first").touch()

    async def order() -> list[str]:
        found = []
        async for task in as_completed([last, first]):
            found.append(task.id)
            (tmp_path / "last").touch()
        return found

    assert run(order()) == [first.id, last.id]


def test_what_has_not_ended_in_time_is_named_and_continues(tmp_path: Path) -> None:
    task = until(tmp_path / "go")

    async def in_a_loop() -> None:
        async for _ in as_completed([task], timeout=0.1):
            pass

    with pytest.raises(TaskTimeout, match=rf"1 of 1 tasks .* seen \({task.id}\)"):
        list(as_completed([task], timeout=0.1))
    with pytest.raises(TaskTimeout, match="1 of 1 tasks"):
        run(in_a_loop())
    (tmp_path / "go").touch()
    assert task.wait(90).status == "completed"


# Logs


def test_lines_come_while_the_task_runs(tmp_path: Path) -> None:
    go = tmp_path / "go"
    task = until(go)

    async def read() -> list[str]:
        found = []
        async for line in task.logs(follow=True):
            found.append(line.text)
            go.touch()
        return found

    assert run(read()) == ["begun", "seen"]
    assert [line.text for line in task.logs()] == ["begun", "seen"]


def test_reading_logs_goes_on_where_an_event_loop_left(tmp_path: Path) -> None:
    task = until(tmp_path / "go")
    eventually(lambda: "begun" in str(task.logs()))
    logs = task.logs(follow=True)

    async def first() -> str:
        async for line in logs:
            return line.text
        return ""

    assert run(first()) == "begun"
    (tmp_path / "go").touch()
    task.wait(90)
    assert [line.text for line in task.logs(after=logs.position)] == ["seen"]
