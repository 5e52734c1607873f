"""The umask and the soft limits of a script, which the tasks of its steps have, too, as under Slurm.

A script sets them for its tasks: `ulimit -n 65536`, `ulimit -s unlimited`, `umask 007`. Only what it has set since it
began goes to the tasks; the rest is that of each node.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Mapping

_BEGINNING = "RLIMIT_"


def own() -> dict[str, int]:
    """Returns the umask and the soft limits of this process, by name; -1 is no limit."""
    umask = os.umask(0o077)
    os.umask(umask)
    names = [name for name in dir(resource) if name.startswith(_BEGINNING)]
    # The same limit may have two names.
    return {"umask": umask} | {
        name: resource.getrlimit(getattr(resource, name))[0] for name in names
    }


def changes(before: Mapping[str, int]) -> dict[str, int]:
    """Returns what this process has otherwise than `before`."""
    return {name: value for name, value in own().items() if before.get(name, value) != value}


def applied(wanted: Mapping[str, int]) -> dict[str, int]:
    """Returns of a script's changes what this node allows: no soft limit can be above the hard one."""
    found = {}
    for name, value in wanted.items():
        number = getattr(resource, name, None) if name.startswith(_BEGINNING) else None
        if name == "umask":
            found[name] = value & 0o777
        elif number is not None:
            most = resource.getrlimit(number)[1]
            found[name] = most if _is_above(value, most) else value
    return found


def set_here(found: Mapping[str, int]) -> None:
    """Sets them in this process, which is about to become a task."""
    for name, value in found.items():
        if name == "umask":
            os.umask(value)
        else:
            number = getattr(resource, name)
            resource.setrlimit(number, (value, resource.getrlimit(number)[1]))


def _is_above(value: int, most: int) -> bool:
    if most == resource.RLIM_INFINITY:
        return False
    return value == resource.RLIM_INFINITY or value > most
