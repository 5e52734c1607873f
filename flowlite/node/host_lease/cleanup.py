"""Removes what a task leaves on a host: processes, mounts, its directory, and files kept by content hash.

Below the node's root:

    blobs/ envs/         kept for the next task, by content hash, until they have not been used for a while
    tasks/<instance>/    the home of one node of one task
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat

from ..mount_namespace import unmount
from ..system import atomic_files, processes
from . import secret_files, unused_files
from .requests import MARKER
from .secret_files import attempts

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
    from typing import Any

UNUSED_SECONDS = 14 * 86400.0
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


# Processes


def members(marker: str) -> set[int]:
    """Returns the processes that have a lease's marker in their environment, and all their descendants."""
    found = processes.marked({MARKER: marker})
    return (found | processes.descendants(found)) - {os.getpid()}


def strays(name: str, marker: str) -> set[int]:
    """Returns the processes of other leases of this name, which have no holder any more.

    A name is valid within one network namespace, so containers on this host may have leases of their own.
    """
    prefix, own = f"{name}/", _network(os.getpid())
    found = set()
    for pid, row in processes.table().items():
        bears = processes.environment_of(pid).get(MARKER, "")
        if bears.startswith(prefix) and bears != marker and not row.dead and pid != os.getpid():
            found |= {pid} if _network(pid) == own else set()
    return found


def _network(pid: int) -> str:
    try:
        return os.readlink(f"/proc/{pid}/ns/net")
    except OSError:
        return ""


# Activity


def agent_lives(home: str) -> bool:
    """Whether the agent of any attempt runs."""
    return any(processes.is_alive(pid, start) for pid, start, _ in _agents(home))


def living(identities: Iterable[Mapping[str, Any]]) -> set[int]:
    """Returns the pids of those of these processes that still run."""
    return {
        int(each["pid"])
        for each in identities
        if processes.is_alive(int(each["pid"]), str(each["start"]))
    }


def _agents(home: str) -> list[tuple[int, str, str]]:
    """Returns pid, start and host of each agent, as their pid files name them."""
    found = []
    for attempt in attempts(home):
        try:
            noted = atomic_files.read_small_json(os.path.join(attempt, "agent.pid"))
            # The task may have written any document there. One without names is refused by its first subscript.
            pid, start = int(noted["pid"]), str(noted["start"])
            found.append((pid, start, str(noted.get("host") or "")))
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return found


def facts(*directories: str) -> dict[str, tuple[int, int]]:
    """Returns size and time of the files in some directories and their attempts, to detect that they are written."""
    found = {}
    for directory in directories:
        for each in (directory, *attempts(directory)):
            with contextlib.suppress(OSError), os.scandir(each) as entries:
                for entry in entries:
                    with contextlib.suppress(OSError):
                        status = entry.stat(follow_symlinks=False)
                        found[entry.path] = (status.st_size, status.st_mtime_ns)
    return found


# Directories


def remove_home(root: str, home: str) -> bool:
    """Removes a task's directory, but nothing that is mounted there. False if something is left."""
    if not _is_home(root, home):
        return False
    with contextlib.suppress(OSError):
        _remove(home, _still_mounted(home))
    return not os.path.lexists(home)


def clear(home: str, but: Collection[str]) -> bool:
    """Removes all that is in a task's directory except these names, and what is mounted. False if something is left."""
    _empty(home, _still_mounted(home), lambda entry: entry.name in but)
    return {entry.name for entry in _entries(home)} <= {*but}


def keep_outputs(root: str, home: str) -> bool:
    """Removes all files of a task's directory except the outputs of its ranks. False if there is no such directory."""
    if not _is_home(root, home) or not os.path.isdir(home):
        return False
    shed(home)
    return True


def shed(home: str) -> None:
    """Removes all files of a task's directory, including secrets, except the outputs of its ranks."""
    mounted, of_attempts = _still_mounted(home), attempts(home)
    _empty(home, mounted, lambda entry: entry.path in of_attempts)
    for attempt in of_attempts:
        _empty(attempt, mounted, _is_output)


def _still_mounted(home: str) -> set[str]:
    """Unmounts what is mounted below a directory. Returns what could not be unmounted."""
    place = os.path.realpath(home)
    unmount.unmount_below(place)
    return set(unmount.mounted_below(place))


def _empty(directory: str, mounted: set[str], is_kept: Callable[[os.DirEntry[str]], bool]) -> None:
    for entry in _entries(directory):
        if not is_kept(entry):
            with contextlib.suppress(OSError):
                _remove(entry.path, mounted)


def _is_home(root: str, home: str) -> bool:
    tasks = os.path.realpath(os.path.join(root, "tasks"))
    inside = os.path.realpath(os.path.dirname(home)) == tasks and not os.path.islink(home)
    return inside and bool(os.path.basename(home).strip("."))


def _is_output(entry: os.DirEntry[str]) -> bool:
    rank, _, kind = entry.name.partition(".")
    of_rank = rank[:1] == "r" and rank[1:].isdigit() and kind in ("out", "err", "setup", "result")
    named = of_rank or entry.name in ("agent.log", "report.json")
    return named and entry.is_file(follow_symlinks=False)


def remove_tree(path: str) -> None:
    """Removes a directory or file, but nothing that is mounted in it."""
    _remove(path, set(unmount.mounted_below(os.path.realpath(path))))


