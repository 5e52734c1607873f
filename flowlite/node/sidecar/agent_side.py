"""The agent's side of a sidecar, which is this program with another subcommand.

It reports by lines of JSON on its standard output, of which the first says whether it has started.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..system import processes
from .process_side import SidecarFailed

_LAST_REPORTS_SECONDS = 0.5
_MOST_REPORT = 64 << 20
"""Bytes of a report. It may name every file of a directory."""


class Sidecar:
    """One sidecar of an agent. Start it, hear its reports, and end it.

    Args:
        name: What it is, for messages: "the process that …".
        log: The file to which its standard error is appended.
    """

    def __init__(self, name: str, log: Path) -> None:
        self._name = name
        self._log = log
        self._process: asyncio.subprocess.Process | None = None
        self._following: asyncio.Task[None] | None = None

    @property
    def runs(self) -> bool:
        """Whether it was started and not ended."""
        return self._process is not None

    async def launch(self, what: str, *arguments: str) -> None:
        """Starts a subcommand of the node's program."""
        command = processes.own_command(sys.executable, what, *arguments, flags=("-I", "-S"))
        with open(self._log, "ab") as said:
            self._process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=said,
                limit=_MOST_REPORT,
                cwd="/",
                start_new_session=True,
            )

    async def start(
        self, what: str, *arguments: str, seconds: float | None = None
    ) -> dict[str, Any]:
        """Starts a subcommand and returns its first report.

        Args:
            seconds: How long that may take.

        Raises:
            SidecarFailed: It reported a failure, ended, or reported nothing in time.
        """
        await self.launch(what, *arguments)
        try:
            async with asyncio.timeout(seconds):
                report = await self.hear()
        except TimeoutError:
            raise SidecarFailed(
                f"{self._name} did not start within {seconds:g} s; see {self._log} on this node"
            ) from None
        if report is None:
            raise SidecarFailed(f"{self._name} ended at once; see {self._log} on this node")
        if report["event"] == "failed":
            raise SidecarFailed(str(report["why"]), passing=report.get("passing") is True)
        return report

    async def hear(self) -> dict[str, Any] | None:
        """Returns the next report, or None once it has ended."""
        return None if self._process is None else await _next_report(self._process)

    def follow(
        self, take: Callable[[dict[str, Any]], None], ended: Callable[[], None] | None = None
    ) -> None:
        """Passes on all further reports.

        Args:
            take: Called with each report.
            ended: Called when there will be no more. `runs` is then True if the sidecar ended by itself.
        """
        assert self._process is not None
        self._following = asyncio.create_task(_follow(self._process, take, ended))

    @property
    def followed(self) -> bool:
        """Whether further reports are passed on."""
        return self._following is not None and not self._following.done()

    def send(self, **request: Any) -> None:
        """Sends a line of JSON to its standard input."""
        if self._process is not None and self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.write(json.dumps(request).encode() + b"\n")

    async def end(self, seconds: float, *, kill: bool = True) -> bool:
        """Closes its pipe and waits for its end.

        Args:
            seconds: How long that may take.
            kill: Whether it is killed after that, or left to what it does.

        Returns:
            Whether it ended in time.
        """
        process, self._process = self._process, None
        if process is None:
            return True
        assert process.stdin is not None
        process.stdin.close()
        in_time = True
        try:
            async with asyncio.timeout(seconds):
                await process.wait()
        except TimeoutError:
            in_time = False
            if kill:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                await processes.reap(process)
        if self._following is not None:
            # Its last reports are there already, unless a process that it has left behind holds the pipe.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LAST_REPORTS_SECONDS):
                    await self._following
        return in_time


async def _next_report(process: asyncio.subprocess.Process) -> dict[str, Any] | None:
    assert process.stdout is not None
    with contextlib.suppress(ValueError, OSError):
        if line := await process.stdout.readline():
            report = json.loads(line)
            return report if isinstance(report, dict) else None
    return None


async def _follow(
    process: asyncio.subprocess.Process,
    take: Callable[[dict[str, Any]], None],
    ended: Callable[[], None] | None,
) -> None:
    while report := await _next_report(process):
        take(report)
    if ended is not None:
        ended()
