"""The channels of this process, one for each far end, shared by the connections that lead there."""

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
    """What two connections to the same place have in common."""
    if isinstance(base, LocalConnection):
        return "local"
    for name in ("key", "target"):
        found: Hashable = getattr(base, name, None)
        if found is not None:
            return found
    return id(base)


def acquire(key: Key, label: str, lost: Lost | None) -> Channel:
    """The channel of a far end. `release` it when done."""
    with _lock:
        channel = _channels.get(key)
        if channel is None:
            channel = _channels[key] = Channel(key[1], label, lost)
        channel.held += 1
        channel.keep()
        return channel


def release(key: Key) -> None:
    """Gives it back. It stays for a while, for whoever comes next."""
    with _lock:
        channel = _channels.get(key)
        if channel is not None:
            channel.held -= 1
            channel.keep()
        for each in [each for each, known in _channels.items() if known.rests]:
            del _channels[each]


def close_idle() -> None:
    """Ends every channel that nobody holds, at once."""
    with _lock:
        idle = [key for key, channel in _channels.items() if channel.held <= 0]
        channels = [_channels.pop(key) for key in idle]
    for channel in channels:
        channel.shut()


def _after_fork() -> None:
    """In a forked process: the threads are not here, and an end that stays open would keep the far side alive."""
    global _lock
    _lock = threading.Lock()
    for channel in _channels.values():
        channel.abandon()
    _inherited.extend(_channels.values())
    _channels.clear()


os.register_at_fork(after_in_child=_after_fork)
