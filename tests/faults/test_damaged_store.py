"""A store that is damaged: what can be read is shown, what cannot is named in a line, and nothing is ended for it."""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st

from flowlite.cli import main
from flowlite.state.store import Store
from tests.gangs import Gang, shell, submit
from tests.helpers import kill_processes_of_home
from tests.test_store import task

EXAMPLES = 15
ANSWERS_WITHIN = 60.0


@dataclass(frozen=True)
class Ran:
    """What one command did."""

    code: int
    out: str
    err: str


def flow(home: Path, *words: str) -> Ran:
    """`flow` in this process, with a FLOW_HOME of its own."""
    out, err = io.StringIO(), io.StringIO()
    before = os.environ["FLOW_HOME"]
    os.environ["FLOW_HOME"] = str(home)
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = main(words)
    finally:
        os.environ["FLOW_HOME"] = before
    return Ran(code, out.getvalue(), err.getvalue())


@pytest.fixture(scope="module")
def whole() -> Iterator[Path]:
    """A FLOW_HOME with tasks that have ended, each in another way."""
    home = Path(tempfile.mkdtemp(prefix="flow-whole-"))
    gangs = [
        submit(home, shell("echo said; exit 0"), name="good", nodes=2),
        submit(home, shell("exit 3"), name="bad", price=1.0),
        *(submit(home, shell("true"), name=f"more-{number}") for number in range(4)),
    ]
    for gang in gangs:
        gang.wait(timeout=120)
    gangs[0].store._database._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    for gang in gangs:
        gang.store.close()
    yield home
    shutil.rmtree(home)


@contextlib.contextmanager
def copied(whole: Path) -> Iterator[Path]:
    home = Path(tempfile.mkdtemp(prefix="flow-damaged-"))
    shutil.copytree(
        whole, home, dirs_exist_ok=True, ignore=shutil.ignore_patterns("*-shm", "*-wal")
    )
    try:
        yield home
    finally:
        kill_processes_of_home(home)
        shutil.rmtree(home)


@pytest.fixture
def home(whole: Path, flow_home: Path) -> Iterator[Path]:
    with copied(whole) as there:
        yield there


def change(home: Path, statement: str) -> None:
    """As somebody with another program would."""
    with contextlib.closing(sqlite3.connect(home / "state.db", isolation_level=None)) as db:
        db.execute("PRAGMA foreign_keys = OFF")
        db.execute(statement)


READING = (
    ("status",),
    ("queue",),
    ("cost",),
    ("gc",),
    ("logs", "good"),
    ("status", "good"),
    ("result", "good"),
)


def assert_clear(ran: Ran, words: tuple[str, ...]) -> None:
    assert ran.code in (0, 1, 2, 3), (words, ran)
    for sign in ("Traceback", "not meant to happen", "move it away"):
        assert sign not in ran.err + ran.out, (words, ran)
    if ran.code:
        assert sum(line.startswith("error: ") for line in ran.err.splitlines()) == 1, (words, ran)


@pytest.mark.slow
@settings(
    max_examples=EXAMPLES,
    deadline=None,
    # Each example runs seven commands; to make one smaller would take minutes.
    phases=(Phase.explicit, Phase.reuse, Phase.generate),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    flips=st.lists(
        st.tuples(st.floats(0, 1, exclude_max=True), st.integers(1, 255)), min_size=1, max_size=12
    )
)
@example(flips=[(0.0625, 128)])
def test_any_flipped_bytes_get_a_clear_answer_from_every_command(
    whole: Path, flow_home: Path, flips: list[tuple[float, int]]
) -> None:
    with copied(whole) as home:
        content = bytearray((home / "state.db").read_bytes())
        for place, mask in flips:
            content[int(place * len(content))] ^= mask
        (home / "state.db").write_bytes(content)
        for words in (*READING, ("status", "--json")):
            assert_clear(flow(home, *words), words)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("config", "'{\"a\": '"),
        ("plan", "'{}'"),
        ("plan", "x'ff00'"),
        ("state", "'runnjng'"),
        ("created_at", "1e300"),
        ("name", "x'c3'"),
        ("roster", "'[1]'"),
    ],
)
def test_one_broken_row_of_a_task_is_named_and_the_others_shown(
    home: Path, field: str, value: str
) -> None:
    (broken,) = [t["id"] for t in tasks_of(home) if t["name"] == "more-1"]
    change(home, f"UPDATE tasks SET {field} = {value} WHERE id = '{broken}'")
    # `flow cost` reads only tasks that cost something, and this one did not.
    silent = (("cost",), ("logs", "good"))
    for words in (("status",), ("cost", "--by", "day"), ("gc",), *silent):
        ran = flow(home, *words)
        assert_clear(ran, words)
        assert ran.code == 0, ran
        # Of tasks that have ended, `flow gc` reads nothing but the state.
        if words not in silent and (words != ("gc",) or field == "state"):
            assert f"task '{broken}' is damaged and left out ({field}: " in ran.err, ran
    shown = flow(home, "status").out
    assert "more-0" in shown
    assert broken not in shown
    one = flow(home, "status", broken)
    assert one.code == 1
    assert "is damaged" in one.err
    assert "flow store restore" in one.err


