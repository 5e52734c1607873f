"""Tasks of a crash that have no machines: what looks after them launches nothing once they were left for a while."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING
from unittest import mock

import pytest

from flowlite.api.client import Flow
from flowlite.api.session import open_session
from flowlite.cli import main
from flowlite.spec import TaskConfig
from flowlite.supervise.process import launch
from tests.faults.test_rented import WAIT, rent
from tests.faults.test_rented import cloud as cloud
from tests.gangs import Gang, let_go, shell, submit, waiting
from tests.helpers import eventually

if TYPE_CHECKING:
    from tests.faults.rented.rented_cloud import RentedProvider

HOUR = 3600.0


def leave(gang: Gang, seconds: float = HOUR) -> None:
    """Makes it look as if nobody had led the task for so long."""
    then = time.time() - seconds
    with gang.store._database.write() as db:
        db.execute(
            "UPDATE tasks SET created_at = ?, lease_expires = ? WHERE id = ?", (then, then, gang.id)
        )


def crashed_before_anything(home: Path, seconds: float = HOUR) -> Gang:
    gang = submit(home, shell("true"), supervise=False)
    leave(gang, seconds)
    return gang


def crash_at_launch(cloud: RentedProvider, when: str) -> Gang:
    """A task whose supervisor dies before or after machines were launched."""
    cloud.behave(kills=["launch", when])
    gang = rent(WAIT)
    eventually(lambda: gang.store.intents(gang.id) and gang.supervisor() is None)
    leave(gang)
    return gang


@pytest.mark.parametrize("seconds", [60.0, HOUR])
def test_gc_launches_nothing(
    flow_home: Path, capsys: pytest.CaptureFixture[str], seconds: float
) -> None:
    gang = crashed_before_anything(flow_home, seconds)
    assert main(["gc"]) == 0
    assert "left alone; `flow status` says how it goes on" in capsys.readouterr().out
    assert gang.supervisor() is None
    assert not gang.paths.supervisor.exists()


@pytest.mark.parametrize("command", [["status"], ["cost"], ["status", "gang"], ["gc"]])
def test_no_command_takes_up_what_was_left_for_long(
    flow_home: Path, capsys: pytest.CaptureFixture[str], command: list[str]
) -> None:
    gang = crashed_before_anything(flow_home)
    assert main(command) == 0
    said = capsys.readouterr()
    if "status" in command:
        assert f"`flow resume {gang.id}`" in said.err
        assert "has had no supervisor for 60 min" in said.err
    assert not gang.paths.supervisor.exists()


def test_a_young_one_is_taken_up_by_status(flow_home: Path) -> None:
    gang = crashed_before_anything(flow_home, 60)
    assert main(["status"]) == 0
    gang.end()


def unled(cloud: RentedProvider) -> Gang:
    """A task that would cost money, whose client died a minute ago, before it started a supervisor."""
    flow = Flow(notify=lambda text: None)
    config = TaskConfig(command=WAIT, name="gang")
    with mock.patch.object(launch, "_start"):
        task = flow.submit(config)
    session = open_session()
    gang = Gang(session.home, session.store, task.record)
    leave(gang, 60)
    return gang


@pytest.mark.parametrize("answer", [True, False, None])
def test_status_asks_before_machines_are_launched(
    cloud: RentedProvider,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    answer: bool | None,
) -> None:
    """None: there is no terminal on which to ask."""
    asked: list[str] = []

    def confirm(question: str, **_: object) -> bool:
        asked.append(question)
        return bool(answer)

    monkeypatch.setattr("flowlite.cli.confirmation.can_ask", lambda: answer is not None)
    monkeypatch.setattr("typer.confirm", confirm)
    gang = unled(cloud)
    for command in (["status"], ["cost"], ["queue"], ["gc"]):
        assert main(command) == 0
    said = capsys.readouterr()
    assert f"`flow resume {gang.id}` continues it and launches machines" in said.err
    assert asked == ([] if answer is None else [f"Continue gang ({gang.id}) now?"])
    if answer:
        gang.wait("running")
        let_go(gang.home)
        gang.end()
        return
    assert gang.supervisor() is None
    assert cloud.machines() == {}
    assert main(["cancel", "--wait", gang.id]) == 0


def test_a_client_that_waits_has_it_go_on(cloud: RentedProvider) -> None:
    gang = unled(cloud)
    assert launch.ensure_supervisors(gang.store, gang.home) == []
    assert launch.ensure_supervisors(gang.store, gang.home, only=gang.id) == [gang.id]
    gang.wait("running")
    let_go(gang.home)
    gang.end()


def test_resume_has_it_go_on(flow_home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    gang = crashed_before_anything(flow_home)
    assert main(["status", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["data"][0]["needs_resume"]
    assert main(["resume", gang.id]) == 0
    gang.end()
    assert main(["resume", gang.id]) == 2
    assert "has ended (completed)" in capsys.readouterr().err


def test_resume_has_the_others_go_on_where_one_needs_it_not(
    flow_home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, led, last = (crashed_before_anything(flow_home) for _ in range(3))
    assert main(["cancel", "--wait", led.id]) == 0
    assert main(["resume", first.id, led.id, last.id, first.id]) == 2
    told = capsys.readouterr()
    assert f"({led.id}) has ended (cancelled)" in told.err
    assert [line.split()[1] for line in told.out.splitlines() if " goes on;" in line] == [
        f"({first.id})",
        f"({last.id})",
    ]
    for gang in (first, last):
        gang.end()


def test_resume_prints_one_json_document_where_one_needs_it_not(
    flow_home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, ended = (crashed_before_anything(flow_home) for _ in range(2))
    assert main(["cancel", "--wait", ended.id]) == 0
    capsys.readouterr()
    assert main(["resume", "--json", first.id, ended.id]) == 2
    told = capsys.readouterr()
    assert [each["id"] for each in json.loads(told.out)["data"]] == [first.id]
    assert f"({ended.id}) has ended (cancelled)" in told.err
    assert main(["resume", "--json", ended.id]) == 2
    assert json.loads(capsys.readouterr().out)["kind"] == "error"
    first.end()


def test_cancel_ends_it_without_a_launch(flow_home: Path) -> None:
    gang = crashed_before_anything(flow_home)
    assert main(["cancel", "--wait", gang.id]) == 0
    assert gang.record.state == "cancelled"
    assert gang.store.intents(gang.id) == []


def test_what_is_led_is_not_resumed(flow_home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    gang = submit(flow_home, waiting())
    gang.wait("running")
    assert main(["resume", gang.id]) == 2
    assert "goes on already" in capsys.readouterr().err
    let_go(flow_home)
    gang.end()


def test_a_launch_that_brought_nothing_is_looked_for_once_and_not_made_again(
    cloud: RentedProvider, capsys: pytest.CaptureFixture[str]
) -> None:
    gang = crash_at_launch(cloud, "before")
    # Whether there are machines is not known here, so a supervisor looks.
    assert launch.ensure_supervisors(gang.store, gang.home) == [gang.id]
    eventually(lambda: gang.store.is_parked(gang.id) and gang.supervisor() is None)
    assert cloud.machines() == {}
    assert launch.ensure_supervisors(gang.store, gang.home) == []
    waits = f"no supervisor and no machines; `flow resume {gang.id}`"
    for command in (
        ["status"],
        ["status", gang.id],
        ["status", "--json"],
        ["status", gang.id, "--json"],
    ):
        capsys.readouterr()
        assert main(command) == 0
        # What its supervisor waited for holds no longer.
        said = capsys.readouterr().out
        assert waits in " ".join(said.split())
        assert "asking for" not in said.partition("TIME")[0].partition('"events"')[0]
    assert main(["gc"]) == 0
    assert gang.supervisor() is None
    assert cloud.machines() == {}
    assert main(["resume", gang.id]) == 0
    gang.wait("running")
    let_go(gang.home)
    gang.end()
    assert len(cloud.machines()) == 1


@pytest.mark.parametrize("command", ["status", "gc"])
def test_machines_that_were_launched_get_their_supervisor(
    cloud: RentedProvider, command: str
) -> None:
    gang = crash_at_launch(cloud, "after")
    assert len(cloud.machines()) == 1
    assert main([command]) == 0
    eventually(lambda: gang.record.state == "running")
    let_go(gang.home)
    gang.end()
    assert len(cloud.machines()) == 1


def test_gc_launches_nothing_in_place_of_machines_that_are_gone(cloud: RentedProvider) -> None:
    gang = rent(WAIT, retries=1)
    gang.wait("running")
    gang.kill_supervisor()
    cloud.terminate(cloud.list_instances(gang.id))
    assert main(["gc"]) == 0
    eventually(lambda: gang.store.is_parked(gang.id) and gang.supervisor() is None)
    assert len(cloud.machines()) == 1
    assert not gang.store.has_machines(gang.id)
    assert main(["resume", gang.id]) == 0
    gang.wait("running")
    let_go(gang.home)
    record = gang.end()
    assert record.state == "completed"
    assert len(cloud.machines()) == 2


def test_gc_launches_nothing_in_place_of_a_bid_that_has_lost_its_machines(
    cloud: RentedProvider,
) -> None:
    gang = rent(WAIT, retries=1)
    gang.wait("running")
    gang.kill_supervisor()
    cloud.terminate(cloud.list_instances(gang.id))
    # Such a bid is still listed, since it may win other machines.
    cloud.add("open-bid", task=gang.id, launched_at=0.0)
    assert main(["gc"]) == 0
    eventually(lambda: gang.store.is_parked(gang.id) and gang.supervisor() is None)
    bought = {name for name, machine in cloud.machines().items() if machine["token"]}
    assert len(bought) == 1
    assert cloud.machines()["open-bid"]["ended_at"]
    assert main(["cancel", "--wait", gang.id]) == 0
    gang.end("cancelled")
