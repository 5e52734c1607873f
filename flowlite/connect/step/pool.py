"""The channels of this process, one for each node, shared by the connections to that node."""

from __future__ import annotations

import os
import threading
from collections.abc import Hashable

from flowlite.connect.base import Connection
from flowlite.connect.local import LocalConnection
from flowlite.connect.step.channel import Channel, Lost

Key = tuple[Hashable, tuple[str, ...]]

_channels: dict[Key, Channel] = {}
_inherited: list[Channel] = []
_lock = threading.Lock()


def key_of(base: Connection) -> Hashable:
    """A key that is equal for two connections to the same machine."""
    if isinstance(base, LocalConnection):
        return "local"
    for name in ("key", "target"):
        found: Hashable = getattr(base, name, None)
        if found is not None:
            return found
    return id(base)


def acquire(key: Key, label: str, lost: Lost | None) -> Channel:
    """Returns the channel to a node. Call `release` when done."""
    with _lock:
        channel = _channels.get(key)
        if channel is None:
            channel = _channels[key] = Channel(key[1], label, lost)
        channel.held += 1
        channel.keep()
        return channel


def release(key: Key) -> None:
    """Releases a channel. It stays open for a while for the next user."""
    with _lock:
        channel = _channels.get(key)
        if channel is not None:
            channel.held -= 1
            channel.keep()
        for each in [each for each, known in _channels.items() if known.rests]:
            del _channels[each]


def close_idle() -> None:
    """Ends every unused channel now."""
    with _lock:
        idle = [key for key, channel in _channels.items() if channel.held <= 0]
        channels = [_channels.pop(key) for key in idle]
    for channel in channels:
        channel.shut()


def _after_fork() -> None:
    """Runs in a forked process, which has none of the threads; open descriptors would keep the mux servers alive."""
    global _lock
    _lock = threading.Lock()
    for channel in _channels.values():
        channel.abandon()
    _inherited.extend(_channels.values())
    _channels.clear()


os.register_at_fork(after_in_child=_after_fork)
