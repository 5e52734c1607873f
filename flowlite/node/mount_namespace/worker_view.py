"""The view of the machine that a reaper gives its workers: volumes and buckets at their paths, and a hosts file.

Nodes and tasks that share one fork server each have a view of their own, since their reapers differ.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any


def enter(scene: Mapping[str, Any], hosts: str) -> dict[str, Any]:
    """Sets up the view for this process and its future children. The caller must be single-threaded.

    Args:
        scene: What is sent to a reaper; may be empty. "volumes": those of `namespace.show`, including buckets.
            "keep_visible": paths that no volume may hide. "within": a process in whose mount namespace the sources are;
            None if they are visible everywhere.
        hosts: Path at which the gang's hosts file may be created.

    Returns:
        {"volumes": the volumes shown, and how, "volumes_error": error or None, "hosts": `hosts`, or None if unused}.
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
    """Removes the file that `enter` may have created. Mounts disappear with the last process that sees them."""
    try:
        os.unlink(hosts)
    except FileNotFoundError:
        return
    except OSError as error:
        sys.stderr.write(f"flowlite: {hosts} stays: {error}\n")
