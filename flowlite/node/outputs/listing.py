"""Lists the files that a task wrote into its working directory on this node: those that are collected, and the others.

Only files that changed after the agent of the first attempt started count. Earlier files, such as those of the project,
came from the submitting machine. The time is that of the inode's last change (ctime), which no program can set.

Symbolic links are not followed, and special files are not read. A link that points into the working directory is
collected as a link.
"""

from __future__ import annotations

import errno
import json
import os
import re
import stat
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..mount_namespace import mounts
from ..project_files.links import as_relative, leads_out
from ..system import atomic_files, processes
from ..system.byte_sizes import human_size
from . import contents, patterns

MOST_FILES = 100_000
"""Most files that are collected from one node; a task that writes more needs a volume, or an archive."""
ABSENT = 3
"""The exit status of `outputs` if there is nothing at the path."""
# Most files that are examined in the search for files that are not kept.
_MOST_LOOKED_AT = 200_000
_LARGEST = 3
# The largest assumed difference between the clocks of a file server and of this machine, and the smallest step of a
# clock that matters.
_SKEW_NS = 60 * 10**9
IGNORED = frozenset({"flow-outputs", ".flow-incoming", ".git", "__pycache__", ".ipynb_checkpoints"})
"""Names of directories that are never searched: earlier outputs, and directories that tools make for themselves."""

_OURS = re.compile(
    r"a\d+|agent\.pyz|call\.bin|source-.*|checkpoint(?:\.unfinished)?|warm.*"
    r"|(?:secrets|storage|packages|checkpoint|setup|project)\.json(?:\..*)?"
)
"""Names of flowlite's own files in a node's directory, which are left out where that is the working directory, too."""

_UNREAD = "directories that cannot be read"

File = tuple[str, int, int, bool]
"""Relative path, size, time of the last change in nanoseconds, whether it is executable."""


def outputs(workdir: str, home: str, wanted: Sequence[str]) -> dict[str, Any]:
    """Lists the files that match patterns.

    Returns:
        {"files": [File], "links": [[path, target]], "left_out": {why: number}, "place": an id that is equal on nodes
        which share the directory, "too_many": whether there are more than `MOST_FILES`}.
    """
    fits, since = patterns.expression(wanted), _began(home)
    files: list[File] = []
    links: list[tuple[str, str]] = []
    left_out: Counter[str] = Counter()
    found = {
        "files": files,
        "links": links,
        "left_out": left_out,
        "too_many": False,
        "place": _place(workdir),
    }
    tops = (workdir, os.path.realpath(workdir))
    for root in patterns.roots(wanted):
        for relative, status in _below(workdir, root, home):
            if not _is_new(status, *since):
                continue
            if stat.S_ISDIR(status.st_mode):
                left_out[_UNREAD] += 1
            elif not fits.fullmatch(relative):
                continue
            elif len(files) + len(links) >= MOST_FILES:
                return {**found, "too_many": True}
            elif stat.S_ISLNK(status.st_mode):
                target = as_relative(relative, os.readlink(os.path.join(workdir, relative)), tops)
                if leads_out(relative, target):
                    left_out["links that lead out of the working directory"] += 1
                else:
                    links.append((relative, target))
            elif not stat.S_ISREG(status.st_mode):
                left_out["sockets, pipes and devices"] += 1
            else:
                files.append(_file(relative, status))
    return found


def _file(path: str, status: os.stat_result) -> File:
    return path, status.st_size, status.st_mtime_ns, bool(status.st_mode & stat.S_IXUSR)


def everything(path: str) -> dict[str, Any]:
    """Lists all files at or below a path.

    Returns:
        The same as `outputs`, with "root", the directory to which their paths are relative, and "single" if the path is
        a file.
    """
    status = os.stat(path)
    real = os.path.realpath(path)
    if not stat.S_ISDIR(status.st_mode):
        _check_file(real, status)
        return {**_found(os.path.dirname(real), [(os.path.basename(real), status)]), "single": True}
    entries = []
    unread: list[OSError] = []
    for directory, below, names in os.walk(real, onerror=unread.append):
        # Links to directories are among the directories.
        for name in (*below, *names):
            whole = os.path.join(directory, name)
            with suppress(OSError):
                status = os.lstat(whole)
                if not stat.S_ISDIR(status.st_mode):
                    entries.append((os.path.relpath(whole, real), status))
        if len(entries) > MOST_FILES:
            break
    for error in unread:
        if error.filename == real:
            raise error
    return _found(real, entries, sum(error.errno != errno.ENOENT for error in unread))


