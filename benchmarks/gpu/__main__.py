"""`python3 -m benchmarks.gpu OUT [CHECK ...]`: runs the checks, and writes OUT/gpu.json and OUT/gpu.md."""

from __future__ import annotations

import argparse
import datetime
import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.gpu import machine
from benchmarks.gpu.checks import CHECKS
from benchmarks.table import HEADINGS, Row

MINUTES = 7.5
"""All is over by then: on some machines a command may take ten minutes, with its start."""


@dataclass(frozen=True)
class Outcome:
    """What became of one check: "passed", "failed" or "skipped", why, its rows, and how long it took."""

    check: str
    state: str
    why: str
    rows: Sequence[Row]
    seconds: float


def main() -> int:
    """Returns 0 if no check failed, 1 if one did, 2 if nothing can be measured here."""
    parser = argparse.ArgumentParser(prog="python3 -m benchmarks.gpu", description=__doc__)
    parser.add_argument("out", type=Path, help="folder of gpu.json and gpu.md")
    parser.add_argument("checks", nargs="*", help=f"of: {', '.join(CHECKS)}")
    parser.add_argument("--rehearse", action="store_true", help="on the CPU, without CUDA")
    asked = parser.parse_intermixed_args()
    if unknown := [name for name in asked.checks if name not in CHECKS]:
        parser.error(f"no check {unknown[0]}")
    if reason := machine.why_not(rehearse=asked.rehearse):
        print(f"make gpu: {reason}", file=sys.stderr)
        return 2
    asked.out.mkdir(parents=True, exist_ok=True)
    outcomes = []
    with machine.machine(MINUTES * 60, rehearse=asked.rehearse) as here:
        for name in asked.checks or CHECKS:
            outcomes.append(_outcome(name, here))
            last = outcomes[-1]
            print(f"{name}: {last.state} ({last.seconds:.1f} s) {last.why}"[:400], flush=True)
            # Written after each check, so that a run that is cut off has left what it found.
            _write(asked.out, outcomes, {**machine.facts(), "rehearsed": asked.rehearse})
    print((asked.out / "gpu.md").read_text())
    return int(any(each.state == "failed" for each in outcomes))


def _outcome(name: str, here: machine.Machine) -> Outcome:
    began = time.monotonic()
    state, why, rows = "passed", "", []
    try:
        if began > here.until:
            raise machine.Skipped("no time was left")
        rows = CHECKS[name](here)
    except machine.Skipped as reason:
        state, why = "skipped", str(reason)
    except Exception as error:
        state, why = (
            "failed",
            f"{'' if isinstance(error, machine.Failed) else type(error).__name__} {error}".strip(),
        )
    return Outcome(name, state, why, rows, time.monotonic() - began)


def _write(out: Path, outcomes: Sequence[Outcome], facts: Mapping[str, Any]) -> None:
    today = datetime.date.today().isoformat()
    told = {"date": today, "machine": facts, "checks": [asdict(each) for each in outcomes]}
    (out / "gpu.json").write_text(json.dumps(told, indent=2) + "\n")
    where = ", ".join(f"{name} {value}" for name, value in facts.items())
    lines = [HEADINGS, ("---",) * len(HEADINGS)]
    for each in outcomes:
        lines += [row.cells() for row in each.rows]
        if each.state != "passed":
            why = " ".join(each.why.split())[-200:].replace("|", "\\|")
            lines.append((each.check, each.state, why, "", "", "NO" * (each.state == "failed")))
    rows = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    (out / "gpu.md").write_text(f"Measured on {today}: {where}.\n\n{rows}\n")


if __name__ == "__main__":
    sys.path.insert(0, str(machine.PACKAGES))
    sys.exit(main())
