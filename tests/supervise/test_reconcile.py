"""`flow gc`: what crashes leave is found, and nothing that lives is touched."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from flowlite.api.adapters import adapter, settings_here
from flowlite.provider import Instance, Provider, adapter_class
from flowlite.state import rows
from flowlite.state.store import Store
from flowlite.supervise.cleanup import reconcile as reconciling
from flowlite.supervise.cleanup.reconcile import reconcile
from flowlite.supervise.process import launch
from tests.gangs import let_go, shell, submit, waiting
from tests.helpers import eventually, process_alive
from tests.tasks_made_by_hand import HandMade


def test_a_live_task_is_left_alone(flow_home: Path) -> None:
    gang = submit(flow_home, waiting())
    gang.wait("running")
    found = reconcile(gang.store, flow_home, here=settings_here)
    assert not any(found.to_json().values())
    let_go(flow_home)
    gang.end()


def test_a_task_without_supervisor_gets_one(flow_home: Path) -> None:
    gang = submit(flow_home, waiting())
    gang.wait("running")
    gang.kill_supervisor()
    assert reconcile(gang.store, flow_home, here=settings_here, dry_run=True).supervised == [
        gang.id
    ]
    assert gang.supervisor() is None
    assert reconcile(gang.store, flow_home, here=settings_here).supervised == [gang.id]
    let_go(flow_home)
    gang.end()


def test_a_task_whose_files_were_removed_is_ended_and_holds_up_no_other(
    flow_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = HandMade("removed"), HandMade("other")
    for each in made:
        each.instance(0)
        each.store.release_lease(each.lease)
        each.paths.supervisor.unlink(missing_ok=True)
        with each.store._database.write() as db:
            db.execute("UPDATE tasks SET created_at = created_at - 100, state = 'running'")
    removed, other = made
    shutil.rmtree(removed.paths.directory)
    started: dict[str, bool] = {}

    def start(home: Path, task_id: str, **_: bool) -> int:
        started[task_id] = (home / "tasks" / task_id / "logs").is_dir()
        return 1

    for module in (launch, reconciling):
        monkeypatch.setattr(module, "start_supervisor", start)
    found = reconcile(removed.store, flow_home, here=settings_here)
    assert (sorted(found.supervised), found.problems) == (sorted(started), [])
    assert started == {removed.id: True, other.id: True}
    assert removed.store.get_task(removed.id).cancel_requested_at is not None
    assert other.store.get_task(other.id).cancel_requested_at is None
    assert "its files on this machine were removed" in removed.store.events(removed.id)[-1].text


def test_a_supervisor_that_cannot_be_started_is_told_of_beside_the_others(
    flow_home: Path,
) -> None:
    gang = submit(flow_home, waiting())
    gang.wait("running")
    gang.kill_supervisor()
    gang.paths.supervisor_log.unlink()
    gang.paths.supervisor_log.mkdir()
    found = reconcile(gang.store, flow_home, here=settings_here)
    assert found.supervised == []
    (said,) = found.problems
    assert said.startswith(f"task {gang.id}: a supervisor cannot be started: Is a directory")
    gang.paths.supervisor_log.rmdir()
    let_go(flow_home)
    gang.end()


def test_processes_and_instances_of_no_live_task_are_ended(flow_home: Path) -> None:
    gang = submit(flow_home, shell("true"))
    gang.end()
    # As a process that escaped from its node would be found.
    marks = {"FLOW_TASK_ID": gang.id, "FLOW_HOME": str(flow_home)}
    stray = subprocess.Popen(["sleep", "60"], env={**os.environ, **marks})
    eventually(lambda: adapter("local").list_instances(gang.id))
    said = reconcile(gang.store, flow_home, here=settings_here, dry_run=True)
    assert [entry["task"] for entry in said.ended] == [gang.id]
    assert "would be ended" in said.lines(dry_run=True)[0]
    assert process_alive(stray.pid)
    assert len(reconcile(gang.store, flow_home, here=settings_here).ended) == 1
    stray.wait(90)
    assert reconcile(gang.store, flow_home, here=settings_here).ended == []


def test_a_defect_of_one_adapter_keeps_nothing_at_another(
    flow_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gang = submit(flow_home, shell("true"))
    gang.end()
    marks = {"FLOW_TASK_ID": gang.id, "FLOW_HOME": str(flow_home)}
    stray = subprocess.Popen(["sleep", "60"], env={**os.environ, **marks})
    eventually(lambda: adapter("local").list_instances(gang.id))

    def defect(self: Provider, task_id: str | None = None) -> list[Instance]:
        raise KeyError("region")

    # Its name comes before that of `local`.
    monkeypatch.setattr(adapter_class("aws"), "configured", lambda self: True)
    monkeypatch.setattr(adapter_class("aws"), "list_instances", defect)
    found = reconcile(gang.store, flow_home, here=settings_here)
    assert [entry["task"] for entry in found.ended] == [gang.id]
    (said,) = found.problems
    assert said.startswith("aws: its adapter failed: KeyError: 'region'")
    assert found.incomplete
    stray.wait(90)


def test_an_instance_of_a_task_that_is_unknown_is_ended_only_when_asked(flow_home: Path) -> None:
    gang = submit(flow_home, waiting())
    gang.wait("running")
    gang.kill_supervisor()
    agent = gang.agent(0)
    with gang.store._database.write() as db:
        for table in ("events", "intents", "instances"):
            db.execute(f"DELETE FROM {table}")
        db.execute("DELETE FROM tasks")
    os.utime(gang.paths.directory, (1, 1))
    said = reconcile(gang.store, flow_home, here=settings_here)
    assert (said.ended, said.removed) == ([], [])
    assert [(each["task"], each["ended"]) for each in said.unknown] == [(gang.id, False)]
    assert "which the store does not know: left alone" in said.lines()[0]
    assert process_alive(agent)
    (found,) = reconcile(gang.store, flow_home, here=settings_here, unknown=True).unknown
    assert (found["task"], found["ended"]) == (gang.id, True)
    eventually(lambda: not process_alive(agent))


def test_tasks_that_have_ended_are_not_read_one_by_one(
    flow_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With ten thousand, each look at them took a second, and there was one for each provider and account."""
    for number in range(30):
        HandMade(f"task-{number}").end()
    store, read = Store(flow_home / "state.db"), list[str]()

    def reading(kind: type, row: sqlite3.Row) -> Any:
        read.append(kind.__name__)
        return rows.read_row(kind, row)

    monkeypatch.setattr("flowlite.state.store.read_row", reading)
    assert not any(reconcile(store, flow_home, here=settings_here).to_json().values())
    assert read.count("TaskRecord") <= 2


