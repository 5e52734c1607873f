"""Reaching one node: the contract that local and remote connections fulfil.

Paths are absolute paths on the node. Every method may raise `NodeUnreachable`; repeating any of them is safe, except
`run` and `start`, which run the command again.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    import asyncio


@dataclass(frozen=True, slots=True)
class Completed:
    """How a command on a node ended. `code` is negative for a signal, as in `subprocess`."""

    code: int
    stdout: bytes
    stderr: bytes


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
        """Runs a command to its end. Raises TimeoutError after `timeout` seconds; the command is then killed."""

    @abstractmethod
    def start(self, argv: Sequence[str], *, log: str, environment: Mapping[str, str]) -> int:
        """Starts a command that outlives the connection, in a session of its own, output appended to `log`.

        Returns its process id on the node.
        """

    @abstractmethod
    def put(self, source: bytes | Path, target: str, *, mode: int = 0o600) -> None:
        """Writes a file whole or not at all (temporary name, then rename), making its directories (0700)."""

    @abstractmethod
    def put_cached(self, source: Path, target: str, sha256: str, *, mode: int = 0o600) -> None:
        """As `put`, but skipped where `target` already has that content."""

    @abstractmethod
    def get(self, source: str, target: Path) -> None:
        """Fetches a file whole or not at all. Raises FileNotFoundError."""

    @abstractmethod
    def read(self, path: str, offset: int = 0) -> Iterator[bytes]:
        """The bytes of a file from `offset` to its present end, in blocks. Raises FileNotFoundError."""

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
