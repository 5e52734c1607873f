"""Writes files atomically, creates the directories above them with mode 0700, and reads files and directories."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import stat

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from io import FileIO
    from typing import Any

NOT_REGULAR = "it is not a regular file"
MOST_SMALL = 16 << 20
"""Bytes of a small file at most."""
_BLOCK = 1 << 20
_LONGEST_NAME = 200


def write(descriptor: int, data: bytes | memoryview) -> None:
    """Writes all of the data."""
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def write_atomically(path: str | os.PathLike[str], content: str | bytes, mode: int = 0o600) -> None:
    """Writes a file whose directory exists, so that a reader never sees a part of it."""
    with new(path, mode) as descriptor:
        write(descriptor, content.encode() if isinstance(content, str) else content)


def place(content: bytes, target: str, mode: int = 0o600) -> None:
    """As `write_atomically`, and creates the directories."""
    make(os.path.dirname(target) or "/")
    write_atomically(target, content, mode)


@contextlib.contextmanager
def new(path: str | os.PathLike[str], mode: int = 0o600) -> Iterator[int]:
    """Yields the descriptor of a file that gets its name once it is complete, and is removed otherwise."""
    partial = _partial_of(os.fspath(path))
    try:
        descriptor = begin(partial)
        try:
            yield descriptor
            if mode != 0o600:
                os.fchmod(descriptor, mode)
        finally:
            os.close(descriptor)
        os.replace(partial, path)
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
    make(os.path.dirname(target) or "/")
    return _partial_of(target)


def _partial_of(target: str) -> str:
    directory, name = os.path.split(target)
    # File systems limit the bytes of a name, and a character may have four.
    short = os.fsencode(name)[:_LONGEST_NAME].decode("utf-8", "ignore")
    return os.path.join(directory, f".{short}.{os.urandom(4).hex()}.part")


def open_regular(path: str | os.PathLike[str], flags: int = 0) -> FileIO:
    """Opens a file for reading. A pipe or a device in its place is refused: reading it might never end.

    Args:
        flags: More flags of `os.open`.

    Raises:
        OSError: The file does not exist, cannot be read, or is not a regular file.
    """
    # Opening a pipe must not wait for its writer.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | flags)
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return open(descriptor, "rb", buffering=0)
    os.close(descriptor)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(path))
    raise OSError(errno.EINVAL, NOT_REGULAR, os.fspath(path))


def read_small(path: str | os.PathLike[str], most: int = MOST_SMALL) -> bytes:
    """Returns the contents of a small file in a directory that the task's own programs can change.

    Raises:
        OSError: The file does not exist, is a link, is not a regular file, or is longer than `most`.
    """
    content = b""
    with open_regular(path, os.O_NOFOLLOW) as file:
        # One read may return less than there is, as before a block that cannot be read.
        while block := file.read(most + 1 - len(content)):
            content += block
    if len(content) > most:
        raise OSError(errno.EFBIG, f"it is longer than {most:,} bytes", os.fspath(path))
    return content


def read_small_json(path: str | os.PathLike[str]) -> Any:
    """Parses a file read with `read_small`. Raises OSError as it does, and ValueError if it is not a document."""
    try:
        return json.loads(read_small(path))
    except RecursionError:
        raise ValueError("a document that is nested too deeply") from None


def text_of(path: str, most: int = -1) -> str:
    """Returns the text of a file, or its first characters; "" if it cannot be read."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(most)
    except OSError:
        return ""


def content_of(path: str) -> bytes:
    """Reads a file without `open`, which takes longer than the rest where there are many: processes, packages."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        parts = []
        while part := os.read(descriptor, 1 << 16):
            parts.append(part)
        return b"".join(parts)
    finally:
        os.close(descriptor)


def names_in(directory: str | os.PathLike[str]) -> list[str]:
    """Returns the names of what is in a directory; none if it cannot be read."""
    try:
        return os.listdir(directory)
    except OSError:
        return []


def make(directory: str) -> None:
    """Creates a directory and its parents, with mode 0700 each."""
    if not os.path.isdir(directory):
        make(os.path.dirname(directory) or ".")
        try:
            os.mkdir(directory, 0o700)
        except FileExistsError:
            if not os.path.isdir(directory):
                text = os.strerror(errno.ENOTDIR)
                raise NotADirectoryError(errno.ENOTDIR, text, directory) from None


def name_directory(partial: str, target: str) -> None:
    """Gives a directory that is complete its name, unless another process has made it meanwhile."""
    try:
        os.rename(partial, target)
    except OSError:
        if not os.path.isdir(target):
            raise


def remove(partial: str) -> None:
    """Removes a file, if it exists."""
    try:
        os.unlink(partial)
    except OSError:
        return
