"""Commands without a TASK: they take the newest one and say which; those that end something ask first."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from flowlite.api.session import open_session
from tests.cli.conftest import Flow
from tests.cli.terminals import OnTerminal
from tests.tasks_made_by_hand import HandMade


@pytest.fixture(autouse=True)
def no_supervisors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "flowlite.supervise.process.launch.start_supervisor", lambda home, task_id, **_: 0
    )


def two_tasks() -> tuple[HandMade, HandMade]:
    """An older one that runs and a newer one that has ended."""
    older = HandMade("older", created_at=time.time() - 100)
    newer = HandMade("newer")
    newer.write(0, b"of the newer\n")
    newer.returns(0, 42)
    newer.returns(2, 43)
    newer.end()
    return older, newer


def test_logs_and_result_are_those_of_the_newest(flow: Flow) -> None:
    _, newer = two_tasks()
    ran = flow("logs")
    assert ran.out.endswith("of the newer\n")
    assert ran.err == f"newer ({newer.id}), the newest task: completed\n"
    ran = flow("result", "--rank", "2")
    assert (ran.out, ran.err) == ("43\n", f"newer ({newer.id}), the newest task: completed\n")
    assert flow("logs", "older").err == ""


def test_outputs_are_those_of_the_newest(flow: Flow) -> None:
    HandMade("newer").end()
    ran = flow("outputs")
    assert ran.code == 2
    assert "the newest task" in ran.err
    assert "newer" in ran.err
    assert "was submitted without outputs=" in ran.err


@pytest.mark.parametrize(
    "words",
    [
        ("ssh", "-c", "true"),
        ("ssh", "--", "echo", "hi"),
        ("ssh-config",),
        ("top", "--once"),
        ("doctor", "--no-links"),
    ],
)
def test_what_needs_nodes_takes_the_newest_that_has_some(
    flow: Flow, words: tuple[str, ...]
) -> None:
    older, newer = two_tasks()
    assert f"older ({older.id}), the newest unfinished task: running\n" in flow(*words).err
    older.end()
    assert f"newer ({newer.id}), the newest task: completed\n" in flow(*words).err


def test_without_any_task_it_is_one_line(flow: Flow) -> None:
    ran = flow("logs")
    assert (ran.code, ran.out) == (3, "")
    assert ran.err == "error: there are no tasks yet; `flow run --help` shows how to start one\n"
    assert flow("cancel").err == "error: no task is unfinished; `flow status` lists the tasks\n"


def test_cancel_without_a_task_refuses_where_nobody_can_be_asked(flow: Flow) -> None:
    older, _ = two_tasks()
    ran = flow("cancel")
    assert ran.code == 2
    assert f"`flow cancel {older.id}`" in ran.err
    assert older.task.record.cancel_requested_at is None


@pytest.mark.parametrize(("answer", "code"), [("y", 0), ("n", 1), ("", 1)])
def test_cancel_without_a_task_asks(flow_home: Path, answer: str, code: int) -> None:
    older, _ = two_tasks()
    asked = OnTerminal("cancel")
    asked.read_until(lambda said: "[y/N]" in said)
    assert f"Cancel older ({older.id})?" in asked.said
    asked.type(f"{answer}\n")
    ended, said = asked.end()
    assert (ended, "nothing was done" in said) == (code, code == 1)
    record = open_session().store.get_task(older.id)
    assert (record.cancel_requested_at is not None) == (code == 0)
