"""What the workers of one node see beyond the machine: volumes and buckets at their paths, and who their peers are.

A reaper sets the scene for the workers that it forks, so that nodes and tasks that share one warm process still see
their own, and nothing of it outlives them.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Any


def describe(
    volumes: Iterable[Mapping[str, Any]] = (),
    keep_visible: Iterable[str] = (),
    within: int | None = None,
) -> dict[str, Any]:
    """What a reaper is told of its scene.

    Args:
        volumes: {"name", "path", "source"} each, buckets among them; to be shown at their paths.
        keep_visible: Paths that none of them may hide.
        within: A process in whose mounts the sources are; None where they can be seen from everywhere.
    """
    return {
        "volumes": [dict(volume) for volume in volumes],
        "keep_visible": list(keep_visible),
        "within": within,
    }


def enter(scene: Mapping[str, Any], hosts: str) -> dict[str, Any]:
    """Set the scene for this process and what it starts from now on. Single-threaded callers only.

    Args:
        scene: As `describe` made it; may be empty.
        hosts: Where the hosts file of the gang may be put.

    Returns:
        {"volumes": what is shown, and how, "volumes_error": why not, or None, "hosts": `hosts`, or None if not needed}.
    """
    from . import hosts_file

    state: dict[str, Any] = {"volumes": [], "volumes_error": None}
    if scene.get("volumes"):
        from . import namespace

        try:
            if scene["within"] is not None:
                namespace.enter(int(scene["within"]))
            state["volumes"] = namespace.show(scene["volumes"], scene["keep_visible"])
        except OSError as error:
            state["volumes_error"] = str(error)
    state["hosts"] = hosts if hosts_file.own_hosts(hosts) else None
    return state


def leave(hosts: str) -> None:
    """Remove the file that `enter` may have made. Mounts go by themselves, with the last process that sees them."""
    try:
        os.unlink(hosts)
    except FileNotFoundError:
        return
    except OSError as error:
        sys.stderr.write(f"flowlite: {hosts} stays: {error}\n")
