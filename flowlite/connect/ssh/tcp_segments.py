"""Smaller TCP segments for a host on whose way full packets are lost.

Some VPNs and tunnels lose packets above a size that neither end knows of (MTU), and let no ICMP through that would
tell. Such a host lets us log in, since these packets are small, and falls silent with the first full one, in either
direction. It is therefore connected to with small segments once it has fallen silent. The limit holds in both
directions, since the request for a connection carries it.
"""

from __future__ import annotations

import socket
from contextlib import suppress
from typing import Any

# With all headers, a packet of this many bytes of data fits into the 1280 bytes that every way of IPv6 must carry.
SEGMENT_BYTES = 1200
ADVICE = (
    "if it does so each time, full packets are lost on the way, as in some VPNs: give the interface that leads there a "
    "smaller MTU (ip link set mtu 1280 dev …)"
)

_silent: set[Any] = set()


def fell_silent(there: Any) -> None:
    """Notes the address of a host that was reached and then sent nothing more."""
    _silent.add(there)


def limit(sock: socket.socket, there: Any) -> None:
    """Makes a socket that is not connected yet use small segments, if its host has fallen silent before."""
    if there in _silent:
        with suppress(AttributeError, OSError):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, SEGMENT_BYTES)
