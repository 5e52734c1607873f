"""The directory of all state of a user: `FLOW_HOME` (0700).

state.db  config.toml            the store; settings
state.db.lock                    held by a process that makes, migrates or replaces the file as a whole
state.db.machine                 which machine uses the store, where several have this directory
backups/  damaged/               copies of the store; what `flow store restore` has replaced
clock.json                       the clock for decisions (`state/clock.py`)
client                           the id by which hosts and clouds know this FLOW_HOME
trusted.json                     which flow.toml of which project was trusted, by path and hash
NAME.lock                        held by a command that edits config.toml, known_hosts or trusted.json
tasks/<task>/                    all files of one task (`supervise/record/paths.py`), and its local nodes
agents/<sha256>.pyz              the node's program
files/<sha256>                   contents of projects; index-…: the hashes of a project's files when last read
volumes/<name>/  local/  ports/  volumes of the local provider, and what it has lent
envs/<hash>/  cache/uv/          Python environments of the local provider; uv for nodes
dev/<name>/  schedules/          nodes of `flow dev`; commands at fixed times
known_hosts  keys/               keys of hosts that the user has trusted; login keys for rented machines
aws/  mithril/  slurm/           an adapter's ledger (launches/<token>.json), host keys and caches
ssh/                             which task asked which host, facts of hosts, and hosts to avoid (unfit.json)
revisiting-<provider>            exists while nodes that did not answer are to be ended
asking-<provider>.lock           held by the process that finishes a plan in the background
"""

from __future__ import annotations

import errno
import functools
import os
import stat
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from flowlite.errors import ConfigError

_ROOM = 8 * 1024 * 1024  # for the node's program (4 MB), the store and the first task
_PROBE = 4096  # bytes
_PROBE_EVERY = 10.0
_NO_ROOM = {
    errno.ENOSPC: "the disk is full; free some space",
    errno.EDQUOT: "your disk quota is used up; free some space",
}
_NO_INODES = "its disk can hold no more files (`df -i`); remove some"


def home(environment: Mapping[str, str] | None = None) -> Path:
    """The directory of all state: `FLOW_HOME`, or `~/.flowlite`. It need not exist.

    Raises ConfigError if FLOW_HOME is not an absolute path.
    """
    variables = os.environ if environment is None else environment
    given = variables.get("FLOW_HOME")
    if given and given.startswith("/") and ".." not in given:
        return _absolute(given)
    try:
        path = Path(given or "~/.flowlite").expanduser()
    except RuntimeError as error:
        raise ConfigError(f"FLOW_HOME: {error}; set FLOW_HOME to an absolute path") from None
    if not path.is_absolute():
        raise ConfigError(
            f"FLOW_HOME is {given!r}; give an absolute path, as in '{path.absolute()}'"
        )
    # Paths below it are compared as texts, also by nodes.
    return Path(os.path.realpath(path)) if ".." in path.parts else path


@functools.lru_cache(maxsize=8)
def _absolute(given: str) -> Path:
    # A supervisor asks for it several times for each node.
    return Path(given)


def check_owner(path: Path) -> None:
    """Raises ConfigError if FLOW_HOME is another user's, or has files of one: they could run programs as this user."""
    try:
        found = path.stat()
    except OSError:
        return
    if found.st_uid not in (os.getuid(), 0):
        raise ConfigError(_of_another(path, found.st_uid))
    _refuse_files_of_others(path, found)


def _refuse_files_of_others(path: Path, found: os.stat_result) -> None:
    """Raises ConfigError if other users may write in FLOW_HOME, and have put something there."""
    if not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return
    with suppress(OSError), os.scandir(path) as entries:
        for entry in entries:
            owner = entry.stat(follow_symlinks=False).st_uid
            if owner not in (os.getuid(), 0):
                raise ConfigError(
                    f"FLOW_HOME {path} can be written by others (mode {stat.S_IMODE(found.st_mode):04o}), and "
                    f"{entry.name} in it belongs to another user (uid {owner}), who could have programs run as you; "
                    f"remove it, and close the directory: chmod 700 {path}"
                )


