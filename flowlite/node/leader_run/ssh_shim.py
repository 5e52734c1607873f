"""A replacement for `ssh` that reaches the nodes of the gang without a key.

`gang ssh ATTEMPT_DIR ARGUMENTS…`. It is installed as `ssh` and `rsh` at the front of a worker's PATH (`processes.py`).
Connections to other hosts are passed to the machine's own ssh.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from ..quick_dataclass import dataclass
from .context import GangContext, Unreachable
from .remote_exec import call

FAILED = 255
"""The exit status of ssh for its own errors."""
_ALONE = frozenset("46AaCfGgKkMNnqsTtVvXxYy")
_WITH_VALUE = frozenset("BbcDEeFIiJLlmOopPQRSWw")
_NOT_HERE = {
    "D": "forward ports",
    "L": "forward ports",
    "R": "forward ports",
    "W": "forward ports",
    "N": "go into the background (-f, -N)",
    "f": "go into the background (-f, -N)",
    "O": "control a connection",
}


@dataclass(frozen=True, slots=True)
class RemoteCommand:
    """A parsed ssh command line.

    Attributes:
        command: The words after the host, joined with blanks as the remote shell gets them; "" for a shell.
        silent: Whether standard input is not to be read (-n).
        refused: A requested feature that this program lacks; "" if none.
    """

    host: str
    command: str
    silent: bool = False
    refused: str = ""


def read(arguments: Sequence[str]) -> RemoteCommand | None:
    """Parses arguments as OpenSSH does; None if they name no host."""
    silent, refused = False, ""
    words = list(arguments)
    host = ""
    while words:
        word = words.pop(0)
        if word == "--":
            if host:
                break
            continue
        if not word.startswith("-") or word == "-":
            if host:
                words.insert(0, word)
                break
            # Options may also follow the host.
            host = word
            continue
        for position, letter in enumerate(word[1:], 2):
            silent = silent or letter == "n"
            refused = refused or _NOT_HERE.get(letter, "")
            if letter in _WITH_VALUE:
                if not word[position:] and words:
                    words.pop(0)
                break
            if letter not in _ALONE:
                refused = refused or f"know the option -{letter}"
    if not host:
        return None
    return RemoteCommand(host.removeprefix("ssh://").rstrip("/"), " ".join(words), silent, refused)


def main(attempt: str, arguments: Sequence[str]) -> int:
    """Runs `gang ssh ATTEMPT_DIR ARGUMENTS…`."""
    wish = read(arguments)
    if wish is None:
        return _own(attempt, arguments, "it names no host")
    try:
        place = GangContext.read(attempt)
        node = place.node(wish.host)
        if node is None:
            nodes = ", ".join(place.hosts)
            return _own(attempt, arguments, f"{wish.host} is no node of this task ({nodes})")
        if wish.refused:
            return _say(f"this stand-in between the nodes of a task does not {wish.refused}")
        argv = ["/bin/sh", "-c", wish.command] if wish.command else ["/bin/sh"]
        # When a caller is ended, its connection closes, and the remote command ends too.
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        code = call(place, node, argv, source=None if wish.silent else 0)
    except KeyboardInterrupt:
        return 130
    except (Unreachable, OSError, ValueError) as error:
        return _say(str(error))
    return code if code >= 0 else 128 - code


def _own(attempt: str, arguments: Sequence[str], why: str) -> int:
    """Replaces this process with the machine's own ssh."""
    places = os.environ.get("PATH", "/usr/bin:/bin").split(":")
    ours = str(Path(attempt) / "bin")
    for place in places:
        program = os.path.join(place, "ssh")
        if os.path.realpath(place) != os.path.realpath(ours) and os.access(program, os.X_OK):
            os.execv(program, ["ssh", *arguments])
    return _say(f"{why}, and this machine has no ssh of its own")


def _say(text: str) -> int:
    sys.stderr.write(f"ssh: {text}\n")
    return FAILED
