"""Before a launch that costs money, a person at a terminal is asked. Nobody else is."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from flowlite.api import client
from flowlite.api.session import open_session
from tests.cli.conftest import Flow
from tests.cli.terminals import OnTerminal
from tests.terminals import Terminal

# A provider as anybody could write one: this machine, at a price.
PAID = """\
import dataclasses

from provider_adapters.local import LocalProvider


class PaidProvider(LocalProvider):
    name = "paid"

    def plan(self, config):
        plan = super().plan(config)
        return dataclasses.replace(plan, provider="paid", price_per_hour=PRICE)
"""
JOB = """\
#!/bin/bash
#SBATCH --array=0-2
true
"""


def install(directory: Path, monkeypatch: pytest.MonkeyPatch, price: float) -> None:
    """Makes the provider known to programs that are started from here."""
    (directory / "paid_adapter.py").write_text(PAID.replace("PRICE", str(price)))
    about = directory / "paid_adapter-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: paid-adapter\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(
        "[flowlite.providers]\npaid = paid_adapter:PaidProvider\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(directory))
    monkeypatch.syspath_prepend(directory)


@pytest.fixture
def paid(flow_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, monkeypatch, 40.0)


def tasks() -> int:
    return len(open_session().store.list_tasks())


RUN = ("run", "-d", "--provider", "paid", "-N", "2", "--max-run-time-hours", "2", "--", "true")


@pytest.mark.parametrize(("answer", "code"), [("y", 0), ("n", 1), ("", 1)])
def test_a_paid_launch_is_confirmed(paid: None, answer: str, code: int) -> None:
    running = OnTerminal(*RUN, columns=120)
    said = running.read_until(lambda said: "[y/N]" in said)
    assert "Launch 2 × this machine? Cost at most: $160" in said
    running.type(f"{answer}\n")
    ended, said = running.end()
    assert ended == code, said
    assert ("nothing was launched" in said) == (code == 1)
    assert tasks() == (code == 0)


def plan_also(directory: Path, more: str) -> None:
    """Gives the plans of the provider more fields."""
    adapter = directory / "paid_adapter.py"
    adapter.write_text(
        adapter.read_text().replace("price_per_hour=40.0", f"price_per_hour=40.0, {more}")
    )


def test_what_there_is_to_know_is_said_before_the_question(paid: None, tmp_path: Path) -> None:
    plan_also(tmp_path, "unmet_price=55.0, notes=('it waits',)")
    running = OnTerminal(*RUN, columns=200)
    said = running.read_until(lambda said: "[y/N]" in said)
    assert "$40.00 per instance and hour" in said
    assert "that is your limit, and the present price is $55.00" in said
    assert "note: it waits" in said
    running.type("y\n")
    ended, said = running.end()
    assert (ended, said.count("it waits")) == (0, 1), said


@pytest.mark.parametrize(
    ("key", "told"),
    [
        ("\x03", "interrupted; nothing was submitted"),
        ("\x04", "stopped; what was asked about was not done"),
    ],
    ids=["ctrl-c", "ctrl-d"],
)
def test_a_question_without_an_answer_launches_nothing_and_says_so(
    paid: None, key: str, told: str
) -> None:
    running = OnTerminal(*RUN)
    running.read_until(lambda said: "[y/N]" in said)
    running.type(key)
    code, said = running.end()
    assert code == 130
    assert said.splitlines()[-1] == told
    assert tasks() == 0


def test_an_array_is_confirmed_once_for_all(paid: None, tmp_path: Path) -> None:
    (tmp_path / "job.sbatch").write_text(JOB)
    running = OnTerminal(
        "run", "--provider", "paid", "--max-run-time-hours", "1", str(tmp_path / "job.sbatch")
    )
    said = running.read_until(lambda said: "[y/N]" in said)
    assert "Launch 3 tasks, each on 1 × this machine?" in " ".join(said.split())
    running.type("n\n")
    assert running.end()[0] == 1
    assert tasks() == 0


@pytest.mark.parametrize(
    "words", [("run", "job.sbatch"), ("scale", "--nodes", "1,2", "--metric", "x", "--", "true")]
)
def test_notes_on_several_tasks_are_shown_once_and_before_the_question(
    paid: None, tmp_path: Path, words: tuple[str, ...]
) -> None:
    plan_also(tmp_path, "notes=('it waits',)")
    (tmp_path / "job.sbatch").write_text(JOB)
    command, *rest = (str(tmp_path / word) if word == "job.sbatch" else word for word in words)
    running = OnTerminal(command, "--provider", "paid", *rest, columns=200)
    said = running.read_until(lambda said: "[y/N]" in said)
    running.type("n\n")
    running.end()
    assert said.count("note: it waits") == 1


@pytest.mark.parametrize("how", ["--yes", "setting", "--json", "free", "local"])
def test_nobody_is_asked_who_has_answered_or_pays_nothing(
    flow_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    install(tmp_path, monkeypatch, 0.0 if how == "free" else 40.0)
    words = list(RUN)
    if how.startswith("--"):
        words.insert(1, how)
    if how == "setting":
        monkeypatch.setenv("FLOW_CONFIRM", "false")
    if how == "local":
        words[words.index("paid")] = "local"
    code, said = OnTerminal(*words).end()
    assert (code, tasks()) == (0, 1), said
    assert "[y/N]" not in said


def test_away_from_a_terminal_nobody_is_asked(
    flow: Flow, paid: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "flowlite.supervise.process.launch.start_supervisor", lambda home, task_id, **_: 0
    )
    ran = flow(*RUN)
    assert ran.code == 0, ran.err
    assert tasks() == 1


@pytest.fixture
def volume(flow_home: Path) -> Path:
    """A volume, which has one file."""
    path = flow_home / "volumes/data"
    client.Flow("local").volumes.create("data")
    (path / "here").touch()
    return path


@pytest.mark.parametrize(("answer", "code"), [("y", 0), ("n", 1), ("", 1)])
def test_a_volume_is_deleted_if_that_is_confirmed(volume: Path, answer: str, code: int) -> None:
    running = OnTerminal("volumes", "delete", "data")
    running.read_until(
        lambda said: "Delete the volume 'data' at local and everything on it? [y/N]" in said
    )
    running.type(f"{answer}\n")
    ended, said = running.end()
    assert ended == code, said
    assert ("nothing was deleted" in said) == volume.exists() == (code == 1)


DELETE = f"{sys.executable} -m flowlite.cli volumes delete data"


def test_a_question_is_seen_where_the_output_goes_to_a_file(volume: Path, tmp_path: Path) -> None:
    terminal = Terminal(["/bin/sh", "-c", f"{DELETE} >{tmp_path}/told"])
    terminal.read_until(lambda said: "[y/N]" in said, 90.0)
    assert "Delete the volume" in terminal.seen
    terminal.type("n\n")
    assert terminal.end(90.0) == 1
    terminal.close()
    assert volume.exists()


def test_where_a_question_would_not_be_seen_nobody_is_asked(volume: Path, tmp_path: Path) -> None:
    terminal = Terminal(["/bin/sh", "-c", f"{DELETE} 2>{tmp_path}/told"])
    assert terminal.end(90.0) == 2
    terminal.close()
    assert volume.exists()
    assert "would be lost; add --yes" in (tmp_path / "told").read_text()
