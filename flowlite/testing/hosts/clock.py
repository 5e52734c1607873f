"""A wrong time of day for the programs of one host or of a client, by `clock.c`, which is compiled when needed."""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
from pathlib import Path

SETTING = "clock-offset"
_SOURCE = Path(__file__).with_suffix(".c")
_AMOUNT = struct.Struct("=q")


def build(directory: Path, setting: Path | None = None) -> Path:
    """Builds the library to preload, once, and returns its path. Raises RuntimeError if there is no compiler.

    Args:
        directory: The directory to build it in.
        setting: The path, as the programs see it, of the file that `move` writes; by default that of a host.
    """
    library = directory / "clock.so"
    if library.exists():
        return library
    compiler = shutil.which("cc")
    if compiler is None:
        raise RuntimeError(
            "to set a host's clock takes a C compiler (Debian: apt install gcc libc6-dev)"
        )
    flags = ["-O1", "-shared", "-fPIC", f'-DCLOCK_FILE="{setting or f"/etc/{SETTING}"}"']
    done = subprocess.run(
        [compiler, *flags, "-o", str(library), str(_SOURCE), "-ldl"],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise RuntimeError(f"{_SOURCE.name} could not be built: {done.stderr}")
    return library


def move(setting: Path, seconds: float) -> None:
    """Moves the clock of every program that has loaded the library. Zero restores the time."""
    # Written in place, since running programs have mapped the file.
    descriptor = os.open(setting, os.O_WRONLY | os.O_CREAT, 0o644)
    try:
        os.pwrite(descriptor, _AMOUNT.pack(round(seconds * 1e9)), 0)
    finally:
        os.close(descriptor)
