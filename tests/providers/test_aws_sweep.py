"""Sweeps on EC2 in the box: their tasks take over one another's machines, and nothing is left of them."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from flowlite.state import clock
from flowlite.state.store import Store
from flowlite.testing.cloud import CloudInABox
from tests.helpers import eventually, kill_processes_of_home
from tests.providers.test_aws_gang import Laptop

pytestmark = pytest.mark.timeout(480)

# The seconds for which machines are kept may be given, so that a test need not wait for two minutes.
SWEEP = """
import sys
from flowlite import FlowApp
from flowlite.api import remote

items, nodes, at_once = map(int, sys.argv[1:4])
remote.KEPT_SECONDS = float((sys.argv[4:] or [remote.KEPT_SECONDS])[0])
app = FlowApp(provider="aws", sync=False)

@app.function(num_instances=nodes, max_price_per_hour=0.1, max_run_time_hours=0.5, retries=5)
def double(n: int) -> int:
    return 2 * n

if __name__ == "__main__":
    for found in double.map(list(range(items)), max_concurrent=at_once):
        print(found, flush=True)
"""


@pytest.fixture
def laptop(box: CloudInABox, flow_home: Path) -> Iterator[Laptop]:
    yield Laptop(box, flow_home)
    kill_processes_of_home(flow_home)


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "sweep.py"
    path.write_text(SWEEP)
    return path


def results(items: int) -> list[str]:
    return [str(2 * n) for n in range(items)]


# It counts machines, and a call that fails may lead to others.
@pytest.mark.no_random_faults
def test_a_sweep_launches_as_many_gangs_as_run_at_a_time(laptop: Laptop, script: Path) -> None:
    done = laptop.run(str(script), "6", "2", "2", cwd=script.parent)
    assert done.stdout.split() == results(6)
    assert len(laptop.box.aws.instances()) == 2 * 2
    laptop.assert_nothing_left()
    told = laptop.json("cost")["tasks"]
    assert len(told) == 6
    # Each task is charged for its own time, and the first ones for the minute that every machine costs.
    assert all(each["estimated_cost"] > 0 for each in told)
    assert "warm" not in laptop.flow("status")


def test_a_machine_that_is_lost_between_two_tasks_is_replaced(laptop: Laptop, script: Path) -> None:
    lost: list[str] = []

    def lose() -> None:
        def kept() -> str | None:
            if not (laptop.home / "state.db").exists():
                return None
            store = Store(laptop.home / "state.db")
            rows = store.warm_instances(clock.now())
            store.close()
            return rows[0].id if rows else None

        name = eventually(kept, timeout=200.0, every=0.05, what="a machine is kept")
        laptop.box.aws.die(name)
        lost.append(name)

    thread = threading.Thread(target=lose)
    thread.start()
    done = laptop.run(str(script), "5", "1", "1", cwd=script.parent)
    thread.join()
    assert done.stdout.split() == results(5)
    assert lost
    eventually(lambda: not alive(laptop), what="no machine is left")


def test_machines_of_a_sweep_whose_program_was_killed_end_themselves(
    laptop: Laptop, script: Path
) -> None:
    program = subprocess.Popen(
        [sys.executable, str(script), "9", "1", "1", "20"],
        env=laptop.environment,
        cwd=script.parent,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert program.stdout is not None
    assert program.stdout.readline().strip() == "0"
    program.kill()
    program.wait()
    # The task that runs now, if there is one, comes to its end.
    eventually(lambda: not alive(laptop), timeout=200.0, what="no machine is left")


def alive(laptop: Laptop) -> list[str]:
    going = ("terminated", "shutting-down")
    return [each["id"] for each in laptop.box.aws.instances() if each["state"] not in going]
