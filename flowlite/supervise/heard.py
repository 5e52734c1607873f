"""What a leader says of its gang, before anything here acts on it or keeps it: of its own ranks, and within bounds.

A leader is a process of the user's on a machine that may be anybody's. Its frames are bounded (`node/wire.py`), and so
is what is made of one here; how many there are is bounded where they are kept (`journal.py`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from flowlite.node.messages import shorten

# Of one event: characters of all its texts, and values of any kind.
_MOST_CHARACTERS = 64 * 1024
_MOST_VALUES = 2_000


class Heard:
    """What is taken from the leader of one attempt."""

    def __init__(self, instances: Collection[str], workers: int) -> None:
        """
        Args:
            instances: Of the nodes, by rank.
            workers: How many there are in the gang.
        """
        self._instances = frozenset(instances)
        self._workers = workers

    def event(self, event: Mapping[str, Any]) -> dict[str, Any] | None:
        """An event cut to what can be kept; None for one that is not of this gang."""
        try:
            return trimmed(event) if self._is_ours(event) else None
        except (KeyError, TypeError, ValueError):
            return None

    def _is_ours(self, event: Mapping[str, Any]) -> bool:
        kind = event["kind"]
        if kind in ("worker", "first_failure"):
            return self.is_rank(event["rank"])
        if kind in ("joined", "suspect", "back", "lost"):
            of_a_node = 0 <= int(event.get("rank", 0)) < len(self._instances)
            return of_a_node and event.get("instance") in (None, *self._instances)
        return isinstance(kind, str)

    def is_rank(self, rank: object) -> bool:
        """Whether a worker of the gang has that rank."""
        return isinstance(rank, int) and 0 <= rank < self._workers


def trimmed(value: Mapping[str, Any]) -> dict[str, Any]:
    """A JSON object of which long texts and what is too much are left out."""
    found = _Trimming().of(value)
    assert isinstance(found, dict)
    return found


class _Trimming:
    def __init__(self) -> None:
        self._characters = _MOST_CHARACTERS
        self._values = _MOST_VALUES

    def of(self, value: Any) -> Any:
        self._values -= 1
        if isinstance(value, str):
            text = shorten(value)[: max(0, self._characters)]
            self._characters -= len(text)
            return text
        if isinstance(value, Mapping):
            return {self.of(name): self.of(each) for name, each in value.items() if self._room()}
        if isinstance(value, list | tuple):
            return [self.of(each) for each in value if self._room()]
        return value

    def _room(self) -> bool:
        return self._values > 0 and self._characters > 0
