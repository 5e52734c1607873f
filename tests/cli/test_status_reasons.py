"""What `flow status` says about why a task is where it is: one line, and always what is so now."""

from __future__ import annotations

from pathlib import Path

import pytest

from flowlite.state.store import Store
from flowlite.supervise.process import journal
from flowlite.supervise.process.journal import Journal
from tests.cli.conftest import Flow
from tests.cli.terminals import on_a_terminal
from tests.helpers import eventually
from tests.test_store import leased, task

LONG = "no room for 2 × p5.48xlarge: " + "us-east-1a: InsufficientInstanceCapacity; " * 40


def a_task(home: Path, reason: str) -> Store:
    store = Store(home / "state.db")
    plan = {"provider": "local", "instance_type": "this machine", "num_instances": 2}
    store.create_task(
        task("tabc", state="failed", reason=reason, plan={**plan, "processes_per_node": 1})
    )
    return store


def test_a_long_reason_is_one_line_on_a_terminal(flow_home: Path) -> None:
    a_task(flow_home, LONG)
    lines = on_a_terminal("status", columns=120).splitlines()
    assert len(lines) == 2, lines
    assert "…" in lines[1]
    assert "no room for 2" in lines[1]
    assert "tabc" in lines[1]
    assert len(lines[1]) < 160


def test_elsewhere_it_is_one_line_and_whole(flow: Flow, flow_home: Path) -> None:
    a_task(flow_home, f"first\nsecond {LONG}")
    lines = flow("status").out.splitlines()
    assert len(lines) == 2
    assert lines[1].endswith(f"first second {LONG}".strip())
    assert LONG.strip() in flow("status", "tabc").out
    assert LONG in flow("status", "tabc", "--json").json["reason"]


def test_what_is_waited_for_is_told_though_it_came_soon_after_something_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal, "_WAITING_EVERY", 0.3)
    store = Store(tmp_path / "state.db")
    store.create_task(task("t1", state="provisioning"))
    written = Journal(store, leased(store), store.get_task("t1"))
    written.waiting("EC2 has given no address yet")
    # Nobody says this again: the call that follows may take minutes.
    written.waiting("waits for sshd")
    assert store.get_task("t1").reason == "EC2 has given no address yet"

    def told() -> bool:
        written.tell_progress()
        return store.get_task("t1").reason == "waits for sshd"

    eventually(told)
