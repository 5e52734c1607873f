"""Sweeps in the box: their tasks take over one another's machines, and nothing is left of them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from flowlite.state import clock
from flowlite.state.store import InstanceRecord, Store
from flowlite.supervise.record.process_identity import noted_supervisor
from flowlite.testing.cloud import CloudInABox
from tests.helpers import eventually, kill_processes_of_home
from tests.providers.test_aws_gang import Laptop

pytest.importorskip("httpx")
pytestmark = pytest.mark.timeout(480)

PRICES = {"aws": 0.1, "mithril": 2.0}
# The seconds for which machines are kept may be given, so that a test need not wait for two minutes, or could not end
# by them. With HOLD, the program waits for that file after the first result.
SWEEP = """
import json, os, sys, time
from flowlite import FlowApp
from flowlite.api import remote

provider, price, nodes, spares, at_once, kept, calls = json.loads(sys.argv[1])
remote.KEPT_SECONDS = kept or remote.KEPT_SECONDS
app = FlowApp(provider=provider, sync=False)

@app.function(num_instances=nodes, spares=spares, max_price_per_hour=price, max_run_time_hours=0.5, retries=5)
def double(n: int, seconds: float) -> int:
    time.sleep(seconds)
    return 2 * n

if __name__ == "__main__":
    for found in double.starmap(calls, max_concurrent=at_once):
        print(found, flush=True)
        while "HOLD" in os.environ and not os.path.exists(os.environ["HOLD"]):
            time.sleep(0.05)
        if os.environ.get("BREAK"):
            break
