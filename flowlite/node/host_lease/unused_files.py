"""How long files of a host have not been used, by a clock that cannot be set.

A host's wall clock may jump by years: after a start without a battery, or through NTP. By that clock, results that were
kept yesterday would be old, and so would the running tasks of other hosts that share the directory. A holder therefore
notes what it has seen, and when, by the time since boot. A file counts as unused from the first look at its present
state on; of a time in which the host was down, nothing counts.

    unused-HOST.json    {"boot": id, "at": seconds since boot, "seen": {name: [time of the last use, unused seconds]}}
"""

from __future__ import annotations

import json
import os
import time

from ..system import atomic_files, processes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def since_boot() -> float:
    """Seconds since this host was started, including suspends."""
    return time.clock_gettime(_CLOCK)


def look(root: str, used: Iterable[tuple[str, float]]) -> dict[str, float]:
    """Returns for how many seconds each file is known to be unused, and notes it for the next look.

    Args:
        root: The node's root.
        used: Files below it, each with the time of its last use. Only whether that time has changed counts.
    """
    note = os.path.join(root, f"unused-{os.uname().nodename}.json")
    boot, at = processes.boot_id(), since_boot()
    before = _read(note)
    # What was there before this boot is unused for as long as that lasts. Without an id, boots cannot be told apart.
    began = before["at"] if before.get("boot") == boot else 0.0 if boot else at
    passed = at - began
    known, seen = before.get("seen", {}), {}
    for path, time_used in used:
        name = os.path.relpath(path, root)
        earlier = known.get(name)
        unused = earlier[1] + passed if earlier and earlier[0] == time_used else 0.0
        seen[name] = [time_used, unused]
    try:
        text = json.dumps({"boot": boot, "at": at, "seen": seen})
        atomic_files.place(text.encode(), note, 0o600)
    except OSError:
        # On a full disk, files are kept for longer.
        pass
    return {os.path.join(root, name): unused for name, (_, unused) in seen.items()}


def _read(note: str) -> dict[str, Any]:
    """The last look; empty if there was none, or it cannot be understood."""
    try:
        found = atomic_files.read_small_json(note)
        seen = {
            str(name): (float(used), float(unused))
            for name, (used, unused) in found["seen"].items()
        }
        return {"boot": str(found["boot"]), "at": float(found["at"]), "seen": seen}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}
