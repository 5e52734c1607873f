"""What a connection takes and gives: files to write, and the results of commands."""

from __future__ import annotations

import errno
import functools
import hashlib
import os
import posixpath
import threading
from collections.abc import Callable, Iterator
from dataclasses import field
from pathlib import Path

from flowlite.node.quick_dataclass import dataclass

_BLOCK = 256 * 1024
# So many different files are read at the same time.
_LOCKS = 16


@dataclass(frozen=True, slots=True)
class Completed:
    """The result of a command on a node. `code` is negative for a signal, as in `subprocess`."""

    code: int
    stdout: bytes
    stderr: bytes

    @property
    def last_words(self) -> str:
        """The last line of its standard error; its exit status if it wrote none."""
        said = self.stderr.decode(errors="replace").strip().splitlines()
        return said[-1] if said else f"exit code {self.code}"


def hash_of(path: Path) -> str:
    """The SHA-256 of a local file, in hex. An unchanged file is read once. Raises OSError.

    The threads for all nodes begin with the same file at the same time. One reads it, and the others wait for that.
    """
    facts = os.stat(path)
    identity = (facts.st_dev, facts.st_ino, facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns)
    with _hashing[hash(identity) % len(_hashing)]:
        return _read_hash(path, *identity)


def refuse_changed(path: Path, sha256: str) -> None:
    """Raises OSError if a local file has not the content with this hash."""
    if hash_of(path) != sha256:
        what = "it was changed on this machine after the task was submitted (its SHA-256 differs)"
        raise OSError(errno.EIO, what, str(path))


@functools.lru_cache(maxsize=4096)
def _read_hash(path: Path, *_: int) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _make_locks() -> None:
    # After a fork, one of them may be held by a thread that the child does not have.
    global _hashing
    _hashing = tuple(threading.Lock() for _ in range(_LOCKS))


_hashing: tuple[threading.Lock, ...]
_make_locks()
os.register_at_fork(after_in_child=_make_locks)


@dataclass(frozen=True, slots=True)
class File:
    """A file to write to a node.

    Attributes:
        target: Its absolute path on the node.
        content: Its bytes, or the path of a local file.
        mode: Its permissions.
        sha256: Hash of the content, in hex. Content that is on the node already is not sent again.
        cache: Directory on the node that stores the content under its hash; `target` then links to it.
        moved: Called with the number of bytes of each block that is sent, by connections that send large files in
            blocks.
    """

    target: str
    content: bytes | Path
    mode: int = 0o600
    sha256: str | None = None
    cache: str | None = None
    moved: Callable[[int], None] | None = field(default=None, compare=False)

    def check(self) -> int:
        """The size of the content in bytes.

        Raises:
            ValueError: The file cannot be written.
            OSError: The local file cannot be read, or has not the content that its hash says.
        """
        target = self.target
        if not posixpath.isabs(target) or ".." in target.split("/") or target.endswith("/"):
            raise ValueError(f"{target!r} is not the absolute path of a file")
        if self.cache and not self.sha256:
            raise ValueError(f"{target!r}: a cache needs the content's hash")
        content = self.content
        if isinstance(content, bytes):
            return len(content)
        if self.sha256 is not None:
            refuse_changed(content, self.sha256)
        return content.stat().st_size

    def blocks(self, size: int) -> Iterator[bytes]:
        """The first `size` bytes of the content, in blocks. Raises OSError if it cannot be read, or is shorter."""
        if isinstance(self.content, bytes):
            yield self.content
            return
        left = size
        with open(self.content, "rb", buffering=0) as file:
            while left > 0:
                block = file.read(min(_BLOCK, left))
                if not block:
                    raise OSError(
                        errno.EIO, "it became shorter while it was sent", str(self.content)
                    )
                left -= len(block)
                yield block
                if self.moved is not None:
                    self.moved(len(block))
