"""`exec NODE_HOME -- ARGV`: runs a command on a node as its workers would run it.

It gets the environment of the node's first worker and the task's directory. While the task runs, it sees the volumes at
the same paths as the workers.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Any

from ..mount_namespace import namespace
from ..system import atomic_files, processes
from ..system.atomic_files import names_in
from ..worker.environment import without_launchers


def main(arguments: list[str]) -> int:
    """Replaces this process by the command. Returns only if that fails."""
    home = arguments[0]
    argv = arguments[2:] if arguments[1:2] == ["--"] else arguments[1:]
    if not argv:
        argv = [os.environ.get("SHELL") or "/bin/sh"]
    entry = latest_entry(home)
    environment = {**without_launchers(os.environ), **entry.get("environment", {})}
    reaper = reaper_of(entry)
    if entry.get("container") and reaper is not None:
        from ..containers import container

        return container.enter(entry, home, argv)
    if reaper is not None:
        try:
            namespace.enter(reaper)
        except OSError as error:
            sys.stderr.write(f"flowlite: volumes are not at their paths here: {error}\n")
    for directory in (entry.get("workdir"), home):
        try:
            os.chdir(directory or home)
            break
        except OSError:
            continue
    try:
        os.execvpe(argv[0], argv, environment)
    except OSError as error:
        sys.stderr.write(f"flowlite: cannot run {argv[0]!r}: {error.strerror}\n")
        return 127 if isinstance(error, FileNotFoundError) else 126


def latest_entry(home: str) -> dict[str, Any]:
    """Returns the agent's entry for the latest attempt: {"environment", "workdir", "reaper"}; {} if there is none."""
    for directory in _attempts(home):
        try:
            found = atomic_files.read_small_json(os.path.join(directory, "env.json"))
        except (OSError, ValueError):
            continue
        return found if isinstance(found, dict) else {}
    return {}


def reaper_of(entry: Mapping[str, Any]) -> int | None:
    """Returns the process that is the parent of the node's workers, or None if it does not run."""
    found = entry.get("reaper")
    if found and processes.is_alive(int(found["pid"]), found["start"]):
        return int(found["pid"])
    return None


def latest_attempt(home: str) -> str | None:
    """Returns the directory of the latest attempt on this node, or None before the first."""
    return next(iter(_attempts(home)), None)


def _attempts(home: str) -> list[str]:
    """Returns the directories of all attempts, the latest first."""
    names = [name for name in names_in(home) if name[:1] == "a" and name[1:].isdigit()]
    return [os.path.join(home, name) for name in sorted(names, key=lambda n: -int(n[1:]))]