def tasks_of(home: Path) -> list[dict[str, str]]:
    return list(json.loads(flow(home, "status", "--json").out)["data"])


@pytest.mark.parametrize("table", ["instances", "events", "intents"])
def test_a_broken_row_of_another_table_is_named(home: Path, table: str) -> None:
    change(home, f"UPDATE {table} SET data = 'no JSON'")
    for words in (("status",), ("cost",), ("gc",), ("status", "good"), ("logs", "good")):
        ran = flow(home, *words)
        assert_clear(ran, words)
        assert ran.code == 0, ran
        assert "more-0" in flow(home, "status").out


@pytest.mark.parametrize("table", ["tasks", "instances", "events", "intents"])
def test_a_missing_table_is_said_and_nothing_hangs(home: Path, table: str) -> None:
    change(home, f"DROP TABLE {table}")
    for words in (*READING, ("run", "--", "true"), ("cancel", "good")):
        ran = flow(home, *words)
        assert_clear(ran, words)
        assert ran.code == 1
        assert f"it has no table {table}" in ran.err
        assert "`flow store restore`" in ran.err


@pytest.mark.parametrize("how", ["empty", "missing"])
def test_an_empty_file_is_not_taken_for_a_new_one(home: Path, how: str) -> None:
    path = home / "state.db"
    path.unlink()
    if how == "empty":
        path.touch()
    for words in (*READING, ("run", "--", "true")):
        ran = flow(home, *words)
        assert_clear(ran, words)
        assert ran.code == 1
        assert "empty or missing, though files of tasks lie beside it" in ran.err


def test_rows_beside_a_damaged_page_are_shown(home: Path) -> None:
    """Pages in the middle of the table of tasks are overwritten; those at both ends can be read."""
    store = Store(home / "state.db")
    for number in range(60):
        store.create_task(task(f"t{number:02}", state="failed", config={"padding": "x" * 200}))
    store.close()
    with contextlib.closing(sqlite3.connect(home / "state.db")) as db:
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        pages = leaves(db, "tasks")
    assert len(pages) > 2, pages
    with open(home / "state.db", "r+b") as file:
        file.seek((pages[len(pages) // 2] - 1) * 4096)
        file.write(b"\xff" * 64)
    ran = flow(home, "status", "--all")
    assert ran.code == 0, ran
    assert "a part of the table tasks is damaged and left out" in ran.err
    shown = len(ran.out.splitlines()) - 1
    assert 66 - 20 < shown < 66, ran.out


def leaves(db: sqlite3.Connection, table: str) -> list[int]:
    """Numbers of the pages that hold a table's rows, in order."""
    root = db.execute("SELECT rootpage FROM sqlite_master WHERE name = ?", (table,)).fetchone()[0]
    path = db.execute("PRAGMA database_list").fetchone()[2]
    content = Path(path).read_bytes()
    page = content[(root - 1) * 4096 : root * 4096]
    if page[0] != 5:
        return [root]
    count = int.from_bytes(page[3:5], "big")
    cells = [int.from_bytes(page[12 + 2 * n : 14 + 2 * n], "big") for n in range(count)]
    return [int.from_bytes(page[c : c + 4], "big") for c in cells] + [
        int.from_bytes(page[8:12], "big")
    ]


def test_a_file_that_is_replaced_is_opened_again(flow_home: Path) -> None:
    gang = submit(flow_home, shell("true"))
    gang.end()
    replaced = Gang(flow_home, gang.store, gang.record)
    copy = flow_home / "copy.db"
    with contextlib.closing(sqlite3.connect(flow_home / "state.db")) as db:
        db.execute(f"VACUUM INTO '{copy}'")
    with contextlib.closing(sqlite3.connect(copy, isolation_level=None)) as db:
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("UPDATE tasks SET reason = 'of the copy'")
    for end in ("-wal", "-shm"):
        (flow_home / f"state.db{end}").unlink(missing_ok=True)
    os.replace(copy, flow_home / "state.db")
    assert replaced.record.reason == "of the copy"


def test_a_command_with_a_damaged_file_ends_by_itself(home: Path) -> None:
    """As a process of its own: exit status and one line."""
    (home / "state.db").write_bytes(b"no database at all, and long enough to look at" * 400)
    for words in (["status"], ["run", "--", "true"], ["gc"], ["cancel", "good"]):
        ran = subprocess.run(
            [sys.executable, "-m", "flowlite.cli", *words],
            env={**os.environ, "FLOW_HOME": str(home)},
            capture_output=True,
            text=True,
            timeout=ANSWERS_WITHIN,
            check=False,
        )
        assert ran.returncode == 1, ran
        assert len(ran.stderr.splitlines()) == 1, ran.stderr
        assert "is damaged (file is not a database); `flow store check`" in ran.stderr