def _check_file(path: str, status: os.stat_result) -> None:
    """Raises OSError if a file has no content of a known size."""
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "it is neither a file nor a directory", path)
    if status.st_size == 0:
        with open(path, "rb", buffering=0) as file:
            if file.read(1):
                why = "it has no size, as files of /proc; `flow ssh TASK -- cat PATH` shows it"
                raise OSError(errno.EINVAL, why, path)


def _found(
    root: str, entries: Sequence[tuple[str, os.stat_result]], unread: int = 0
) -> dict[str, Any]:
    files = [_file(path, status) for path, status in entries if stat.S_ISREG(status.st_mode)]
    left_out = {"links, sockets, pipes and devices": len(entries) - len(files), _UNREAD: unread}
    return {
        "root": root,
        "files": files,
        "links": [],
        "left_out": {why: number for why, number in left_out.items() if number},
        "place": root,
        "too_many": len(entries) > MOST_FILES,
    }


def _workdir(home: str) -> str:
    """Returns the working directory of the latest attempt's workers."""
    orders = sorted(Path(home).glob("a*/agent.json"), key=lambda path: int(path.parent.name[1:]))
    if not orders:
        # The task was stopped before its first attempt started, so it has written nothing.
        return home
    return str(atomic_files.read_small_json(orders[-1]).get("workdir") or home)


def unkept(workdir: str, home: str, wanted: Sequence[str], begin: str) -> dict[str, Any]:
    """Summarises the files written since the file `begin` that match no pattern: {"count", "bytes", "largest"}."""
    fits, since = patterns.expression(wanted), _since(begin)
    count = total = looked_at = 0
    largest: list[tuple[int, str]] = []
    for relative, status in _below(workdir, "", home):
        looked_at += 1
        if looked_at > _MOST_LOOKED_AT:
            break
        if not stat.S_ISREG(status.st_mode) or not _is_new(status, *since):
            continue
        if not fits.fullmatch(relative):
            count, total = count + 1, total + status.st_size
            largest = sorted([*largest, (status.st_size, relative)], reverse=True)[:_LARGEST]
    return {"count": count, "bytes": total, "largest": [[path, size] for size, path in largest]}


def sentence(found: Mapping[str, Any]) -> str:
    """Returns the notice about files that are not kept, and how to keep them; "" if there are none."""
    count = int(found["count"])
    if not count:
        return ""
    number = "1 file" if count == 1 else f"{count:,} files"
    named = [f"{path} ({human_size(size)})" for path, size in found["largest"]]
    more = ", …" if count > len(named) else ""
    below = {path.partition("/")[0] for path, _ in found["largest"] if "/" in path}
    tops = dict.fromkeys(path.partition("/")[0] for path, _ in found["largest"])
    wanted = ", ".join(f'"{top}/**"' if top in below else f'"{top}"' for top in tops)
    return (
        f"{number} ({human_size(int(found['bytes']))}) that the task wrote into its working directory "
        f"{'is' if count == 1 else 'are'} not kept: {', '.join(named)}{more}; outputs=[{wanted}] brings "
        f"{'it' if count == 1 else 'them'} here"
    )


def _below(workdir: str, root: str, home: str) -> Iterator[tuple[str, os.stat_result]]:
    """Yields what is at or below a relative path, with its status, except directories, unless they cannot be read.

    flowlite's own files are left out.
    """
    start = os.path.join(workdir, root) if root else workdir
    # A link in the path is not followed. If it is the last component, the link itself is listed.
    if root and os.path.realpath(start) != os.path.join(os.path.realpath(workdir), root):
        with suppress(OSError):
            if os.path.islink(start) and not os.path.islink(os.path.dirname(start)):
                yield root, os.lstat(start)
        return
    with suppress(OSError):
        # The working directory itself may be reached through a link.
        status = os.lstat(start) if root else os.stat(start)
        if not stat.S_ISDIR(status.st_mode):
            yield root, status
            return
    ours, real = os.path.realpath(home), os.path.realpath(workdir)
    inside = real == ours or real.startswith(f"{ours}{os.sep}")
    waiting = [(start, root)]
    while waiting:
        directory, relative = waiting.pop()
        # No link is followed on the way.
        if not inside and os.path.join(real, relative).rstrip(os.sep) == ours:
            continue
        try:
            entries = sorted(os.scandir(directory), key=lambda entry: entry.name, reverse=True)
        except OSError as error:
            if error.errno != errno.ENOENT:
                with suppress(OSError):
                    yield relative, os.lstat(directory)
            continue
        for entry in entries:
            path = f"{relative}/{entry.name}" if relative else entry.name
            if real == ours and _OURS.fullmatch(path):
                continue
            with suppress(OSError):
                if not entry.is_dir(follow_symlinks=False):
                    yield path, entry.stat(follow_symlinks=False)
                elif entry.name not in IGNORED:
                    waiting.append((entry.path, path))


