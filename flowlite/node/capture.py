"""What a worker leaves in its files: how much, and the last of it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

TAIL_LINES = 20
TAIL_BYTES = 4096


def sizes(files: Mapping[str, Path]) -> dict[str, int]:
    """The length of each file; 0 for one that was never made."""
    found = {}
    for name, path in files.items():
        try:
            found[name] = path.stat().st_size
        except OSError:
            found[name] = 0
    return found


def tail(path: Path) -> list[str]:
    """The last lines of a stream, as people would see them.

    At most `TAIL_LINES` lines and `TAIL_BYTES` bytes; of a progress bar only what was shown last; no
    blank lines at the end.
    """
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - TAIL_BYTES))
            data = file.read(TAIL_BYTES)
    except OSError:
        return []
    lines = data.decode("utf-8", "replace").split("\n")
    if size > TAIL_BYTES and len(lines) > 1:
        del lines[0]
    shown = [line.rstrip("\r").rpartition("\r")[2] for line in lines]
    while shown and not shown[-1].strip():
        shown.pop()
    return shown[-TAIL_LINES:]


def last_words(files: Mapping[str, Path]) -> list[str]:
    """The end of a worker's stderr, or of its stdout where stderr is empty."""
    return tail(files["err"]) or tail(files["out"])
