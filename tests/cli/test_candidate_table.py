"""Commands that show the places where a task may run."""

from __future__ import annotations

import json
import time

import pytest
from rich.cells import cell_len

from flowlite.cli import candidate_table, output
from flowlite.cli.columns import FittedTable, fit
from flowlite.cli.commands.queue import show
from flowlite.provider import Candidate, Plan
from tests.cli.conftest import Flow
from tests.tasks_made_by_hand import HandMade

BOTH = "--provider=local,ssh"


def candidate(provider: str, kind: str, region: str, price: float, **changes: object) -> Candidate:
    values = {"gpu": "h100", "gpus_per_node": 8, "price_per_hour": price, "region": region}
    plan = Plan(provider, kind, num_instances=4, processes_per_node=8, **values | changes)  # type: ignore[arg-type]
    return Candidate(plan, {"provider": provider, "gpu": "h100:8", "region": region, "spot": None})


CANDIDATES = [
    candidate("slurm", "gpu", "", 0.0),
    candidate("mithril", "h100-80gb.sxm.8x", "us-central1-a", 16.0, spot=True, price_cap=24.0),
    candidate(
        "aws", "p5.48xlarge", "us-east-1", 55.04, max_run_seconds=7200, may_exceed="at times"
    ),
]


@pytest.mark.parametrize("command", ["run", "offers"])
def test_the_places_of_several_providers_are_a_table(flow: Flow, command: str) -> None:
    words = ["run", BOTH, "--dry-run", "--", "true"] if command == "run" else ["offers", BOTH]
    ran = flow(*words)
    assert ran.code == 0, ran.err
    lines = ran.out.splitlines()
    head = next(n for n, line in enumerate(lines) if line.startswith("RANK"))
    assert lines[head].split("  ")[0] == "RANK"
    assert lines[head + 1].split()[:2] == ["1", "local"]
    assert "$0.00" in lines[head + 1]
    assert any(line.startswith("left out: ssh: ") for line in lines[head + 2 :])


@pytest.mark.parametrize(
    "words", [("run", BOTH, "--dry-run", "--json", "--", "true"), ("offers", BOTH, "--json")]
)
def test_the_same_as_json(flow: Flow, words: tuple[str, ...]) -> None:
    found = flow(*words).json
    (place,) = found["candidates"]
    assert (place["provider"], place["price_for_all"], place["worst_case_cost"]) == ("local", 0, 0)
    assert place["options"]["provider"] == "local"
    (left,) = found["left_out"]
    assert left["options"]["provider"] == "ssh"
    assert left["why"]


def test_one_provider_has_no_table(flow: Flow) -> None:
    assert "RANK" not in flow("run", "--dry-run", "--", "true").out


def test_no_place_names_every_reason(flow: Flow) -> None:
    ran = flow("run", BOTH, "--gpu", "h100:8", "--dry-run", "--", "true")
    assert ran.code == 2
    assert "there is no place for the task" in ran.err
    assert "rehearsed on CPU" in ran.err
    assert "  ssh" in ran.err


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("--provider", "any,local"), "'any' alone"),
        (("--provider", "nowhere,local"), "no provider 'nowhere'"),
        (("--prefer-spot", "--no-spot"), "not both"),
        (("--prefer", "luck"), "give 'price' or 'order'"),
    ],
)
def test_mistakes(flow: Flow, words: tuple[str, ...], text: str) -> None:
    ran = flow("run", *words, "--dry-run", "--", "true")
    assert ran.code in (2, 3)
    assert text in ran.err


def test_spot_may_be_preferred(flow: Flow) -> None:
    found = flow(
        "run", "--prefer-spot", "--max-wait-hours", "30m", "--dry-run", "--json", "--", "true"
    ).json
    assert (found["config"]["spot"], found["config"]["max_wait_hours"]) == ("prefer", 0.5)


