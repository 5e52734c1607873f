"""Shows a task in one output of a notebook's cell, which is updated in place.

IPython is not required: in a notebook it is there already, since it runs the notebook's kernel.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from flowlite import terminal
from flowlite.output import html, redact
from flowlite.output.printing import ColouredText

# The shortest time between two updates of an output, in seconds, and the most that is sent, in bytes per second: each
# update sends all lines, for hours, and often through an SSH tunnel.
_EVERY = 0.1
_FASTEST = 200_000
# Lines that an output keeps, and the longest of them. `flow logs` has all.
_MOST_LINES = 500
_LONGEST_LINE = 2000


class Cells:
    """The cells of this process's own kernel."""

    def __init__(self, shell: Any) -> None:
        self._shell = shell

    @property
    def count(self) -> int:
        """Number of the cell that was run last."""
        return int(self._shell.execution_count)

    def publish(self, data: dict[str, str], output: str, update: bool) -> None:
        """Shows an output below the cell that runs, or replaces one that was shown."""
        self._shell.display_pub.publish(
            data=data, metadata={}, transient={"display_id": output}, update=update
        )


def running_cell() -> Cells | None:
    """The cells of the notebook that this process serves; None elsewhere, also at a prompt of IPython."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return Cells(shell) if getattr(shell, "kernel", None) is not None else None


class NotebookOutput:
    """One output of a cell: the last lines, and a row that is rewritten. Used from several threads.

    After `remove`, what is written from another cell goes to a new output below that cell.
    """

    def __init__(self, cell: Cells, clock: Callable[[], float] = time.monotonic) -> None:
        self._cell = cell
        self._clock = clock
        self._lock = threading.RLock()
        self._lines: deque[str] = deque(maxlen=_MOST_LINES)
        self._count = 0
        self._row = ""
        self._output = ""
        self._opened_by = 0
        self._idle = True
        self._changed = False
        self._next_update = 0.0

    # As of `Screen`

    def add(self, shown: object) -> None:
        """Continues, in a new output if another cell is running by now."""
        with self._lock:
            self._resume()
            self._idle = False

    def remove(self, shown: object) -> None:
        """Publishes everything, and removes the row."""
        with self._lock:
            self.clear_row()
            self._idle = True
            self._publish()

    @property
    def crowded(self) -> bool:
        """Never: each task has an output of its own."""
        return False

    def tell(self, *parts: str | ColouredText) -> None:
        """Adds a message of flowlite's own."""
        text = "".join(part if isinstance(part, str) else part.text for part in parts)
        self._add(terminal.plain(redact.cleaned(text)))

    def write_lines(self, block: str) -> None:
        """Adds lines of workers, without their colours."""
        self._add(terminal.plain(block.removesuffix("\n")))

    def flush(self) -> None:
        """Publishes what has changed, unless the last time was just now."""
        with self._lock:
            if self._idle or self._clock() >= self._next_update:
                self._publish()

    @property
    def has_row(self) -> bool:
        """Whether there is a last row: always."""
        return True

    def show_row(self, text: str) -> None:
        """Replaces the row."""
        with self._lock:
            text = terminal.in_one_line(text)[:_LONGEST_LINE]
            if text != self._row:
                self._row = text
                self._changed = True
        self.flush()

    def clear_row(self) -> None:
        """Removes the row."""
        with self._lock:
            if self._row:
                self._row = ""
                self._changed = True

    # What is published

    def _add(self, text: str) -> None:
        with self._lock:
            if self._idle:
                self._resume()
            self._row = ""
            for line in text.split("\n"):
                cut = line if len(line) <= _LONGEST_LINE else f"{line[:_LONGEST_LINE]}…"
                self._lines.append(cut)
                self._count += 1
            self._changed = True
            self.flush()

    def _resume(self) -> None:
        """Begins a new output if the one that is open belongs to a cell that was run before."""
        if self._output and self._idle and self._cell.count != self._opened_by:
            self._lines.clear()
            self._count = 0
            self._output = ""

    def _publish(self) -> None:
        if not self._changed:
            return
        self._changed = False
        update = bool(self._output)
        if not update:
            self._output = os.urandom(8).hex()
            self._opened_by = self._cell.count
        text = "\n".join([*self._dropped(), *self._lines, *filter(None, [self._row])])
        data = {"text/html": html.lines(text), "text/plain": text}
        self._cell.publish(data, self._output, update)
        size = sum(len(each.encode("utf-8", "surrogatepass")) for each in data.values())
        self._next_update = self._clock() + max(_EVERY, size / _FASTEST)

    def _dropped(self) -> list[str]:
        left_out = self._count - len(self._lines)
        return [f"… {left_out:,} lines before; flow logs shows all …"] if left_out else []
