"""`should_stop()`: whether this run is about to be preempted or to reach its deadline; the same answer on all ranks.

A worker shares a small file with the agent of its node (`FLOW_STOP_FILE`; the agent's side is
`node/preemption/shared_page.py`). Usually a call only counts itself and reads one byte. After a notice, each rank
writes the number of its next call and blocks in it. Once all ranks have done so, the leader chooses the highest number,
and all ranks get True from that call on. So all ranks get True at the same step.

This module needs only the standard library, since it is sent to nodes where flowlite is not installed.
"""

from __future__ import annotations

import os
import struct
import time
from contextlib import suppress
from mmap import mmap

VARIABLE = "FLOW_STOP_FILE"

MAGIC = b"FLOWSTP1"
STATE, AT, PATIENCE, SLOTS = 8, 16, 24, 32
FIRST_SLOT, SLOT_SIZE = 64, 16
"""A slot: process id (4 bytes), 1 while it waits (4 bytes), the number of its call (8 bytes)."""
QUIET, HOLD, DECIDED = 0, 1, 2

_PAUSE = 0.002


class _Share:
    """This process's slot in the file. Without a slot, `should_stop()` is always False."""

    def __init__(self) -> None:
        self.page: mmap | None = None
        self.slot = 0
        self.calls = 0
        path = os.environ.get(VARIABLE)
        if path:
            try:
                self._join(path)
            except (OSError, ValueError):
                self.page = None

    def _join(self, path: str) -> None:
        import fcntl

        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            page = mmap(descriptor, 0)
            if page[: len(MAGIC)] != MAGIC:
                return
            with suppress(OSError):
                # Only one process at a time may search for a free slot. Some network file systems have no locks; there,
                # each rank of a node begins its search at another slot.
                fcntl.lockf(descriptor, fcntl.LOCK_EX)
            slots = struct.unpack_from("<I", page, SLOTS)[0]
            local_rank = os.environ.get("LOCAL_RANK", "")
            first = int(local_rank) if local_rank.isdecimal() else 0
            for number in range(first, first + slots):
                slot = FIRST_SLOT + number % slots * SLOT_SIZE
                owner = struct.unpack_from("<I", page, slot)[0]
                if owner in (0, os.getpid()) or not _lives(owner):
                    page[slot : slot + SLOT_SIZE] = struct.pack("<IIQ", os.getpid(), 0, 0)
                    self.page, self.slot = page, slot
                    return
        finally:
            os.close(descriptor)

    def ask(self) -> bool:
        """Counts this call, and returns its answer."""
        self.calls += 1
        page = self.page
        if page is None or page[STATE] == QUIET:
            return False
        return self._agree(page)

    def _agree(self, page: mmap) -> bool:
        if page[STATE] == HOLD:
            struct.pack_into("<Q", page, self.slot + 8, self.calls)
            struct.pack_into("<I", page, self.slot + 4, 1)
            until = time.monotonic() + struct.unpack_from("<d", page, PATIENCE)[0]
            while page[STATE] == HOLD and time.monotonic() < until:
                time.sleep(_PAUSE)
            struct.pack_into("<I", page, self.slot + 4, 0)
        if page[STATE] != DECIDED:
            return False
        return self.calls >= int(struct.unpack_from("<Q", page, AT)[0])


_share: _Share | None = None


def should_stop() -> bool:
    """Whether to save what is needed and return, because the machines will be gone soon.

    True from the same call on for all ranks, if every rank calls it equally often, once per step. It becomes true after
    notice of preemption, shortly before `max_run_time_hours` are over, and when new nodes are ready to join a gang with
    `grow="checkpoint"`. The task then continues with its next attempt, or ends (at the deadline). A call takes well
    under a microsecond; outside of a task it returns False.
    """
    global _share
    if _share is None:
        _share = _Share()
    return _share.ask()


def _forget() -> None:
    """Makes a forked child count its own calls."""
    global _share
    _share = None


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


os.register_at_fork(after_in_child=_forget)
