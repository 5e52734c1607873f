"""Programs of the node that mount and format, run to their end; what they say goes into the error."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from shutil import which

_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class NotMounted(OSError):
    """A volume cannot be mounted; the text says why and what to do."""


def program(name: str) -> str | None:
    """The path of a program, also where PATH lacks the directories of the system."""
    return which(name, path=f"{os.environ.get('PATH', '')}:{_PATH}")


def ask(
    command: Sequence[str], what: str, seconds: float, late: str = ""
) -> subprocess.CompletedProcess[bytes]:
    """Runs a command to its end, whatever its status.

    Args:
        what: For whom, in words: "volume 'ckpt'".
        late: What may be the reason if it takes longer.

    Raises:
        NotMounted: There is no such program, or it takes too long.
    """
    path = program(command[0])
    if path is None:
        raise NotMounted(f"{what}: there is no `{command[0]}` on this node")
    try:
        return subprocess.run(
            [path, *command[1:]],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise NotMounted(
            f"{what}: `{' '.join(command)}` did not end within {seconds:g} s{late}"
        ) from None


def do(command: Sequence[str], what: str, seconds: float, late: str = "") -> None:
    """The same, for what must succeed. Raises NotMounted with what it said."""
    done = ask(command, what, seconds, late)
    if done.returncode != 0:
        said = done.stderr.decode("utf-8", "replace").strip() or f"status {done.returncode}"
        raise NotMounted(f"{what}: `{' '.join(command)}`: {said}")
