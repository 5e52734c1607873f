"""File volumes of a pool: directories under its `shared_dir`, which every host sees, or on the disk of one host."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from flowlite.connect.base import Connection
from flowlite.connect.values import Completed
from flowlite.errors import ConfigError, NodeUnreachable, NotFound, ProviderError
from flowlite.provider import VolumeInfo, VolumePlace
from provider_adapters.ssh import host_requirements, hosts
from provider_adapters.ssh.hosts import Memory
from provider_adapters.ssh.pools import Host, Pool
from provider_adapters.ssh.volume_hosts import Places

_SECONDS = 120.0
CREATE = 'umask 077; mkdir -p -- "$@"'
"""A script that creates the missing directories of volumes, closed to other users."""
DELETE = '[ -d "$1" ] || exit 44; rm -rf -- "$1"'
NO_SUCH = 44
"""The exit code of `DELETE` if there is no such directory."""
DELETE_SECONDS = 6 * 3600.0
"""The longest that a deletion may take; a file system on the network removes some hundred files a second."""
# So long `du` may take. It looks at every file of a volume, and a file system on the network may have millions.
_MEASURED_SECONDS = 20
_LIST = """
cd -- "$1" 2>/dev/null || exit 0
for d in */; do if [ -d "$d" ]; then printf '%s\\t%s\\n' - "${d%/}"; fi; done
for d in */; do if [ -d "$d" ]; then printf '%s\\0' "$d"; fi; done |
    LIMIT xargs -0 -n 1 sh -c 'du -sk -- "${1%/}" || :' sh
exit 0
"""
_SIZE = '[ ! -d "$1" ] || LIMIT du -sk -- "$1"'
# What `du` says of a directory.
_SIZED = re.compile(r"(?:-|[0-9]{1,15})\t.+")


def list_script() -> str:
    """A script that lists the directories in $1, `-<tab>NAME`, and then those whose size could be measured in time,
    `KILOBYTES<tab>NAME`. `du` fails for a file that is removed meanwhile, or may not be seen.
    """
    return _limited(_LIST)


def _limited(script: str) -> str:
    limit = f"timeout {_MEASURED_SECONDS}"
    return f'L="{limit}"; $L true 2>/dev/null || L=; ' + script.replace("LIMIT", "$L")


class Volumes:
    """The volumes of one pool. Any of its hosts can create and remove those in `shared_dir`."""

    def __init__(self, pool: Pool, places: Places) -> None:
        self._pool = pool
        self._places = places

    def create(self, name: str, size_gb: float | None, interface: str) -> VolumeInfo:
        """Creates a volume, or returns the existing one. Without `shared_dir` its first task creates it."""
        if interface != "file":
            raise ConfigError(f"volume {name!r}: hosts of a pool have file volumes only")
        check_name(name)
        if self._pool.shared_dir:
            self._run(CREATE, self._path(name), f"volume {name!r} cannot be made", self._pool.hosts)
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
            done = self._run(list_script(), self._pool.shared_dir, what, self._pool.hosts)
            for name, size in sizes(done).items():
                found.append(self._info(name, self._path(name), size))
        for name, place in self._places.of_pool(self._pool.name).items():
            used: int | None = None
            with suppress(ProviderError):
                holders = self._hosts_of(place["key"])
                done = self._run(_limited(_SIZE), place["directory"], "", holders)
                used = next(iter(sizes(done).values()), 0)
            found.append(self._info(name, place["directory"], used, place["host"]))
        return sorted(found, key=lambda info: info.name)

    @contextmanager
    def place(self, name: str, memory: Memory) -> Iterator[VolumePlace]:
        """Yields the volume's directory on the first host that has it and answers. Raises NotFound, ProviderError."""
        check_name(name)
        known = self._places.of_pool(self._pool.name).get(name)
        if known is not None:
            holders, directory = self._hosts_of(known["key"]), known["directory"]
        elif self._pool.shared_dir:
            holders, directory = self._pool.hosts, self._path(name)
        else:
            raise NotFound(f"no volume {name!r} in the pool {self._pool.name}")
        silent: list[str] = []
        for host in holders:
            with hosts.connect(host) as connection:
                try:
                    python = _python_of(host, connection, memory)
                    there = connection.run(["test", "-d", directory], timeout=_SECONDS).code == 0
                except (NodeUnreachable, TimeoutError) as error:
                    silent.append(f"{host.name}: {error}")
                    continue
                if not there:
                    raise NotFound(
                        f"no volume {name!r} in the pool {self._pool.name}; `flow volumes create {name}` makes it"
                    )
                yield VolumePlace(connection, (python,), directory)
                return
        why = "; ".join(silent) or "its host is in no pool any more"
        raise ProviderError(f"volume {name!r}: no host that has it can be reached: {why}")

    def delete(self, name: str) -> None:
        """Deletes a volume and its content. Raises NotFound."""
        check_name(name)
        place = self._places.of_pool(self._pool.name).get(name)
        if place is not None:
            holders = self._hosts_of(place["key"])
            with suppress(NotFound):
                self._run(DELETE, place["directory"], f"volume {name!r}", holders, DELETE_SECONDS)
            self._places.forget(self._pool.name, name)
        elif self._pool.shared_dir:
            what = f"volume {name!r}"
            self._run(DELETE, self._path(name), what, self._pool.hosts, DELETE_SECONDS)
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

    def _run(
        self,
        script: str,
        directory: str,
        what: str,
        hosts_: Sequence[Host],
        seconds: float = _SECONDS,
    ) -> Completed:
        """Runs a script on the first of these hosts that answers."""
        silent: list[str] = []
        for host in hosts_:
            try:
                with hosts.connect(host) as connection:
                    done = connection.run(["sh", "-c", script, "sh", directory], timeout=seconds)
            except (NodeUnreachable, TimeoutError) as error:
                silent.append(f"{host.name}: {error}")
                continue
            if done.code == NO_SUCH:
                raise NotFound(f"no volume at {directory} in the pool {self._pool.name}")
            if done.code != 0:
                said = done.stderr.decode("utf-8", "replace").strip()
                raise ProviderError(f"{what}: {host.name}: {said}")
            return done
        why = "; ".join(silent) or "it is in no pool"
        raise ProviderError(f"{what}: no host that has it can be reached: {why}")


def _python_of(host: Host, connection: Connection, memory: Memory) -> str:
    facts = memory.facts(host)
    if facts is None:
        facts, _ = hosts.probe(host, connection)
    found = host_requirements.choose_python(host, facts, None)
    if found is None:
        raise ProviderError(host_requirements.python_problem(host, facts))
    return found[0]


def sizes(done: Completed) -> dict[str, int | None]:
    """The sizes in bytes, by name, that `list_script` or `du` printed; None for one that took too long."""
    lines = done.stdout.decode("utf-8", "replace").splitlines()
    found = [line.split("\t", 1) for line in lines if _SIZED.fullmatch(line)]
    return {name: None if size == "-" else int(size) * 1024 for size, name in found}


def check_name(name: str) -> None:
    """Raises ConfigError for a name that cannot be that of a directory."""
    if not name or "/" in name or name.startswith((".", "-")):
        raise ConfigError(f"{name!r} cannot name a volume")
