"""File volumes of a pool: directories under its `shared_dir`, which every host sees, or on the disk of one host."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from flowlite.connect.base import Completed
from flowlite.errors import ConfigError, NodeUnreachable, NotFound, ProviderError
from flowlite.provider import VolumeInfo
from provider_adapters.ssh import hosts
from provider_adapters.ssh.places import Places
from provider_adapters.ssh.pools import Host, Pool

_SECONDS = 120.0
_CREATE = 'mkdir -p -- "$1"'
_LIST = (
    'cd -- "$1" 2>/dev/null || exit 0; '
    'for d in */; do if [ -d "$d" ]; then du -sk -- "${d%/}"; fi; done'
)
_SIZE = '[ ! -d "$1" ] || du -sk -- "$1"'
_DELETE = '[ -d "$1" ] || exit 44; rm -rf -- "$1"'
_NO_SUCH = 44


class Volumes:
    """The volumes of one pool. Any of its hosts can create and remove those in `shared_dir`."""

    def __init__(self, pool: Pool, places: Places) -> None:
        self._pool = pool
        self._places = places

    def create(self, name: str, size_gb: float | None, interface: str) -> VolumeInfo:
        """Creates a volume, or returns the existing one. Without `shared_dir` its first task creates it."""
        if interface != "file":
            raise ConfigError(f"volume {name!r}: hosts of a pool have file volumes only")
        _check(name)
        if self._pool.shared_dir:
            self._run(
                _CREATE, self._path(name), f"volume {name!r} cannot be made", self._pool.hosts
            )
            return self._info(name, self._path(name), None)
        known = self._places.of_pool(self._pool.name)
        if name not in known:
            raise ConfigError(
                f"the pool {self._pool.name} has no shared_dir, so a volume lies on the disk of the host that leads "
                "the first task which uses it; it is made then"
            )
        return self._info(name, known[name]["directory"], None, known[name]["host"])

    def list(self) -> list[VolumeInfo]:
        """All volumes by name, with the disk space they use."""
        found = []
        if self._pool.shared_dir:
            what = "the volumes cannot be listed"
            done = self._run(_LIST, self._pool.shared_dir, what, self._pool.hosts)
            for name, size in _sizes(done).items():
                found.append(self._info(name, self._path(name), size))
        for name, place in self._places.of_pool(self._pool.name).items():
            used: int | None = None
            with suppress(ProviderError):
                done = self._run(_SIZE, place["directory"], "", self._hosts_of(place["key"]))
                used = next(iter(_sizes(done).values()), 0)
            found.append(self._info(name, place["directory"], used, place["host"]))
        return sorted(found, key=lambda info: info.name)

    def delete(self, name: str) -> None:
        """Deletes a volume and its content. Raises NotFound."""
        _check(name)
        place = self._places.of_pool(self._pool.name).get(name)
        if place is not None:
            holders = self._hosts_of(place["key"])
            with suppress(NotFound):
                self._run(_DELETE, place["directory"], f"volume {name!r}", holders)
            self._places.forget(self._pool.name, name)
        elif self._pool.shared_dir:
            self._run(_DELETE, self._path(name), f"volume {name!r}", self._pool.hosts)
        else:
            raise NotFound(f"no volume {name!r} in the pool {self._pool.name}")

    def _path(self, name: str) -> str:
        return f"{self._pool.shared_dir}/{name}"

    def _hosts_of(self, key: str) -> Sequence[Host]:
        return [host for host in self._pool.hosts if host.key == key]

    def _info(self, name: str, directory: str, used: int | None, host: str = "") -> VolumeInfo:
        return VolumeInfo(
            name=name,
            provider="ssh",
            interface="file",
            size_gb=None,
            location=f"{host}:{directory}" if host else directory,
            used_bytes=used,
        )

    def _run(self, script: str, directory: str, what: str, hosts_: Sequence[Host]) -> Completed:
        """Runs a script on the first of these hosts that answers."""
        silent: list[str] = []
        for host in hosts_:
            try:
                with hosts.connect(host) as connection:
                    done = connection.run(["sh", "-c", script, "sh", directory], timeout=_SECONDS)
            except (NodeUnreachable, TimeoutError) as error:
                silent.append(f"{host.name}: {error}")
                continue
            if done.code == _NO_SUCH:
                raise NotFound(f"no volume at {directory} in the pool {self._pool.name}")
            if done.code != 0:
                said = done.stderr.decode("utf-8", "replace").strip()
                raise ProviderError(f"{what}: {host.name}: {said}")
            return done
        why = "; ".join(silent) or "it is in no pool"
        raise ProviderError(f"{what}: no host that has it can be reached: {why}")


def _sizes(done: Completed) -> dict[str, int]:
    lines = done.stdout.decode("utf-8", "replace").splitlines()
    found = [line.split("\t", 1) for line in lines if "\t" in line]
    return {name: int(size) * 1024 for size, name in found}


def _check(name: str) -> None:
    if not name or "/" in name or name.startswith((".", "-")):
        raise ConfigError(f"{name!r} cannot name a volume")
