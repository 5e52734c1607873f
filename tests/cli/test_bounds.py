"""Every place that shows a worst case says so if it is no strict bound; every cost that may be less is marked."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from flowlite.api.candidates.ranking import Candidates
from flowlite.api.client import Flow as Client
from flowlite.cli import confirmation
from flowlite.display.task_display import ending
from flowlite.node.system.atomic_files import write_atomically
from flowlite.provider import Candidate, Plan
from flowlite.spec import TaskConfig
from flowlite.supervise.process.notifications import notify
from provider_adapters.local import LocalProvider
from tests.cli.conftest import Flow
from tests.tasks_made_by_hand import HandMade

WHEN = "if nobody ends it"
CAPS = {"max_cost": 5.0}


@pytest.fixture(autouse=True)
def no_supervisors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flowlite.supervise.process.launch.start_supervisor", lambda *_, **__: 0)


@pytest.fixture
def unbounded(monkeypatch: pytest.MonkeyPatch, flow_home: Path) -> None:
    """The local provider at $10 per hour, whose caps are no bounds."""
    (flow_home / "config.toml").write_text("[providers.local]\nprice_per_hour = 10.0\n")
    before = LocalProvider.plan

    def plan(self: LocalProvider, config: TaskConfig) -> Plan:
        return dataclasses.replace(before(self, config), may_exceed=WHEN)

    monkeypatch.setattr(LocalProvider, "plan", plan)


@pytest.fixture
def bid(flow_home: Path) -> HandMade:
    """A task that runs, with a cap that is no bound."""
    return HandMade("bid", price=3.0, planned={**CAPS, "may_exceed": WHEN})


# Before the launch


@pytest.mark.usefixtures("unbounded")
def test_the_plan_says_it(flow: Flow) -> None:
    words = ("run", "--max-cost", "5", "--dry-run")
    assert f"cost at most  $5.00 (max_cost), or more {WHEN}" in flow(*words, "--", "true").out
    data = flow(*words, "--json", "--", "true").json
    assert (data["worst_case_cost"], data["may_exceed"]) == (5.0, WHEN)
    without = flow("run", "--dry-run", "--", "true").out
    assert "no limit: set max_run_time_hours or max_cost" in without
    assert "or more" not in without


@pytest.mark.usefixtures("unbounded")
def test_a_ladder_says_it(flow: Flow) -> None:
    words = (
        "scale",
        "--nodes",
        "1,2,4",
        "--metric",
        "x",
        "--max-run-time-hours",
        "0.5",
        "--dry-run",
    )
    assert (
        f"cost at most $35.19, for all runs together, or more {WHEN}"
        in flow(*words, "--", "true").err
    )
    data = flow(*words, "--json", "--", "true").json
    assert data["may_exceed"] == WHEN
    assert [rung["may_exceed"] for rung in data["rungs"]] == [WHEN] * 3


@pytest.mark.usefixtures("unbounded")
def test_a_program_is_told(flow_home: Path) -> None:
    said: list[str] = []
    config = TaskConfig(command=["true"], provider="local", max_cost=5.0)
    Client(notify=said.append).submit(config)
    assert f"cost at most: $5.00 (max_cost), or more {WHEN}" in said[0]


@pytest.mark.parametrize(
    ("tasks", "words"),
    [
        (1, f"Launch 2 × small? Cost at most: $5.00 (max_cost), or more {WHEN}"),
        (
            3,
            "Launch 3 tasks, each on 2 × small? Cost at most: $5.00 (max_cost) for each, "
            f"or more {WHEN}",
        ),
    ],
)
@pytest.mark.usefixtures("flow_home")
def test_the_question_says_it(monkeypatch: pytest.MonkeyPatch, tasks: int, words: str) -> None:
    asked: list[str] = []
    monkeypatch.setattr(confirmation, "can_ask", lambda: True)
    monkeypatch.setattr(confirmation.typer, "confirm", lambda text, err: asked.append(text) or True)
    plan = Plan("paid", "small", 2, 1, price_per_hour=1.0, max_cost=5.0, may_exceed=WHEN)
    confirmation.confirm_launch(Candidates((Candidate(plan),)), yes=False, tasks=tasks)
    assert asked == [words]


def test_the_dearest_of_several_places_is_no_bound_if_another_is_none() -> None:
    loose = Plan("bids", "small", 2, 1, price_per_hour=1.0, max_cost=5.0, may_exceed=WHEN)
    strict = Plan("paid", "large", 2, 1, price_per_hour=9.0, max_cost=5.0)
    dearest = Candidates((Candidate(loose), Candidate(strict))).dearest
    assert (dearest.provider, dearest.may_exceed) == ("paid", WHEN)
    assert Candidates((Candidate(strict),)).dearest == strict


# While it runs, and after


def test_status_says_it(flow: Flow, bid: HandMade) -> None:
    assert re.search(
        rf"at most +\$5\.00 \(max_cost\), or more {WHEN}$", flow("status", "bid").out, re.MULTILINE
    )
    for data in (flow("status", "bid", "--json").json, flow("status", "--json").json[0]):
        assert (data["worst_case_cost"], data["may_exceed"]) == (5.0, WHEN)
    bid.end()
    assert "or more" not in flow("status", "bid").out
    assert flow("status", "bid", "--json").json["may_exceed"] == ""


def test_cost_says_it(flow: Flow, bid: HandMade) -> None:
    HandMade("bound", price=3.0, planned=CAPS)
    ran = flow("cost", "bid")
    assert re.search(r"bid .* \$5\.00 or more$", ran.out, re.MULTILINE)
    assert f"or more: {WHEN}\n" in ran.out
    assert flow("cost", "bid", "--json").json["tasks"][0]["may_exceed"] == WHEN
    assert "or more" not in flow("cost", "bound").out
    bid.end()
    assert "or more" not in flow("cost", "bid").out


def test_a_notebook_says_it(bid: HandMade) -> None:
    words = f"$5.00 (max_cost), or more {WHEN}"
    assert words in bid.task._repr_html_()
    bid.end()
    assert "at most" not in bid.task._repr_html_()


# What was spent


def test_a_cost_that_may_be_less_is_marked_everywhere(flow: Flow, flow_home: Path) -> None:
    made = HandMade("lost", nodes=1, price=3.0)
    made.instance(0, price=3.0, hours=2, ended=True, unobserved=True)
    HandMade("seen", nodes=1, price=3.0).instance(0, price=3.0, hours=1, ended=True)
    made.end()
    told = flow_home / "told"
    write_atomically(
        made.paths.notify,
        f'{{"targets": ["printf %s \\"$FLOW_NOTIFY_TEXT\\" > {told}"], "directory": "/"}}'.encode(),
    )
    notify(made.store, made.paths, "completed")
    assert "≤ $" in told.read_text()
    assert ending(made.task).endswith("cost ≤ $6.00")
    assert "≤ $6.00" in made.task._repr_html_()
    for words in (("status",), ("cost",), ("cost", "--by", "function")):
        out = flow(*words).out
        assert "≤ $" in out, words
    rows = flow("cost").out.splitlines()
    assert ["≤" in row for row in rows if row.split()[0] in ("lost", "seen")] == [False, True]
    by_id = {row["name"]: row["upper_bound"] for row in flow("status", "--json").json}
    assert by_id == {"lost": True, "seen": False}
    assert flow("cost", "--by", "day", "--json").json["groups"][-1]["upper_bound"] is True
