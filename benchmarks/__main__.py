"""`python -m benchmarks [NAME ...]`: runs the benchmarks one after the other and prints one table."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import multiprocessing
import os
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor

from benchmarks import quiet_names, table

NAMES = (
    "barrier",
    "warm",
    "noop",
    "start",
    "rendezvous",
    "log_throughput",
    "long_log",
    "big_array",
    "memory",
    "stopping",
    "bootstrap",
    "client_cost",
    "client_scale",
    "client_bytes",
    "copying",
    "project_files",
    "log_latency",
    "recovery",
    "spares",
    "queue",
    "spot_market",
    "clouds",
    "slurm",
)


def main() -> int:
    """Returns 1 if a figure misses its bound."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of: {', '.join(NAMES)}")
    parser.add_argument("--rounds", type=int, default=5, help="interleaved rounds that count")
    parser.add_argument("--write", action="store_true", help="write docs/performance.md")
    asked = parser.parse_args()
    unknown = set(asked.names) - set(NAMES)
    if unknown or (asked.write and asked.names):
        parser.error(f"no benchmark {unknown}" if unknown else "--write wants the whole table")
    quiet_names.start_again_without_name_server()
    load = os.getloadavg()[0]
    rows: list[table.Row] = []
    for name in asked.names or NAMES:
        started = time.monotonic()
        taken = _measure(name, asked.rounds)
        print(f"\n{name} ({time.monotonic() - started:.0f} s)")
        table.show(taken)
        sys.stdout.flush()
        rows += taken
    quiet_names.tidy()
    if asked.write:
        table.write(rows, asked.rounds, load)
    return int(any(row.reached is False for row in rows))


def _measure(name: str, rounds: int) -> list[table.Row]:
    """Runs one benchmark in a new process: what one leaves in memory would be a part of the next one's peaks."""
    new = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(1, mp_context=new) as process:
        return process.submit(_measure_here, name, rounds).result()


def _measure_here(name: str, rounds: int) -> list[table.Row]:
    # A task brings the files of the directory that it is started in, and this project grows.
    with tempfile.TemporaryDirectory(prefix="flow-bench-") as empty, contextlib.chdir(empty):
        taken: list[table.Row] = importlib.import_module(f"benchmarks.{name}").measure(rounds)
    return taken


if __name__ == "__main__":
    sys.exit(main())
