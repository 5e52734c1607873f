"""The sidecar that mounts the volumes of a machine, and unmounts them when the agent's pipe ends, for any reason.

`volumes ATTEMPT_DIR` is started by the agent (`agent/storage.py`). It reports lines of JSON:

    {"event": "mounted"}
    {"event": "failed", "why": text}
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..config.agent_config import AgentConfig, AttemptPaths
from ..sidecar.process_side import ignore_signals, report, wait_for_agent
from ..system import file_lock
from . import mount_commands
from .run import NotMounted

SHARES = ("nfs", "lustre", "disk")
"""Values of "share" in a volume of this kind."""
_PATIENCE = 45.0


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
        if not file_lock.wait(lambda: file_lock.take(descriptor), _PATIENCE):
            raise NotMounted(
                f"volume {volume['name']!r} is still held by an earlier attempt on this node"
            )
        self._taken.append(volume)


def main(arguments: list[str]) -> int:
    """`volumes ATTEMPT_DIR`: runs the sidecar."""
    paths = AttemptPaths(Path(arguments[0]))
    try:
        config = AgentConfig.from_json(paths.config.read_bytes())
        VolumeSidecar([each for each in config.volumes if each.get("share") in SHARES]).run()
    except (OSError, ValueError) as error:
        report("failed", why=str(error))
        return 1
    return 0
