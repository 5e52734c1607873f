"""The wait of an agent without a rank, on a spare machine that is ready to take the rank of a lost node.

The supervisor touches the file `wanted` while it watches over the spare. If it has not done so for `UNWANTED_SECONDS`,
the spare ends by itself. Its host is then free again, and the lease of a rented machine runs out.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from ..config.agent_config import AttemptPaths
from ..system.atomic_files import write_atomically

UNWANTED_SECONDS = 1800.0
_EVERY = 0.25


async def wait(paths: AttemptPaths) -> str:
    """Tell that this machine is ready, and wait until it is no spare any more. Returns why, in words."""
    write_atomically(paths.ready, "{}")
    touched, since = _touched(paths.wanted), time.monotonic()
    while True:
        if paths.has_later_attempt:
            return "an agent with a rank has started here"
        now = _touched(paths.wanted)
        if now != touched:
            touched, since = now, time.monotonic()
        elif time.monotonic() - since > UNWANTED_SECONDS:
            return f"no supervisor has asked for this spare for {UNWANTED_SECONDS / 60:.0f} min"
        await asyncio.sleep(_EVERY)


def _touched(file: Path) -> int:
    try:
        return file.stat().st_mtime_ns
    except OSError:
        return 0
