"""Useful time divided by paid time where a spot market takes machines away: an elastic gang, and `retries` alone."""

from __future__ import annotations

import itertools
import json
import os
import re
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.measure import PROGRAMS, ROOT, fresh_home
from benchmarks.table import Row
from flowlite import Flow, TaskConfig
from flowlite.api.task import Task
from flowlite.testing.cloud import CloudInABox

FEWEST, MOST = 2, 4
KIND, ZONE = "c7i.large", "us-east-1b"
TRAINER = (PROGRAMS / "spot_trainer.py").read_text()
# A machine is taken every so many seconds. For how many machines there is room after each taking, again and again.
TAKEN_EVERY, ROOM = 20.0, (3, 2, 4)
STEP_SECONDS, SAMPLES = 0.5, 400
_LONGEST = 300.0
_CHECKPOINTS = "/mnt/shared/spot-market"


def measure(rounds: int) -> list[Row]:
    """A row for each kind of gang, in the same run. A round takes minutes, so there is one of each."""
    found = {}
    with CloudInABox(machines=2 * MOST, boot_seconds=3.0, clouds=("aws",)) as box:
        for name, nodes in (("elastic", (FEWEST, MOST)), ("fixed", MOST)):
            box.reset()
            with client(box):
                found[name] = Played(box, nodes)
    return [
        found["elastic"].row(f"num_instances=({FEWEST}, {MOST})"),
        found["fixed"].row(f"num_instances={MOST} with retries"),
    ]


@contextmanager
def client(box: CloudInABox) -> Iterator[Path]:
    """A fresh FLOW_HOME on the box's laptop, set up for one zone of EC2."""
    with fresh_home() as home, box.enter():
        before = dict(os.environ)
        os.environ.update(box.environment())
        os.environ["PYTHONPATH"] = str(ROOT)
        (home / "config.toml").write_text(settings())
        try:
            yield home
        finally:
            os.environ.clear()
            os.environ.update(before)


def settings() -> str:
    """The configuration of a FLOW_HOME: EC2 in one zone, so that the market is that zone."""
    return f'provider = "aws"\n\n[aws]\nregion = "us-east-1"\nzones = ["{ZONE}"]\n'


def job(nodes: int | tuple[int, int], samples: int, directory: str) -> TaskConfig:
    """The trainer, on spot; it ends early when there is a file "enough" in the directory of its checkpoints."""
    return TaskConfig(
        command=[
            "python3",
            "-u",
            "-c",
            TRAINER,
            f"{STEP_SECONDS}",
            f"{samples}",
            f"{directory}/enough",
        ],
        num_instances=nodes,
        spot=True,
        cpu=2,
        max_price_per_hour=0.1,
        max_cost=1.0,
        retries=3,
        grace_seconds=2,
        settle_seconds=1,
        heal_seconds=1,
        sync=False,
        checkpoint={"path": "/checkpoints", "sync": directory, "every": 1},
    )


class Played:
    """One job in the market.

    Attributes:
        seconds: From the moment when all ranks run first to the end.
        useful: Seconds of machines for steps that nobody had to repeat.
        paid: Seconds of machines that were charged.
        attempts: How often the gang was started.
        status: The task's state at the end, or "not ended" after five minutes.
    """

    def __init__(self, box: CloudInABox, nodes: int | tuple[int, int]) -> None:
        directory = box.cluster.shared / Path(_CHECKPOINTS).name
        box.aws.capacity(KIND, ZONE, MOST)
        task: Task[None] = Flow().run(job(nodes, SAMPLES, f"{_CHECKPOINTS}/{nodes}"))
        over = threading.Event()
        # A thread is where the thread that starts it is: on the laptop.
        market = threading.Thread(target=_market, args=[box, task, over], daemon=True)
        market.start()
        until = time.monotonic() + _LONGEST
        while not task.record.final and time.monotonic() < until:
            time.sleep(0.5)
        self.status = task.status if task.record.final else "not ended"
        over.set()
        market.join()
        if not task.record.final:
            task.cancel()
            task.wait(timeout=120)
        began, ended = task.started_at, task.finished_at
        self.seconds = (ended - began).total_seconds() if began and ended else 0.0
        self.attempts = task.attempt
        self.useful = STEP_SECONDS * _samples(directory / str(nodes))
        self.paid = sum(float(each["seconds"]) for each in box.aws.bill())
        print(
            f"{nodes}: {self.status} after {self.seconds:.0f} s, {self.attempts} attempts, useful {self.useful:.0f} s "
            f"of {self.paid:.0f} s paid, ${task.estimated_cost:.4f}",
            file=sys.stderr,
        )

    def row(self, what: str) -> Row:
        """The figures."""
        return Row(
            f"{what}, a machine is taken every {TAKEN_EVERY:.0f} s, room for all once a minute",
            f"useful / paid {self.useful / self.paid:.2f}",
            f"{self.status}, {self.seconds:.0f} s, {self.attempts} attempts",
        )


def _samples(place: Path) -> int:
    """How many samples the newest checkpoint counts."""
    counts = [
        json.loads(path.read_bytes())["samples"]
        for path in (place / "files").rglob("*.json")
        if re.match(r"\d+\.", path.name)
    ]
    return max(counts, default=0)


def _market(box: CloudInABox, task: Task[Any], over: threading.Event) -> None:
    """Takes a machine again and again, as soon as all ranks have begun to run for the first time."""
    while task.started_at is None and not over.wait(0.2):
        pass
    set_room(box, MOST)
    for room in itertools.cycle(ROOM):
        if over.wait(TAKEN_EVERY):
            return
        if running := alive(box, "running"):
            box.aws.preempt([running[len(running) // 2]], 0.0)
        set_room(box, room)


def set_room(box: CloudInABox, machines: int) -> None:
    """There is room for so many machines, those that are there included."""
    box.aws.capacity(KIND, ZONE, max(0, machines - len(alive(box, "pending", "running"))))


def alive(box: CloudInABox, *states: str) -> list[str]:
    """The machines in these states, by id."""
    return sorted(str(each["id"]) for each in box.aws.instances() if each["state"] in states)
