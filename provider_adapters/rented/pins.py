"""The host keys of rented machines, by instance: FLOW_HOME/<provider>/known_hosts/<instance id>."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from flowlite.errors import ProviderError
from provider_adapters.durable import make_directory, write_durably

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_KEY = re.compile(r"ssh-ed25519 [A-Za-z0-9+/=]+")


class Pins:
    """The pinned host keys of one provider's machines."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def file(self, instance: str) -> Path:
        """A `known_hosts` file that lists only this machine, under its id."""
        if not _ID.fullmatch(instance):
            raise ProviderError(f"{instance!r} is not the id of an instance")
        return self._directory / instance

    def read(self, instance: str) -> list[str]:
        """The pinned keys of a machine, `ssh-ed25519 AAAA…` each."""
        with suppress(FileNotFoundError):
            lines = self.file(instance).read_text().splitlines()
            return [line.partition(" ")[2] for line in lines]
        return []

    def write(self, instance: str, keys: Sequence[str]) -> None:
        """Pins these keys for a machine, in place of any others; durable once this returns."""
        for key in keys:
            if not _KEY.fullmatch(key):
                raise ProviderError(f"instance {instance}: {key[:60]!r} is not an ed25519 key")
        path = self.file(instance)
        try:
            make_directory(path.parent)
            write_durably(path, "".join(f"{instance} {key}\n" for key in dict.fromkeys(keys)))
        except OSError as error:
            raise ProviderError(f"{path} cannot be written: {error.strerror or error}") from error

    def forget(self, instance: str) -> None:
        """Removes the pins of a machine that is gone."""
        with suppress(FileNotFoundError):
            self.file(instance).unlink()
