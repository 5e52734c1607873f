"""Runs the node's programs for mounting and formatting. Their output becomes part of the error."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from shutil import which

from ..system import processes

_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class NotMounted(OSError):
    """A volume cannot be mounted; the text says why and what to do."""


def program(name: str) -> str | None:
    """Returns the path of a program, also if PATH lacks the system's directories."""
    return which(name, path=f"{os.environ.get('PATH', '')}:{_PATH}")


def ask(
    command: Sequence[str], what: str, seconds: float, late: str = ""
) -> subprocess.CompletedProcess[bytes]:
    """Runs a command to its end, whatever its exit status.

    Args:
        what: The subject of error messages: "volume 'ckpt'".
        late: A possible reason if the command times out.

    Raises:
        NotMounted: There is no such program, or it takes too long.
    """
    path = program(command[0])
    if path is None:
        raise NotMounted(f"{what}: there is no `{command[0]}` on this node")
    try:
        return processes.run_within(seconds, [path, *command[1:]])
    except subprocess.TimeoutExpired:
        raise NotMounted(
            f"{what}: `{' '.join(command)}` did not end within {seconds:g} s{late}"
        ) from None


def do(command: Sequence[str], what: str, seconds: float, late: str = "") -> None:
    """Like `ask`, for a command that must succeed. Raises NotMounted with its output."""
    done = ask(command, what, seconds, late)
    if done.returncode != 0:
        said = done.stderr.decode("utf-8", "replace").strip() or f"status {done.returncode}"
        raise NotMounted(f"{what}: `{' '.join(command)}`: {said}")
