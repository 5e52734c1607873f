"""Volumes that the machine mounts itself: network file systems, and attached disks.

`volumes ATTEMPT_DIR`, started by the agent (see `Attached` below), mounts them at the paths in NodeSettings, for the
whole machine. It unmounts them when its standard input ends, for any reason. Then all data is on the volume, and a disk
can be attached to another machine. It reports lines of JSON:

    {"event": "mounted"}
    {"event": "failed", "why": text}
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..config.agent_config import AgentConfig, AttemptPaths
from ..sidecar.agent_side import Sidecar
from ..sidecar.process_side import ignore_signals, report, wait_for_agent
from . import mount_commands
from .run import NotMounted

SHARES = ("nfs", "lustre", "disk")
"""Values of "share" in a volume of this kind."""
_START_SECONDS = 240.0
_END_SECONDS = 60.0
_PATIENCE = 45.0


def attached(config: AgentConfig) -> list[dict[str, Any]]:
    """Returns the volumes of a task that the machine mounts."""
    return [volume for volume in config.volumes if volume.get("share") in SHARES]


class Attached:
    """The agent's side of the mounted volumes of one node in one attempt."""

    def __init__(self, paths: AttemptPaths) -> None:
        self._paths = paths
        self._sidecar = Sidecar("the process that mounts volumes", paths.directory / "volumes.log")

    async def mount(self) -> None:
        """Mounts the volumes. Raises SidecarFailed."""
        await self._sidecar.start("volumes", str(self._paths.directory), seconds=_START_SECONDS)

    async def end(self) -> None:
        """Unmounts the volumes, after all workers have ended. All data is on them when this returns."""
        await self._sidecar.end(_END_SECONDS, kill=False)


class VolumeSidecar:
    """Mounts the volumes of a machine until its standard input ends."""

    def __init__(self, volumes: Sequence[Mapping[str, Any]]) -> None:
        self._volumes = volumes
        self._taken: list[Mapping[str, Any]] = []

    def run(self) -> None:
        """Mounts the volumes, reports it, waits, and unmounts them. Raises OSError."""
        ignore_signals()
        try:
            if os.geteuid() != 0:
                name = self._volumes[0]["name"]
                raise NotMounted(
                    f"volume {name!r} can be mounted by root only, and the agent is the user {os.geteuid()} here; "
                    "leave `user` out of the provider's settings"
                )
            for volume in self._volumes:
                self._take(volume)
                mount_commands.mount(volume)
            report("mounted")
            wait_for_agent()
        finally:
            for volume in self._taken:
                mount_commands.unmount(str(volume["source"]))

    def _take(self, volume: Mapping[str, Any]) -> None:
        """Waits until the sidecar of an earlier attempt has released the volume."""
        source = Path(volume["source"])
        source.mkdir(mode=0o755, parents=True, exist_ok=True)
        # Stays open, and so locked, for as long as this process lives.
        descriptor = os.open(source.with_name(f"{source.name}.lock"), os.O_RDWR | os.O_CREAT, 0o600)
        until = time.monotonic() + _PATIENCE
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                self._taken.append(volume)
                return
            except BlockingIOError:
                if time.monotonic() > until:
                    raise NotMounted(
                        f"volume {volume['name']!r} is still held by an earlier attempt on this node"
                    ) from None
            time.sleep(0.02)


def main(arguments: list[str]) -> int:
    """`volumes ATTEMPT_DIR`: runs the sidecar."""
    paths = AttemptPaths(Path(arguments[0]))
    try:
        VolumeSidecar(attached(AgentConfig.from_json(paths.config.read_bytes()))).run()
    except (OSError, ValueError) as error:
        report("failed", why=str(error))
        return 1
    return 0
