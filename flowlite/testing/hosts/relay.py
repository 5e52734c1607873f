"""A slow and lossy wire for kernels without netem: a user-space relay between two interfaces.

Frames stay in order, as on a real path; they are lost or delayed. Offloads must be off, since merged segments would
reach the raw sockets as frames that no wire could carry.
"""

from __future__ import annotations

import heapq
import os
import random
import select
import socket
import time
from dataclasses import dataclass, field

_SOL_PACKET, _PACKET_IGNORE_OUTGOING = 263, 23
_ALL_PROTOCOLS = 0x0003
_BUFFER = 1 << 23


@dataclass(order=True)
class _Frame:
    due: float
    number: int
    out: socket.socket = field(compare=False)
    content: bytes = field(compare=False)


def relay(one: str, other: str, delay_ms: float, loss_percent: float, ready: int) -> None:
    """Forwards frames in both directions until killed, each after `delay_ms`, and drops a share of them.

    Closes the descriptor `ready` once it forwards. Frames before that are lost.
    """
    sockets = [_open(one), _open(other)]
    os.close(ready)
    across = {sockets[0]: sockets[1], sockets[1]: sockets[0]}
    waiting: list[_Frame] = []
    number = 0
    while True:
        patience = waiting[0].due - time.monotonic() if waiting else None
        readable = select.select(sockets, [], [], None if patience is None else max(0.0, patience))[
            0
        ]
        now = time.monotonic()
        for arrived in readable:
            for content in _received(arrived):
                if random.random() * 100 < loss_percent:
                    continue
                number += 1
                heapq.heappush(
                    waiting, _Frame(now + delay_ms / 1000, number, across[arrived], content)
                )
        now = time.monotonic()
        while waiting and waiting[0].due <= now:
            frame = heapq.heappop(waiting)
            try:
                frame.out.send(frame.content)
            except OSError:
                # The interface is down or its queue is full. A wire would lose the frame too.
                continue


def _open(interface: str) -> socket.socket:
    opened = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ALL_PROTOCOLS))
    opened.setsockopt(_SOL_PACKET, _PACKET_IGNORE_OUTGOING, 1)
    for option in (socket.SO_RCVBUF, socket.SO_SNDBUF):
        opened.setsockopt(socket.SOL_SOCKET, option, _BUFFER)
    opened.bind((interface, 0))
    opened.setblocking(False)
    return opened


def _received(source: socket.socket) -> list[bytes]:
    frames = []
    for _ in range(64):
        try:
            frames.append(source.recv(65600))
        except BlockingIOError:
            break
        except OSError:
            # The interface is gone: ENETDOWN is reported once, so the relay ends now.
            os._exit(0)
    return frames
