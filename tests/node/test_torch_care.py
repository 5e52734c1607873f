"""What a worker does for torch: groups outlive `destroy_process_group`, rank 0 leaves last (why: see the module)."""

from __future__ import annotations

import json
import random
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

# Imports torch once, and forks a process for each order: to import it takes two seconds of processor time.
FORKS = """
import json, os, signal, sys, traceback
import torch.distributed
for line in sys.stdin:
    order = json.loads(line)
    ranks = []
    for rank in range(order["ranks"]):
        if (pid := os.fork()) == 0:
            signal.alarm(250)
            os.dup2(os.open(f"{order['out']}.{rank}", os.O_WRONLY | os.O_CREAT), 1)
            sys.argv = ["-c", str(rank), *order["arguments"]]
            try:
                exec(order["code"], {"__name__": "__main__"})
            except BaseException:
                traceback.print_exc()
            os._exit(1)
        ranks.append(pid)
    print(json.dumps([os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in ranks]), flush=True)
"""

HELD = """
import os
from flowlite.node.worker import torch_teardown as torch_care
torch_care.settle()
import torch.distributed as dist
os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="0", RANK="0", WORLD_SIZE="1")
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
group = dist.group.WORLD
from torch.distributed import destroy_process_group
destroy_process_group()
assert not dist.is_initialized()
assert [held is group for held in torch_care._kept] == [True], torch_care._kept
print("held", flush=True)
os._exit(0)
"""

SETTINGS = """
import torch
from flowlite.node.worker.process_settings import note_settings
print(note_settings(torch_too=True).get("torch_seed"))
torch.manual_seed(7)
print(note_settings(torch_too=True).get("torch_seed"))
"""

# Rank 1 asks rank 0's store for something when rank 0 has long come to its end.
LATE = """
import os, sys, time
from flowlite.node.worker import torch_teardown as torch_care
torch_care.settle()
import torch.distributed as dist
rank, port, destroy = int(sys.argv[1]), sys.argv[2], sys.argv[3] == "destroy"
os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=port, RANK=str(rank), WORLD_SIZE="2")
dist.init_process_group("gloo")
store = dist.distributed_c10d._get_default_store()
if destroy:
    dist.destroy_process_group()
if rank == 1:
    time.sleep(0.5)
    store.add("still there?", 1)
print("fine", flush=True)
torch_care.leave_together()
os._exit(0)
"""

# Each rank makes a process group, destroys it, and makes it anew. Rank 1 comes late to the second one, or early.
AGAIN = """
import os, sys, time
from datetime import timedelta
from flowlite.node.worker import torch_teardown as torch_care
torch_care.settle()
import torch, torch.distributed as dist
rank, place, late = int(sys.argv[1]), sys.argv[2], sys.argv[3]
os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=place, RANK=str(rank), WORLD_SIZE="2")
options = {"init_method": "file://" + place, "rank": rank, "world_size": 2} if place.startswith("/") else {}
for turn in range(3):
    dist.init_process_group("gloo", timeout=timedelta(seconds=60), **options)
    total = torch.ones(1)
    dist.all_reduce(total)
    print(total.item(), flush=True)
    store = dist.distributed_c10d._get_default_store()
    store.add("both are done", 1)
    while store.add("both are done", 0) < 2:
        time.sleep(0.01)
    dist.destroy_process_group()
    if late == sys.argv[1]:
        time.sleep(0.5)
torch_care.leave_together()
os._exit(0)
"""


def test_groups_are_held() -> None:
    done = subprocess.run([sys.executable, "-c", HELD], capture_output=True, text=True, check=False)
    assert done.stdout == "held\n", done.stderr


def port_for_later() -> int:
    """A free port that the kernel gives to nobody who asks for any, so that it is free in a moment, too."""
    while True:
        port = random.SystemRandom().randrange(20_000, 30_000)
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


class Forks:
    """Runs programs in processes that are forked after torch was imported, as workers are."""

    def __init__(self, process: subprocess.Popen[str], top: Path) -> None:
        self._process = process
        self._top = top
        self._runs = 0

    def run(self, code: str, *arguments: str, ranks: int = 2) -> tuple[list[str], list[int]]:
        """What each rank has printed, and its exit code. A rank's number comes before the arguments."""
        self._runs += 1
        out = self._top / f"out{self._runs}"
        order = {"code": code, "arguments": arguments, "ranks": ranks, "out": str(out)}
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{json.dumps(order)}\n")
        self._process.stdin.flush()
        codes = json.loads(self._process.stdout.readline())
        return [Path(f"{out}.{rank}").read_text() for rank in range(ranks)], codes


@pytest.fixture(scope="module")
def forks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Forks]:
    with subprocess.Popen(
        [sys.executable, "-c", FORKS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield Forks(process, tmp_path_factory.mktemp("forks"))


@pytest.mark.parametrize("end", ["destroy", "keep"])
def test_rank_0_leaves_when_nobody_needs_its_store_any_more(forks: Forks, end: str) -> None:
    outputs, codes = forks.run(LATE, str(port_for_later()), end)
    assert outputs == ["fine\n", "fine\n"]
    assert codes == [0, 0]


@pytest.mark.parametrize("late", ["0", "1"])
@pytest.mark.parametrize("where", ["port", "file"])
def test_a_group_is_made_anew_after_another_was_destroyed(
    forks: Forks, where: str, late: str, tmp_path: Path
) -> None:
    """A gang that starts its ranks' groups anew in the same processes does not meet the ranks of the group before."""
    place = str(port_for_later()) if where == "port" else str(tmp_path / "ranks")
    outputs, _ = forks.run(AGAIN, place, late)
    assert outputs == ["2.0\n2.0\n2.0\n"] * 2
    assert not list(tmp_path.iterdir()), (
        "the next gang that meets in this file would find these ranks"
    )


def test_without_torch_there_is_nothing_to_do() -> None:
    code = (
        "import sys; from flowlite.node.worker import torch_teardown as t; t.settle(); t.leave_together();"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_of_a_notebook_only_a_seed_that_was_set_travels() -> None:
    """The one that torch begins with would make all ranks of all calls draw the same numbers."""
    pytest.importorskip("torch")
    done = subprocess.run(
        [sys.executable, "-c", SETTINGS], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.split() == ["None", "7"]
