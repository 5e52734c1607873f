"""Measures latency and bandwidth between two nodes: a small server on one, a client on the other.

    links serve ADDRESS SECONDS          prints {"port"}, answers clients that have the token, and ends by itself
    links measure ADDRESS PORT           prints {"round_trip", "bytes_per_second"} or {"error"}

The token comes on standard input, so that no other user of the node sees it. Both sides prove that they have it, and
neither sends it (`protocol/framing.py`).
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time

from ..protocol.framing import MEASURE_ROLE, Hello, WireError
from ..protocol.stream import Stream, admit, ask
from ..system import processes
from ..system.accepting import accept

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_TOKEN = 32
_PINGS = 10
_BLOCK = 256 * 1024
_MOST_BYTES = 256 * 1024 * 1024
_SEND_SECONDS = 0.5
_PATIENCE = 5.0
_HELLO = Hello("", MEASURE_ROLE, "", 0)


def main(arguments: list[str]) -> int:
    """Runs one of the two subcommands. Returns the exit code."""
    token = sys.stdin.buffer.read(_TOKEN)
    if len(token) != _TOKEN:
        sys.stderr.write(f"links: the token on standard input must have {_TOKEN} bytes\n")
        return 2
    if arguments[0] == "serve":
        serve(arguments[1], float(arguments[2]), token)
        return 0
    try:
        found: dict[str, Any] = measure(arguments[1], int(arguments[2]), token)
    except (OSError, WireError) as error:
        found = {"error": str(error) or type(error).__name__}
    sys.stdout.write(json.dumps(found) + "\n")
    return 0


def serve(address: str, seconds: float, token: bytes) -> None:
    """Answers measurements, one at a time, until the time is over. Forks, so that the caller need not wait."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as listener:
        listener.bind((address, 0))
        listener.listen(64)
        sys.stdout.write(json.dumps({"port": listener.getsockname()[1]}) + "\n")
        sys.stdout.flush()
        if os.fork():
            return
        os.setsid()
        processes.redirect(os.devnull, 0)
        processes.redirect(os.devnull, 1, 2)
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            listener.settimeout(left)
            accepted = accept(listener)
            if accepted is None:
                continue
            peer, _ = accepted
            with peer:
                peer.settimeout(_PATIENCE)
                try:
                    _answer(peer, token)
                except (OSError, WireError):
                    continue
    os._exit(0)


def _answer(peer: socket.socket, token: bytes) -> None:
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    stream = Stream(peer, None)
    admit(stream, token, _HELLO, lambda *_: True)
    peer.settimeout(_PATIENCE)
    for _ in range(_PINGS):
        stream.send(stream.read_exactly(1))
    received = len(stream.take_rest())
    while block := peer.recv(_BLOCK):
        received += len(block)
    peer.sendall(received.to_bytes(8, "big"))


def measure(address: str, port: int, token: bytes) -> dict[str, float]:
    """Returns the shortest of several round trips in seconds, and the bytes per second, to a server."""
    with socket.create_connection((address, port), timeout=_PATIENCE) as peer:
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        stream = Stream(peer, None)
        ask(stream, token, _HELLO)
        peer.settimeout(_PATIENCE)
        trips = []
        for _ in range(_PINGS):
            began = time.perf_counter()
            stream.send(b".")
            stream.read_exactly(1)
            trips.append(time.perf_counter() - began)
        block, sent, began = bytes(_BLOCK), 0, time.perf_counter()
        while sent < _MOST_BYTES and time.perf_counter() - began < _SEND_SECONDS:
            peer.sendall(block)
            sent += len(block)
        peer.shutdown(socket.SHUT_WR)
        received = int.from_bytes(stream.read_exactly(8), "big")
        return {
            "round_trip": min(trips),
            "bytes_per_second": received / (time.perf_counter() - began),
        }
