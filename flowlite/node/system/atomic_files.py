"""Writes files atomically on a node, and creates the directories above them with mode 0700."""

from __future__ import annotations

import errno
import os

_BLOCK = 1 << 20
_LONGEST_NAME = 200


def write(descriptor: int, data: bytes | memoryview) -> None:
    """Writes all of the data."""
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def place(content: bytes, target: str, mode: int) -> None:
    """Writes a file atomically."""
    partial = beside(target)
    try:
        descriptor = begin(partial)
        try:
            write(descriptor, content)
            if mode != 0o600:
                os.fchmod(descriptor, mode)
        finally:
            os.close(descriptor)
        os.replace(partial, target)
    except BaseException:
        remove(partial)
        raise


def link(there: str, target: str, mode: int) -> None:
    """Makes a file of the cache available under another path, as a hard link or a copy."""
    try:
        if os.path.samefile(there, target):
            return
    except OSError:
        pass
    partial = beside(target)
    try:
        if bool(os.stat(there).st_mode & 0o100) == bool(mode & 0o100):
            try:
                os.link(there, partial)
            except OSError:
                _copy(there, partial, mode)
        else:
            _copy(there, partial, mode)
        os.replace(partial, target)
        # rename() does nothing if both names are links to the same file.
        remove(partial)
    except BaseException:
        remove(partial)
        raise
    # The age of a cached file counts from its last use.
    os.utime(there)


def _copy(source: str, target: str, mode: int) -> None:
    with open(source, "rb", buffering=0) as file:
        descriptor = begin(target)
        try:
            while block := file.read(_BLOCK):
                write(descriptor, block)
            os.fchmod(descriptor, mode)
        finally:
            os.close(descriptor)


def begin(partial: str) -> int:
    """Creates a file with mode 0600, and returns its descriptor."""
    return os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)


def beside(target: str) -> str:
    """Returns a temporary name beside the target, and creates the directory."""
    directory, _, name = target.rpartition("/")
    make(directory or "/")
    return f"{directory}/.{name[:_LONGEST_NAME]}.{os.urandom(4).hex()}.part"


def make(directory: str) -> None:
    """Creates a directory and its parents, with mode 0700 each."""
    if not os.path.isdir(directory):
        make(os.path.dirname(directory))
        try:
            os.mkdir(directory, 0o700)
        except FileExistsError:
            if not os.path.isdir(directory):
                text = os.strerror(errno.ENOTDIR)
                raise NotADirectoryError(errno.ENOTDIR, text, directory) from None


def remove(partial: str) -> None:
    """Removes a file, if it exists."""
    try:
        os.unlink(partial)
    except OSError:
        return
