"""`python -m tests.attack`: plays cases drawn anew each time, and prints what was found (docs/testing.md)."""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from flowlite.testing.hosts import why_not
from tests.attack import deciding, findings
from tests.attack.cases import KINDS, Case, draw
from tests.attack.crowd import play_all
from tests.attack.findings import Run
from tests.attack.playing import Finding
from tests.node.simulation import World

_SEEDS = 10**9


def main() -> int:
    """Returns 1 if something did not hold."""
    parser = argparse.ArgumentParser(prog="python -m tests.attack", description=__doc__)
    parser.add_argument("--cases", type=int, default=200, help="how many on hosts")
    parser.add_argument("--seed", type=int, help="the first one's; the others follow")
    parser.add_argument("--kind", default="all", choices=("all", *KINDS))
    parser.add_argument("--jobs", type=int, default=8, help="cases at a time")
    parser.add_argument("--simulated", type=int, default=10_000, help="gangs on a simulated clock")
    parser.add_argument("--minutes", type=float, help="begin no case after so long")
    parser.add_argument("--json", type=Path, help="a file for all that was found")
    parser.add_argument("--write", action="store_true", help="write docs/reliability.md")
    asked = parser.parse_args()
    if asked.cases and (reason := why_not()):
        parser.error(reason)
    seed = random.randrange(_SEEDS) if asked.seed is None else asked.seed
    print(f"seed {seed}", flush=True)
    began = time.monotonic()
    broken = simulate(seed, asked.simulated, asked.jobs)
    until = began + 60 * asked.minutes if asked.minutes else float("inf")
    cases = _drawn(range(seed, seed + asked.cases), asked.kind, until)
    found = play_all(cases, min(asked.jobs, asked.cases), _tell)
    run = Run(seed, asked.kind, asked.jobs, time.monotonic() - began, found, asked.simulated)
    print(run.markdown())
    for text in broken:
        print(text)
    if asked.json:
        run.save(asked.json)
    if asked.write:
        run.write()
    return int(bool(run.wrong or broken))


def _drawn(seeds: range, kind: str, until: float) -> Iterator[Case]:
    for seed in seeds:
        if time.monotonic() > until:
            return
        yield draw(seed, kind)


def simulate(seed: int, count: int, jobs: int) -> list[str]:
    """Lives through so many bad days of simulated gangs, and says which ended wrong."""
    if not count:
        return []
    seeds = range(seed, seed + count)
    lots = [seeds[first : first + 250] for first in range(0, count, 250)]
    with ProcessPoolExecutor(jobs) as pool:
        return [text for broken in pool.map(_live_through, lots) for text in broken]


def _live_through(seeds: range) -> list[str]:
    broken = []
    for seed in seeds:
        try:
            World(seed).run()
            deciding.live_through(seed)
        except Exception as error:
            broken.append(f"WRONG simulated seed {seed}: {type(error).__name__}: {error}")
    return broken


def _tell(finding: Finding) -> None:
    print(findings.line(finding), flush=True)
    for text in finding.wrong:
        print(f"      {text}", flush=True)
    for text in finding.story:
        print(f"        {text}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
