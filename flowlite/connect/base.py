"""The contract of a connection to one node, local or remote.

Paths are absolute paths on the node. Every method may raise `NodeUnreachable`. Every method may be repeated safely,
except `run` and `start`, which run the command again.
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from flowlite.connect import fetching
from flowlite.connect.bounded import MOST_OUTPUT, Output
from flowlite.connect.values import Completed, File

if TYPE_CHECKING:
    import asyncio

    from flowlite.connect.pipe import Pipe


class NotStarted(Exception):
    """The courier could not be started on the node. `code` is the exit status of the command."""

    def __init__(self, code: int, said: str) -> None:
        super().__init__(said)
        self.code = code


class Connection(ABC):
    """A connection to one node. Use it as a context manager, or call `close`."""

    @abstractmethod
    def run(
        self,
        argv: Sequence[str],
        *,
        input: bytes | None = None,
        timeout: float | None = None,
        most: int = MOST_OUTPUT,
    ) -> Completed:
        """Runs a command to its end and returns its output.

        Raises:
            TimeoutError: The command did not end within `timeout` seconds and was killed.
            AnswerTooLong: The output is longer than `most` bytes; the command was killed. `follow` takes any amount.
        """

    def run_program(self, argv: Sequence[str], *, input: bytes, timeout: float) -> Completed:
        """Runs a subcommand of the node's program that reads a question and prints an answer.

        The same as `run` for connections without a process on the node that spares the start of a Python.
        """
        return self.run(argv, input=input, timeout=timeout)

    def ask(
        self, request: Mapping[str, Any], *, timeout: float, start: Sequence[str] | None = None
    ) -> dict[str, Any] | None:
        """Returns the answer of the courier on the node; None if there is none, or it cannot handle the request.

        Args:
            request: As defined by `flowlite.node.helper.courier`.
            start: The command that starts the courier.

        Raises:
            NotStarted: The courier could not be started.
            TimeoutError: The courier does not answer.
        """
        return None

    def run_afresh(self, argv: Sequence[str], *, timeout: float) -> Completed:
        """Like `run`, over a new connection, since a shared one may be stuck after an outage.

        The same as `run` for connections that keep nothing between calls, or that cannot be made anew.
        """
        return self.run(argv, timeout=timeout)

    @abstractmethod
    def start(self, argv: Sequence[str], *, log: str, environment: Mapping[str, str]) -> int:
        """Starts a command that outlives the connection, in a session of its own; its output is appended to `log`.

        Returns its process id on the node.
        """

    @abstractmethod
    def put_many(self, files: Sequence[File]) -> None:
        """Writes files in order, in one request if the connection can.

        Each is written atomically (temporary name, then rename), after its directories (0700).
        """

    def put(self, source: bytes | Path, target: str, *, mode: int = 0o600) -> None:
        """Writes one file, as `put_many`."""
        self.put_many([File(target, source, mode)])

    def put_cached(
        self,
        source: Path,
        target: str,
        sha256: str,
        *,
        mode: int = 0o600,
        cache: str | None = None,
    ) -> None:
        """Like `put`, but does nothing if `target` already has that content.

        With `cache`, a directory on the node, the content is stored there under its hash and `target` links to it, so
        that the next task does not send it again.
        """
        self.put_many([File(target, source, mode, sha256, cache)])

    def pipe(self, argv: Sequence[str], seconds: float) -> Pipe:
        """Starts a command whose standard input stays open.

        Raises:
            NodeUnreachable: The node cannot be reached.
            OSError: The command cannot be started, or not in time.
        """
        raise TypeError(f"{type(self).__name__} cannot carry a command whose input stays open")

    def ssh_entry(self, alias: str, known_hosts: Path) -> tuple[str, str] | None:
        """The OpenSSH configuration that reaches the node: `Host` entries under an alias, and lines for `known_hosts`.

        None for a node that does not allow logins.
        """
        return None

    def follow(self, argv: Sequence[str], take: Callable[[str, bytes], None]) -> int:
        """Runs a command and passes on its output as it arrives: `take("out" or "err", bytes)`.

        Returns its exit status, negative for a signal.
        """
        done = self.run(argv)
        take("out", done.stdout)
        take("err", done.stderr)
        return done.code

    def get(self, source: str, target: Path, *, size: int | None = None) -> None:
        """Fetches a file; `target` appears only when it is complete.

        Args:
            size: Size in bytes of a file that no longer changes. The fetch then resumes where an earlier one broke off,
                and does not begin if the local disk has too little room.

        Raises:
            FileNotFoundError: The file does not exist.
            OSError: It cannot be read on the node, or not be written here.
        """
        fetching.fetch(functools.partial(self.read, source), target, size)

    @abstractmethod
    def read(self, path: str, offset: int = 0) -> Iterator[bytes]:
        """Yields the bytes of a file from `offset` to its present end, in blocks. Raises FileNotFoundError."""

    def read_all(self, path: str, most: int = MOST_OUTPUT) -> bytes:
        """The content of a small file. Raises FileNotFoundError, and AnswerTooLong if it has more than `most` bytes."""
        output = Output(f"{path} there", most)
        for block in self.read(path):
            output.add("out", block)
        return output.take("out")

    def read_at_once(self, path: str) -> bytes | None:
        """The content of a small file if that takes no command on the node, else None. Raises FileNotFoundError."""
        return None

    @abstractmethod
    def stream(self, argv: Sequence[str], *, terminal: bool) -> int:
        """Runs a command on our own stdin, stdout and stderr, on a terminal if `terminal`. Returns its exit status."""

    @abstractmethod
    async def open_tcp(
        self, address: str, port: int
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Opens a TCP stream from the node to an address and port, as the node resolves them."""

    def received(self) -> int:
        """How many bytes of data have come from the node so far, where they come over one connection that is kept."""
        return 0

    def close(self) -> None:  # noqa: B027 - connections without state have nothing to close
        """Releases the connection. Safe to call twice."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
