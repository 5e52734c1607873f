"""The agent's side of this node's buckets, which a sidecar mounts (`mount_sidecar.py`).

The agent itself stays small and never waits for a network file system. It holds a pipe to the sidecar; when the agent
ends, for any reason, the sidecar unmounts the buckets.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
from collections.abc import Callable, Mapping
from typing import Any

from ..config.agent_config import AttemptPaths
from ..mount_namespace import unmount
from ..system import sidecar

END_SECONDS = 20.0
"""For the sidecar to unmount everything, before it is killed."""

log = logging.getLogger("flowlite.buckets")


class BucketsError(OSError):
    """The buckets cannot be mounted; the text is for people."""


class Buckets:
    """Read-only buckets, mounted at staging directories of this attempt.

    Args:
        paths: The files of the attempt, from which the sidecar reads what to mount.
        trouble: Called with a text for people when a bucket fails while workers run.
    """

    def __init__(self, paths: AttemptPaths, trouble: Callable[[str], None]) -> None:
        self._paths = paths
        self._trouble = trouble
        self._guard: asyncio.subprocess.Process | None = None
        self._following: asyncio.Task[None] | None = None
        self._ending = False
        self.mounts: list[dict[str, Any]] = []
        self.within: int | None = None

    async def mount(self) -> None:
        """Mounts the buckets. Sets `mounts`, and `within` to the process in whose mount namespace they are.

        Raises:
            BucketsError: One of them cannot be read or mounted.
        """
        directory = self._paths.directory
        self._guard = await sidecar.start("buckets", str(directory), log=directory / "buckets.log")
        told = await self._hear()
        if told is None:
            raise BucketsError(
                f"the process that mounts buckets ended at once; see {self._paths.directory}/buckets.log on this node"
            )
        if told["event"] != "mounted":
            raise BucketsError(str(told["why"]))
        self.mounts = list(told["mounts"])
        self.within = int(told["pid"]) if told["private"] else None
        for each in self.mounts:
            log.info("%(url)s is at %(path)s, by %(tool)s, with %(credential)s", each)
        self._following = asyncio.create_task(self._follow())

    def volumes(self) -> list[dict[str, Any]]:
        """Returns the buckets as volumes to be shown to the workers (`node/mount_namespace/worker_view.py`)."""
        # The nodes of one task of the local provider share the machine and, where links are used, the path.
        nodes = self._paths.home.parent
        return [
            {
                "name": each["url"],
                "path": each["path"],
                "source": each["source"],
                "read_only": True,
                "alike": f"{nodes}/*/a*/buckets/{number}/data" if nodes.name == "nodes" else "",
            }
            for number, each in enumerate(self.mounts)
        ]

    async def end(self) -> None:
        """Unmounts the buckets, even if the sidecar was killed."""
        self._ending = True
        guard = self._guard
        if guard is None:
            return
        assert guard.stdin is not None
        guard.stdin.close()
        try:
            async with asyncio.timeout(END_SECONDS):
                await guard.wait()
        except TimeoutError:
            log.warning("the process that holds the buckets does not end; it is killed")
            with contextlib.suppress(ProcessLookupError):
                guard.kill()
            await guard.wait()
        if self._following is not None:
            self._following.cancel()
        for left in await asyncio.to_thread(unmount.unmount_below, self._paths.directory):
            log.warning("%s cannot be unmounted", left)
        await asyncio.to_thread(self._remove_links)

    async def _follow(self) -> None:
        while told := await self._hear():
            if told["event"] == "trouble":
                log.warning("%s", told["text"])
                self._trouble(str(told["text"]))
        if not self._ending:
            paths = ", ".join(each["path"] for each in self.mounts)
            self._trouble(
                f"{paths}: the process that holds the buckets of this node was killed; reading them fails from now on"
            )

    async def _hear(self) -> Mapping[str, Any] | None:
        assert self._guard is not None
        assert self._guard.stdout is not None
        with contextlib.suppress(ValueError, OSError):
            if line := await self._guard.stdout.readline():
                told = json.loads(line)
                return told if isinstance(told, dict) else None
        return None

    def _remove_links(self) -> None:
        """Removes the links through which workers saw the buckets without mount namespaces."""
        for each in self.mounts:
            with contextlib.suppress(OSError):
                if os.readlink(each["path"]) == os.path.abspath(each["source"]):
                    os.unlink(each["path"])