"""
LONG = 600.0


class Sweep:
    """A program on the laptop that runs a sweep at one cloud."""

    def __init__(self, laptop: Laptop, cloud: str, directory: Path) -> None:
        self.laptop = laptop
        self.cloud = cloud
        self.box = laptop.box
        self._script = directory / "sweep.py"
        self._script.write_text(SWEEP)

    def begin(
        self,
        *seconds: float,
        nodes: int = 1,
        spares: int = 0,
        at_once: int = 1,
        kept: float = 0.0,
        **variables: str,
    ) -> subprocess.Popen[str]:
        """Starts it, with one call for each of these times."""
        calls = list(enumerate(seconds))
        given = json.dumps([self.cloud, PRICES[self.cloud], nodes, spares, at_once, kept, calls])
        return subprocess.Popen(
            [sys.executable, str(self._script), given],
            env={**self.laptop.environment, **variables},
            cwd=self._script.parent,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            text=True,
        )

    def results(self, program: subprocess.Popen[str]) -> list[int]:
        """What it has printed when it ends."""
        said, error = program.communicate(timeout=300)
        assert program.returncode == 0, f"{said}\n{error}"
        return [int(word) for word in said.split()]

    def alive(self) -> list[str]:
        """The ids of machines that run or are charged, and of bids that may still win some."""
        if self.cloud == "aws":
            going = ("terminated", "shutting-down")
            return [i["id"] for i in self.box.aws.instances() if i["state"] not in going]
        mine = self.box.mithril
        there = [each["id"] for each in mine.instances() if each["there"] or each["charged"]]
        return there + [each["fid"] for each in mine.live_bids()]

    def launched(self) -> int:
        """How many machines there ever were."""
        return len(getattr(self.box, self.cloud).instances())

    def kept(self) -> list[InstanceRecord]:
        """The machines that are kept now."""
        return self._read(lambda store: store.warm_instances(clock.now(self.laptop.home)))

    def handed_over(self, state: str) -> list[str]:
        """The tasks in this state that have, or will have, machines of others: all but the first."""
        tasks = self._read(lambda store: sorted(store.list_tasks(), key=lambda t: t.created_at))
        return [task.id for task in tasks[1:] if task.state == state]

    def _read(self, look: Callable[[Store], list]) -> list:  # type: ignore[type-arg]
        if not (self.laptop.home / "state.db").exists():
            return []
        store = Store(self.laptop.home / "state.db")
        try:
            return look(store)
        finally:
            store.close()


@pytest.fixture
def laptop(box: CloudInABox, flow_home: Path) -> Iterator[Laptop]:
    yield Laptop(box, flow_home)
    kill_processes_of_home(flow_home)


@pytest.fixture(params=["aws", "mithril"])
def sweep(laptop: Laptop, tmp_path: Path, request: pytest.FixtureRequest) -> Sweep:
    return Sweep(laptop, request.param, tmp_path)


# It counts machines, and a call that fails may lead to others.
@pytest.mark.no_random_faults
@pytest.mark.slow
def test_a_sweep_launches_as_many_gangs_as_run_at_a_time(sweep: Sweep) -> None:
    program = sweep.begin(*[0.0] * 6, nodes=2, at_once=2)
    assert sweep.results(program) == [0, 2, 4, 6, 8, 10]
    assert sweep.launched() == 2 * 2
    eventually(lambda: not sweep.alive(), what="no machine is left")
    told = sweep.laptop.json("cost")["tasks"]
    assert len(told) == 6
    # Each task is charged for its own time.
    assert all(each["estimated_cost"] > 0 for each in told)
    assert "warm" not in sweep.laptop.flow("status")
    found = sum(each["estimated_cost"] for each in told)
    if sweep.cloud == "aws":
        # And for what every machine costs at least, once.
        bill = sum(each["instance"] + each["extras"] for each in sweep.box.aws.bill())
    else:
        bill = sum(each["dollars"] for each in sweep.box.mithril.bill())
        assert [key["name"] for key in sweep.box.mithril.api_keys() if key["good"]] == ["account"]
    # The end of the last machines is known to a second or two.
    assert found == pytest.approx(bill, abs=4 * 2.0 * PRICES[sweep.cloud] / 3600), (found, bill)


@pytest.mark.slow
@pytest.mark.no_random_faults
def test_spares_are_handed_over_with_their_gang(sweep: Sweep) -> None:
    assert sweep.results(sweep.begin(*[0.0] * 3, spares=1)) == [0, 2, 4]
    assert sweep.launched() == 2
    eventually(lambda: not sweep.alive(), what="no machine is left")


# EC2 launches no other machine for one that it takes.
@pytest.mark.parametrize(
    ("sweep", "how"),
    [("aws", "dies"), ("mithril", "dies"), ("mithril", "taken")],
    indirect=["sweep"],
)
def test_a_machine_that_is_lost_between_two_tasks_is_replaced(sweep: Sweep, how: str) -> None:
    lost: list[str] = []

    def lose() -> None:
        name = eventually(sweep.kept, timeout=200.0, every=0.02, what="one is kept")[0].id
        if how == "taken":
            sweep.box.mithril.preempt([name], 0.0, again_after=5.0)
        else:
            getattr(sweep.box, sweep.cloud).die(name)
        lost.append(name)

    thread = threading.Thread(target=lose)
    thread.start()
    found = sweep.results(sweep.begin(*[0.0] * 5))
    thread.join()
    assert found == [0, 2, 4, 6, 8]
    assert lost
    eventually(lambda: not sweep.alive(), what="no machine is left")


def test_machines_of_a_sweep_whose_program_was_killed_end_themselves(sweep: Sweep) -> None:
    program = sweep.begin(*[0.0] * 9, kept=20.0)
    assert program.stdout is not None
    assert program.stdout.readline().strip() == "0"
    program.kill()
    program.communicate()
    # The task that runs now, if there is one, comes to its end.
    eventually(lambda: not sweep.alive(), timeout=200.0, what="no machine is left")


@pytest.mark.no_random_faults
def test_a_bid_that_is_taken_while_nobody_is_left_is_not_won_again(
    laptop: Laptop, tmp_path: Path
) -> None:
    """All that runs on the laptop is killed while the bid is kept, and Mithril gives notice."""
    sweep = Sweep(laptop, "mithril", tmp_path)
    program = sweep.begin(0.0, 0.0, nodes=2, kept=900.0, HOLD=str(tmp_path / "never"))
    eventually(
        lambda: sweep.handed_over("completed") and len(sweep.kept()) == 2,
        timeout=200.0,
        every=0.1,
        what="a bid is kept after the last task",
    )
    program.kill()
    program.communicate()
    kill_processes_of_home(laptop.home)
    (bid,) = sweep.box.mithril.live_bids()
    sweep.box.mithril.preempt([bid["fid"]], 120.0)
    eventually(lambda: not sweep.alive(), timeout=100.0, what="its machines have ended it")
    assert sweep.launched() == 2


@pytest.mark.no_random_faults
@pytest.mark.slow
def test_a_supervisor_that_is_killed_goes_on_with_the_machines_it_took_over(sweep: Sweep) -> None:
    killed: list[str] = []

    def kill(state: str) -> None:
        def found() -> int | None:
            for task in sweep.handed_over(state):
                process = noted_supervisor(sweep.laptop.home, task)
                if task not in killed and process is not None and process.alive:
                    killed.append(task)
                    os.kill(process.pid, signal.SIGKILL)
                    return process.pid
            return None

        eventually(found, timeout=200.0, every=0.01, what=f"a task is {state}")

    def kill_all() -> None:
        for state in ("provisioning", "starting", "running"):
            kill(state)

    thread = threading.Thread(target=kill_all)
    thread.start()
    found = sweep.results(sweep.begin(*[1.5] * 6, nodes=2))
    thread.join()
    assert found == [0, 2, 4, 6, 8, 10]
    assert len(killed) == 3
    assert sweep.launched() == 2, "each task has gone on with the machines of the first"
    eventually(lambda: not sweep.alive(), what="no machine is left")


@pytest.mark.parametrize(
    "how",
    [
        "Ctrl-C",
        pytest.param("flow cancel", marks=pytest.mark.slow),
        pytest.param("break", marks=pytest.mark.slow),
    ],
)
def test_a_sweep_that_is_cancelled_keeps_nothing(sweep: Sweep, tmp_path: Path, how: str) -> None:
    go_on = tmp_path / "go-on"
    variables = {"HOLD": str(go_on), **({"BREAK": "1"} if how == "break" else {})}
    # Kept for so long that no machine ends by itself meanwhile.
    program = sweep.begin(0.0, LONG, 0.0, at_once=2, kept=900.0, **variables)
    eventually(
        lambda: sweep.handed_over("completed") and sweep.kept(),
        timeout=200.0,
        every=0.1,
        what="the machine of the third is kept",
    )
    eventually(lambda: sweep.handed_over("running"), timeout=200.0, what="the second runs")
    if how == "Ctrl-C":
        program.send_signal(signal.SIGINT)
    elif how == "flow cancel":
        sweep.laptop.flow("cancel", sweep.handed_over("running")[0])
    go_on.touch()
    program.communicate(timeout=120)
    assert (program.returncode == 0) == (how == "break")
    eventually(lambda: not sweep.alive(), timeout=100.0, what="no machine is left")
    assert not sweep.kept()
