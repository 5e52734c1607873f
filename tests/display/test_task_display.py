"""`TaskDisplay`: how much of a project has been sent, on a terminal and elsewhere, and what a task stops for."""

from __future__ import annotations

import io
from types import SimpleNamespace
from typing import Any

import pytest

from flowlite.display import task_display
from flowlite.display.screen import Screen
from flowlite.display.task_display import TaskDisplay
from flowlite.terminal import without_colours
from tests.display.test_screen import Tty, rows


def shown(output: io.StringIO, reasons: list[tuple[str, str]]) -> str:
    """What is written while a task has these states and reasons, one after the other."""
    record = SimpleNamespace(state="pending", reason="", final=False)
    task: Any = SimpleNamespace(
        record=record, name="t", id="t1", function="f", news_of_recording=lambda: ""
    )
    display = TaskDisplay(task, Screen(lambda: output, lambda: output), show_output=False)
    for record.state, record.reason in reasons:
        display.advance(ended=False)
    return output.getvalue()


SENDING = [
    ("starting", "starting agents on 1 node"),
    *(("starting", f"sending the project: 3 files to node 0, {n} MB of 9 MB") for n in range(1, 9)),
    ("running", "all ranks started"),
]


def test_a_terminal_has_one_row_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    written = shown(Tty(), SENDING)
    assert [written.count(f" {n} MB of 9 MB") for n in (1, 4, 8)] == [1, 1, 1]
    told = ["· starting: starting agents on 1 node", "· running: all ranks started", ""]
    assert [without_colours(row) for row in rows(written)] == told


def test_elsewhere_there_is_a_line_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    moments = iter(range(0, 100, 4))
    monkeypatch.setattr(task_display.time, "monotonic", lambda: 100 + next(moments))
    lines = shown(io.StringIO(), SENDING).splitlines()
    assert lines[:2] == [
        "· starting: starting agents on 1 node",
        "· starting: sending the project: 3 files to node 0, 1 MB of 9 MB",
    ]
    assert lines[-1] == "· running: all ranks started"
    assert 4 <= len(lines) <= 6


WAITING = "waiting for what is not here yet: outputs"


def test_what_a_task_that_ended_well_waits_for_is_shown() -> None:
    why = f"all ranks have ended; {WAITING}"
    reasons = [why, f"{why}: 1 MB of 9 MB are here", "all ranks have ended"]
    lines = shown(io.StringIO(), [("stopping", reason) for reason in reasons]).splitlines()
    assert lines == [f"· stopping: {reason}" for reason in reasons]


def test_the_failure_that_stopped_a_task_is_left_to_its_end() -> None:
    why = "rank 0 has failed"
    reasons = [why, f"{why}; {WAITING}", f"{why}; {WAITING}: 1 MB of 9 MB are here"]
    lines = shown(io.StringIO(), [("stopping", reason) for reason in reasons]).splitlines()
    assert lines == [
        "· stopping",
        f"· stopping: {WAITING}",
        f"· stopping: {WAITING}: 1 MB of 9 MB are here",
    ]
