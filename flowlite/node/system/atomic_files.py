"""Files put in their places on a node: whole or not at all, with the directories above them, 0700 each."""

from __future__ import annotations

import errno
import os

_BLOCK = 1 << 20
_LONGEST_NAME = 200


def write(descriptor: int, data: bytes | memoryview) -> None:
    """Writes all of it."""
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def place(content: bytes, target: str, mode: int) -> None:
    """Writes a file whole or not at all."""
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
    """Shows what lies in the cache under another name, too."""
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
        # Renaming one link onto another of the same file leaves both.
        remove(partial)
    except BaseException:
        remove(partial)
        raise
    # Its age counts from its last use.
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
    """Opens a new file, 0600."""
    return os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)


def beside(target: str) -> str:
    """A name for what is not whole yet, in a directory that is there after this."""
    directory, _, name = target.rpartition("/")
    make(directory or "/")
    return f"{directory}/.{name[:_LONGEST_NAME]}.{os.urandom(4).hex()}.part"


def make(directory: str) -> None:
    """Makes a directory and those above it, 0700 each."""
    if not os.path.isdir(directory):
        make(os.path.dirname(directory))
        try:
            os.mkdir(directory, 0o700)
        except FileExistsError:
            if not os.path.isdir(directory):
                text = os.strerror(errno.ENOTDIR)
                raise NotADirectoryError(errno.ENOTDIR, text, directory) from None


def remove(partial: str) -> None:
    """Removes a file that may not be there."""
    try:
        os.unlink(partial)
    except OSError:
        return
