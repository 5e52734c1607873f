"""File volumes: directories under the shared directory, which every node sees."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flowlite.errors import ConfigError, NotFound, ProviderError
from flowlite.provider import VolumeInfo, VolumePlace
from provider_adapters.slurm.login import last_line
from provider_adapters.slurm.shared import check, expanded
from provider_adapters.ssh.volumes import (
    CREATE,
    DELETE,
    DELETE_SECONDS,
    NO_SUCH,
    check_name,
    list_script,
    sizes,
)

if TYPE_CHECKING:
    from flowlite.connect.values import Completed
    from provider_adapters.slurm.login import SlurmLogin

_SECONDS = 120.0
_IS_THERE = f'[ -d "$1" ] || exit {NO_SUCH}'


class Volumes:
    """The volumes of one cluster.

    Args:
        shared: The shared directory of the settings; "" for none.
    """

    def __init__(self, login: SlurmLogin, shared: str) -> None:
        self._login = login
        self._shared = shared

    def create(self, name: str, interface: str) -> VolumeInfo:
        """Creates a volume, or returns the existing one of that name."""
        if interface != "file":
            raise ConfigError(f"volume {name!r}: Slurm has file volumes only")
        path = self._path(name)
        self._run(CREATE, path)
        return _info(name, path, None)

    def list(self) -> list[VolumeInfo]:
        """All volumes by name, with the disk space they use."""
        if not self._shared:
            return []
        root = self._root()
        listed = sizes(self._run(list_script(), root))
        found = [_info(name, f"{root}/{name}", size) for name, size in listed.items()]
        return sorted(found, key=lambda info: info.name)

    def place(self, name: str) -> VolumePlace:
        """The volume's directory, as the login node sees it. Raises NotFound, ProviderError."""
        path = self._path(name)
        if self._run(_IS_THERE, path).code == NO_SUCH:
            raise NotFound(
                f"no volume at {path} on {self._login.name}; `flow volumes create {name}` makes it"
            )
        python = self._login.facts.python
        if not python:
            raise ProviderError(
                f"{self._login.name} has no Python 3.11 or newer, which reaches the files of a volume; set python "
                "under [slurm]"
            )
        return VolumePlace(self._login.connection, (python,), path)

    def delete(self, name: str) -> None:
        """Deletes a volume and its content. Raises NotFound."""
        path = self._path(name)
        if self._run(DELETE, path, DELETE_SECONDS).code == NO_SUCH:
            raise NotFound(f"no volume at {path} on {self._login.name}")

    def _root(self) -> str:
        if not self._shared:
            raise ConfigError(
                'there are no volumes without a directory that all nodes see: shared_dir under [slurm] is "none"'
            )
        facts = self._login.facts
        directory = expanded(self._shared, facts.home, facts.uid)
        check(self._login, directory)
        return f"{directory}/volumes"

    def _path(self, name: str) -> str:
        check_name(name)
        return f"{self._root()}/{name}"

    def _run(self, script: str, path: str, seconds: float = _SECONDS) -> Completed:
        done = self._login.run(["sh", "-c", script, "sh", path], seconds=seconds)
        if done.code not in (0, NO_SUCH):
            raise ProviderError(f"{path} on {self._login.name}: {last_line(done)}")
        return done


def _info(name: str, path: str, used: int | None) -> VolumeInfo:
    return VolumeInfo(
        name=name, provider="slurm", interface="file", size_gb=None, location=path, used_bytes=used
    )
