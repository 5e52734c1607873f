"""Programs that wait for tasks of the local provider, and what they show."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.terminals import ROOT

LABEL = re.compile(r"\[Node \d+\] \[\d\d:\d\d:\d\d\] ")
CONTROLS = re.compile(r"\x1b\[[0-9;]*[mK]")


def environment(**more: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), **more}


def ran(
    text: str, folder: Path, *, timeout: float = 90, **more: str
) -> subprocess.CompletedProcess[str]:
    """Runs a program away from any terminal, as in CI or under nohup."""
    path = folder / "program.py"
    path.write_text(text)
    return subprocess.run(
        [sys.executable, str(path)],
        cwd=folder,
        env=environment(**more),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


def unlabelled(text: str) -> list[str]:
    """Lines without the labels of nodes."""
    return [LABEL.sub("", line) for line in text.splitlines()]
