"""Waits for a program that mounts a file system, and for the file system to answer."""

from __future__ import annotations

import os
import queue
import threading
import time

from .unmount import is_mounted

TYPE_CHECKING = False
if TYPE_CHECKING:
    import subprocess

LATE = "nothing was mounted"
"""The beginning of what `await_mount` returns if the program runs for too long."""
_LONGEST_PAUSE = 0.1


def await_mount(
    program: subprocess.Popen[bytes],
    point: str | os.PathLike[str],
    seconds: float,
    over: threading.Event,
) -> str:
    """Waits until something is mounted. Returns why nothing is; "" if it is, or if `over` is set."""
    until, pause = time.monotonic() + seconds, 0.005
    while not over.is_set():
        if program.poll() is not None:
            return f"it ended with {program.returncode}"
        if is_mounted(point):
            return ""
        if time.monotonic() > until:
            return f"{LATE} within {seconds:g} s"
        over.wait(pause)
        pause = min(_LONGEST_PAUSE, pause * 1.5)
    return ""


def listed(directory: str | os.PathLike[str], seconds: float) -> list[str] | OSError | None:
    """Returns the names in a directory, or why there are none; None if the file system does not answer in time."""
    answers: queue.Queue[list[str] | OSError] = queue.Queue()

    def look() -> None:
        try:
            answers.put(os.listdir(directory))
        except OSError as error:
            answers.put(error)

    # The thread of a file system that hangs is left behind.
    threading.Thread(target=look, daemon=True).start()
    try:
        return answers.get(timeout=seconds)
    except queue.Empty:
        return None
