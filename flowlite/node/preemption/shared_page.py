"""The agent's half of `should_stop()`: a page of memory, mapped from a file, that it shares with the node's workers.

The workers' half is `in_worker/should_stop.py`. A worker takes a slot in its first call. While the state of the page is
HOLD, each worker waits in its next call and writes the number of that call into its slot. Layout, by byte offset:

    0  magic      8  state      16  the call from which on it is True      24  seconds to wait at most
    32  number of slots         64  slots: process id, whether it waits, number of its call
"""

from __future__ import annotations

import os
import struct
from mmap import mmap
from pathlib import Path
from typing import NamedTuple

from ..system.processes import LINUX, is_alive, send

MAGIC = b"FLOWSTP1"
STATE, AT, PATIENCE, SLOTS = 8, 16, 24, 32
FIRST_SLOT, SLOT_SIZE = 64, 16
QUIET, HOLD, DECIDED = 0, 1, 2

SPARE = 256
"""Slots in addition to one for each worker, because processes that the user's code starts may call it, too.

In manual mode these are all ranks, whose number is not known in advance. A rank without a slot would not stop with the
others."""


class Caller(NamedTuple):
    """A process that calls `should_stop()`.

    Attributes:
        waits: Whether it waits for the decision.
        call: The number of its call.
    """

    waits: bool
    call: int


class StopPage:
    """The page of one node in one attempt."""

    def __init__(self, path: Path, processes: int) -> None:
        slots = processes + SPARE
        size = FIRST_SLOT + slots * SLOT_SIZE
        head = struct.pack("<8sB7xQdI", MAGIC, QUIET, 0, 0.0, slots)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            if os.fstat(descriptor).st_size != size:
                os.truncate(descriptor, 0)
                os.write(descriptor, head.ljust(size, b"\0"))
            self._page = mmap(descriptor, size)
        finally:
            os.close(descriptor)
        self._slots = slots

    def hold(self, seconds: float) -> None:
        """From now on, each call of `should_stop()` waits for the decision, at most this many seconds."""
        struct.pack_into("<d", self._page, PATIENCE, seconds)
        self._page[STATE] = HOLD

    def decide(self, call: int) -> None:
        """Makes `should_stop()` True from this call on."""
        struct.pack_into("<Q", self._page, AT, call)
        self._page[STATE] = DECIDED

    def let_go(self) -> None:
        """Ends the hold without a decision; waiting processes continue."""
        if self._page[STATE] == HOLD:
            self._page[STATE] = QUIET

    def callers(self) -> list[Caller]:
        """Returns the processes that have called `should_stop()` and still exist."""
        found = []
        for number in range(self._slots):
            pid, waits, call = struct.unpack_from(
                "<IIQ", self._page, FIRST_SLOT + number * SLOT_SIZE
            )
            # Elsewhere, a look at a process takes a program.
            if pid and (is_alive(pid) if LINUX else send(pid, 0)):
                found.append(Caller(bool(waits), call))
        return found
