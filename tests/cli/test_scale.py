"""`flow scale`: the plan and its price, real ladders on this machine, failures in the middle, and Ctrl-C."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flowlite.api.client import Flow as Client
from flowlite.cli.commands import scale
from flowlite.errors import CapExceeded, ProviderError
from flowlite.scaling.ladder import Run
from flowlite.spec import TaskConfig
from tests.cli.conftest import Flow
from tests.helpers import assert_no_process_left, eventually

TRAIN = '''
import os
import time
from flowlite import FlowApp

app = FlowApp()


@app.function(processes_per_node=2)
def train(fail_at: int = 0, sleep_at: int = 0, key: str = "samples_per_s") -> dict[str, float]:
    """Throughput that goes with the square root of the number of workers."""
    world = int(os.environ["WORLD_SIZE"])
    if world == fail_at:
        raise ValueError("it diverged")
    if world == sleep_at:
        time.sleep(600)
    print(f"other_rate={world * 7}")
    return {key: 100.0 * world**0.5}
'''


@pytest.fixture(autouse=True)
def module_of_the_test() -> Iterator[None]:
    """The file that one test imports must not be known to the next."""
    path = list(sys.path)
    sys.modules.pop("train", None)
    yield
    sys.modules.pop("train", None)
    sys.path[:] = path


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, flow_home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "train.py").write_text(TRAIN)
    monkeypatch.chdir(tmp_path)
    return tmp_path


LADDER = ("--nodes", "1,2,4", "--metric", "samples_per_s")


# Before anything runs


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("train.py", "--metric", "x"), "--nodes is missing"),
        (("train.py", "--nodes", "1,2"), "--metric is missing"),
        (("train.py", "--nodes", "1-4", "--metric", "x"), "'1-4' is not allowed"),
        (("--nodes", "1", "--metric", "x"), "flow scale"),
        (("train.py", *LADDER, "--lr", "1"), "--lr"),
        (("train.py", *LADDER, "--repeat", "0"), "--repeat"),
    ],
)
def test_what_is_wrong_is_said_before_anything_starts(
    flow: Flow, flow_home: Path, words: tuple[str, ...], said: str
) -> None:
    ran = flow("scale", *words)
    assert ran.code == 2
    assert said in ran.err
    assert not (flow_home / "tasks").exists()


def test_the_cost_of_the_whole_ladder_is_shown_before(flow: Flow, flow_home: Path) -> None:
    (flow_home / "config.toml").write_text("[providers.local]\nprice_per_hour = 10.0\n")
    words = ("scale", "train.py", *LADDER, "--max-run-time-hours", "0.5", "--dry-run")
    ran = flow(*words, "--repeat", "3")
    assert ran.code == 0
    # $10 an hour and node, half an hour and 10 s to stop, 1 + 2 + 4 nodes, three times.
    assert "cost at most $105.58, for all runs together" in ran.err
    assert "4 × this machine" in ran.err
    assert "train on 1, 2, 4 nodes, 3 times each: 9 tasks, one after the other" in ran.err
    assert flow(*words, "--json").json["worst_case_cost"] == pytest.approx(70 * 1810 / 3600)
    assert flow(*words, "--json", "--max-cost", "20").json["worst_case_cost"] == 20.0
    assert "no limit: set max_run_time_hours" in flow("scale", "train.py", *LADDER, "--dry-run").err
    assert not (flow_home / "tasks").exists()


def test_a_cap_that_one_rung_breaks_starts_nothing(flow: Flow, flow_home: Path) -> None:
    (flow_home / "config.toml").write_text("[providers.local]\nprice_per_hour = 10.0\n")
    ran = flow("scale", "train.py", *LADDER, "--max-price-per-hour", "5")
    assert ran.code == 4
    assert "in the run with 1 node; nothing was started" in ran.err
    assert not (flow_home / "tasks").exists()


def test_runs_do_not_go_on_from_one_anothers_checkpoints(
    flow: Flow, flow_home: Path, folder: Path
) -> None:
    options = 'processes_per_node=2, checkpoint={"path": "/ckpt", "sync": "/tmp/sync"}'
    (folder / "train.py").write_text(
        TRAIN.replace("processes_per_node=2", options) + "bench = train.options(checkpoint=None)"
    )
    ran = flow("scale", "train.py::train", *LADDER)
    assert ran.code == 2
    assert "each run would go on from what the one before has copied to /tmp/sync" in ran.err
    assert not (flow_home / "tasks").exists()
    assert flow("scale", "train.py::bench", *LADDER, "--dry-run").code == 0
    one = ("--nodes", "2", "--metric", "samples_per_s", "--dry-run")
    assert flow("scale", "train.py::train", *one).code == 0
    assert flow("scale", "train.py::train", *one, "--repeat", "2").code == 2


# Ladders


def test_a_ladder_climbs_and_leaves_its_files(flow: Flow, folder: Path) -> None:
    pytest.importorskip("matplotlib")
    ran = flow("scale", "train.py::train", "--nodes", "1,4", "--metric", "samples_per_s")
    assert ran.code == 0, ran.err
    heading, one, four = ran.out.splitlines()[:3]
    assert heading.split() == ["NODES", "WORKERS", "SAMPLES_PER_S", "SPEED-UP", "EFFICIENCY"]
    assert one.split() == ["1", "2", "141.4", "1.00", "1.00"]
    assert four.split() == ["4", "8", "282.8", "2.00", "0.50"]
    assert "efficiency, │ is 0.9" in ran.out
    assert sorted(path.name for path in (folder / "scale-train").iterdir()) == [
        "scale.csv",
        "scale.json",
        "scale.png",
        "scale.txt",
    ]
    assert [task.name for task in Client().list_tasks()] == ["train-n4", "train-n1"]


def test_a_run_that_fails_is_a_row_with_its_reason(flow: Flow, folder: Path) -> None:
    words = ("--nodes", "1,2,3", "--metric", "samples_per_s", "--fail-at", "4", "--output", "out")
    ran = flow("scale", "train.py::train", *words, "--json")
    assert ran.code == 1
    one, two, three = ran.json["rungs"]
    assert (one["efficiency"], one["reason"]) == (1.0, None)
    assert two["throughput"] is None
    assert "ValueError: it diverged" in two["reason"]
    assert three["throughput"] == pytest.approx(244.9, abs=0.1)
    assert json.loads((folder / "out" / "scale.json").read_text())["rungs"] == ran.json["rungs"]


def test_a_run_that_cannot_be_submitted_hides_nothing_that_was_measured(
    flow: Flow, monkeypatch: pytest.MonkeyPatch
) -> None:
    submit = Client.submit

    def fails_at_second(self: Client, config: TaskConfig, **options: Any) -> Any:
        if config.num_instances == 2:
            raise ProviderError("no answer from EC2")
        return submit(self, config, **options)

    monkeypatch.setattr(Client, "submit", fails_at_second)
    ran = flow("scale", "train.py", "--nodes", "1,2,3", "--metric", "samples_per_s", "--json")
    assert ran.code == 1
    one, two, three = ran.json["rungs"]
    assert two["reason"] == "not run: no answer from EC2"
    assert one["throughput"]
    assert three["throughput"]
    # That of the first may be a mistake which all have in common.
    words = ("--nodes", "2,3", "--metric", "samples_per_s", "--json")
    assert flow("scale", "train.py", *words).json["type"] == "ProviderError"


def test_the_output_is_read_where_the_result_has_no_such_number(flow: Flow) -> None:
    ran = flow("scale", "train.py", "--nodes", "2", "--metric", "other_rate", "--json")
    assert ran.code == 0, ran.err
    assert ran.json["rungs"][0]["throughput"] == 28.0
    ran = flow("scale", "train.py", "--nodes", "1", "--metric", "third", "--json")
    assert ran.code == 1
    reason = ran.json["rungs"][0]["reason"]
    assert "returned a mapping with samples_per_s, and no 'third' in it; nor does" in reason


def test_a_command_is_measured_by_what_it_prints(flow: Flow) -> None:
    script = 'echo "Batch (t): 1.2, $((NODE_RANK * 1000 + WORLD_SIZE * 200)).300/s, 51.8250/s/gpu LR: 0.1"'
    words = ("--nodes", "1,2", "--repeat", "2", "--metric", "samples/s", "--json")
    ran = flow("scale", *words, "--", "sh", "-c", script)
    assert ran.code == 0, ran.err
    one, two = ran.json["rungs"]
    assert (one["throughput"], two["throughput"]) == (200.3, 400.3)
    assert [len(rung["runs"]) for rung in (one, two)] == [2, 2]
    assert Path("scale-sh/scale.csv").exists()


class Refusing(Client):
    """Plans as always, and refuses to submit; knows what it was asked for."""

    asked: TaskConfig

    def submit(self, config: TaskConfig, **_: Any) -> Any:
        self.asked = config
        raise CapExceeded("max_cost of $2.00 pays for 0 s")


@pytest.mark.parametrize(
    ("spent", "reason"),
    [(3.0, "not run: max_cost of $2.00 pays for 0 s"), (6.0, "not run: max_cost of $5 is spent")],
)
def test_the_cap_of_the_ladder_is_what_earlier_runs_have_left(
    flow_home: Path, spent: float, reason: str
) -> None:
    (flow_home / "config.toml").write_text("[providers.local]\nprice_per_hour = 10.0\n")
    client = Refusing()
    config, plan = client.plan(TaskConfig(command=("true",), max_cost=5))
    ladder = scale.Ladder([config], [plan], "it", "rate", 1, 5.0, False, [Run(1, 1, cost=spent)])
    assert scale._run(client, ladder, config, plan).reason == reason
    assert getattr(client, "asked", config).max_cost == (2.0 if spent < 5 else 5.0)


def test_nodes_that_a_run_keeps_are_under_the_cap_of_the_ladder(
    flow: Flow, flow_home: Path
) -> None:
    (flow_home / "config.toml").write_text("[providers.local]\nprice_per_hour = 3600.0\n")
    words = ("--nodes", "1,2", "--metric", "samples_per_s", "--keep-warm", "10m")
    ran = flow("scale", "train.py", *words, "--max-cost", "60", "--json")
    assert ran.code == 0, ran.err
    one, two = (Client().get_task(f"train-n{nodes}") for nodes in (1, 2))
    # The first run's nodes are of no use for the second, and end before it begins.
    assert one.committed_cost == one.estimated_cost < 30
    assert two.record.config["max_cost"] == pytest.approx(60 - one.committed_cost)
    assert 30 < one.committed_cost + two.committed_cost <= 60 * 1.001
    flow("gc", "--warm")


# Ctrl-C


def signalled(
    folder: Path, number: int, *, sleep_at: int
) -> tuple[subprocess.Popen[str], Any, str, str]:
    """A command that got a signal in its run of `sleep_at` workers: its process, the task, and what it said."""
    name = f"train-n{sleep_at // 2}"
    words = [sys.executable, "-m", "flowlite.cli", "scale", "train.py", *LADDER]
    with subprocess.Popen(
        [*words, "--sleep-at", str(sleep_at)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent.parent)},
    ) as running:
        (task,) = eventually(
            lambda: [t for t in Client().list_tasks(name=name) if t.status == "running"],
            timeout=90,
        )
        running.send_signal(number)
        out, err = running.communicate(timeout=90)
    return running, task, out, err


def test_sigterm_ends_the_command_which_says_that_the_run_goes_on(folder: Path) -> None:
    running, task, _, err = signalled(folder, signal.SIGTERM, sleep_at=2)
    assert running.returncode == -signal.SIGTERM
    assert f"terminated; task train-n1 ({task.id}) keeps running without this command" in err
    assert task.status == "running"
    task.cancel()
    task.wait(90)


def test_ctrl_c_cancels_the_run_and_shows_what_was_measured(folder: Path) -> None:
    running, task, out, err = signalled(folder, signal.SIGINT, sleep_at=4)
    assert running.returncode == 130
    assert f"task train-n2 ({task.id}) is being cancelled" in err
    assert task.status == "cancelled"
    assert out.splitlines()[1].split() == ["1", "2", "141.4", "1.00", "1.00"]
    assert len(out.split("efficiency, │ is 0.9")[1].splitlines()) == 2
    assert not Client().list_tasks(name="train-n4")
    assert json.loads((folder / "scale-train" / "scale.json").read_text())["rungs"]
    assert_no_process_left(task.id)
