"""What flowlite adds to a cloud's own boot time, and what prices cost to look at: against the clouds in a box."""

from __future__ import annotations

import os
import socket
import statistics
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from benchmarks.measure import ROOT, command, fresh_home, python
from benchmarks.table import Row, seconds
from flowlite import Flow, TaskConfig
from flowlite.testing.cloud import CloudInABox

NODES = 4
BOOT_SECONDS = 3.0
OVERHEAD_BOUND, OFFERS_BOUND = 2.0, 1.0
_SETTINGS = {"aws": '[aws]\nregion = "us-east-1"\n', "mithril": ""}


def measure(rounds: int) -> list[Row]:
    """Rows for the launch on each cloud, and for `flow offers`."""
    rows = []
    with CloudInABox(machines=NODES, boot_seconds=BOOT_SECONDS) as box:
        for cloud in _SETTINGS:
            with _client(box, cloud):
                taken = [_overhead(box, cloud) for _ in range(1 + min(rounds, 5))][1:]
            rows.append(
                Row(
                    f"{cloud}, {NODES} nodes: all answer on port 22 to GO",
                    seconds(statistics.median(taken)),
                    f"worst of {len(taken)}: {seconds(max(taken))}",
                    to_reach=f"<= {OVERHEAD_BOUND:.0f} s",
                    reached=statistics.median(taken) <= OVERHEAD_BOUND,
                )
            )
        for cloud in _SETTINGS:
            with _client(box, cloud):
                rows.append(_offers(cloud, rounds))
    return rows


@contextmanager
def _client(box: CloudInABox, cloud: str) -> Iterator[None]:
    """A fresh FLOW_HOME on the box's laptop, set up for one cloud."""
    with fresh_home() as home, box.enter():
        before = dict(os.environ)
        os.environ.update(box.environment())
        os.environ["PYTHONPATH"] = str(ROOT)
        (home / "config.toml").write_text(f'provider = "{cloud}"\n{_SETTINGS[cloud]}')
        try:
            yield
        finally:
            os.environ.clear()
            os.environ.update(before)


def _overhead(box: CloudInABox, cloud: str) -> float:
    """Seconds from the moment when the last machine answers until all ranks are told to start."""
    answered: dict[str, float] = {}
    over = threading.Event()
    # A thread is where the thread that starts it is: on the laptop.
    watch = threading.Thread(target=_watch, args=[box, cloud, answered, over], daemon=True)
    watch.start()
    try:
        config = TaskConfig(command=["true"], num_instances=NODES, max_run_time_hours=1)
        task = Flow().run(config)
        task.wait(timeout=120)
    finally:
        over.set()
        watch.join()
    if task.status != "completed" or task.started_at is None or len(answered) != NODES:
        raise RuntimeError(f"{cloud}: {task.status}: {task.reason}; {len(answered)} answered")
    return task.started_at.timestamp() - max(answered.values())


def _watch(box: CloudInABox, cloud: str, answered: dict[str, float], over: threading.Event) -> None:
    """Notes when each machine of this launch answers, as an SSH server does."""
    control = box.aws if cloud == "aws" else box.mithril
    known = {str(each["id"]) for each in control.instances()}
    while not over.is_set() and len(answered) < NODES:
        for each in control.instances():
            address = str(each["public_address"] or "")
            new = str(each["id"]) not in known and address not in answered
            if new and address and _answers(address):
                answered[address] = time.time()
        over.wait(0.02)


def _answers(address: str) -> bool:
    try:
        with socket.create_connection((address, 22), 0.2) as connection:
            connection.settimeout(0.5)
            return connection.recv(8).startswith(b"SSH-")
    except OSError:
        return False


def _offers(cloud: str, rounds: int) -> Row:
    asked = ("-m", "flowlite.cli", "offers", "--gpu", "h100:8", "-N", str(NODES))
    line = python(*asked, "--provider", cloud)
    command(line)
    warm = statistics.median(command(line).seconds for _ in range(max(3, rounds)))
    return Row(
        f"`flow offers --gpu h100:8 -N {NODES}` on {cloud}, warm",
        seconds(warm),
        to_reach=f"<= {OFFERS_BOUND:.1f} s",
        reached=warm <= OFFERS_BOUND,
    )
