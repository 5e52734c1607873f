"""File volumes of this machine: directories under `FLOW_HOME/volumes`, each with a note of how it was created."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

from flowlite.errors import ConfigError, NotFound, ProviderError
from flowlite.node.system.atomic_files import write_atomically
from flowlite.provider import VolumeInfo, kept_size


class Volumes:
    """The volumes under one directory. A directory created by hand counts as one."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def path(self, name: str) -> Path:
        """The path of a volume, which need not exist. Raises ConfigError."""
        if not name or "/" in name or name.startswith("."):
            raise ConfigError(f"{name!r} cannot name a volume")
        return self._directory / name

    def create(self, name: str, size_gb: float | None, interface: str) -> VolumeInfo:
        """Creates a volume, or returns the existing one of that name."""
        path = self.path(name)
        try:
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not path.is_dir():
                note = json.dumps({"size_gb": size_gb, "interface": interface})
                write_atomically(self._note(name), note.encode())
            path.mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            raise ProviderError(
                f"volume {name!r} cannot be made: {path}: {error.strerror}"
            ) from error
        return self._info(name, used=None)

    def check_interface(self, name: str, interface: str) -> None:
        """Raises ConfigError if there is a volume of that name with another interface."""
        if not self.path(name).is_dir():
            return
        known = self._info(name, used=None).interface
        if known != interface:
            raise ConfigError(
                f"volumes: {name!r} exists with the interface {known!r}, which cannot be changed; write "
                f"interface={known} for it, or choose another name"
            )

    def kept_size(self, name: str, asked: float | None) -> str:
        """As `flowlite.provider.kept_size`, of the volume of that name if there is one that has a size."""
        size = self._info(name, used=None).size_gb if self.path(name).is_dir() else None
        return "" if size is None else kept_size(name, size, asked)

    def list(self) -> list[VolumeInfo]:
        """All volumes by name, with the disk space they use."""
        if not self._directory.is_dir():
            return []
        names = sorted(
            entry.name
            for entry in os.scandir(self._directory)
            if entry.is_dir() and not entry.name.startswith(".")
        )
        return [self._info(name, used=_size_of(self.path(name))) for name in names]

    def delete(self, name: str) -> None:
        """Deletes a volume and its content. Raises NotFound."""
        path = self.path(name)
        if not path.is_dir():
            raise NotFound(f"no volume {name!r} at the provider 'local'")
        try:
            import shutil

            shutil.rmtree(path)
        except OSError as error:
            raise ProviderError(f"volume {name!r} cannot be deleted: {error}") from error
        self._note(name).unlink(missing_ok=True)

    def _info(self, name: str, used: int | None) -> VolumeInfo:
        try:
            note = json.loads(self._note(name).read_bytes())
        except (OSError, ValueError):
            note = {}
        return VolumeInfo(
            name=name,
            provider="local",
            interface=note.get("interface", "file"),
            size_gb=note.get("size_gb"),
            location=str(self.path(name)),
            used_bytes=used,
        )

    def _note(self, name: str) -> Path:
        return self._directory / f".{name}.json"


def _size_of(directory: Path) -> int:
    return sum(_sizes(str(directory)))


def _sizes(directory: str) -> Iterator[int]:
    try:
        entries = list(os.scandir(directory))
    except OSError:
        return
    for entry in entries:
        try:
            if entry.is_dir(follow_symlinks=False):
                yield from _sizes(entry.path)
            else:
                yield entry.stat(follow_symlinks=False).st_size
        except OSError:
            continue
