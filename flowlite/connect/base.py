"""Reaching one node: the contract that local and remote connections fulfil.

Paths are absolute paths on the node. Every method may raise `NodeUnreachable`; repeating any of them is safe, except
`run` and `start`, which run the command again.
"""

from __future__ import annotations

import functools
import posixpath
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self

from flowlite.connect import fetching
from flowlite.connect.bounded import MOST_OUTPUT, Output

if TYPE_CHECKING:
    import asyncio

    from flowlite.connect.pipe import Pipe


@dataclass(frozen=True, slots=True)
class Completed:
    """How a command on a node ended. `code` is negative for a signal, as in `subprocess`."""

    code: int
    stdout: bytes
    stderr: bytes


@dataclass(frozen=True, slots=True)
class File:
    """A file to put on a node.

    Attributes:
        target: Its absolute path there.
        content: Its bytes, or a file here.
        mode: Its permissions.
        sha256: Hash of the content, in hex; where it is there already, it is not sent again.
        cache: Directory on the node in which the content lies under its hash; `target` is then a link to it.
    """

    target: str
    content: bytes | Path
    mode: int = 0o600
    sha256: str | None = None
    cache: str | None = None

    def check(self) -> int:
        """The size of its content. Raises ValueError: it cannot be put."""
        target = self.target
        if not posixpath.isabs(target) or ".." in target.split("/") or target.endswith("/"):
            raise ValueError(f"{target!r} is not the absolute path of a file")
        if self.cache and not self.sha256:
            raise ValueError(f"{target!r}: a cache needs the content's hash")
        content = self.content
        return len(content) if isinstance(content, bytes) else content.stat().st_size


class Connection(ABC):
    """One node within reach. Use as a context manager, or call `close`."""

    @abstractmethod
    def run(
        self,
        argv: Sequence[str],
        *,
        input: bytes | None = None,
        timeout: float | None = None,
    ) -> Completed:
        """Runs a command to its end, and keeps what it says.

        Raises:
            TimeoutError: It did not end within `timeout` seconds; it was killed.
            AnswerTooLong: It says more than can be kept; it was killed. `follow` takes any amount.
        """

    def run_afresh(self, argv: Sequence[str], *, timeout: float) -> Completed:
        """As `run`, over a connection made for it alone: one that others use may be stuck after an outage.

        Where nothing is kept between two calls, or nothing can be made anew, it is `run`.
        """
        return self.run(argv, timeout=timeout)

    @abstractmethod
    def start(self, argv: Sequence[str], *, log: str, environment: Mapping[str, str]) -> int:
        """Starts a command that outlives the connection, in a session of its own, output appended to `log`.

        Returns its process id on the node.
        """

    @abstractmethod
    def put(self, source: bytes | Path, target: str, *, mode: int = 0o600) -> None:
        """Writes a file whole or not at all (temporary name, then rename), making its directories (0700)."""

    @abstractmethod
    def put_cached(
        self,
        source: Path,
        target: str,
        sha256: str,
        *,
        mode: int = 0o600,
        cache: str | None = None,
    ) -> None:
        """As `put`, but skipped where `target` already has that content.

        With `cache`, a directory on the node, the content lies there under its hash and `target` is linked to it, so
        that what one task has brought, another need not.
        """

    def put_many(self, files: Sequence[File]) -> None:
        """Puts several files, in their order and in one go where the connection can; each whole or not at all."""
        for file in files:
            if file.sha256 is not None and isinstance(file.content, Path):
                self.put_cached(
                    file.content, file.target, file.sha256, mode=file.mode, cache=file.cache
                )
            else:
                self.put(file.content, file.target, mode=file.mode)

    def pipe(self, argv: Sequence[str], seconds: float) -> Pipe:
        """Starts a command whose input stays open.

        Raises:
            NodeUnreachable: The connection does not get there.
            OSError: It cannot be started here, or not in time.
        """
        raise TypeError(f"{type(self).__name__} cannot carry a command whose input stays open")

    def ssh_entry(self, alias: str, known_hosts: Path) -> tuple[str, str] | None:
        """How OpenSSH reaches the node: `Host` entries under an alias, and the lines that belong into `known_hosts`.

        None for a node to which nobody can log in.
        """
        return None

    def follow(self, argv: Sequence[str], take: Callable[[str, bytes], None]) -> int:
        """Runs a command, handing over its output as it comes: `take("out" or "err", bytes)`.

        Returns its exit status, negative for a signal.
        """
        done = self.run(argv)
        take("out", done.stdout)
        take("err", done.stderr)
        return done.code

    def get(self, source: str, target: Path, *, size: int | None = None) -> None:
        """Fetches a file whole or not at all.

        Args:
            size: Its bytes, for a file that does not change any more: what an earlier call brought of it before it
                broke off is not fetched again, and it is not begun where the disk here has too little room.

        Raises:
            FileNotFoundError: It is not there.
            OSError: It cannot be read there, or not be written here.
        """
        fetching.fetch(functools.partial(self.read, source), target, size)

    @abstractmethod
    def read(self, path: str, offset: int = 0) -> Iterator[bytes]:
        """The bytes of a file from `offset` to its present end, in blocks. Raises FileNotFoundError."""

    def read_all(self, path: str, most: int = MOST_OUTPUT) -> bytes:
        """A file that is small, or a mistake. Raises FileNotFoundError, AnswerTooLong."""
        output = Output(f"{path} there", most)
        for block in self.read(path):
            output.add("out", block)
        return output.take("out")

    @abstractmethod
    def stream(self, argv: Sequence[str], *, terminal: bool) -> int:
        """Runs a command on our own stdin, stdout and stderr, on a terminal if asked. Returns its exit status."""

    @abstractmethod
    async def open_tcp(
        self, address: str, port: int
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A TCP stream from the node to an address and port as seen from there."""

    def close(self) -> None:  # noqa: B027 - connections without state have nothing to close
        """Gives the connection back. Safe to call twice."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
