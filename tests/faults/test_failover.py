"""Tasks with several places, led by real supervisors: a rented one that has no room or loses machines, and this one."""

from __future__ import annotations

import importlib
import json
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from flowlite.api.adapters import adapter
from flowlite.cli import main
from tests.faults.test_rented import HERE, WAIT, rent
from tests.gangs import Gang
from tests.helpers import eventually

if TYPE_CHECKING:
    from tests.faults.rented.rented_cloud import RentedProvider

PLACES: dict[str, Any] = {"provider": ["rented", "local"], "prefer": "order"}
NO_ROOM = {"launch": [99, "CapacityUnavailable", "no room for small"]}


@pytest.fixture
def cloud(flow_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RentedProvider:
    """The provider "rented", here and for every process that is started from here."""
    monkeypatch.setenv("PYTHONPATH", str(HERE))
    monkeypatch.syspath_prepend(str(HERE))
    monkeypatch.setenv("RENTED_CLOUD", str(tmp_path))
    importlib.import_module("rented_cloud")
    return adapter("rented")  # type: ignore[return-value]


def left_for(gang: Gang) -> list[tuple[int, str]]:
    """Which places were left, and why."""
    record = gang.record
    assert all("left_at" in each for each in record.tried)
    return [(each["candidate"], each["kind"]) for each in record.tried]


def test_the_next_place_is_asked_when_one_has_no_room(
    cloud: RentedProvider, capsys: pytest.CaptureFixture[str]
) -> None:
    cloud.behave(refuses=NO_ROOM)
    gang = rent("echo runs at $FLOW_PROVIDER", **PLACES)
    record = gang.end()
    assert (record.provider, record.candidate) == ("local", 1)
    assert left_for(gang) == [(0, "full")]
    assert gang.output(0) == "runs at local\n"
    assert cloud.machines() == {}
    capsys.readouterr()
    main(["status", gang.id])
    said = " ".join(capsys.readouterr().out.split())
    assert "1 (rented here-1 small): no room for small" in said
    assert "attempt 1 runs at local" in said
    main(["status", gang.id, "--json"])
    (tried,) = json.loads(capsys.readouterr().out)["data"]["tried"]
    assert tried["place"] == "rented here-1 small"


def test_what_a_place_says_is_kept_short_and_without_control_sequences(
    cloud: RentedProvider,
) -> None:
    said = "\x1b]0;TITLE\x07no room " + "x" * 1_000_000
    cloud.behave(refuses={"launch": [99, "CapacityUnavailable", said]})
    record = rent("true", **PLACES).end()
    (entry,) = record.tried
    assert "no room" in entry["why"]
    assert "\x1b" not in entry["why"]
    assert len(entry["why"]) < 20_000


@pytest.mark.parametrize("call", ["list", "terminate"])
def test_a_supervisor_that_is_killed_while_it_leaves_a_place_leaves_nothing_there(
    cloud: RentedProvider, call: str
) -> None:
    # Two launches lose a machine each while it boots: what is left of them has to be ended.
    cloud.behave(dies_at_boot=2, kills=[call, "after"])
    gang = rent("echo runs at $FLOW_PROVIDER", num_instances=2, **PLACES)
    gang.end()
    assert gang.output(0) == "runs at local\n"
    assert left_for(gang) == [(0, "refused"), (0, "refused")]
    assert all(each["ended_at"] for each in cloud.machines().values())


def test_a_gang_whose_lost_node_cannot_be_replaced_moves_as_a_whole(cloud: RentedProvider) -> None:
    gang = rent(
        WAIT.replace("echo $$", "echo $FLOW_PROVIDER"), num_instances=2, retries=1, **PLACES
    )
    gang.wait("running")
    cloud.behave(refuses=NO_ROOM)
    lost, kept = gang.record.roster
    node = gang.paths.directory / "nodes" / cloud.machines()[lost]["node"]["id"]
    with cloud._book() as book:
        book[lost]["ended_at"] = book[lost]["launched_at"] + 1.0
    os.kill(int(json.loads((node / "a1" / "agent.pid").read_bytes())["pid"]), 9)
    eventually(lambda: gang.record.provider == "local", timeout=90, what=gang.story())
    assert cloud.machines()[kept]["ended_at"]
    (gang.home / "go").touch()
    record = gang.end()
    assert record.attempt == 2
    assert [gang.output(rank, attempt=2) for rank in (0, 1)] == ["local\n"] * 2
    assert left_for(gang) == [(0, "full")]


def test_a_task_fails_with_what_was_tried_when_it_may_wait_no_longer(
    cloud: RentedProvider,
) -> None:
    cloud.behave(refuses=NO_ROOM)
    gang = rent("true", provider="rented", max_wait_hours="2s")
    record = gang.end("failed")
    assert record.reason.startswith("max_wait_hours: no room within 2 s: no room for small")


def test_a_task_waits_in_a_queue_for_no_longer_than_it_may(
    cloud: RentedProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLOW_LOCAL_TASKS", "1")
    holder = rent(WAIT, provider="local")
    holder.wait("running")
    cloud.behave(refuses=NO_ROOM)
    record = rent("true", **PLACES, max_wait_hours="3s").end("failed")
    told = r"max_wait_hours: no room within 3 s: rented here-1 small: no room for small; local.*: in use by others for "
    assert re.match(told, record.reason), record.reason
    (holder.home / "go").touch()
    holder.end()


def test_a_queue_that_was_left_is_not_paused_for_once_it_is_the_tasks_turn(
    cloud: RentedProvider, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Otherwise a place stands idle, and who comes after the task waits for it, too."""
    (tmp_path / "sitecustomize.py").write_text(
        "from flowlite.supervise import failover\n"
        "failover.QUEUE_SECONDS, failover._FIRST_PAUSE, failover._LONGEST_PAUSE = 1.0, 3600.0, 3600.0\n"
    )
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{HERE}")
    monkeypatch.setenv("FLOW_LOCAL_TASKS", "1")
    holder = rent(WAIT, provider="local")
    holder.wait("running")
    cloud.behave(refuses=NO_ROOM)
    gang = rent("echo runs at $FLOW_PROVIDER", **PLACES)
    waits = "none of 2 places has room; next try at "
    eventually(lambda: gang.record.reason.startswith(waits), timeout=90, what=gang.story())
    (holder.home / "go").touch()
    holder.end()
    gang.end(timeout=120)
    assert left_for(gang)[:2] == [(0, "full"), (1, "queued")]
    assert gang.output(0) == "runs at local\n"
