"""What a worker does for torch: groups outlive `destroy_process_group`, rank 0 leaves last (why: see the module)."""

from __future__ import annotations

import random
import socket
import subprocess
import sys
from contextlib import suppress

import pytest

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


def test_groups_are_held() -> None:
    done = subprocess.run([sys.executable, "-c", HELD], capture_output=True, text=True, check=False)
    assert done.stdout == "held\n", done.stderr


def port_for_later() -> int:
    """A free port that the kernel gives to nobody who asks for any, so that it is free in a moment, too."""
    while True:
        port = random.SystemRandom().randrange(20_000, 30_000)
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


@pytest.mark.parametrize("end", ["destroy", "keep"])
def test_rank_0_leaves_when_nobody_needs_its_store_any_more(end: str) -> None:
    port = str(port_for_later())
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", LATE, str(rank), port, end], stdout=subprocess.PIPE, text=True
        )
        for rank in range(2)
    ]
    outputs = [rank.communicate(timeout=250)[0] for rank in ranks]
    assert outputs == ["fine\n", "fine\n"]
    assert [rank.returncode for rank in ranks] == [0, 0]


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
