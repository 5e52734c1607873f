"""Which bytes of which stream go next, and which have arrived: flow control without I/O.

The file on the node is the truth. A stream ("<rank>.<stream>") is addressed by byte offset; the supervisor says how
much it keeps (`pull`), the node sends from exactly there, at most a window ahead of what was acknowledged. Every pull
starts a new generation, so chunks that were under way for an older one are recognised and dropped.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from ..config.ranks import node_of
from ..protocol.messages import STREAMS, GangSettings, Message, MessageError

BLOCK = 256 * 1024
"""Most bytes in one chunk."""


def stream_name(rank: int, stream: str) -> str:
    """The name of a stream."""
    return f"{rank}.{stream}"


def parse_stream(name: str) -> tuple[int, str]:
    """(rank, stream) of a name. Raises `MessageError`."""
    rank, _, stream = name.partition(".")
    if stream not in STREAMS or not rank.isascii() or not rank.isdigit():
        raise MessageError(f"{name[:40]!r} is not a stream; streams are named like '3.out'")
    return int(rank), stream


def checked_offsets(offsets: Mapping[str, Any]) -> dict[str, int]:
    """Offsets by stream as a message brought them. Raises `MessageError` unless all are sizes of streams."""
    for name, offset in offsets.items():
        parse_stream(name)
        if not isinstance(offset, int) or isinstance(offset, bool) or offset < 0:
            raise MessageError(f"the offset of {name} is not a number of bytes")
    return dict(offsets)


class StreamSender:
    """A node's half: where each of its streams stands."""

    def __init__(self) -> None:
        self.generation = 0
        self._window = 0
        self._streams: frozenset[str] = frozenset()
        self._next: dict[str, int] = {}
        self._acknowledged: dict[str, int] = {}
        self._under_way = 0

    def pull(self, message: Mapping[str, Any]) -> None:
        """Send from these offsets on. What was under way is forgotten: it arrived, or it will be asked for again."""
        self.generation = int(message.get("gen", 0))
        self._window = int(message.get("window", 0))
        self._streams = frozenset(message.get("streams", STREAMS))
        self._next = checked_offsets(message["offsets"])
        self._acknowledged = dict(self._next)
        self._under_way = 0

    def pause(self) -> None:
        """Nobody asks for anything now (the connection is gone)."""
        self._streams = frozenset()

    def acknowledge(self, offsets: Mapping[str, Any]) -> None:
        """The supervisor keeps this much. Late and repeated acknowledgements change nothing."""
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
        """Where the stream goes on, or None if nobody asked for it."""
        if name.partition(".")[2] not in self._streams:
            return None
        return self._next.get(name, 0)

    def sent(self, name: str, size: int) -> None:
        """So many bytes more of the stream are under way."""
        self._next[name] = self._next.get(name, 0) + size
        self._under_way += size


class StreamRelay:
    """The leader's half: passes on to the supervisor exactly what continues each stream."""

    def __init__(self, settings: GangSettings) -> None:
        self._settings = settings
        self._generation = 0
        self._streams: tuple[str, ...] = ()
        self._next: dict[str, int] = {}
        self.active = False

    def pull(self, offsets: Mapping[str, Any], streams: Iterable[Any] = STREAMS) -> None:
        """The supervisor keeps this much, and wants what follows."""
        wanted = checked_offsets(offsets)
        for name in wanted:
            self._own(parse_stream(name)[0])
        self._streams = tuple(stream for stream in STREAMS if stream in tuple(streams))
        self._next = wanted
        self._generation += 1
        self.active = True

    def detach(self) -> None:
        """The supervisor is gone; what comes now goes nowhere, and will be asked for again."""
        self.active = False

    def order(self, node: int) -> dict[str, Any]:
        """The fields of the `pull` that makes one node go on from where its streams stand here."""
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
        """Whether a chunk continues its stream, and so is to be passed on. Duplicates and strays are not."""
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
        """What the supervisor keeps, by the node that should know."""
        by_node: defaultdict[int, dict[str, int]] = defaultdict(dict)
        for name, offset in checked_offsets(offsets).items():
            by_node[self._own(parse_stream(name)[0])][name] = offset
        return dict(by_node)

    def _own(self, rank: int) -> int:
        """The node of a rank. Raises `MessageError` if the gang has no such rank."""
        if not 0 <= rank < self._settings.world_size:
            raise MessageError(f"rank {rank} is not in a gang of {self._settings.world_size}")
        return node_of(rank, self._settings.processes_per_node)
