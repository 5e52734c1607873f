"""The storage of one node in one attempt: volumes, buckets and checkpoints.

It is mounted before the workers start and removed after they have ended.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from ..config.agent_config import AgentConfig, AttemptPaths
from ..mount_namespace.mount_points import MountPoints

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..buckets.agent_side import Buckets
    from ..checkpoints.agent_side import Checkpoints
    from ..leader_volumes.agent_side import Sharing
    from ..sidecar.agent_side import Sidecar

ATTACH_SECONDS, DETACH_SECONDS = 240.0, 60.0
"""For the sidecar of attached volumes to mount them, and to unmount them."""


class Storage:
    """Prepares and removes the storage that a task uses. Only the code for that storage is imported.

    Args:
        tell: Called with a kind of notice (`messages.NOTICES`) and a text for users.
        leader_known: Returns once `leader.json` is there.

    Attributes:
        buckets: Read-only buckets, once they are mounted.
        sharing: Volumes that node 0 serves; None where there are none.
        attached: The sidecar of volumes that this machine mounts by itself; None where there are none.
        checkpoints: None where the task has none.
    """

    def __init__(
        self,
        config: AgentConfig,
        paths: AttemptPaths,
        tell: Callable[[str, str], None],
        leader_known: Callable[[], Awaitable[object]],
    ) -> None:
        self._config = config
        self._paths = paths
        self._tell = tell
        self._leader_known = leader_known
        self._mount_points = MountPoints()
        self.buckets: Buckets | None = None
        self.sharing: Sharing | None = None
        self.checkpoints: Checkpoints | None = None
        self.attached: Sidecar | None = None
        ways = {volume["share"] for volume in config.volumes if volume.get("share")}
        if "sshfs" in ways:
            from ..leader_volumes.agent_side import Sharing

            self.sharing = Sharing(config, paths, self._warn)
        if ways - {"sshfs"}:
            from ..sidecar.agent_side import Sidecar

            log = paths.directory / "volumes.log"
            self.attached = Sidecar("the process that mounts volumes", log)
        if config.checkpoint is not None:
            from ..checkpoints.agent_side import Checkpoints

            self.checkpoints = Checkpoints(config, paths, tell)

    async def ready(self) -> dict[str, Any]:
        """Mount all storage. Returns what workers see of it (`scene` in node/mount_namespace/worker_view.py).

        Raises:
            OSError: Something cannot be mounted; the text says what to do.
        """
        volumes, within = list(self._config.volumes), None
        mounted: list[dict[str, Any]] = []
        if self._config.mounts:
            from ..buckets.agent_side import Buckets

            self.buckets = Buckets(self._paths, self._warn)
            await self.buckets.mount()
            mounted, within = self.buckets.volumes(), self.buckets.within
        if self.attached is not None:
            directory = str(self._paths.directory)
            await self.attached.start("volumes", directory, seconds=ATTACH_SECONDS)
        if self.sharing is not None:
            volumes = await self._shared(self.sharing, within)
            within = within or self.sharing.within
        if self.checkpoints is not None:
            self.checkpoints.make_room()
            if self.checkpoints.volume is not None:
                mounted.append(self.checkpoints.volume)
        volumes += mounted
        if self._config.container is None:
            self._mount_points.make(str(each["path"]) for each in volumes)
        return {"volumes": volumes, "keep_visible": [str(self._paths.home)], "within": within}

    def facts(self) -> dict[str, Any]:
        """The mounted buckets, for the event that the node is ready."""
        return {"buckets": self.buckets.mounts if self.buckets is not None else []}

    async def restore(self, order: Mapping[str, Any]) -> dict[str, Any]:
        """Bring the newest checkpoints to this node. Returns what was brought."""
        if self.checkpoints is None:
            return {}
        return await self.checkpoints.restore(str(order["volume_token"]))

    def workers_ended(self) -> None:
        """Remove what only workers needed. Once the gang has ended, the agent may be killed before `end`."""
        self._mount_points.remove()

    async def end(self) -> None:
        """Unmount everything. No worker may be running."""
        if self.sharing is not None:
            await self.sharing.end()
        if self.attached is not None:
            # It is left to what it does: all data must be on the volumes when it ends.
            await self.attached.end(DETACH_SECONDS, kill=False)
        if self.buckets is not None:
            await self.buckets.end()
        self.workers_ended()

    async def _shared(self, sharing: Sharing, within: int | None) -> list[dict[str, Any]]:
        """The volumes of the task, after mounting those that node 0 serves."""
        if self._config.is_leader:
            await sharing.decided.wait()
            if sharing.problem:
                raise OSError(sharing.problem)
        else:
            await self._leader_known()
            place = json.loads(self._paths.leader.read_bytes())
            await sharing.mount(place.get("share"), within)
        return sharing.volumes()

    def _warn(self, text: str) -> None:
        self._tell("warning", text)
