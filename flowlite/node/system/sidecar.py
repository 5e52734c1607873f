"""Processes that an agent has beside it: for what mounts, serves or copies.

Each is this very program with another subcommand. It holds the other end of a pipe from the agent, and leaves when that
ends, however the agent ended; what it has to say comes as lines on its output.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from . import processes


async def start(what: str, *arguments: str, log: Path) -> asyncio.subprocess.Process:
    """Starts a subcommand of the node's program; its standard error goes to the end of `log`."""
    command = processes.own_command(sys.executable, what, *arguments, flags=("-I", "-S"))
    with open(log, "ab") as said:
        return await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=said,
            cwd="/",
            start_new_session=True,
        )
