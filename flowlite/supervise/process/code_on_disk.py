"""Whether the code of flowlite on disk is still the one that this process was started with.

It may be upgraded, or its checkout changed, while a task runs for days. What a supervisor imports only at the end of
its task is then of another version, and does not fit what it has imported before.
"""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Iterator

_PACKAGES = ("flowlite", "provider_adapters")
_known = time.time()


def have_changed() -> bool:
    """Whether a file from which this process has imported is gone, or has been written since it was started."""
    return last_change() > _known


def last_change() -> float:
    """When one of these files was last written, as the file system says; infinity if one is gone."""
    return max(map(_written, _imported()), default=0.0)


def note_known(change: float) -> None:
    """Notes a change that this process was started after, also if the file system's clock is ahead."""
    global _known
    _known = max(_known, change)


def _imported() -> Iterator[str]:
    for name, module in tuple(sys.modules.items()):
        path = getattr(module, "__file__", None)
        if path and name.partition(".")[0] in _PACKAGES:
            yield path


def _written(path: str) -> float:
    try:
        status = os.stat(path)
    except OSError:
        return math.inf
    # Installers may give a file the time at which it was packed, but not the time of the change of its status.
    return max(status.st_mtime, status.st_ctime)
