"""Disk use of FLOW_HOME by purpose."""

from __future__ import annotations

import os
from pathlib import Path

from flowlite.retention.pruning import size_of

INPUTS, LOGS, RESULTS, OTHER = (
    "inputs of tasks",
    "logs of tasks",
    "results of tasks",
    "other files of tasks",
)
_OF_TASKS = {"bundle": INPUTS, "logs": LOGS, "results": RESULTS}
_DATABASE = "database"


def usage(home: Path) -> dict[str, int]:
    """Returns bytes by purpose. Entries other than tasks and the database are listed by the name of their directory."""
    found = {_DATABASE: 0, INPUTS: 0, LOGS: 0, RESULTS: 0, OTHER: 0}
    for entry in os.scandir(home):
        if entry.name == "tasks":
            continue
        name = _DATABASE if entry.name.startswith("state.db") else entry.name
        found[name] = found.get(name, 0) + size_of(Path(entry.path))
    for task in _tasks(home):
        for entry in os.scandir(task):
            name = _OF_TASKS.get(entry.name, OTHER)
            found[name] += size_of(Path(entry.path))
    return {name: size for name, size in found.items() if size}


def by_task(home: Path) -> dict[str, int]:
    """Returns bytes by task id, the largest first."""
    found = {task.name: size_of(task) for task in _tasks(home)}
    return dict(sorted(found.items(), key=lambda pair: -pair[1]))


def _tasks(home: Path) -> list[Path]:
    try:
        return [Path(entry.path) for entry in os.scandir(home / "tasks") if entry.is_dir()]
    except FileNotFoundError:
        return []
