"""Decorated functions on real gangs of this machine: values, exceptions, sweeps, and Ctrl-C."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from flowlite import ConfigError, Flow, FlowApp, RemoteTraceback
from tests.helpers import assert_no_process_left, eventually

ROOT = Path(__file__).parents[2]
app = FlowApp("trial", processes_per_node=2)


class Unlucky(Exception):
    """An exception of the user's own."""


@app.function
def rank_and(text: str) -> tuple[int, str]:
    return int(os.environ["RANK"]), text


@app.function(processes_per_node=1)
def square(x: int) -> int:
    if x == 13:
        raise Unlucky(f"{x} brings bad luck")
    return x * x


@app.function(processes_per_node=1)
async def later(x: int) -> int:
    return x + 1


@app.function(processes_per_node=1)
def uses_another(x: int) -> int:
    return square(x) + square.local(x)


@app.function(processes_per_node=1)
def starts_another(x: int) -> int:
    return square.remote(x)


@pytest.mark.usefixtures("flow_home")
def test_values_of_all_ranks() -> None:
    task = rank_and.options(num_instances=2).spawn("hello")
    assert task.results() == [(rank, "hello") for rank in range(4)]
    assert task.result() == (0, "hello")
    assert task.name == "trial-rank-and"


@pytest.mark.usefixtures("flow_home")
def test_a_configuration_runs_its_call() -> None:
    flow = Flow()
    task = flow.run(rank_and.build_task_config("x"))
    assert task.result() == (0, "x")
    assert flow.get_task("trial-rank-and").id == task.id


@pytest.mark.usefixtures("flow_home")
def test_an_exception_keeps_its_type_and_brings_its_traceback() -> None:
    with pytest.raises(Unlucky, match="13 brings bad luck") as caught:
        square.remote(13)
    assert isinstance(caught.value.__cause__, RemoteTraceback)
    assert "in square" in caught.value.__cause__.text


@pytest.mark.usefixtures("flow_home")
def test_a_sweep_in_order_with_a_failure_in_it() -> None:
    first, second, third = square.map([2, 13, 4], max_concurrent=2, return_exceptions=True)
    assert (first, third) == (4, 16)
    assert isinstance(second, Unlucky)


@pytest.mark.usefixtures("flow_home")
def test_functions_that_use_others() -> None:
    assert later.remote(1) == 2
    assert uses_another.remote(3) == 18
    with pytest.raises(ConfigError, match="called by a worker of task"):
        starts_another.remote(3)


SLEEPER = """
import time
from flowlite import FlowApp

app = FlowApp()

@app.function(num_instances=2, name="sleeper")
def sleep():
    print("asleep", flush=True)
    time.sleep(600)

if __name__ == "__main__":
    sleep.remote()
"""


def test_interrupt_while_running_leaves_nothing(flow_home: Path, tmp_path: Path) -> None:
    script = tmp_path / "sleeper.py"
    script.write_text(SLEEPER)
    client = subprocess.Popen(
        [sys.executable, str(script)],
        env={**os.environ, "PYTHONPATH": str(ROOT), "FLOW_SHOW_LOGS": "always"},
        stderr=subprocess.PIPE,
        text=True,
    )
    assert client.stderr is not None
    for line in client.stderr:
        if "asleep" in line:
            break
    client.send_signal(signal.SIGINT)
    said = client.stderr.read()
    assert client.wait(90) != 0
    task = Flow().get_task("sleeper")
    assert f"Interrupted: task sleeper ({task.id}) is being cancelled" in said
    assert "KeyboardInterrupt" in said
    eventually(lambda: task.done, what="the end of the task")
    assert task.status == "cancelled"
    assert_no_process_left(task.id)
