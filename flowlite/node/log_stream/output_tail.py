"""The sizes and the last lines of a worker's output files."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from pathlib import Path

from ..system.stack_dump import without_own_frames

TAIL_LINES = 20
TAIL_BYTES = 4096
# After a crash in native code faulthandler writes the stacks of all threads; the user's line is near the top.
_DUMP_BYTES = 256 * 1024
_DUMP_FRAMES = 6
_CRASH = "Fatal Python error: "


def sizes(files: Mapping[str, Path]) -> dict[str, int]:
    """The length of each file in bytes; 0 for a file that does not exist."""
    found = {}
    for name, path in files.items():
        try:
            found[name] = path.stat().st_size
        except OSError:
            found[name] = 0
    return found


def tail(path: Path, begin: int = 0) -> list[str]:
    """The last lines of a stream, as a terminal would show them.

    They are at most `TAIL_LINES` lines and `TAIL_BYTES` bytes, without blank lines at the end and without anything
    before the byte `begin`. A progress bar is reduced to its last state.
    """
    lines, cut = _end(path, TAIL_BYTES, begin)
    if cut and len(lines) > 1:
        del lines[0]
        cut = 0
    shown = [line.rstrip("\r").rpartition("\r")[2] for line in lines]
    if cut and shown[0] == lines[0].rstrip("\r"):
        # As `messages.shorten` says it: the line may begin in the middle of a secret.
        shown[0] = f"[… {cut} characters …] {shown[0]}"
    while shown and not shown[-1].strip():
        shown.pop()
    return shown[-TAIL_LINES:]


def _end(path: Path, most: int, begin: int = 0) -> tuple[list[str], int]:
    """The lines in the last `most` bytes of a file, and how many earlier bytes were cut off."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(begin, size - most))
            data = file.read(most)
    except OSError:
        return [], 0
    return data.decode("utf-8", "replace").split("\n"), max(0, size - begin - most)


def last_words(files: Mapping[str, Path]) -> list[str]:
    """The last lines of a worker's stderr, or stdout if stderr is empty. For a crash in native code, the stack."""
    return _crash(files["err"]) or tail(files["err"]) or tail(files["out"])


def _crash(path: Path) -> list[str]:
    """The error and the crashed thread's stack, if faulthandler has written them; without frames of flowlite."""
    lines = _end(path, _DUMP_BYTES)[0]
    start = max((i for i, line in enumerate(lines) if line.startswith(_CRASH)), default=None)
    if start is None:
        return []
    dump = lines[start:]
    current = next((i for i, line in enumerate(dump) if line.startswith("Current thread ")), None)
    if current is None:
        return []
    frames = list(itertools.takewhile(lambda line: line.startswith("  File "), dump[current + 1 :]))
    frames = without_own_frames(frames)
    if not frames:
        return []
    more = ["  …"] if frames[_DUMP_FRAMES:] else []
    return [dump[0], dump[current], *frames[:_DUMP_FRAMES], *more]
