"""A pseudo-terminal with a program in it."""

from __future__ import annotations

import os
import pty
import select
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


class Terminal:
    """A program on a terminal of its own: what it shows is read, what a person types is written."""

    def __init__(self, argv: Sequence[str], cwd: Path) -> None:
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.chdir(cwd)
            os.environ["PYTHONPATH"] = str(ROOT)
            os.environ["TERM"] = "xterm"
            os.execv(argv[0], list(argv))
        self.seen = ""
        self._readable = select.poll()
        self._readable.register(self.fd, select.POLLIN)

    def read(self, until: str | None = None, timeout: float = 60) -> str:
        deadline = time.monotonic() + timeout
        while until is None or until not in self.seen:
            left = deadline - time.monotonic()
            assert left > 0, self.seen
            if not self._readable.poll(1000 * left):
                continue
            try:
                data = os.read(self.fd, 65536)
            except OSError:
                break
            if not data:
                break
            self.seen += data.decode(errors="replace")
        return self.seen

    def type(self, text: str) -> None:
        os.write(self.fd, text.encode())

    def end(self) -> int:
        self.read()
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    def close(self) -> None:
        os.close(self.fd)