def _remove(path: str, mounted: set[str]) -> None:
    """Removes a tree of any depth. Symbolic links are not followed; mounts and other file systems are left alone.

    A program that copies a directory into itself leaves a tree that is too deep for recursion, and its paths may be too
    long. So each name is used within its directory, and the way back is `..`.
    """
    status = os.lstat(path)
    if not stat.S_ISDIR(status.st_mode):
        os.unlink(path)
        return
    place = os.path.realpath(path)
    if place in mounted or os.lstat(os.path.dirname(path)).st_dev != status.st_dev:
        return
    here, level = _enter(path)
    # This directory and those above it, each with the names that are left in it.
    levels = [level]
    try:
        while levels:
            names = levels[-1][1]
            if names:
                name = names.pop()
                with contextlib.suppress(OSError):
                    below = os.stat(name, dir_fd=here, follow_symlinks=False)
                    if not stat.S_ISDIR(below.st_mode):
                        os.unlink(name, dir_fd=here)
                    elif f"{place}/{name}" not in mounted and below.st_dev == status.st_dev:
                        inside, level = _enter(name, here)
                        os.close(here)
                        here, place = inside, f"{place}/{name}"
                        levels.append(level)
                continue
            levels.pop()
            if levels:
                above = os.open("..", _DIRECTORY, dir_fd=here)
                os.close(here)
                here = above
                if _identity(here) != levels[-1][0]:
                    raise OSError(errno.ESTALE, "it was moved while it was removed", path)
                place, _, name = place.rpartition("/")
                with contextlib.suppress(OSError):
                    os.rmdir(name, dir_fd=here)
    finally:
        os.close(here)
    os.rmdir(path)


def _enter(path: str, above: int | None = None) -> tuple[int, tuple[tuple[int, int], list[str]]]:
    """Opens a directory of which everything is to be removed: its descriptor, its identity and its names."""
    # A worker may have removed the permissions.
    os.chmod(path, 0o700, dir_fd=above)
    directory = os.open(path, _DIRECTORY, dir_fd=above)
    try:
        return directory, (_identity(directory), os.listdir(directory))
    except OSError:
        os.close(directory)
        raise


def _identity(directory: int) -> tuple[int, int]:
    status = os.fstat(directory)
    return status.st_dev, status.st_ino


def forget_secrets(root: str, but: str, *, dry_run: bool = False) -> list[str]:
    """Removes the secrets of tasks that ended on this host without being released. Returns their homes.

    Hosts may share their home directories, so this covers only tasks whose agents ran on this host. Two hosts may have
    the same name, too: an agent on another one holds the lock of its attempt.

    Args:
        but: The home of the task that has the host now.
    """
    found = []
    for entry in _entries(os.path.join(root, "tasks")):
        agents = [] if entry.path == but else _agents(entry.path)
        here = {host for _, _, host in agents} == {os.uname().nodename}
        if not here or agent_lives(entry.path) or _is_locked(entry.path):
            continue
        if secret_files.are_in(entry.path):
            found.append(entry.path)
            if not dry_run:
                secret_files.forget(entry.path)
    return found


def _is_locked(home: str) -> bool:
    """Whether an agent of an attempt holds its lock, on this machine or on another one."""
    for attempt in attempts(home):
        # An agent that has not written it yet may be about to take its lock.
        if not os.path.exists(os.path.join(attempt, "agent.pid")):
            continue
        with contextlib.suppress(OSError):
            lock = os.open(os.path.join(attempt, "agent.lock"), os.O_RDONLY | os.O_CLOEXEC)
            try:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
            finally:
                os.close(lock)
    return False


def by_age(root: str, unused: float = UNUSED_SECONDS) -> list[str]:
    """Removes files that were not used for `unused` seconds. Files that a task on any host uses are kept."""
    removed = []
    for path, seconds in unused_files.look(root, _kept(root)).items():
        if seconds > unused:
            with contextlib.suppress(OSError):
                remove_tree(path)
                removed.append(path)
    if os.path.isdir(os.path.join(root, "envs")):
        # Imported here: the holder does not need what these modules import.
        from pathlib import Path

        from ..python_env.environments import clean

        environments = Path(root, "envs")
        removed += [str(environments / name) for name in clean(environments, unused)]
    return removed


def _kept(root: str) -> Iterator[tuple[str, float]]:
    """Yields path and last use of files that are kept by their hash, and of homes that expired leases have left."""
    for entry in _entries(os.path.join(root, "blobs")):
        with contextlib.suppress(OSError):
            status = entry.stat(follow_symlinks=False)
            if status.st_nlink == 1:
                # The ctime of a file changes when a link to it is made or removed.
                yield entry.path, max(status.st_mtime, status.st_ctime)
    for entry in _entries(os.path.join(root, "tasks")):
        with contextlib.suppress(OSError):
            if entry.is_dir(follow_symlinks=False) and not agent_lives(entry.path):
                yield entry.path, last_use(entry.path)


def last_use(home: str) -> float:
    """When something in a task's directory was last written, by the clock of the machine that wrote it."""
    newest = max((time_ns / 1e9 for _, time_ns in facts(home).values()), default=0.0)
    return max(newest, os.lstat(home).st_mtime)


def _entries(directory: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(directory) as entries:
            return list(entries)
    except OSError:
        return []
