"""FLOW_TRACE: one picture of what all processes of a task did, in Chrome's trace format."""

from __future__ import annotations

import json
import tempfile
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowlite import FlowApp
from flowlite.node.system import trace

pytestmark = pytest.mark.both


@pytest.fixture(autouse=True)
def nothing_recorded_later() -> Any:
    yield
    trace.end()


def events_of(path: Path) -> list[dict[str, Any]]:
    """The events of a trace, whose last bracket is missing as the format allows."""
    found: list[dict[str, Any]] = json.loads(path.read_text().rstrip().rstrip(",") + "]")
    return found


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_a_call_is_one_picture_of_all_its_processes(
    flow_home: Path, monkeypatch: pytest.MonkeyPatch, start: str
) -> None:
    # In here: workers that import this module, and hypothesis with it, are not forked.
    def seven() -> int:
        return 7

    monkeypatch.setenv("FLOW_TRACE", "1")
    app = FlowApp(num_instances=2, processes_per_node=2, start=start)
    task = app.function(seven).spawn()
    assert task.result() == 7
    path = flow_home / "tasks" / task.id / "trace.json"
    assert path.stat().st_mode & 0o077 == 0
    events = events_of(path)

    names = {each["pid"]: each["args"]["name"] for each in events if each["ph"] == "M"}
    done: dict[str, set[str]] = {}
    for each in events:
        done.setdefault(names[each["pid"]].partition(" (")[0], set()).add(each["name"])
    assert done.keys() == {
        "client",
        "supervisor",
        *(f"node {node}: agent of node {node}" for node in (0, 1)),
        *(f"node {node}: reaper of node {node}" for node in (0, 1)),
        *(f"node {node}: fork server" for node in (0, 1)),
        *(f"node {rank // 2}: rank {rank}" for rank in range(4)),
    }
    assert {"plan", "submit", "bundle", "wait for the end", "read results"} <= done["client"]
    assert {"start and imports", "launch", "equip nodes", "collect"} <= done["supervisor"]
    assert {"prepare", "GO"} <= done["node 1: agent of node 1"]
    assert {"load the call", "the function", "write the result"} <= done["node 1: rank 3"]
    # Only a Python of its own imports anything.
    assert ("start and imports" in done["node 1: rank 3"]) == (start == "spawn")

    # On one clock, a worker runs the function after it was submitted, and before the client knows of the end.
    (submitted,) = (each for each in events if each["name"] == "submit")
    (waited,) = (each for each in events if each["name"] == "wait for the end")
    ran = [each for each in events if each["name"] == "the function"]
    assert len(ran) == 4
    for each in ran:
        assert submitted["ts"] < each["ts"]
        assert each["ts"] + each["dur"] < waited["ts"] + waited["dur"]


def test_without_the_variable_nothing_is_recorded(flow_home: Path) -> None:
    task = FlowApp().function(lambda: 7).spawn()
    assert task.result() == 7
    assert not list(flow_home.glob("tasks/*/trace.json"))
    assert trace.span("anything") is trace.span("anything else")


@given(st.lists(st.one_of(st.binary(max_size=200), st.text(max_size=200).map(str.encode))))
def test_what_a_node_sends_cannot_spoil_the_trace(lines: list[bytes]) -> None:
    """Nodes may run other software, and their lines go into a file that people open."""
    genuine = {
        "name": "prepare",
        "ph": "X",
        "pid": 3,
        "tid": 3,
        "ts": 5,
        "dur": 1,
        "args": {"a": 1},
    }
    hostile = [
        b"[" * 100_000,
        b'{"name": "x", "ph": "X", "pid": 1e999, "tid": 1, "ts": 1}',
        b'{"name": [1], "ph": "Z", "pid": 1, "tid": 1, "ts": 1}',
        b'{"name": "x", "ph": "M", "pid": 1, "tid": 1, "ts": 1, "args": 3}',
    ]
    received = b"\n".join([*lines, *hostile, json.dumps(genuine).encode() + b","])
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "trace.json")
        path.write_text("[\n")
        trace.add_of_node(path, received, 1)
        (*_, last) = events_of(path)
    assert (last["name"], last["args"]) == ("prepare", {"a": "1"})
    assert last["pid"] != 3


def test_a_node_decides_neither_how_much_memory_nor_how_much_disk_a_trace_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "trace.json"
    trace.begin("supervisor", path)
    trace.mark("begins")
    genuine = b'{"name": "prepare", "ph": "i", "pid": 3, "tid": 3, "ts": 5}'
    nested = b'{"name": "x", "ph": "X", "args": {"a": ' + b"[0]," * 300_000 + b"\n"
    blank = b"\n" * 50_000
    received = nested + blank + genuine
    tracemalloc.start()
    trace.add_of_node(path, received, 0)
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()
    assert b'"prepare"' in path.read_bytes()
    monkeypatch.setattr(trace, "_MOST_OF_A_FILE", 10_000)
    for _ in range(1000):
        # As for every event of the leader, of which a hostile one may send any number.
        trace.mark("leader says: warning")
        trace.add_of_node(path, genuine, 0)
    assert path.stat().st_size < 11_000


def test_a_trace_is_not_written_through_a_link(tmp_path: Path) -> None:
    """A worker may have put one in the place of its node's file."""
    (tmp_path / "theirs").write_text("as it was")
    (tmp_path / "trace.json").symlink_to("theirs")
    trace.begin("agent", tmp_path / "trace.json")
    trace.mark("begins")
    assert (tmp_path / "theirs").read_text() == "as it was"
