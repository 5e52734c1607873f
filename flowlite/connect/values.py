"""What a connection takes and gives: files to write, and the results of commands."""

from __future__ import annotations

import errno
import posixpath
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

_BLOCK = 256 * 1024


@dataclass(frozen=True, slots=True)
class Completed:
    """The result of a command on a node. `code` is negative for a signal, as in `subprocess`."""

    code: int
    stdout: bytes
    stderr: bytes


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
        """The size of the content in bytes. Raises ValueError if the file cannot be written."""
        target = self.target
        if not posixpath.isabs(target) or ".." in target.split("/") or target.endswith("/"):
            raise ValueError(f"{target!r} is not the absolute path of a file")
        if self.cache and not self.sha256:
            raise ValueError(f"{target!r}: a cache needs the content's hash")
        content = self.content
        return len(content) if isinstance(content, bytes) else content.stat().st_size

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
