"""Sidecars: processes beside the agent that mount, serve or copy.

Each sidecar runs this program with another subcommand. It holds the other end of a pipe from the agent and exits when
that pipe closes, however the agent ended. It reports by lines on its standard output.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from . import processes


async def start(what: str, *arguments: str, log: Path) -> asyncio.subprocess.Process:
    """Starts a subcommand of the node's program, and appends its standard error to `log`."""
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
