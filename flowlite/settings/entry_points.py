"""The entry points under which packages announce their adapters. Nothing of an adapter is loaded here.

They are read from the metadata of the installed packages as `importlib.metadata` does, which each supervisor would have
to import: that takes ten times as long as reading them.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from importlib import import_module
from operator import attrgetter
from typing import Any, NamedTuple

GROUP = "flowlite.providers"
# Directories beside a package that hold its metadata.
_METADATA = (".dist-info", ".egg-info")


class AdapterPlace(NamedTuple):
    """Where an adapter is: a module, and the name of the class in it."""

    module: str
    name: str

    def load(self) -> Any:
        """Imports the adapter."""
        return attrgetter(self.name)(import_module(self.module))


def adapters() -> dict[str, AdapterPlace]:
    """Returns the places of all adapters by name."""
    return _adapters_on(tuple(sys.path))


@functools.lru_cache(maxsize=8)
def _adapters_on(path: tuple[str, ...]) -> dict[str, AdapterPlace]:
    """As `adapters`, for a `sys.path`, which decides where they are found: what comes first there goes first."""
    found: dict[str, AdapterPlace] = {}
    for directory in reversed(path):
        for text in _announcements(directory or os.curdir):
            found |= _entries(text)
    return found


def _announcements(directory: str) -> Iterator[str]:
    """The texts of entry points that the packages in a directory have, or in a zip file."""
    if os.path.isfile(directory):
        from importlib.metadata import distributions

        yield from (
            each.read_text("entry_points.txt") or "" for each in distributions(path=[directory])
        )
        return
    names: list[str] = []
    with suppress(OSError):
        names = sorted(name for name in os.listdir(directory) if name.endswith(_METADATA))
    for name in names:
        with (
            suppress(OSError, UnicodeDecodeError),
            open(os.path.join(directory, name, "entry_points.txt"), encoding="utf-8") as file,
        ):
            yield file.read()


def _entries(text: str) -> Iterator[tuple[str, AdapterPlace]]:
    """The entries of our group in a text of entry points."""
    if GROUP not in text:
        return
    section = ""
    for line in (line.strip() for line in text.splitlines()):
        if line.startswith("["):
            section = line.strip("[] ")
        elif section == GROUP and "=" in line and not line.startswith("#"):
            name, _, value = line.partition("=")
            module, _, attribute = value.partition("[")[0].partition(":")
            yield name.strip(), AdapterPlace(module.strip(), attribute.strip())