def test_only_old_drafts_are_removed(flow_home: Path) -> None:
    gang = submit(flow_home, shell("true"))
    gang.end()
    for name, age in (("told", 7200), ("tnew", 5)):
        directory = flow_home / "tasks" / name
        directory.mkdir()
        os.utime(directory, (time.time() - age,) * 2)
    os.utime(gang.paths.directory, (1, 1))
    assert reconcile(gang.store, flow_home, here=settings_here).removed == [
        str(flow_home / "tasks" / "told")
    ]
    assert sorted(p.name for p in (flow_home / "tasks").iterdir()) == sorted(["tnew", gang.id])


_SUBMITS = """
import os
from pathlib import Path
from flowlite.provider import Plan
from flowlite.state.store import Store
from flowlite.supervise.process import launch
home = Path(os.environ["FLOW_HOME"])
with launch.draft_task(home) as draft:
    launch.submit(
        Store(home / "state.db"), draft, name="x", function="x", config={}, call={"kind": "command"},
        plan=Plan("local", "this machine", 1, 1), secrets={"TOKEN": "of the user"}, supervise=False,
    )
"""


def test_secrets_of_a_client_that_was_killed_while_it_submitted_do_not_stay(
    flow_home: Path,
) -> None:
    store = Store(flow_home / "state.db")
    with store._database.write():
        client = subprocess.Popen([sys.executable, "-c", _SUBMITS])
        (last,) = eventually(lambda: [*flow_home.glob("tasks/*/storage.json")])
        client.kill()
        client.wait(90)
    os.utime(last.parent, (1, 1))
    assert "TOKEN" in last.with_name("secrets.json").read_text()
    assert reconcile(store, flow_home, here=settings_here).removed == [str(last.parent)]
    assert not last.parent.exists()
    assert subprocess.run([sys.executable, "-c", _SUBMITS], check=False).returncode == 0
    (task,) = store.list_tasks()
    assert (flow_home / "tasks" / task.id / "config.json").exists()
