"""FLOW_TRACE: one picture of what all processes of a task did, in Chrome's trace format."""

from __future__ import annotations

import json
import tempfile
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


def seven() -> int:
    return 7


def events_of(path: Path) -> list[dict[str, Any]]:
    """The events of a trace, whose last bracket is missing as the format allows."""
    found: list[dict[str, Any]] = json.loads(path.read_text().rstrip().rstrip(",") + "]")
    return found


def test_a_call_is_one_picture_of_all_its_processes(
    flow_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLOW_TRACE", "1")
    task = FlowApp(num_instances=2, processes_per_node=2).function(seven).spawn()
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

    # A worker runs the function while the client waits for it, on one clock.
    (waited,) = (each for each in events if each["name"] == "wait for the end")
    ran = [each for each in events if each["name"] == "the function"]
    assert len(ran) == 4
    for each in ran:
        assert waited["ts"] < each["ts"] < waited["ts"] + waited["dur"]


def test_without_the_variable_nothing_is_recorded(flow_home: Path) -> None:
    task = FlowApp().function(seven).spawn()
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
