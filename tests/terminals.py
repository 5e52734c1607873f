"""A pseudo-terminal with a program in it."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import struct
import termios
import time
from collections.abc import Callable, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


class Terminal:
    """A program on a terminal of its own: what it shows is read, what a person types is written."""

    def __init__(
        self, argv: Sequence[str], cwd: Path | None = None, *, columns: int = 0, rows: int = 0
    ) -> None:
        self.seen = ""
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            if cwd is not None:
                os.chdir(cwd)
                os.environ["PYTHONPATH"] = str(ROOT)
            os.environ["TERM"] = "xterm"
            # They would hide the size of the terminal.
            for name in ("COLUMNS", "LINES"):
                os.environ.pop(name, None)
            fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
            # In the environment of this process, not of its C library: readline sets both there.
            os.execve(argv[0], list(argv), os.environ)
        self._readable = select.poll()
        self._readable.register(self.fd, select.POLLIN | select.POLLHUP)

    def read(self, until: str | None = None, timeout: float = 90) -> str:
        """Reads until a text was shown, or to the program's end."""
        return self.read_until(lambda seen: until is not None and until in seen, timeout)

    def read_until(self, enough: Callable[[str], bool], timeout: float = 90) -> str:
        """Reads until what was shown so far is enough, or to the program's end."""
        deadline = time.monotonic() + timeout
        while not enough(self.seen):
            if not self._readable.poll(1000 * max(0.0, deadline - time.monotonic())):
                raise AssertionError(f"nothing more was shown in time; so far: {self.seen!r}")
            try:
                data = os.read(self.fd, 1 << 16)
            except OSError:
                # The terminal ends with its program.
                break
            if not data:
                break
            self.seen += data.decode(errors="replace")
        return self.seen

    def type(self, text: str) -> None:
        """Sends keys."""
        os.write(self.fd, text.encode())

    def end(self, timeout: float = 90) -> int:
        """Reads to the program's end. Returns its exit code."""
        self.read(timeout=timeout)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    def close(self) -> None:
        os.close(self.fd)
