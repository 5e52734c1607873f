"""The room that is left on the file systems of a node, for `flow doctor`.

A process that looks at a network file system that hangs blocks in the kernel, and cannot even be killed. Child
processes therefore look at each file system, and one that does not answer is left behind.
"""

from __future__ import annotations

import json
import os
import select
import signal
import time

from ..system import processes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Any

_ANSWER_SECONDS = 5.0
_MOST_BYTES = 4096


def look(
    paths: Iterable[str], seen_by: int | None = None, seconds: float = _ANSWER_SECONDS
) -> tuple[list[dict[str, Any]], list[str]]:
    """Returns the room of the file systems of these paths, each file system once, and the paths that do not answer.

    Room is {"path", "device", "free", "total", "files_free", "files"}, in bytes and in numbers of files. Paths that do
    not exist are left out.

    Args:
        seen_by: A process with mounts of its own. Paths that can be seen there are meant as it sees them.
        seconds: How long to wait for all answers.
    """
    asked = [(path, *_ask(path, seen_by)) for path in dict.fromkeys(paths)]
    until = time.monotonic() + seconds
    found: dict[int, dict[str, Any]] = {}
    silent = []
    for path, child, answers in asked:
        poll = select.poll()
        poll.register(answers, select.POLLIN)
        if not poll.poll(max(0.0, until - time.monotonic()) * 1000):
            silent.append(path)
        elif answer := os.read(answers, _MOST_BYTES):
            room = {"path": path, **json.loads(answer)}
            found.setdefault(room["device"], room)
        os.close(answers)
        processes.send(child, signal.SIGKILL)
    # The children are not waited for, since one that hangs would not end.
    return list(found.values()), silent


def _ask(path: str, seen_by: int | None) -> tuple[int, int]:
    """Starts a child process that looks at a path. Returns its pid, and the end of the pipe that it answers through."""
    answers, tell = os.pipe()
    child = os.fork()
    if child:
        os.close(tell)
        return child, answers
    try:
        # A child that hangs must not hold the streams of the program that asked for the answer.
        processes.redirect(os.devnull, 0)
        processes.redirect(os.devnull, 1, 2)
        ways = [path] if seen_by is None else [f"/proc/{seen_by}/root{path}", path]
        room = _room_by(ways)
        if room is not None:
            os.write(tell, json.dumps(room).encode())
    finally:
        os._exit(0)


def _room_by(ways: Sequence[str]) -> dict[str, int] | None:
    for way in ways:
        try:
            device, facts = os.stat(way).st_dev, os.statvfs(way)
        except OSError:
            continue
        return {
            "device": device,
            "free": facts.f_bavail * facts.f_frsize,
            "total": facts.f_blocks * facts.f_frsize,
            "files_free": facts.f_favail,
            "files": facts.f_files,
        }
    return None
