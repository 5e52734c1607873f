"""Flow control without I/O: which bytes of which stream are sent next, and which have arrived.

A stream ("<rank>.<stream>") is addressed by byte offset. The supervisor sends a `pull` with the number of bytes it has
written, and the node sends from exactly there, at most one window ahead of what was acknowledged. Each pull starts a
new generation, so chunks in transit for an older one are recognised and dropped.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from ..config.ranks import node_of
from ..protocol.messages import STREAMS, GangSettings, Message, MessageError

BLOCK = 256 * 1024
"""The most bytes in one chunk."""


def stream_name(rank: int, stream: str) -> str:
    """Returns the name of a stream, "<rank>.<stream>"."""
    return f"{rank}.{stream}"


def parse_stream(name: str) -> tuple[int, str]:
    """Returns (rank, stream) of a name. Raises `MessageError`."""
    rank, _, stream = name.partition(".")
    if stream not in STREAMS or not rank.isascii() or not rank.isdigit():
        raise MessageError(f"{name[:40]!r} is not a stream; streams are named like '3.out'")
    return int(rank), stream


def checked_offsets(offsets: Mapping[str, Any]) -> dict[str, int]:
    """Returns the offsets of a message, by stream. Raises `MessageError` unless all are sizes of streams."""
    for name, offset in offsets.items():
        parse_stream(name)
        if not isinstance(offset, int) or isinstance(offset, bool) or offset < 0:
            raise MessageError(f"the offset of {name} is not a number of bytes")
    return dict(offsets)


class StreamSender:
    """The node's half: the next and the acknowledged offset of each of its streams."""

    def __init__(self) -> None:
        self.generation = 0
        self._window = 0
        self._streams: frozenset[str] = frozenset()
        self._next: dict[str, int] = {}
        self._acknowledged: dict[str, int] = {}
        self._under_way = 0

    def pull(self, message: Mapping[str, Any]) -> None:
        """Continue from these offsets. Chunks in transit no longer count: they arrived, or are pulled again."""
        self.generation = int(message.get("gen", 0))
        self._window = int(message.get("window", 0))
        self._streams = frozenset(message.get("streams", STREAMS))
        self._next = checked_offsets(message["offsets"])
        self._acknowledged = dict(self._next)
        self._under_way = 0

    def pause(self) -> None:
        """Send nothing until the next pull, because the connection was closed."""
        self._streams = frozenset()

    def acknowledge(self, offsets: Mapping[str, Any]) -> None:
        """Record what the supervisor has written. Late and repeated acknowledgements change nothing."""
        for name, offset in checked_offsets(offsets).items():
            sent = self._next.get(name, 0)
            gained = min(offset, sent) - self._acknowledged.get(name, 0)
            if gained > 0:
                self._acknowledged[name] = min(offset, sent)
                self._under_way -= gained

    @property
    def room(self) -> int:
        """How many bytes may be sent now, over all streams."""
        return max(0, self._window - self._under_way) if self._streams else 0

    def offset(self, name: str) -> int | None:
        """The offset of the next byte to send, or None if the stream is not pulled."""
        if name.partition(".")[2] not in self._streams:
            return None
        return self._next.get(name, 0)

    def sent(self, name: str, size: int) -> None:
        """Record that this many more bytes of the stream were sent."""
        self._next[name] = self._next.get(name, 0) + size
        self._under_way += size


class StreamRelay:
    """The leader's half: forwards to the supervisor exactly the chunks that continue each stream.

    Attributes:
        active: Whether an attached supervisor pulls streams.
    """

    def __init__(self, settings: GangSettings) -> None:
        self._settings = settings
        self._generation = 0
        self._streams: tuple[str, ...] = ()
        self._next: dict[str, int] = {}
        self.active = False

    def pull(self, offsets: Mapping[str, Any], streams: Iterable[Any] = STREAMS) -> None:
        """Continue from what the supervisor has written. Starts a new generation."""
        wanted = checked_offsets(offsets)
        for name in wanted:
            self._own(parse_stream(name)[0])
        self._streams = tuple(stream for stream in STREAMS if stream in tuple(streams))
        self._next = wanted
        self._generation += 1
        self.active = True

    def detach(self) -> None:
        """Drop chunks until the next pull, because the supervisor has detached."""
        self.active = False

    def order(self, node: int) -> dict[str, Any]:
        """Returns the fields of the `pull` by which a node continues from the current offsets."""
        per_node = self._settings.processes_per_node
        offsets = {}
        for rank in range(node * per_node, (node + 1) * per_node):
            for stream in self._streams:
                if at := self._next.get(stream_name(rank, stream)):
                    offsets[stream_name(rank, stream)] = at
        return {
            "gen": self._generation,
            "offsets": offsets,
            "window": self._settings.window,
            "streams": list(self._streams),
        }

    def passes(self, node: int, chunk: Message, size: int) -> bool:
        """Whether a chunk continues its stream and is forwarded; duplicates and chunks of older pulls are not.

        Raises:
            MessageError: The chunk is of a rank that is not on this node.
        """
        rank, stream = chunk["rank"], chunk["stream"]
        if self._own(rank) != node or stream not in STREAMS:
            raise MessageError(f"node {node} sends a chunk of rank {rank}, which is not on it")
        name = stream_name(rank, stream)
        if (
            not self.active
            or chunk["gen"] != self._generation
            or stream not in self._streams
            or chunk["offset"] != self._next.get(name, 0)
        ):
            return False
        self._next[name] = chunk["offset"] + size
        return True

    def acknowledge(self, offsets: Mapping[str, Any]) -> dict[int, dict[str, int]]:
        """Returns the acknowledged offsets by node, to be sent to each of them."""
        by_node: defaultdict[int, dict[str, int]] = defaultdict(dict)
        for name, offset in checked_offsets(offsets).items():
            by_node[self._own(parse_stream(name)[0])][name] = offset
        return dict(by_node)

    def _own(self, rank: int) -> int:
        """Returns the node of a rank. Raises `MessageError` if the gang has no such rank."""
        if not 0 <= rank < self._settings.world_size:
            raise MessageError(f"rank {rank} is not in a gang of {self._settings.world_size}")
        return node_of(rank, self._settings.processes_per_node)
