"""A wrong time of day for the programs of one host: `clock.c`, built where it is needed."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

SETTING = "clock-offset"
_SOURCE = Path(__file__).with_suffix(".c")


def build(directory: Path) -> Path:
    """The library to preload, built once. Raises RuntimeError where there is no compiler."""
    library = directory / "clock.so"
    if library.exists():
        return library
    compiler = shutil.which("cc")
    if compiler is None:
        raise RuntimeError(
            "to set a host's clock takes a C compiler (Debian: apt install gcc libc6-dev)"
        )
    flags = ["-O1", "-shared", "-fPIC", f'-DCLOCK_FILE="/etc/{SETTING}"']
    done = subprocess.run(
        [compiler, *flags, "-o", str(library), str(_SOURCE), "-ldl"],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise RuntimeError(f"{_SOURCE.name} could not be built: {done.stderr}")
    return library
