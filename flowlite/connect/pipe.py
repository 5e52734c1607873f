"""A command of which both ends are ours: bytes to its input, bytes from its output, through any connection."""

from __future__ import annotations

from abc import ABC, abstractmethod

_MOST_SAID = 4000


class Pipe(ABC):
    """A command that runs. `send` is called by one thread at a time, `receive` and `close` by one other.

    Attributes:
        said: The end of what it wrote to its standard error.
    """

    said: bytes = b""

    @abstractmethod
    def send(self, data: bytes) -> None:
        """Sends all of it, waiting as long as that takes. Raises OSError once it does not listen any more."""

    @abstractmethod
    def ready(self) -> bool:
        """Whether a few bytes could be sent without waiting."""

    @abstractmethod
    def receive(self, seconds: float) -> bytes | None:
        """What it says next; None if nothing comes for so long, b"" at its end. Raises NodeUnreachable."""

    @abstractmethod
    def close(self) -> int | None:
        """Ends it. Gives its exit status, None if that is not known. May be called twice."""

    def abandon(self) -> None:  # noqa: B027 - what goes through something else closes nothing
        """In a forked process: closes our end, and leaves the command alone."""

    def _hear(self, block: bytes) -> None:
        self.said = (self.said + block)[-_MOST_SAID:]