def _began(home: str) -> tuple[int, int]:
    """Returns when the first attempt's agent started on this node, and the device of the file that tells it."""
    notes = []
    for path in Path(home).glob("a*/agent.pid"):
        at, device = _since(str(path))
        started = _started(path)
        # A machine may start with a clock that is hours ahead, until it reaches a time server. What was written after
        # that has an earlier time than the note.
        notes.append((started if at - started > _SKEW_NS else at, device))
    return min(notes, default=(0, 0))


def _started(note: Path) -> int:
    """Returns when an agent started, by the clock as it is set now; a time to come if that is not known."""
    try:
        ticks = int(atomic_files.read_small_json(str(note))["start"])
        since_boot = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return sys.maxsize
    if _network_source(os.path.realpath(note)):
        # The file server has another clock.
        return sys.maxsize
    return time.time_ns() - since_boot + ticks * 10**9 // os.sysconf("SC_CLK_TCK")


def _since(path: str) -> tuple[int, int]:
    try:
        status = os.stat(path)
    except OSError:
        return 0, 0
    return status.st_mtime_ns, status.st_dev


def _is_new(status: os.stat_result, since: int, device: int) -> bool:
    slack = 0 if status.st_dev == device else _SKEW_NS
    return status.st_ctime_ns >= since - slack


def _place(workdir: str) -> str:
    """Returns an id of the directory that is equal on machines which share it, and different everywhere else."""
    status = os.stat(workdir)
    source = _network_source(os.path.realpath(workdir))
    if source:
        return f"{source} {status.st_ino}"
    # Machines that were made from one image may have the same name, and numbers of devices and files.
    return f"{os.uname().nodename} {processes.boot_id()} {status.st_dev} {status.st_ino}"


def _network_source(path: str) -> str:
    """Returns the source of the network file system that contains a path; "" for a local file system."""
    _, source = mounts.file_system_of(path)
    return source if mounts.names_server(source) else ""


def main(_: list[str]) -> int:
    """The subcommand `outputs`: reads {"home", "patterns" or "path"}; prints the result of `outputs` or `everything`.

    A relative path starts in the working directory of the workers. With "look" it only prints the resolved path and
    whether it is a directory: {"path", "directory"}. With "read" or "digest" it prints what files contain
    (`contents.py`).

    The result is printed as lines of JSON, so that no reader needs to hold it as one document: first everything but
    files and links, then each file, then each link.
    """
    asked: Mapping[str, Any] = json.loads(sys.stdin.buffer.read())
    if "read" in asked:
        contents.write(str(asked["root"]), list(asked["read"]), sys.stdout.buffer)
        return 0
    if "digest" in asked:
        contents.write_digests(str(asked["root"]), list(asked["digest"]), sys.stdout.buffer)
        return 0
    home = str(asked["home"])
    try:
        workdir = _workdir(home)
        if "path" in asked:
            path = os.path.join(workdir, os.path.expanduser(str(asked["path"])))
            if asked.get("look"):
                sys.stdout.write(json.dumps({"path": path, "directory": os.path.isdir(path)}))
                return 0
            found = everything(path)
        else:
            found = {**outputs(workdir, home, list(asked["patterns"])), "root": workdir}
    except OSError as error:
        sys.stderr.write(f"{error.strerror or error}: {error.filename or home}\n")
        return ABSENT if isinstance(error, FileNotFoundError | NotADirectoryError) else 1
    files, links = found.pop("files"), found.pop("links")
    for line in (found, *files, *links):
        sys.stdout.write(json.dumps(line, separators=(",", ":")) + "\n")
    return 0
