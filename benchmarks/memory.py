"""Resident memory of a supervisor and of an agent while a gang runs: the peak since their start."""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

from benchmarks.measure import PROGRAMS, environment, fresh_home, python
from benchmarks.processes import of_home, wait_for
from benchmarks.table import Row


def measure(rounds: int) -> list[Row]:
    """One row for each kind of process; the largest of the rounds counts."""
    peaks = [_peaks() for _ in range(rounds)]
    rows = []
    for kind, bound in (("supervisor", 45), ("agent", 25), ("warm process", None)):
        peak = max(found[kind] for found in peaks)
        rows.append(
            Row(
                f"resident memory of the {kind}, at its peak",
                f"{peak:.0f} MB",
                to_reach=f"<= {bound} MB" if bound else "",
                reached=peak <= bound if bound else None,
            )
        )
    return rows


def _peaks() -> dict[str, float]:
    with fresh_home() as home, tempfile.TemporaryDirectory() as directory:
        program = python(PROGRAMS / "waiting.py", directory, "wait")
        started = subprocess.run(
            program, env=environment(), check=True, capture_output=True, text=True
        )
        wait_for(lambda: len(list(Path(directory).glob("*.pid"))) == 4, "all workers started")
        found = of_home(home)
        peaks = {
            kind: max(process.status("VmHWM") for process in found if is_kind(process.command))
            for kind, is_kind in KINDS.items()
        }
        cancel = python("-m", "flowlite.cli", "cancel", started.stdout.strip())
        subprocess.run(cancel, env=environment(), check=True, capture_output=True)
        wait_for(lambda: not of_home(home), "the task's processes gone")
        return peaks


def _is_supervisor(command: str) -> bool:
    return "flowlite.supervise.process.main" in command


def _is_warm(command: str) -> bool:
    return ".pyz warm " in command


def _is_agent(command: str) -> bool:
    return ".pyz agent " in command


KINDS = {"supervisor": _is_supervisor, "agent": _is_agent, "warm process": _is_warm}
