"""The host of each volume in pools without `shared_dir`.

Such a volume is on the disk of one host, which leads every task that uses it. Its content must be there for the next
task, too. The host that led the first task is therefore recorded in `FLOW_HOME/ssh/volumes.json`: {pool: {volume:
{"host", "key", "directory"}}}.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from flowlite.errors import CapacityUnavailable, ProviderError
from provider_adapters.locked_record import LockedRecord


def directory_of(root: str, name: str) -> str:
    """The path of a volume on its host."""
    return f"{root}/volumes/{name}"


class Places:
    """The volumes of one FLOW_HOME that are on hosts' disks."""

    def __init__(self, directory: Path) -> None:
        self._pools = LockedRecord(
            directory / "volumes.json", "repair it: it names the host that each volume is on"
        )

    def of_pool(self, pool: str) -> dict[str, dict[str, str]]:
        """All volumes of a pool, by name."""
        return dict(self._pools.read().get(pool, {}))

    def host_for(self, pool: str, names: Sequence[str]) -> str | None:
        """Name of the host that has these volumes; None if none of them exists yet. Raises ProviderError."""
        known = self.of_pool(pool)
        where = {name: known[name]["host"] for name in names if name in known}
        if len(set(where.values())) > 1:
            told = ", ".join(f"{name} on {host}" for name, host in where.items())
            raise ProviderError(
                f"these volumes lie on different hosts and cannot be used together: {told}; set shared_dir for the "
                f"pool {pool}, or copy one to a new volume"
            )
        return next(iter(where.values()), None)

    def settle(self, pool: str, names: Sequence[str], place: dict[str, str]) -> None:
        """Records that these volumes are on that host. `place` is {"host", "key", "root"}.

        Raises:
            CapacityUnavailable: Another task has meanwhile created one of them on another host.
        """
        with self._pools.change() as pools:
            known = pools.setdefault(pool, {})
            for name in names:
                entry = {"host": place["host"], "key": place["key"]}
                entry["directory"] = directory_of(place["root"], name)
                found = known.setdefault(name, entry)
                if found["key"] != place["key"]:
                    raise CapacityUnavailable(
                        f"the volume {name} lies on {found['host']} now", retry_after=0.5
                    )

    def forget(self, pool: str, name: str) -> None:
        """Removes the record of a deleted volume."""
        with self._pools.change() as pools:
            pools.get(pool, {}).pop(name, None)
