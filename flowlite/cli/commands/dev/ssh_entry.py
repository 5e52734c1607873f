"""The OpenSSH entries of nodes to work on: `Host flow-NAME`, in files that `~/.ssh/config` may include.

Each has a directory `FLOW_HOME/dev/NAME` with `config`, `known_hosts` and the id of its task.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flowlite.connect.ssh import system
from flowlite.node.system.atomic_files import write_atomically

if TYPE_CHECKING:
    from flowlite.api.task import Task

_TASK = "task"


def alias(name: str, node: int = 0) -> str:
    """The name of a node for `ssh`."""
    return f"flow-{name}" if node == 0 else f"flow-{name}-{node}"


def write(task: Task[Any], home: Path) -> Path | None:
    """Writes the entries of a task's nodes. Returns their file; None if nobody has to log in to the nodes.

    Raises ConfigError if they are not reached by SSH, or a host key is not known; NodeUnreachable.
    """
    directory = home / "dev" / task.name
    entries = []
    for node in range(task.num_instances):
        with task.reach(node) as there:
            entry = there.connection.ssh_entry(alias(task.name, node), directory / "known_hosts")
        if entry is None:
            return None
        entries.append(entry)
    text = "\n".join(text for text, _ in entries)
    file = system.write(directory, text, "".join(dict.fromkeys(keys for _, keys in entries)))
    (directory / _TASK).write_text(task.id)
    return file


def remove_old(home: Path, is_over: Callable[[str], bool]) -> None:
    """Removes the entries of tasks that are over."""
    for directory in (home / "dev").glob("*"):
        with suppress(OSError):
            if is_over((directory / _TASK).read_text()):
                shutil.rmtree(directory)


def include_line(home: Path) -> str:
    """The line for `~/.ssh/config` that includes all entries."""
    path = home / "dev" / "*" / "config"
    with suppress(ValueError, RuntimeError):  # a user without a home directory has a RuntimeError
        path = Path("~") / path.relative_to(Path.home())
    return f'Include "{path}"' if " " in str(path) else f"Include {path}"


def is_included(config: Path, line: str) -> bool:
    """Whether the user's configuration has the line."""
    try:
        return line in (each.strip() for each in config.read_text("utf-8", "replace").splitlines())
    except OSError:
        return False


def include(config: Path, line: str) -> None:
    """Adds the line above everything else: below a `Host` it would be a part of that. Raises OSError."""
    # The file is often a link into a repository of settings.
    real = Path(os.path.realpath(config))
    real.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    before, mode = b"", 0o600
    with suppress(FileNotFoundError):
        before, mode = real.read_bytes(), real.stat().st_mode & 0o777
    write_atomically(real, f"{line}\n\n".encode() + before, mode)
