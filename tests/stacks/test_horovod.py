"""Horovod itself, where FLOW_TEST_HOROVOD names a Python that has it: to build it takes five minutes (docs/stacks).

What it needs of flowlite is tested without it in test_mpi.py.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.gangs import submit

PYTHON = os.environ.get("FLOW_TEST_HOROVOD", "")
SECONDS = 300.0
SUM = """
import os, torch
import horovod.torch as hvd
hvd.init()
total = hvd.allreduce(torch.ones(1) * 10 ** hvd.rank(), op=hvd.Sum)
os.write(1, f"{hvd.size()} {int(total.item())}\\n".encode())
hvd.shutdown()
"""


@pytest.mark.hours
@pytest.mark.parametrize("how", ["by flowlite", "by horovodrun"])
@pytest.mark.timeout(600)
def test_horovod_sums_over_all_processes(flow_home: Path, tmp_path: Path, how: str) -> None:
    if not PYTHON:
        pytest.skip("FLOW_TEST_HOROVOD names no Python that has Horovod")
    program = tmp_path / "sum.py"
    program.write_text(SUM)
    command = [PYTHON, str(program)]
    if how == "by horovodrun":
        run = Path(PYTHON).with_name("horovodrun")
        command = [str(run), "--gloo", "-np", "4", "-H", "127.0.0.1:2,127.0.0.2:2", *command]
    done = submit(flow_home, command, nodes=2, distributed_mode="mpi", processes_per_node=2)
    done.end(timeout=SECONDS)
    # horovodrun writes before each line whose it is.
    said = [line.rpartition(">:")[2] for line in done.output(0).splitlines()]
    assert [each for each in said if each.endswith("1111")] == ["4 1111"] * 4
