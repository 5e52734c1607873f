"""The agent's side of volumes that node 0 keeps on its own disk and serves to the other nodes."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Mapping
from typing import Any

from ..config.agent_config import AgentConfig, AttemptPaths
from ..mount_namespace import unmount
from ..sidecar.agent_side import Sidecar
from ..sidecar.process_side import SidecarFailed
from ..system import retrying

SHARE = "sshfs"
"""The value of "share" in a volume that the leader serves."""
_START_SECONDS = 60.0
_END_SECONDS = 20.0

log = logging.getLogger("flowlite.sharing")


class Sharing:
    """The shared volumes of one node.

    Args:
        trouble: Called with a text for people when a volume fails while workers run.

    Attributes:
        within: The process in whose mount namespace they are mounted; None for the machine's own.
        problem: Why the leader cannot serve; "" if it can.
        decided: Set once that is known.
    """

    def __init__(
        self, config: AgentConfig, paths: AttemptPaths, trouble: Callable[[str], None]
    ) -> None:
        self._config = config
        self._paths = paths
        self._trouble = trouble
        self._sidecar = Sidecar("the process that shares volumes", paths.directory / "sharing.log")
        self._sources: dict[str, str] = {}
        self.within: int | None = None
        self.problem = ""
        self.decided = asyncio.Event()

    async def serve(self) -> int | None:
        """On the leader: starts to serve the volumes. Returns the port, or None (see `problem`)."""
        try:
            return await self._serve()
        finally:
            self.decided.set()

    async def _serve(self) -> int | None:
        if self._config.num_nodes == 1:
            for volume in self._config.volumes:
                if volume.get("share") == SHARE:
                    os.makedirs(volume["source"], mode=0o700, exist_ok=True)
            return None
        try:
            told = await self._start("share-server", str(os.getpid()))
            self._sidecar.follow(self._on_report, self._on_end)
            return int(told["port"])
        except SidecarFailed as error:
            names = ", ".join(repr(v["name"]) for v in self._config.volumes if v.get("share"))
            self.problem = (
                f"volume {names} cannot be served to the other nodes: {error}. Choose: install the OpenSSH server on "
                "every host, and allow user namespaces to this user; or give the hosts a directory that they share, "
                "and name it as shared_dir of the pool; or leave `volumes` out"
            )
            return None

    async def mount(self, port: int | None, within: int | None) -> None:
        """On every other node: mounts the volumes, in the mount namespace of a process if one is given.

        A leader that cannot be reached is retried within the join timeout.

        Raises:
            SidecarFailed: The leader serves no volumes, or they cannot be mounted.
        """
        if port is None:
            raise SidecarFailed("node 0 serves no volumes; it says why")
        until = asyncio.get_running_loop().time() + self._config.join_timeout
        while True:
            try:
                told = await self._start("share-mount", str(port), str(within or 0))
                break
            except SidecarFailed as error:
                if not error.passing or asyncio.get_running_loop().time() >= until:
                    raise
                log.info("trying again: %s", error)
                await self.end()
                await asyncio.sleep(retrying.AGAIN)
        self._sources = dict(told["sources"])
        self.within = int(told["pid"]) if told["private"] else None
        self._sidecar.follow(self._on_report, self._on_end)

    def volumes(self) -> list[dict[str, Any]]:
        """Returns all volumes of the task, with the directories that hold them on this node."""
        return [
            {**volume, "source": self._sources.get(str(volume["name"]), volume["source"])}
            for volume in self._config.volumes
        ]

    async def end(self) -> None:
        """Ends the sidecar and unmounts its volumes, even if it was killed."""
        if not self._sidecar.runs:
            return
        await self._sidecar.end(_END_SECONDS)
        for left in await asyncio.to_thread(
            unmount.unmount_below, self._paths.directory / "shared"
        ):
            log.warning("%s cannot be unmounted", left)

    async def _start(self, what: str, *arguments: str) -> Mapping[str, Any]:
        return await self._sidecar.start(
            what, str(self._paths.directory), *arguments, seconds=_START_SECONDS
        )

    def _on_end(self) -> None:
        if not self._sidecar.runs:
            return
        names = ", ".join(repr(v["name"]) for v in self._config.volumes if v.get("share") == SHARE)
        who, where = ("serves", "on other nodes") if self._config.is_leader else ("holds", "here")
        self._trouble(
            f"volume {names} is lost: the process that {who} it was killed; using it {where} fails from now on"
        )

    def _on_report(self, report: Mapping[str, Any]) -> None:
        if report["event"] == "trouble":
            self._trouble(str(report["text"]))
