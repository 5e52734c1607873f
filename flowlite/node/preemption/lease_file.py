"""The lease of a rented machine. The agent renews it; a machine whose lease expires ends itself.

The file contains the uptime, in whole seconds, until which the lease holds. The machine's watchdog compares it with the
current uptime, so the wall clock, and changes of it, do not matter.
"""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

from ..system.atomic_files import write_atomically

log = logging.getLogger("flowlite.lease")

RENEWALS = 10
"""How many times the file is written within the lease's duration."""
LONGEST_PAUSE = 30.0


def uptime() -> float:
    """Seconds since this machine was booted, independent of its wall clock."""
    with open("/proc/uptime", encoding="ascii") as file:
        return float(file.read().split()[0])


def renew(file: Path, seconds: float) -> None:
    """Renew the lease for this many seconds from now. Raises OSError."""
    write_atomically(file, f"{int(uptime() + seconds)}\n", 0o644)


async def keep_renewing(file: Path, seconds: float) -> None:
    """Renew the lease until cancelled. A machine on which the file cannot be written loses its lease, and ends."""
    trouble = ""
    while True:
        try:
            renew(file, seconds)
            trouble = ""
        except OSError as error:
            if str(error) != trouble:
                trouble = str(error)
                log.warning("the machine's lease cannot be renewed: %s", trouble)
        await asyncio.sleep(min(LONGEST_PAUSE, seconds / RENEWALS))
