"""`image=` on this machine: used only if docker or podman already has the image.

A rehearsal should not download gigabytes.
"""

from __future__ import annotations

import subprocess
from shutil import which
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flowlite.spec import TaskConfig

_SECONDS = 20.0


def choose_container(config: TaskConfig) -> tuple[dict[str, Any] | None, list[str]]:
    """The container the task runs in, None for none, and notes for the user."""
    if config.image is None:
        return None, []
    programs = [path for name in ("docker", "podman") if (path := which(name))]
    if any(_has(program, config.image) for program in programs):
        return {"image": config.image}, []
    if not programs:
        why = "neither docker nor podman is installed here"
    else:
        name = programs[-1].rpartition("/")[2]
        why = f"it is not on this machine (`{name} pull {config.image}` brings it)"
    return None, [
        f"image {config.image} is not used: {why}; the task runs in this Python environment"
    ]


def _has(program: str, image: str) -> bool:
    try:
        looked = subprocess.run(
            [program, "image", "inspect", image],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return looked.returncode == 0
