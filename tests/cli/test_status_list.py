"""`flow status` on terminals of several widths: one line for each task, filters, watching, the whole of one task."""

from __future__ import annotations

import json
import re
import sqlite3
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from flowlite.cli.columns import cut, fit
from flowlite.cli.commands import status
from flowlite.output import printing
from flowlite.state import rows
from tests.cli.conftest import Flow
from tests.cli.terminals import OnTerminal, on_a_terminal
from tests.tasks_made_by_hand import HandMade
from tests.terminals import Terminal

WIDTHS = [60, 80, 120]
REASON = (
    "first failure: node 1, rank 3: RuntimeError: CUDA out of memory, tried to allocate 20.00 GiB"
)


@pytest.fixture(autouse=True)
def no_supervisors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "flowlite.supervise.process.launch.start_supervisor", lambda home, task_id, **_: 0
    )


def a_list(*, paid: bool = False) -> list[str]:
    """Some tasks as they are in real lists; their ids, newest first."""
    now = time.time()
    made = [
        HandMade("digits", created_at=now - 4000),
        HandMade("a-quite-long-name-of-an-experiment-v12", nodes=16, created_at=now - 300),
        HandMade("talk", created_at=now - 56),
    ]
    made[0].end()
    made[1].end("failed", REASON)
    made[2].change("stopping", "cancelled while running")
    if paid:
        made[0].instance(0, price=40.0, hours=3, ended=True)
    return [one.id for one in reversed(made)]


@pytest.mark.parametrize("columns", WIDTHS)
@pytest.mark.parametrize("paid", [False, True])
def test_each_task_is_one_line_that_fits(flow_home: Path, columns: int, paid: bool) -> None:
    ids = a_list(paid=paid)
    heading, *lines = on_a_terminal("status", columns=columns).splitlines()
    assert [line for line in lines if "no room for" not in line][: len(ids)] == lines[: len(ids)]
    for id_, line in zip(ids, lines, strict=False):
        assert id_ in line, lines
        assert cell_len(line.rstrip()) <= columns
    # States and ids are never cut; names and reasons are, with a mark, and never inside a word of a reason.
    failed = lines[1]
    assert " failed " in failed
    *_, reason = failed.rstrip().partition("first")
    assert reason.endswith("…")
    said = f"first{reason.removesuffix('…')}"
    assert REASON.startswith(said)
    assert not REASON[len(said) :][:1].isalnum()
    assert "GPU" not in heading
    assert ("COST" in heading) == (paid and columns > 60)


