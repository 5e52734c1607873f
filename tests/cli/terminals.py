"""Running `flow` on a real terminal of a given size."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable

from tests.terminals import Terminal

_SEQUENCE = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")


class OnTerminal:
    """One `flow` command on a terminal: what it writes can be awaited, and answered."""

    def __init__(self, *words: str, columns: int = 80, rows: int = 40) -> None:
        argv = [sys.executable, "-m", "flowlite.cli", *words]
        self._terminal = Terminal(argv, columns=columns, rows=rows)
        self.type = self._terminal.type

    @property
    def said(self) -> str:
        """What was written so far, without colours."""
        return _SEQUENCE.sub("", self._terminal.seen).replace("\r\n", "\n")

    def read_until(self, seen: Callable[[str], bool], timeout: float = 90.0) -> str:
        """Waits until what was written so far has something; gives all of it without colours."""
        self._terminal.read_until(lambda _: seen(self.said), timeout)
        assert seen(self.said), f"not seen: {self.said!r}"
        return self.said

    def end(self, timeout: float = 90.0) -> tuple[int, str]:
        """Waits for the end; gives the exit code and all that was written, without colours."""
        code = self._terminal.end(timeout)
        self._terminal.close()
        return code, self.said


def on_a_terminal(*words: str, columns: int = 80, rows: int = 40) -> str:
    """What a command that succeeds writes to a terminal of this size."""
    code, said = OnTerminal(*words, columns=columns, rows=rows).end()
    assert code == 0, said
    return said
