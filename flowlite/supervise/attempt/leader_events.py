"""Checks and bounds what a leader says of its gang before it is used or stored.

A leader is a process of the user on a machine that may belong to anybody. The size of its frames is bounded by
`node/protocol/framing.py`, what is made of one frame is bounded here, and the number of events is bounded where they
are stored (`process/journal.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from flowlite.node.config.ranks import node_of
from flowlite.node.protocol.message_check import check_event
from flowlite.node.protocol.messages import MessageError, shorten

# Limits of one event: characters of all its texts, and values of any kind.
_MOST_CHARACTERS = 64 * 1024
_MOST_VALUES = 2_000


class LeaderEventFilter:
    """The filter for events and chunks from the leader of one attempt."""

    def __init__(self, instances: Sequence[str], workers: int) -> None:
        """
        Args:
            instances: Ids of the nodes' instances, by rank.
            workers: Number of workers in the gang.
        """
        self._instances = tuple(instances)
        self._nodes = len(self._instances)
        self._workers = workers

    def event(self, event: Mapping[str, Any]) -> dict[str, Any] | None:
        """Returns an event cut to the limits, or None if it is not about this gang.

        Raises:
            MessageError: The event is no valid event any more after it was cut.
        """
        if not self._is_ours(event):
            return None
        found = trimmed(event)
        if found != event:
            # What it was before was checked on arrival.
            check_event(found)
        return found

    def _is_ours(self, event: Mapping[str, Any]) -> bool:
        """Whether the event is about a rank or node of this gang. Its form was checked on arrival."""
        if event["kind"] in ("worker", "first_failure"):
            return self.is_on(event["rank"], event["node"])
        if "instance" in event:
            rank = int(event.get("rank", 0))
            return rank < self._nodes and self._instances[rank] == event["instance"]
        return True

    def is_on(self, rank: int, node: int) -> bool:
        """Whether the gang has a worker with that rank on that node."""
        return 0 <= rank < self._workers and node == node_of(rank, self._workers // self._nodes)

    def check_chunk(self, rank: int, node: int) -> None:
        """Makes sure that a chunk of a stream comes from a worker of this gang. Raises MessageError."""
        if not self.is_on(rank, node):
            raise MessageError(f"chunk of rank {rank} on node {node}, which is not in the gang")


def trimmed(value: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a copy of a JSON object with long texts shortened and excess values left out."""
    # Short values come first, so that a long list cannot displace a rank or a name.
    short_first = sorted(value.items(), key=lambda field: isinstance(field[1], Mapping | list))
    found = _Trimming().of(dict(short_first))
    assert isinstance(found, dict)
    return found


class _Trimming:
    def __init__(self) -> None:
        self._characters = _MOST_CHARACTERS
        self._values = _MOST_VALUES

    def of(self, value: Any) -> Any:
        self._values -= 1
        kind = type(value)
        if kind is int or kind is float or kind is bool or value is None:
            return value
        if kind is str:
            text, room = shorten(value), max(0, self._characters)
            self._characters -= len(text)
            # With a cut, before which the mask looks for the beginning of a secret.
            more = len(text) - room
            return text if more <= 0 else f"{text[:room]} [… {more} characters …]"
        if kind is dict or isinstance(value, Mapping):
            return {self.of(name): self.of(each) for name, each in value.items() if self._room()}
        if isinstance(value, list | tuple):
            return [self.of(each) for each in value if self._room()]
        return value

    def _room(self) -> bool:
        return self._values > 0 and self._characters > 0
