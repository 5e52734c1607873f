"""The entry points under which packages announce their adapters. Nothing of an adapter is loaded here."""

from __future__ import annotations

import functools
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP = "flowlite.providers"


def adapters() -> dict[str, EntryPoint]:
    """Returns the entry points of all adapters by name."""
    return _adapters_on(tuple(sys.path))


@functools.lru_cache(maxsize=8)
def _adapters_on(path: tuple[str, ...]) -> dict[str, EntryPoint]:
    """As `adapters`, for a `sys.path`, which decides where they are found."""
    # Imported here because it is slow, and a program that uses no provider does not need it.
    import importlib.metadata

    return {each.name: each for each in importlib.metadata.entry_points(group=GROUP)}
