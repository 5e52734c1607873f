"""The entry points under which packages announce their adapters. Nothing of an adapter is loaded here.

They are read from the metadata of the installed packages as `importlib.metadata` does, which each supervisor would have
to import: that takes ten times as long as reading them.
"""

from __future__ import annotations

import functools
import os
import re
import sys
from collections.abc import Iterator
from contextlib import suppress
from importlib import import_module
from operator import attrgetter
from typing import Any, NamedTuple

from flowlite.node.system.atomic_files import content_of

GROUP = "flowlite.providers"
# Directories beside a package that hold its metadata.
_METADATA = (".dist-info", ".egg-info")
# The same in a directory `….egg` on the path.
_IN_AN_EGG = "egg-info"


class AdapterPlace(NamedTuple):
    """Where an adapter is: a module, and the name of the class in it."""

    module: str
    name: str

    def load(self) -> Any:
        """Imports the adapter."""
        module = import_module(self.module)
        return attrgetter(self.name)(module) if self.name else module


def adapters() -> dict[str, AdapterPlace]:
    """Returns the places of all adapters by name."""
    return _adapters_on(tuple(sys.path))


@functools.lru_cache(maxsize=8)
def _adapters_on(path: tuple[str, ...]) -> dict[str, AdapterPlace]:
    """As `adapters`, for a `sys.path`, which decides where they are found.

    A package that is there twice counts where it comes first. Of two packages that announce the same name, the later
    one counts.
    """
    found: dict[str, AdapterPlace] = {}
    seen: set[str] = set()
    for directory in dict.fromkeys(path):
        for package, text in _announcements(directory or os.curdir):
            if package not in seen:
                seen.add(package)
                found |= _entries(text)
    return found


def _announcements(directory: str) -> Iterator[tuple[str, str]]:
    """The packages in a directory or zip file, each with its text of entry points."""
    if os.path.isfile(directory):
        from importlib.metadata import distributions

        for each in distributions(path=[directory]):
            with suppress(UnicodeDecodeError):
                yield _normal(each.name or ""), each.read_text("entry_points.txt") or ""
        return
    names: list[str] = []
    with suppress(OSError):
        # The kinds of metadata end alike; most names are of modules.
        names = sorted(each for each in os.listdir(directory) if each[-5:].lower() == "-info")
    last_part = os.path.basename(directory)
    for name in names:
        package = _package_of(name, last_part)
        if package:
            with suppress(OSError, UnicodeDecodeError):
                yield package, content_of(f"{directory}/{name}/entry_points.txt").decode()


def _package_of(name: str, directory: str) -> str:
    """The package whose metadata a directory has, by its name and that of the directory in which it is; else ""."""
    if name.lower().endswith(_METADATA):
        return _normal(name.rpartition(".")[0].partition("-")[0])
    if name.lower() == _IN_AN_EGG and directory.lower().endswith(".egg"):
        return _normal(directory.partition("-")[0])
    return ""


def _normal(package: str) -> str:
    """The name of a package as it is compared."""
    return package.lower() if package.isalnum() else re.sub(r"[-_.]+", "-", package).lower()


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