def ensure_home() -> Path:
    """Returns FLOW_HOME, after creating it (0700) if needed and checking that it is writable.

    Raises:
        ConfigError: It is no directory, belongs to another user or to all, is read-only or full; the message says what
            to do.
    """
    path = home()
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = path.stat()
        if not stat.S_ISDIR(found.st_mode):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        if found.st_uid != os.getuid():
            raise ConfigError(_of_another(path, found.st_uid))
        if found.st_mode & stat.S_ISVTX:
            # As /tmp. To close it to others would take it away from all programs of theirs.
            raise ConfigError(
                f"FLOW_HOME {path} is a directory that all users share; set FLOW_HOME to one of your own, such as "
                f"{path / f'flowlite-{os.getuid()}'}"
            )
        _refuse_files_of_others(path, found)
        if found.st_mode & 0o077:
            path.chmod(0o700)
        _probe(path, _ROOM)
    except OSError as error:
        raise ConfigError(explain_os_error(path, error)) from None
    return path


def _of_another(path: Path, owner: int) -> str:
    return f"FLOW_HOME {path} belongs to another user (uid {owner}); set FLOW_HOME to a directory of your own"


def _probe(path: Path, room: int) -> None:
    """Raises OSError if a file of that many bytes cannot be written in the directory now."""
    # Not by tempfile, whose import takes as long as all else that `flow status` does here.
    name = path / f".probe-{os.getpid()}-{threading.get_ident()}-{time.monotonic_ns()}"
    descriptor = os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.unlink(name)
        _reserve(descriptor, room)
        # Content is written, since an empty file can be created even on a full disk.
        if os.write(descriptor, b"\0" * _PROBE) < _PROBE:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _reserve(descriptor: int, room: int) -> None:
    """Takes that many bytes of the disk. Raises OSError if there are not so many."""
    if not hasattr(os, "posix_fallocate"):
        return
    try:
        os.posix_fallocate(descriptor, 0, room)
    except OSError as error:
        # Some network file systems cannot tell in advance.
        if error.errno not in (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL):
            raise


class WriteProbe:
    """Notices when FLOW_HOME, which has been used so far, can no longer be written, and when it can again.

    A disk that fills up while tasks run does not end them, but nothing new about them is recorded until there is room.
    Who waits for one would not know why nothing happens.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        # Reentrant, since a signal handler may wait for a task, too.
        self._lock = threading.RLock()
        self._next = time.monotonic() + _PROBE_EVERY
        self._warning = ""

    def news(self) -> str:
        """What a user should know and has not been told. Writes to the disk every ten seconds at most."""
        with self._lock:
            if time.monotonic() < self._next:
                return ""
            warning = not_recorded(self._path)
            self._next = time.monotonic() + _PROBE_EVERY
            if warning == self._warning:
                return ""
            self._warning = warning
        return warning or f"{self._path} can be written again"


def not_recorded(path: Path) -> str:
    """A sentence which says why FLOW_HOME cannot be written now; "" if it can. Writes to the disk."""
    why = why_not_writable(path)
    return why and f"{path} cannot be written, so nothing new about tasks is recorded: {why}"


def why_not_writable(path: Path, room: int = _PROBE) -> str:
    """Why so many bytes cannot be written in FLOW_HOME now; "" if they can. Writes to the disk."""
    try:
        _probe(path, room)
    except FileNotFoundError:
        return ""  # Not a matter of room: it was removed, which the store tells.
    except OSError as error:
        return _no_room(path).get(error.errno or 0, str(error.strerror))
    return ""


def has_no_inodes(path: Path) -> bool:
    """Whether a file system has room for bytes but for no file more, which the system tells as one that is full."""
    try:
        found = os.statvfs(path)
    except OSError:
        return False
    # Some file systems have no table of inodes, and tell 0 of 0.
    return found.f_files > 0 and found.f_favail == 0 and found.f_bavail > 0


def _no_room(path: Path) -> dict[int, str]:
    return {**_NO_ROOM, errno.ENOSPC: _NO_INODES} if has_no_inodes(path) else _NO_ROOM


def explain_os_error(path: Path, error: OSError) -> str:
    """Why FLOW_HOME cannot be used, and what to do."""
    full = _no_room(path).items()
    fixes = {
        **{number: f"{fix}, or set FLOW_HOME to another disk" for number, fix in full},
        errno.EFBIG: "a file would exceed the limit for the size of files; raise it with `ulimit -f unlimited`",
        errno.EROFS: "it is on a read-only file system; set FLOW_HOME to a directory you can write",
        errno.ENOTDIR: "it, or a directory of its path, is a file; set FLOW_HOME to a directory",
        errno.EEXIST: "it is a file; set FLOW_HOME to a directory",
    }
    fix = fixes.get(
        error.errno or 0,
        f"{error.strerror}; make it writable for you, or set FLOW_HOME to another directory",
    )
    return f"FLOW_HOME {path} cannot be used: {fix}"
