"""A command with its standard input and output open to us, over any connection."""

from __future__ import annotations

from abc import ABC, abstractmethod

_MOST_SAID = 4000


class Pipe(ABC):
    """A running command. One thread at a time calls `send`, and one other thread `receive` and `close`.

    Attributes:
        said: The last bytes that it wrote to its standard error.
    """

    said: bytes = b""

    @abstractmethod
    def send(self, data: bytes) -> None:
        """Sends all of `data`, waiting as long as that takes. Raises OSError if the command no longer reads."""

    @abstractmethod
    def ready(self) -> bool:
        """Whether a few bytes could be sent without waiting."""

    @abstractmethod
    def receive(self, seconds: float) -> bytes | None:
        """Returns the next output, None after `seconds` without any, and b"" at its end. Raises NodeUnreachable."""

    @abstractmethod
    def close(self) -> int | None:
        """Ends the command. Returns its exit status, None if unknown. May be called twice."""

    def abandon(self) -> None:  # noqa: B027 - what goes through something else closes nothing
        """Called in a forked process: closes our end and does not touch the command."""

    def _hear(self, block: bytes) -> None:
        self.said = (self.said + block)[-_MOST_SAID:]
