"""The lease of a rented machine, renewed by the agent: the machine ends itself when the file is not renewed.

The file has the uptime, in whole seconds, until which the lease holds. The machine's watchdog compares it with the
uptime it sees itself, so that no clock that is set wrong, or right, plays a part.
"""

from __future__ import annotations

import asyncio
import logging
import os
from pathlib import Path

log = logging.getLogger("flowlite.lease")

RENEWALS = 10
"""How many times within the lease's time the file is written."""
LONGEST_PAUSE = 30.0


def uptime() -> float:
    """Seconds since this machine was started, whatever its clock says."""
    with open("/proc/uptime", encoding="ascii") as file:
        return float(file.read().split()[0])


def renew(file: Path, seconds: float) -> None:
    """The lease holds for so many seconds from now. Raises OSError."""
    partial = file.with_name(f"{file.name}.{os.getpid()}.part")
    partial.write_text(f"{int(uptime() + seconds)}\n")
    os.replace(partial, file)


async def keep_renewing(file: Path, seconds: float) -> None:
    """Renews the lease until it is cancelled. A machine that cannot write any more loses it, and ends."""
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
