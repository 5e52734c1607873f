"""The files of a node's home that contain secrets in clear text, and their removal.

An agent removes them when it ends, since each attempt is sent its own. If an agent was killed, or its machine went
down, a later task or clean-up on the host removes them (`cleanup.py`).
"""

from __future__ import annotations

import contextlib
import json
import os

from ..system.atomic_files import names_in, write_atomically

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

_OF_HOME = frozenset({"secrets.json", "storage.json", "packages.json"})
_OF_ATTEMPT = frozenset(
    {
        *("secret", "rendezvous.key", "checkpoints.json", "container.env", "batch.json"),
        "ray-token",
    }
)
_OF_TOOL = frozenset({"rclone.conf", "credentials"})
# The environment of a worker that was spawned rather than forked, and of a command in a container.
_ENDINGS = (".order", ".env")
_ENVIRONMENT = "env.json"


def forget(home: str) -> bool:
    """Removes all secrets from the home of a node, but not its logs and results. Returns whether there were any."""
    found = False
    for path in _files(home):
        with contextlib.suppress(OSError):
            if os.path.basename(path) == _ENVIRONMENT:
                found = _strip(path) or found
            else:
                os.unlink(path)
                found = True
    return found


def are_in(home: str) -> bool:
    """Whether the home of a node contains secrets."""
    return any(
        os.path.basename(path) != _ENVIRONMENT or _read(path).get("environment")
        for path in _files(home)
    )


def attempts(home: str) -> list[str]:
    """Returns the directories of the attempts in a home."""
    return [
        os.path.join(home, name)
        for name in names_in(home)
        if name[:1] == "a" and name[1:].isdigit()
    ]


def _files(home: str) -> Iterator[str]:
    yield from _named(home, _OF_HOME)
    for attempt in attempts(home):
        yield from _named(attempt, _OF_ATTEMPT | {_ENVIRONMENT})
        for number in names_in(os.path.join(attempt, "buckets")):
            # The configuration of the tools that mount buckets; the mounted bucket is beside it.
            tool = os.path.join(attempt, "buckets", number, "tool")
            yield from _named(tool, _OF_TOOL)
            yield from _named(os.path.join(tool, ".aws"), _OF_TOOL)


def _named(directory: str, names: frozenset[str]) -> Iterator[str]:
    """Yields the files with these names, and partial files of an interrupted write."""
    with contextlib.suppress(OSError), os.scandir(directory) as entries:
        for entry in list(entries):
            name = entry.name
            if name.endswith(".part"):
                # As `node/system/atomic_files.py` names them.
                name = name.removesuffix(".part").rpartition(".")[0].removeprefix(".")
            if (name in names or name.endswith(_ENDINGS)) and entry.is_file(follow_symlinks=False):
                yield entry.path


def _strip(path: str) -> bool:
    """Removes the variables from `env.json`, but not the ids of the container and of the reaper.

    The agent writes this file for commands that run beside its workers.
    """
    noted = _read(path)
    if not noted.get("environment"):
        return False
    write_atomically(path, json.dumps({**noted, "environment": {}}))
    return True


def _read(path: str) -> dict[str, object]:
    try:
        with open(path, encoding="utf-8") as file:
            return dict(json.load(file))
    except (OSError, ValueError, TypeError):
        return {}
