"""Version 2 control groups, used to freeze all processes of a host at once."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path


def base() -> Path | None:
    """This process's group, if it can have child groups; None otherwise."""
    mounts = [line.split() for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    at = [fields[4] for fields in mounts if fields[fields.index("-") + 1] == "cgroup2"]
    own = [
        line[3:]
        for line in Path("/proc/self/cgroup").read_text().splitlines()
        if line.startswith("0::")
    ]
    if not at or not own:
        return None
    found = Path(at[0]) / own[0].strip("/")
    found = found if found.is_dir() else Path(at[0])
    return found if os.access(found, os.W_OK) else None


def make(name: str) -> Path:
    """Creates a group below our own."""
    below = base()
    if below is None:
        raise RuntimeError("no writable cgroup2 hierarchy is mounted here")
    group = below / name
    group.mkdir(parents=True, exist_ok=True)
    return group


def freeze(group: Path, frozen: bool) -> None:
    """Freezes or thaws all processes of a group, and waits until the kernel has done so."""
    (group / "cgroup.freeze").write_text("1" if frozen else "0")
    wanted = f"frozen {int(frozen)}"
    deadline = time.monotonic() + 5
    while wanted not in (group / "cgroup.events").read_text():
        if time.monotonic() > deadline:
            raise RuntimeError(f"{group} did not become {'frozen' if frozen else 'thawed'}")
        time.sleep(0.001)


def remove(group: Path) -> None:
    """Removes a group and its descendants, and kills their processes. A group that does not exist is no error."""
    deadline = time.monotonic() + 5
    while group.is_dir():
        for directory in sorted(group.rglob("*"), reverse=True):
            if directory.is_dir():
                _remove_one(directory)
        _remove_one(group)
        if time.monotonic() > deadline:
            raise RuntimeError(f"cannot remove {group}: {(group / 'cgroup.procs').read_text()}")
        time.sleep(0.001)


def _remove_one(group: Path) -> None:
    with contextlib.suppress(OSError):
        for pid in (group / "cgroup.procs").read_text().split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), 9)
    with contextlib.suppress(OSError):
        group.rmdir()
