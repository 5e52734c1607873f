"""Running `flow` on a real terminal of a given size."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import sys
import termios
import time
from collections.abc import Callable

_SEQUENCE = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")


class OnTerminal:
    """One `flow` command on a terminal: what it writes can be awaited, and answered."""

    def __init__(self, *words: str, columns: int = 80, rows: int = 40) -> None:
        self.said = ""
        self._pid, self._terminal = pty.fork()
        if self._pid == 0:
            os.environ["TERM"] = "xterm"
            # They would hide the size of the terminal.
            for name in ("COLUMNS", "LINES"):
                os.environ.pop(name, None)
            fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
            # In the environment of this process, not of its C library: readline sets both there.
            os.execve(sys.executable, [sys.executable, "-m", "flowlite.cli", *words], os.environ)

    def type(self, text: str) -> None:
        """Sends keys."""
        os.write(self._terminal, text.encode())

    def read_until(self, seen: Callable[[str], bool], timeout: float = 60.0) -> str:
        """Waits until what was written so far has something; gives all of it without colours."""
        deadline = time.monotonic() + timeout
        while not seen(self.said):
            if not self._read(deadline - time.monotonic()):
                raise AssertionError(f"not seen: {self.said!r}")
        return self.said

    def end(self, timeout: float = 60.0) -> tuple[int, str]:
        """Waits for the end; gives the exit code and all that was written, without colours."""
        deadline = time.monotonic() + timeout
        while self._read(deadline - time.monotonic()):
            pass
        os.close(self._terminal)
        return os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1]), self.said

    def _read(self, seconds: float) -> bool:
        poller = select.poll()
        poller.register(self._terminal, select.POLLIN | select.POLLHUP)
        if not poller.poll(max(0.0, seconds) * 1000):
            raise AssertionError(f"nothing more was written in time; so far: {self.said!r}")
        try:
            block = os.read(self._terminal, 1 << 16)
        except OSError:
            # The terminal ends with its program.
            return False
        self.said += _SEQUENCE.sub("", block.decode("utf-8", "replace")).replace("\r\n", "\n")
        return bool(block)


def on_a_terminal(*words: str, columns: int = 80, rows: int = 40) -> str:
    """What a command that succeeds writes to a terminal of this size."""
    code, said = OnTerminal(*words, columns=columns, rows=rows).end()
    assert code == 0, said
    return said
