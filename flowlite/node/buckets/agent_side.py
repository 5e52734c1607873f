"""The agent's side of this node's buckets, which a sidecar mounts (`mount_sidecar.py`).

The agent itself stays small and never waits for a network file system.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Callable, Mapping
from typing import Any

from ..config.agent_config import AttemptPaths
from ..mount_namespace import unmount
from ..sidecar.agent_side import Sidecar

END_SECONDS = 20.0
"""For the sidecar to unmount everything, before it is killed."""

log = logging.getLogger("flowlite.buckets")


class Buckets:
    """Read-only buckets, mounted at staging directories of this attempt.

    Args:
        paths: The files of the attempt, from which the sidecar reads what to mount.
        trouble: Called with a text for people when a bucket fails while workers run.
    """

    def __init__(self, paths: AttemptPaths, trouble: Callable[[str], None]) -> None:
        self._paths = paths
        self._trouble = trouble
        self._sidecar = Sidecar("the process that mounts buckets", paths.directory / "buckets.log")
        self.mounts: list[dict[str, Any]] = []
        self.within: int | None = None

    async def mount(self) -> None:
        """Mounts the buckets. Sets `mounts`, and `within` to the process in whose mount namespace they are.

        Raises:
            SidecarFailed: One of them cannot be read or mounted.
        """
        told = await self._sidecar.start("buckets", str(self._paths.directory))
        self.mounts = list(told["mounts"])
        self.within = int(told["pid"]) if told["private"] else None
        for each in self.mounts:
            log.info("%(url)s is at %(path)s, by %(tool)s, with %(credential)s", each)
        self._sidecar.follow(self._on_report, self._on_end)

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
        if not self._sidecar.runs:
            return
        if not await self._sidecar.end(END_SECONDS):
            log.warning("the process that holds the buckets did not end, and was killed")
        for left in await asyncio.to_thread(unmount.unmount_below, self._paths.directory):
            log.warning("%s cannot be unmounted", left)
        await asyncio.to_thread(self._remove_links)

    def _on_report(self, report: Mapping[str, Any]) -> None:
        if report["event"] == "trouble":
            log.warning("%s", report["text"])
            self._trouble(str(report["text"]))

    def _on_end(self) -> None:
        if not self._sidecar.runs:
            return
        paths = ", ".join(each["path"] for each in self.mounts)
        self._trouble(
            f"{paths}: the process that holds the buckets of this node was killed; reading them fails from now on"
        )

    def _remove_links(self) -> None:
        """Removes the links through which workers saw the buckets without mount namespaces."""
        for each in self.mounts:
            with contextlib.suppress(OSError):
                if os.readlink(each["path"]) == os.path.abspath(each["source"]):
                    os.unlink(each["path"])