@pytest.mark.parametrize("encoding", ["latin-1", "ascii"])
def test_a_terminal_that_lacks_our_mark(
    flow_home: Path, encoding: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = a_list()
    monkeypatch.setenv("PYTHONIOENCODING", encoding)
    said = on_a_terminal("status", columns=60)
    assert all(one in said for one in ids)
    assert re.search(r"failed .*first.*\?", said), said


def test_json_loses_nothing_where_the_encoding_lacks_it(
    flow_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = HandMade("digits")
    made.end("failed", "größer: 3 × …")
    monkeypatch.setenv("PYTHONIOENCODING", "latin-1")
    shown = on_a_terminal("status", "--json", columns=1000)
    assert json.loads(shown)["data"][0]["reason"] == "größer: 3 × …"


def test_what_is_not_shown_is_not_read(flow: Flow, monkeypatch: pytest.MonkeyPatch) -> None:
    """With ten thousand tasks, to read all rows in full took seconds, and a query for each task minutes."""
    made = [HandMade(f"task-{number}", created_at=time.time() - number) for number in range(60)]
    for one in made:
        one.end()
    made[50].instance(0, price=2.0, hours=3, ended=True)
    read: list[str] = []

    def reading(kind: type, row: sqlite3.Row) -> Any:
        read.append(kind.__name__)
        return rows.read_row(kind, row)

    monkeypatch.setattr("flowlite.state.store.read_row", reading)
    ran = flow("status")
    assert ran.out.count("completed") == 20
    assert "40 older finished tasks are not shown" in ran.err
    assert read.count("TaskRecord") == 20
    read.clear()
    ran = flow("cost")
    assert "in all: $6.00 for 60 tasks" in ran.out
    assert "task-50" in ran.out
    assert sorted(read) == ["InstanceRecord", "TaskRecord"]


def test_what_a_watched_list_has_no_room_for_is_not_read(
    flow: Flow, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every second, with thousands of tasks that wait."""
    for number in reversed(range(60)):
        HandMade(f"task-{number}", created_at=time.time() - number)
    read: list[str] = []

    def reading(kind: type, row: sqlite3.Row) -> Any:
        read.append(kind.__name__)
        return rows.read_row(kind, row)

    def leave(seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("flowlite.state.store.read_row", reading)
    monkeypatch.setattr(printing, "can_rewrite", lambda file: True)
    monkeypatch.setattr(status, "time", SimpleNamespace(**{**vars(time), "sleep": leave}))
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("LINES", "12")
    shown = flow("status", "--watch").out
    assert "task-8 " in shown
    assert "task-9 " not in shown
    assert "51 more; the terminal is too low" in shown
    assert read.count("TaskRecord") <= 2 * 12


def test_what_has_no_room_is_named(flow_home: Path) -> None:
    a_list(paid=True)
    said = on_a_terminal("status", columns=60)
    assert "no room for: nodes, created" in " ".join(said.split())
    assert "no room for" not in on_a_terminal("status", columns=120)


def test_what_is_not_shown_is_counted(flow: Flow) -> None:
    for number in range(23):
        HandMade(f"t{number}", created_at=1000.0 + number).end(
            "failed" if number % 2 else "completed"
        )
    HandMade("alive", created_at=1.0)
    ran = flow("status", "--state", "failed", "--name", "t*")
    assert len(ran.out.splitlines()) == 1 + 11
    assert "13 other tasks are not shown; `flow status` without --state and --name" in ran.err
    ran = flow("status", "--state", "finished")
    assert "3 older finished tasks are not shown; `flow status --all`" in ran.err
    assert [task["name"] for task in flow("status", "-s", "unfinished", "--json").json] == ["alive"]
    assert flow("status", "--name", "nobody").out == "no task fits\n"


def test_a_wrong_state_is_one_line(flow: Flow) -> None:
    ran = flow("status", "--state", "runing")
    assert (ran.code, ran.err) == (
        2,
        "error: --state: no state 'runing'; did you mean 'running'?\n",
    )


def test_the_list_can_be_watched(flow_home: Path) -> None:
    made = HandMade("digits")
    watching = OnTerminal("status", "--watch")
    watching.read_until(lambda said: "running" in said)
    made.end("failed", "first failure: node 0, rank 1: no")
    watching.read_until(lambda said: "first failure" in said)
    watching.type("\x03")
    assert watching.end()[0] == 0


def test_watching_one_task_ends_with_it(flow_home: Path) -> None:
    made = HandMade("digits")
    HandMade("another")
    watching = OnTerminal("status", "digits", "-w")
    watching.read_until(lambda said: "running" in said)
    made.end()
    code, said = watching.end()
    assert code == 0
    assert "completed" in said
    assert "another" not in said


def test_watching_one_task_shows_its_events_and_its_output(flow_home: Path) -> None:
    made = HandMade("digits")
    made.write(0, b"".join(b"step %d\n" % n for n in range(100)))
    made.store.add_event(made.id, "worker", "rank 1 is slow", {})
    watching = OnTerminal("status", "digits", "-w")
    watching.read_until(lambda said: "step 99" in said and "rank 1 is slow" in said)
    made.end("failed", REASON)
    code, said = watching.end()
    assert code == 0
    assert "step 10\r" not in said
    # The last picture has the whole reason.
    assert REASON.split()[-1] in said.rpartition("failed")[2]


def test_watching_needs_a_terminal(flow: Flow) -> None:
    ran = flow("status", "--watch")
    assert (ran.code, ran.out) == (2, "")
    assert "--watch needs a terminal" in ran.err


def test_a_dumb_terminal_is_not_watched_on(flow_home: Path) -> None:
    """rich shows nothing there until the end."""
    HandMade("one")
    dumb = Terminal(
        ["/usr/bin/env", "TERM=dumb", sys.executable, "-m", "flowlite.cli", "status", "-w"]
    )
    assert dumb.end(60) == 2
    assert "--watch needs a terminal, and not a dumb one" in dumb.seen
    dumb.close()


@pytest.mark.parametrize("columns", WIDTHS)
def test_one_task_has_its_whole_reason(flow_home: Path, columns: int) -> None:
    made = HandMade("digits")
    made.end("failed", REASON)
    said = on_a_terminal("status", "digits", columns=columns)
    assert REASON in " ".join(said.split())
    for word in REASON.split():
        assert word in said


def test_one_task_shows_the_arguments_of_its_call(flow: Flow, tmp_path: Path) -> None:
    script = tmp_path / "work.py"
    script.write_text(
        "from flowlite import FlowApp\napp = FlowApp()\n"
        "@app.function\ndef train(lr: float, epochs: int = 1): pass\n"
    )
    ran = flow("run", "-d", f"{script}::train", "0.1", "--epochs", "3")
    assert ran.code == 0, ran.err
    task_id = ran.out.strip()
    assert "train(lr=0.1, epochs=3)" in flow("status", task_id).out
    assert flow("status", task_id, "--json").json["call"] == "train(lr=0.1, epochs=3)"
    command = flow("run", "-d", "--", "sh", "-c", f"echo {'x' * 300} 'a b'").out.strip()
    assert f"sh -c 'echo {'x' * 300}" in " ".join(flow("status", command).out.split())


# Fitting, as such


@given(st.text(), st.integers(1, 60))
def test_a_cut_text_fits(text: str, width: int) -> None:
    text = " ".join(text.split())
    shown = cut(text, width)
    assert cell_len(shown) <= width
    assert shown == text or (shown.endswith("…") and text.startswith(shown[:-1]))


@given(
    st.lists(st.tuples(*[st.from_regex(r"[a-z0-9 ]{0,40}", fullmatch=True)] * 4), min_size=1),
    st.integers(10, 150),
)
def test_a_fitted_table_is_no_wider(rows: list[tuple[str, ...]], width: int) -> None:
    least, leave_out = {"a": 4, "b": 3, "c": 2, "d": 4}, {"b": 2, "c": 1}
    fitted = fit("abcd", rows, width, least, leave_out)
    for row in (fitted.columns, *fitted.rows):
        assert sum(map(cell_len, row)) + 2 * (len(row) - 1) <= width
    for index, name in enumerate("abcd"):
        has_value = any(row[index] for row in rows)
        assert (name in (*fitted.columns, *fitted.left_out)) == has_value
