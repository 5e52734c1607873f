"""What the client's machine sends for a project that many hosts lack, beside its size.

The bytes are those that leave the network interface of the client's machine, with all headers, from the submission to
the end of the task. `SIZES=16,32` and `MEGABYTES=100` in the environment replace the numbers of hosts and the size.
"""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path

from benchmarks.measure import PROGRAMS, Run, processor_time, python
from benchmarks.pool import pool
from benchmarks.table import Row, seconds

BOUND = 2.0
_SIZES, _MEGABYTES = "16", "32"
_FILES = 8


def measure(rounds: int) -> list[Row]:
    """A row for each number of hosts. `rounds` does not matter: bytes do not depend on the load."""
    sizes = [int(each) for each in os.environ.get("SIZES", _SIZES).split(",")]
    megabytes = int(os.environ.get("MEGABYTES", _MEGABYTES))
    return [_row(size, megabytes) for size in sizes]


def _row(hosts: int, megabytes: int) -> Row:
    with tempfile.TemporaryDirectory() as directory, pool(hosts):
        for number in range(_FILES):
            content = os.urandom((megabytes << 20) // _FILES)
            Path(directory, f"{number}.bin").write_bytes(content)
        # Hosts get the agent and what else is of flowlite, and the caches here are filled.
        _run(hosts)
        few, _ = _run(hosts)
        before = _bytes_sent()
        began = time.monotonic()
        many, _ = _run(hosts, directory)
        taken, sent = time.monotonic() - began, _bytes_sent() - before
    ratio = sent / (megabytes << 20)
    more = 1000 * (many - few) / hosts
    return Row(
        f"bytes that the client sends of a project of {megabytes} MB to {hosts} hosts that lack it",
        f"{sent / (1 << 20):.0f} MB, in {seconds(taken)}",
        f"its size; processor time of the client's machine {more:.0f} ms a host",
        ratio,
        f"<= {BOUND:.0f}",
        ratio <= BOUND,
    )


def _run(hosts: int, *project: str) -> tuple[float, Run]:
    """The processor time of client and supervisor."""
    run = processor_time(*python(PROGRAMS / "hosts_flowlite.py", str(hosts), *project))
    return run.reached, run


def _bytes_sent() -> int:
    """The bytes that this thread's network has sent, loopback excluded."""
    lines = Path("/proc/thread-self/net/dev").read_text().splitlines()[2:]
    fields = {
        name.strip(): rest.split() for name, _, rest in (each.partition(":") for each in lines)
    }
    return sum(int(rest[8]) for name, rest in fields.items() if name != "lo")