def test_settings_list_providers(flow: Flow, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLOW_PROVIDER", "local, ssh")
    found = flow("run", "--dry-run", "--json", "--", "true").json
    assert found["config"]["provider"] == ["local", "ssh"]
    ran = flow("volumes", "create", "data")
    assert ran.code == 2
    assert "name it with --provider" in ran.err


def width_of(fitted: FittedTable) -> int:
    widths = [
        max(cell_len(row[n]) for row in (fitted.columns, *fitted.rows))
        for n in range(len(fitted.columns))
    ]
    return sum(widths) + 2 * (len(widths) - 1)


@pytest.mark.parametrize("width", [80, 100])
def test_the_table_fits_a_terminal(width: int) -> None:
    rows = [(str(n), *candidate_table._row(each.plan)) for n, each in enumerate(CANDIDATES, 1)]
    fitted = fit(
        candidate_table._HEADINGS, rows, width, candidate_table._LEAST, candidate_table._LEAVE_OUT
    )
    assert width_of(fitted) <= width
    shown = [" ".join(row) for row in fitted.rows]
    assert "no limit" in shown[1]
    assert "us-central1-a spot $64.00" in shown[1]
    assert "$220.16 $440.32 or more" in shown[2]


def test_a_narrow_table_has_whole_places_and_worst_cases() -> None:
    rows = [(str(n), *candidate_table._row(each.plan)) for n, each in enumerate(CANDIDATES, 1)]
    fitted = fit(
        candidate_table._HEADINGS, rows, 60, candidate_table._LEAST, candidate_table._LEAVE_OUT
    )
    assert width_of(fitted) <= 60
    assert fitted.left_out == ("gpu", "spot", "per hour")
    shown = [" ".join(row) for row in fitted.rows]
    assert "us-central1-a no limit" in shown[1]
    assert "us-east-1 $440.32 or more" in shown[2]


@pytest.mark.parametrize(
    ("width", "left_out"), [(60, {"expected start", "priority", "submitted"}), (120, set())]
)
def test_the_queue_fits_a_terminal_and_ids_stay_whole(width: int, left_out: set[str]) -> None:
    start, waits_for = "2026-11-24 18:30:00", "1 × host of laboratory"
    rows = [
        ("12", "a-long-name-of-a-task", "tym5twbv4hj", "med", waits_for, start, "17:30:45"),
        ("-", "next", "tku5jabsvi2", "high", "the end of waits (tpnu5jabsvi)", "-", "17:30:54"),
    ]
    fitted = fit(show._COLUMNS, rows, width, show._LEAST, show._LEAVE_OUT)
    assert width_of(fitted) <= width
    assert set(fitted.left_out) == left_out
    assert [row[fitted.columns.index("task")] for row in fitted.rows] == [row[2] for row in rows]
    assert [row[0] for row in fitted.rows] == ["12", "-"]


def test_both_times_of_the_queue_are_local(monkeypatch: pytest.MonkeyPatch) -> None:
    row = {"place": 1, "name": "n", "id": "t", "priority": "med", "waits_for": "1 × host"}
    start = {"expected_start": "2026-11-24T18:30:00.000Z"}
    with monkeypatch.context() as changed:
        changed.setenv("TZ", "Asia/Tokyo")
        time.tzset()
        shown = show._cells({**row, **start, "submitted": output.clock(1764000000.0)})
    time.tzset()
    assert shown[-2:] == ["2026-11-25 03:30:00", "2025-11-25 01:00:00"]


def test_status_shows_the_places_and_where_the_task_is(flow: Flow) -> None:
    made = HandMade("digits")
    places = [each.to_json() for each in CANDIDATES]
    with made.store._database.write() as db:
        query = "UPDATE tasks SET candidates = ?, candidate = 1 WHERE id = ?"
        db.execute(query, (json.dumps(places), made.id))
    ran = flow("status", made.id)
    assert "places where it may run" in ran.out
    assert (
        next(line for line in ran.out.splitlines() if line.startswith("2*")).split()[1] == "mithril"
    )
    found = flow("status", made.id, "--json").json
    assert found["candidate"] == 1
    assert [each["provider"] for each in found["candidates"]] == ["slurm", "mithril", "aws"]
