"""What the tests of MPI run under `mpirun`, on this machine and on hosts."""

from __future__ import annotations

import os
from pathlib import Path

from tests.components import need
from tests.stacks.environments import stack

MPI4PY = "mpi4py==4.1.1"

ADD = """
import os
from mpi4py import MPI
world = MPI.COMM_WORLD
names = [os.environ[each] for each in ("FLOW_NODE_RANK", "RANK", "WORLD_SIZE", "LOCAL_RANK", "NODE_RANK")]
assert (world.rank, world.size) == (int(names[1]), int(names[2]))
sum = world.allreduce(10 ** world.rank)
os.write(1, f"{' '.join(names)} {sum}\\n".encode())
"""
"""Says who it is, and a sum over all ranks: of four, 1111. In one piece, since mpirun mixes what comes in several."""
ADDED = [
    ["0", "0", "4", "0", "0", "1111"],
    ["0", "1", "4", "1", "0", "1111"],
    ["1", "2", "4", "0", "1", "1111"],
    ["1", "3", "4", "1", "1", "1111"],
]
"""The words of its lines on two nodes with two processes each, sorted."""
BARE = """
import os
from mpi4py import MPI
os.write(1, f"{MPI.COMM_WORLD.rank} {MPI.COMM_WORLD.allreduce(1)}\\n".encode())
"""


def python() -> Path:
    """The Python that has mpi4py. Skips where there is no MPI, or mpi4py cannot be installed."""
    need("mpi")
    # The tests may run as root on a machine that other launchers have been at.
    assert "OMPI_COMM_WORLD_SIZE" not in os.environ
    return stack(MPI4PY, name="mpi4py")


MEET = """
import json, os, time, urllib.error, urllib.request
told = {each.removeprefix("HOROVOD_"): os.environ[each] for each in os.environ if each.startswith("HOROVOD_")}
store = f"http://{told['GLOO_RENDEZVOUS_ADDR']}:{told['GLOO_RENDEZVOUS_PORT']}"

def ask(method, key, data=None):
    request = urllib.request.Request(f"{store}/{key}", data=data, method=method)
    return urllib.request.urlopen(request, timeout=90).read()

def get(key):
    while True:
        try:
            return ask("GET", key)
        except urllib.error.HTTPError as error:
            assert error.code == 404
            time.sleep(0.02)

rank, size = int(told["RANK"]), int(told["SIZE"])
me = "/".join(told[each] for each in ("RANK", "LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE"))
ask("PUT", f"global/{rank}", me.encode() + bytes(range(256)))
all = [get(f"global/{each}") for each in range(size)]
assert all[rank][-256:] == bytes(range(256))
os.write(1, (" ".join(each[:-256].decode() for each in all) + "\\n").encode())
ask("PUT", f"done/{rank}", b"")
[get(f"done/{each}") for each in range(size)]
ask("DELETE", f"global/{rank}")
"""
"""Meets the others as Horovod's Gloo controller does, and says whom it met."""
