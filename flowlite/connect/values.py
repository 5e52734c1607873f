"""What a connection takes and gives: files to write, and the results of commands."""

from __future__ import annotations

import posixpath
from dataclasses import dataclass
from pathlib import Path


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
    """

    target: str
    content: bytes | Path
    mode: int = 0o600
    sha256: str | None = None
    cache: str | None = None

    def check(self) -> int:
        """The size of the content in bytes. Raises ValueError if the file cannot be written."""
        target = self.target
        if not posixpath.isabs(target) or ".." in target.split("/") or target.endswith("/"):
            raise ValueError(f"{target!r} is not the absolute path of a file")
        if self.cache and not self.sha256:
            raise ValueError(f"{target!r}: a cache needs the content's hash")
        content = self.content
        return len(content) if isinstance(content, bytes) else content.stat().st_size
