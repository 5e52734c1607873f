"""Machines that cost money: caps, prices and ends, from submission to the proof that nothing is left."""

from __future__ import annotations

import dataclasses
import importlib
import json
import os
import pty
import re
import subprocess
import sys
import time
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from flowlite.api.adapters import adapter, settings_here
from flowlite.api.client import Flow
from flowlite.api.session import open_session
from flowlite.cli import main
from flowlite.errors import ProviderError
from flowlite.provider import VolumeInfo
from flowlite.spec import TaskConfig
from flowlite.supervise.cleanup import background_gc
from flowlite.supervise.cleanup.reconcile import reconcile
from flowlite.supervise.process import launch
from flowlite.supervise.process.launch import cancel
from tests.gangs import Gang, let_go
from tests.helpers import eventually

if TYPE_CHECKING:
    from tests.faults.rented.rented_cloud import RentedProvider

HERE = Path(__file__).parent / "rented"
WAIT = 'echo $$; while [ ! -e "$FLOW_HOME/go" ]; do sleep 0.02; done'


@pytest.fixture
def cloud(flow_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RentedProvider:
    """The provider "rented", here and for every process that is started from here."""
    monkeypatch.setenv("PYTHONPATH", str(HERE))
    monkeypatch.syspath_prepend(str(HERE))
    monkeypatch.setenv("RENTED_CLOUD", str(tmp_path))
    monkeypatch.setenv("FLOW_PROVIDER", "rented")
    importlib.import_module("rented_cloud")
    return adapter("rented")  # type: ignore[return-value]


def rent(command: str = WAIT, **options: Any) -> Gang:
    """Submits a command as users do."""
    flow = Flow(notify=lambda text: None)
    task = flow.submit(TaskConfig(**{"command": command, "grace_seconds": 1.0, **options}))
    session = open_session()
    return Gang(session.home, session.store, task.record)


def _worker_of(gang: Gang) -> int:
    """Its process id, once it has said it."""
    return next(
        (
            gang.worker(0)
            for path in gang.paths.directory.glob("nodes/*/a1/r0.out")
            if path.read_text()
        ),
        0,
    )


def bill(cloud: RentedProvider, gang: Gang) -> float:
    """What the cloud charges for a task, by its own book."""
    machines = [m for m in cloud.machines().values() if m["task"] == gang.id]
    assert all(machine["ended_at"] for machine in machines)
    return sum(m["price"] * (m["ended_at"] - m["launched_at"]) / 3600 for m in machines)


# Money


def test_what_a_task_cost_is_what_the_provider_lists(cloud: RentedProvider) -> None:
    gang = rent("sleep 0.2", num_instances=2)
    record = gang.end()
    assert record.cost == pytest.approx(bill(cloud, gang), abs=0.001)
    (told,) = [text for kind, text in gang.events if kind == "price"]
    assert told.startswith("2 × small, rented here-1: $3,600.00 per instance and hour")


def test_machines_that_never_ran_a_worker_are_charged_too(cloud: RentedProvider) -> None:
    cloud.behave(dies_at_boot=1)
    gang = rent("true", retries=1)
    record = gang.end()
    assert record.retries_used == 1
    assert len(cloud.machines()) == 2
    assert record.cost == pytest.approx(bill(cloud, gang), abs=0.001)
    assert any("asking for nodes again (1 of 1) after" in text for _, text in gang.events)


def test_a_price_that_rises_is_charged_as_it_rises(
    cloud: RentedProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    cloud.behave(spot=True)
    monkeypatch.setenv("RENTED_PRICES_EVERY", "0.1")
    gang = rent()
    gang.wait("running")
    cloud.behave(rises_to=7200.0)
    row = eventually(
        lambda: next((r for r in gang.store.instances(gang.id) if r.price_per_hour == 7200), None)
    )
    assert [price for _, price in row.data["prices"]] == [3600.0, 7200.0]
    let_go(gang.home)
    record = gang.end()
    (row,) = gang.store.instances(gang.id)
    assert row.ended_at is not None
    rose, lived = row.data["prices"][1][0], row.ended_at - row.launched_at
    assert record.cost == pytest.approx(lived + (row.ended_at - rose), abs=0.01)


def test_the_cap_holds_with_boot_and_end_together(cloud: RentedProvider) -> None:
    # A dollar per second and machine. 1 s of boot, up to 1 s of grace, 15 s kept free for the end.
    cloud.behave(boot=1.0)
    gang = rent(max_cost=40.0, num_instances=2)
    record = gang.end("failed")
    assert record.reason.startswith("max_cost: stopped")
    assert 2.0 < bill(cloud, gang) <= 40.0
    assert record.cost == pytest.approx(bill(cloud, gang), abs=0.001)


def test_the_nodes_keep_the_cap_without_anybody(cloud: RentedProvider) -> None:
    gang = rent(max_cost=40.0)
    gang.wait("running")
    worker = eventually(lambda: _worker_of(gang))
    gang.kill_supervisor()
    eventually(lambda: not Path(f"/proc/{worker}").exists())
    began = next(iter(cloud.machines().values()))["launched_at"]
    assert time.time() - began <= 40.0
    assert gang.wait().reason.startswith("max_cost: stopped")


def test_the_cap_counts_over_all_attempts(cloud: RentedProvider) -> None:
    # The first attempt is over when the test says so, and the second lasts until the money is gone.
    gang = rent(f'[ "$FLOW_ATTEMPT" = 2 ] && sleep 600; {WAIT}; exit 7', max_cost=40.0, retries=50)
    gang.wait("running")
    let_go(gang.home)
    record = gang.end("failed")
    assert record.attempt == 2
    assert "max_cost" in record.reason or "no money is left" in record.reason
    assert bill(cloud, gang) <= 40.0


def test_machines_that_never_come_up_are_given_back_before_the_money_is_gone(
    cloud: RentedProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    cloud.behave(boot=3600)
    monkeypatch.setenv("RENTED_LOOK_AT", "0.3")
    gang = rent(max_cost=20.0)
    record = gang.end("failed")
    assert record.reason.startswith("max_cost: stopped at $")
    assert bill(cloud, gang) <= 20.0
    assert record.cost == pytest.approx(bill(cloud, gang), abs=0.001)


# Refusals, and waiting


@pytest.mark.parametrize("kind", ["QuotaExceeded", "PermissionRefused"])
def test_what_waiting_cannot_change_ends_the_task_at_once(cloud: RentedProvider, kind: str) -> None:
    cloud.behave(refuses={"launch": [9, kind, "vCPU quota L-417A185B is 0"]})
    record = rent("true", retries=5).end("failed")
    assert record.reason == "rented refused the launch: vCPU quota L-417A185B is 0"
    assert len(cloud.calls("launch")) == 1


def test_who_cancels_during_the_boot_is_heard_and_nothing_is_left(cloud: RentedProvider) -> None:
    cloud.behave(boot=3600)
    gang = rent(num_instances=2)
    eventually(lambda: "0 of 2 nodes have started" in gang.record.reason)
    began = time.monotonic()
    cancel(gang.store, gang.home, gang.id)
    eventually(lambda: gang.record.state in ("stopping", "cancelled"))
    # As long as a poll or two take, on a busy machine; the boot takes an hour.
    assert time.monotonic() - began < 60
    record = gang.end("cancelled")
    assert record.cost == pytest.approx(bill(cloud, gang), abs=0.001)
    assert record.cost > 0


# The end


def test_it_is_final_only_when_the_listing_says_so(cloud: RentedProvider) -> None:
    cloud.behave(lingers=2.0, refuses={"terminate": [10_000, "TimeoutError", "no answer"]})
    gang = rent("true")
    gang.wait("stopping")
    reason = eventually(lambda: "not gone yet" in gang.record.reason and gang.record.reason)
    assert "its nodes are not gone yet: no answer, next try in" in reason
    cloud.behave(refuses={})
    record = gang.end()
    assert record.reason == ""
    (machine,) = cloud.machines().values()
    assert record.finished_at is not None
    assert record.finished_at >= machine["ended_at"] + 2.0
    assert record.cost == pytest.approx(
        machine["ended_at"] + 2.0 - machine["launched_at"], abs=0.01
    )


def test_a_listing_that_fails_never_ends_a_task(cloud: RentedProvider) -> None:
    gang = rent(WAIT)
    gang.wait("running")
    cloud.behave(refuses={"list": [3, "ProviderError", "503 Service Unavailable"]})
    let_go(gang.home)
    gang.end()
    assert all(machine["ended_at"] for machine in cloud.machines().values())
    assert any("503 Service Unavailable, next try in" in text for _, text in gang.events)


@pytest.mark.parametrize("moment", ["booting", "running", "stopping"])
def test_a_supervisor_that_was_killed_leaves_nothing_after_the_next_command(
    cloud: RentedProvider, moment: str
) -> None:
    if moment == "booting":
        cloud.behave(boot=1.5)
    gang = rent("true" if moment == "stopping" else WAIT, num_instances=2)
    if moment == "booting":
        eventually(lambda: cloud.machines())
    elif moment == "running":
        gang.wait("running")
    else:
        cloud.behave(refuses={"terminate": [99, "ProviderError", "not now"]})
        gang.wait("stopping")
        eventually(lambda: "not gone yet" in gang.record.reason)
    gang.kill_supervisor()
    cloud.behave(refuses={})
    if moment != "stopping":
        gang.store.request_cancel(gang.id)
    assert main(["status"]) == 0
    record = gang.end("completed" if moment == "stopping" else "cancelled")
    assert record.cost == pytest.approx(bill(cloud, gang), abs=0.001)


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("call", ["launch", "list", "terminate"])
def test_a_supervisor_that_is_killed_at_a_call_to_the_provider_loses_no_machine(
    cloud: RentedProvider, call: str, when: str
) -> None:
    cloud.behave(kills=[call, when])
    gang = rent("true", num_instances=2)
    record = gang.end()
    assert not json.loads((Path(os.environ["RENTED_CLOUD"]) / "mood.json").read_text())["kills"]
    assert len(cloud.machines()) == 2
    assert record.cost == pytest.approx(bill(cloud, gang), abs=0.001)


# Credentials

REFUSED = [10**6, "PermissionRefused", "AuthFailure. The session has expired; log in again"]


def refuse_all(cloud: RentedProvider) -> None:
    """As with the credentials of a shell whose session has expired."""
    cloud.behave(refuses={"list": REFUSED, "terminate": REFUSED, "launch": REFUSED})


def test_refused_credentials_end_no_gang_that_runs(cloud: RentedProvider) -> None:
    gang = rent(f"{WAIT}; echo done", num_instances=2)
    gang.wait("running")
    gang.kill_supervisor()
    refuse_all(cloud)
    launch.ensure_supervisors(gang.store, gang.home)
    told = eventually(lambda: "AuthFailure" in gang.record.reason and gang.record)
    assert told.state == "running"
    assert re.search("all ranks started; the credentials .* are refused: .*log in", told.reason)
    let_go(gang.home)
    # All that the ranks wrote is here, and the supervisor leaves their end to the next one.
    left = eventually(lambda: gang.record.outcome and gang.supervisor() is None and gang.record)
    assert (left.state, left.outcome) == ("stopping", "done"), gang.story()
    assert "the next `flow` command whose credentials are accepted ends them" in left.reason
    assert gang.output(0).splitlines()[-1] == gang.output(1).splitlines()[-1] == "done"
    assert not any(machine["ended_at"] for machine in cloud.machines().values())
    # `flow gc` names it, and starts a supervisor with its own environment.
    cloud.behave(refuses={})
    found = reconcile(gang.store, gang.home, here=settings_here, providers=["rented"])
    assert found.supervised == [gang.id]
    assert gang.end().reason == ""
    assert all(machine["ended_at"] for machine in cloud.machines().values())


def test_a_supervisor_whose_credentials_are_refused_makes_room_for_one_with_others(
    cloud: RentedProvider,
) -> None:
    gang = rent()
    gang.wait("running")
    gang.kill_supervisor()
    refuse_all(cloud)
    launch.ensure_supervisors(gang.store, gang.home)
    eventually(lambda: "AuthFailure" in gang.record.reason)
    assert cancel(gang.store, gang.home, gang.id)
    eventually(lambda: gang.record.outcome == "cancelled" and gang.supervisor() is None)
    cloud.behave(refuses={})
    # As any `flow` command does.
    launch.ensure_supervisors(gang.store, gang.home)
    assert gang.end("cancelled").reason == "cancelled while running"


# Tidying up


def gc(*words: str) -> int:
    return main(["gc", *words])


def test_what_belongs_to_a_task_that_nobody_knows_is_ended_only_when_asked(
    cloud: RentedProvider, capsys: pytest.CaptureFixture[str]
) -> None:
    cloud.add("left", task="t-unknown")
    cloud.add("overdue", task="t-unknown", deadline=time.time() - 3000)
    for words in (["--dry-run"], []):
        assert gc(*words) == 0
        said = capsys.readouterr().out
        assert "rented left of task t-unknown, which the store does not know: left alone" in said
        assert not cloud.machines()["left"]["ended_at"]
    assert cloud.machines()["overdue"]["ended_at"]
    assert gc("--yes") == 0
    assert cloud.machines()["left"]["ended_at"]
    assert "rented left of task t-unknown, which the store does not know: ended" in (
        capsys.readouterr().out
    )
    assert gc() == 0
    assert "nothing to do" in capsys.readouterr().out


@pytest.mark.parametrize("answer", ["n", "y"])
def test_on_a_terminal_gc_asks_before_it_ends_what_it_does_not_know(
    cloud: RentedProvider, answer: str
) -> None:
    cloud.add("left", task="t-unknown")
    pid, terminal = pty.fork()
    if pid == 0:
        os.execv(sys.executable, [sys.executable, "-m", "flowlite.cli", "gc"])
    said = b""
    while b"End what they have?" not in said:
        said += os.read(terminal, 4096)
    assert b"rented left of task t-unknown" in said
    os.write(terminal, f"{answer}\n".encode())
    with suppress(OSError):
        while block := os.read(terminal, 4096):
            said += block
    os.close(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0, said
    assert bool(cloud.machines()["left"]["ended_at"]) is (answer == "y"), said


def test_machines_of_other_homes_are_shown_and_ended_only_when_overdue_or_asked_for(
    cloud: RentedProvider, capsys: pytest.CaptureFixture[str]
) -> None:
    now = time.time()
    theirs = {"home": "elsewhere", "owner": "ann@desk", "price": 12.5, "launched_at": now - 5400}
    cloud.add("late", **theirs, deadline=now - 3000)
    cloud.add("just-over", **theirs, deadline=now - 60)
    cloud.add("busy", **theirs, deadline=now + 5430)
    cloud.add("endless", **theirs)
    cloud.add("bid", **theirs, deadline=now + 5430, stays="its bid", cost_at_most=True)
    assert gc() == 0
    said = capsys.readouterr().out
    alive = {name for name, machine in cloud.machines().items() if not machine["ended_at"]}
    assert alive == {"just-over", "busy", "endless", "bid"}
    assert (
        "rented busy of ann@desk, from another FLOW_HOME (90 min old, $12.50 per hour, "
        "ends by itself in 90 min): left alone, `flow gc --all-homes` ends it" in said
    )
    assert (
        "rented bid of ann@desk, from another FLOW_HOME (90 min old, at most $12.50 per hour, powers off by itself in "
        "90 min, but its bid may stay and cost more until somebody ends it): left alone" in said
    )
    assert "should have ended 50 min ago): ended" in said
    assert "without a deadline): left alone" in said
    assert gc("--all-homes") == 2
    assert "would end 4 machines" in capsys.readouterr().err
    assert gc("--all-homes", "--dry-run", "--json") == 0
    others = json.loads(capsys.readouterr().out)["data"]["others"]
    assert {each["id"]: each["ended"] for each in others} == dict.fromkeys(alive, True)
    assert gc("--all-homes", "--yes") == 0
    assert all(machine["ended_at"] for machine in cloud.machines().values())


def test_what_other_homes_have_left_is_removed_only_if_the_user_has_seen_it(
    cloud: RentedProvider, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    left: list[str] = []
    looks: list[bool] = []

    def sweep_others(self: object, *, dry_run: bool = False) -> list[str]:
        looks.append(dry_run)
        return [*left]

    monkeypatch.setattr(type(cloud), "sweep_others", sweep_others)
    assert gc("--all-homes") == 0
    left.append("the key of another home")
    assert gc("--all-homes") == 2
    assert "would end 0 machines" in capsys.readouterr().err
    # It may appear right after the look on which nobody was asked.
    assert False not in looks
    assert gc("--all-homes", "--dry-run") == 0
    assert "another home: would be removed" in capsys.readouterr().out
    assert gc("--all-homes", "--yes") == 0
    assert looks[-1] is False


def test_a_machine_that_a_live_task_does_not_know_is_ended(cloud: RentedProvider) -> None:
    gang = rent()
    gang.wait("running")
    home = str(gang.home)
    cloud.add("old", task=gang.id, home=home, launched_at=time.time() - 3600)
    cloud.add("new", task=gang.id, home=home)
    found = reconcile(gang.store, gang.home, here=settings_here)
    assert [each["id"] for each in found.ended] == ["old"]
    let_go(gang.home)
    gang.end()
    assert all(machine["ended_at"] for machine in cloud.machines().values())


def test_a_provider_that_cannot_be_asked_is_a_problem_that_is_told(
    cloud: RentedProvider, capsys: pytest.CaptureFixture[str]
) -> None:
    assert gc() == 0
    cloud.behave(refuses={"list": [2, "ProviderError", "503 Service Unavailable"]})
    # A timer's job hears of it by the exit status.
    assert gc() == ProviderError.exit_code
    assert "rented: 503 Service Unavailable" in capsys.readouterr().out
    assert gc("--json") == ProviderError.exit_code
    told = json.loads(capsys.readouterr().out)["data"]
    assert told["problems"] == ["rented: 503 Service Unavailable"]
    assert gc() == 0


def test_every_command_has_it_tidied_up_but_not_all_the_time(
    cloud: RentedProvider, flow_home: Path
) -> None:
    (flow_home / "tidied").unlink()
    assert main(["status"]) == 0
    assert not cloud.calls("others")
    gang = rent("true")
    gang.end()
    assert background_gc.paid_providers(flow_home) == {"rented"}
    cloud.add("left", task=gang.id)
    for _ in range(3):
        assert main(["status"]) == 0
    eventually(lambda: cloud.machines()["left"]["ended_at"])
    # It looks for machines of other homes when it has ended those of this one.
    eventually(lambda: len(cloud.calls("others")) == 1)
    os.utime(flow_home / "tidied", (1, 1))
    assert background_gc.tidy_in_background(flow_home)
    eventually(lambda: len(cloud.calls("others")) == 2)


def test_a_rehearsal_on_this_machine_is_not_paid(flow_home: Path) -> None:
    flow_home.mkdir(exist_ok=True)
    background_gc.remember_paid(flow_home, "local")
    assert not background_gc.tidy_in_background(flow_home)


# What people see


def test_the_plan_is_shown_before_and_the_price_while_it_runs(
    cloud: RentedProvider, capsys: pytest.CaptureFixture[str]
) -> None:
    cloud.behave(price=36.0, spot=True)
    caps = ("--max-run-time-hours", "0.5", "--max-price-per-hour", "50")
    words = ("run", "-N", "2", "--name", "shown", *caps)
    assert main([*words, "--dry-run", "--", "true"]) == 0
    dry = capsys.readouterr().out
    assert "price         $36.00 per instance and hour, $72.00 in all; spot, at most $50.00" in dry
    assert "cost at most  $50.69 ($50.00 × 2 × 0.5069 h, with 25 s to start and end)" in dry
    assert main([*words, "--", "true"]) == 0
    said = capsys.readouterr().err
    for line in dry.splitlines()[1:6]:
        assert line in said
    assert said.index("cost at most") < said.index("task shown")
    assert main(["status", "shown"]) == 0
    out = capsys.readouterr().out
    assert "price     $36.00 per instance and hour, $72.00 in all; spot, at most $50.00" in out


def test_a_program_is_told_the_price_on_standard_error(cloud: RentedProvider) -> None:
    code = (
        "from flowlite import FlowApp; f = FlowApp(max_run_time_hours=1).function(lambda: 1);"
        "f.spawn().wait()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        cwd=HERE.parents[2],
        env={**os.environ, "PYTHONPATH": f"{HERE}:{HERE.parents[2]}"},
    )
    assert "flowlite: 1 × small, rented here-1: $3,600.00 per instance and hour" in done.stderr
    bound = "$3,625.00 ($3,600.00 × 1 × 1.007 h, with 25 s to start and end)"
    assert f"cost at most: {bound}" in done.stderr


def test_offers_of_all_that_are_set_up(
    cloud: RentedProvider, capsys: pytest.CaptureFixture[str]
) -> None:
    def rows(*words: str) -> list[dict[str, Any]]:
        assert main(["offers", "--json", *words]) == 0
        found = json.loads(capsys.readouterr().out)["data"]
        return [each for each in found if each["provider"] == "rented"]

    assert [each["spot"] for each in rows("--gpu", "h100:8", "-N", "4")] == [True, False]
    assert rows("--gpu", "h100:8", "-N", "4", "--spot")[0]["price_for_all"] == 80.0
    assert [each["spot"] for each in rows("--on-demand")] == [False]
    assert rows("--region", "there", "--provider", "rented") == []
    assert main(["offers", "--gpu", "a100:4", "--provider", "rented"]) == 0
    out = capsys.readouterr().out
    assert "nothing fits; these come near:" in out
    assert "has 8 × h100, and a100:4 was asked for" in out
    assert main(["offers", "--gpu", "h10"]) == 2


def test_offers_within_caps_are_places_with_their_worst_case(
    cloud: RentedProvider, capsys: pytest.CaptureFixture[str]
) -> None:
    caps = ["--max-run-time-hours", "2", "--json"]
    assert main(["offers", "--provider", "rented", *caps]) == 0
    (place,) = json.loads(capsys.readouterr().out)["data"]["candidates"]
    assert place["provider"] == "rented"
    assert place["worst_case_cost"] >= 2 * place["price_for_all"] > 0
    assert main(["offers", "--max-price-per-hour", "0.01", *caps]) == 0
    found = json.loads(capsys.readouterr().out)["data"]
    assert {each["provider"] for each in found["candidates"]} == {"local"}
    (left,) = [each for each in found["left_out"] if each["options"]["provider"] == "rented"]
    assert "max_price_per_hour" in left["why"]


def test_providers_are_checked(cloud: RentedProvider, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["providers", "check", "rented"]) == 0
    assert "credentials" in capsys.readouterr().out
    cloud.behave(denies="ec2:RunInstances")
    assert main(["providers", "check", "rented"]) == 5
    out = capsys.readouterr().out
    assert "FAILED" in out
    assert "ec2:RunInstances" in out
    assert main(["providers", "check", "rented", "--json"]) == 5
    rows = json.loads(capsys.readouterr().out)["data"]
    assert [row["ok"] for row in rows] == [True, False]
    assert main(["providers", "check", "local"]) == 0


def test_costs_by_day_function_and_provider(
    cloud: RentedProvider, capsys: pytest.CaptureFixture[str]
) -> None:
    gangs = [rent("sleep 0.1", name="one"), rent("sleep 0.2", name="two")]
    whole = sum(gang.end().cost for gang in gangs)
    today = time.strftime("%Y-%m-%d")
    for by, keys in (
        ("day", {today, time.strftime("%Y-%m-%d")}),
        ("provider", {"rented"}),
        ("function", {"sleep 0.1", "sleep 0.2"}),
    ):
        assert main(["cost", "--by", by, "--json"]) == 0
        data = json.loads(capsys.readouterr().out)["data"]
        assert {row[by] for row in data["groups"]} == keys
        assert sum(row["estimated_cost"] for row in data["groups"]) == pytest.approx(
            whole, abs=1e-4
        )
        assert main(["cost", "--by", by]) == 0
        assert f"{by.upper()} " in capsys.readouterr().out
    assert main(["cost", "--by", "dya"]) == 2
    assert "did you mean 'day'" in capsys.readouterr().err


# Volumes


def test_volumes_of_all_providers_are_listed(
    cloud: RentedProvider, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FLOW_PROVIDER", "local")
    since = time.time() - 45 * 86400
    there = VolumeInfo(
        "data", "rented", "file", 10.0, "here-1", price_per_month=12.0, created_at=since
    )
    monkeypatch.setattr(type(cloud), "configured", lambda self: True)
    monkeypatch.setattr(type(cloud), "list_volumes", lambda self: [there])
    Flow("local").volumes.create("ckpt")
    assert main(["volumes", "list", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["data"]
    assert [(each["name"], each["provider"]) for each in found] == [
        ("ckpt", "local"),
        ("data", "rented"),
    ]
    assert [each["cost_so_far"] for each in found] == [None, pytest.approx(18.0, abs=0.01)]
    assert main(["volumes", "list", "--provider", "local"]) == 0
    said = capsys.readouterr().out
    assert "data" not in said
    assert "PER MONTH" not in said, "nothing of it costs anything"
    assert main(["volumes", "list"]) == 0
    said = capsys.readouterr().out
    assert f"$12.00     {datetime.fromtimestamp(since):%Y-%m-%d}  $18.00" in said
    assert "in all: $12.00 per month, $18.00 so far, until they are deleted" in said


def test_a_volume_that_is_charged_by_its_use_costs_what_its_provider_has_measured(
    cloud: RentedProvider, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    there = VolumeInfo(
        "data",
        "rented",
        "file",
        None,
        "here-1",
        10,
        price_per_month=3.0,
        created_at=1.0,
        by_use=True,
    )
    listed = [there]
    monkeypatch.setattr(type(cloud), "list_volumes", lambda self: listed)
    monkeypatch.setattr(type(cloud), "not_looked_at", lambda self: ["eu-1: denied"])
    assert main(["volumes", "list", "--provider", "rented"]) == 0
    said = capsys.readouterr()
    assert "in all: $3.00 per month, until they are deleted" in said.out
    assert "by use " in said.out
    assert "charged by use: per month is for what is stored now" in said.out
    assert "rented: not looked at: eu-1: denied" in said.err
    listed[:] = [dataclasses.replace(there, cost_so_far=1.25)]
    assert main(["volumes", "list", "--provider", "rented"]) == 0
    assert "in all: $3.00 per month, $1.25 so far" in capsys.readouterr().out
    listed[:] = [dataclasses.replace(there, price_per_month=None)]
    assert main(["volumes", "list", "--provider", "rented"]) == 0
    assert (
        "no price is known for data, which costs something all the same" in capsys.readouterr().out
    )


def test_a_provider_that_fails_does_not_hide_the_volumes_of_others(
    cloud: RentedProvider, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FLOW_PROVIDER", "local")
    monkeypatch.setattr(type(cloud), "configured", lambda self: True)
    Flow("local").volumes.create("ckpt")

    def refuse(self: RentedProvider) -> list[VolumeInfo]:
        raise ProviderError("503 Service Unavailable")

    monkeypatch.setattr(type(cloud), "list_volumes", refuse)
    assert main(["volumes", "list"]) == 0
    said = capsys.readouterr()
    assert "ckpt" in said.out
    assert "rented: 503 Service Unavailable" in said.err


# Spares


def test_a_spare_is_paid_like_a_node_takes_the_rank_of_a_lost_one_and_is_made_good(
    cloud: RentedProvider,
) -> None:
    gang = rent(num_instances=2, spares=1, max_run_time_hours=1)
    plan = gang.record.plan
    assert (plan["num_instances"], plan["spares"]) == (2, 1)
    (ready,) = eventually(lambda: [text for kind, text in gang.events if kind == "spare"])
    assert ready.endswith("is ready to take the rank of a lost node")
    gang.wait("running")
    (told,) = [text for kind, text in gang.events if kind == "price"]
    assert told.startswith(
        "2 + 1 spare × small, rented here-1: $3,600.00 per instance and hour, $10,800.00"
    )
    before = gang.record.roster
    (spare,) = set(cloud.machines()) - set(before)
    cloud.terminate([each for each in cloud.list_instances(gang.id) if each.id == before[1]])
    eventually(lambda: gang.record.attempt == 2 and gang.record.state == "running", timeout=90)
    assert gang.record.roster == [before[0], spare]
    eventually(lambda: len(cloud.machines()) == 4)
    let_go(gang.home)
    record = gang.end()
    assert record.retries_used == 0
    assert record.cost == pytest.approx(bill(cloud, gang), abs=0.001)
