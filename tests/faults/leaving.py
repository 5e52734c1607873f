"""Gangs whose ranks return something and end at a moment that the test chooses, while the network is being cut."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

from tests.faults.on_hosts import HostGang, Site

_PROGRAM = """
import os, time

from flowlite import FlowApp

app = FlowApp()


@app.function(processes_per_node=1, grace_seconds=1.0)
def leave(size: int) -> bytes:
    rank, count = int(os.environ["RANK"]), 0
    print(os.getpid(), flush=True)
    while not os.path.exists("/tmp/go"):
        count += 1
        print(count, flush=True)
        time.sleep(0.05)
    # Some of the output comes with the last breath.
    for count in range(count + 1, count + 2001):
        print(count)
    print("end", count, flush=True)
    return bytes([rank]) * size
"""


class Leaving(HostGang):
    """A task whose ranks return `size` bytes each, all of them with the rank as their value."""

    def __init__(
        self, site: Site, directory: Path, *, nodes: int, size: int, **options: Any
    ) -> None:
        directory.mkdir(exist_ok=True)
        (directory / "leaving.py").write_text(_PROGRAM)
        sys.path.insert(0, str(directory))
        try:
            sys.modules.pop("leaving", None)
            module = importlib.import_module("leaving")
            with site.cluster.enter_laptop():
                self.task = module.leave.options(num_instances=nodes, **options).spawn(size)
        finally:
            sys.path.remove(str(directory))
        super().__init__(site, self.task.record)
        self.nodes, self.size = nodes, size

    def results(self) -> list[bytes]:
        """What the ranks returned, as the user gets it."""
        with self.site.cluster.enter_laptop():
            return list(self.task.results(90))

    def all_is_here(self) -> None:
        """Not a byte of results or output is missing."""
        assert self.results() == [bytes([rank]) * self.size for rank in range(self.nodes)]
        for rank in range(self.nodes):
            text = self.output(rank)
            _, *numbers, end = text.splitlines()
            assert numbers == [str(number) for number in range(1, len(numbers) + 1)]
            assert end == f"end {len(numbers)}"

    def homes(self) -> list[Path]:
        """What lies of the task on hosts that run."""
        return [
            path
            for host in self.site.hosts
            if host.alive
            for path in (host.root / "root" / ".flowlite-node" / "tasks").glob(f"{self.id}-*")
        ]
