"""An authenticated byte stream from a member to the leader, such as the one to a volume that the leader serves.

The connection opens with three messages, inside TLS with the certificate of the attempt where the rendezvous is
encrypted:

    leader -> member   32 random bytes
    member -> leader   one line of JSON: {"task", "epoch", "instance", "volume", "nonce", "proof"}
    leader -> member   32 bytes: its proof

Both proofs are HMACs with the task's secret over everything sent before, so each side is authenticated and no message
can be replayed. After that it is a plain stream, to an `sftp-server` for instance.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import math
import os
import select
import socket
import time
from collections.abc import Callable
from typing import Any

from .framing import WireError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .tls import TlsSession

NONCE = 32
HELLO_LIMIT = 4096
OPENING_SECONDS = 10.0
_BLOCK = 1 << 18
_AHEAD = 1 << 20
_FIELDS = ("task", "epoch", "instance", "volume")


def proof(secret: bytes, side: str, ours: bytes, hello: dict[str, Any]) -> bytes:
    """Returns the bytes with which one side proves that it knows the secret.

    Args:
        side: "member" or "leader".
        ours: The leader's random bytes.
    """
    said = json.dumps([hello.get(name) for name in (*_FIELDS, "nonce")]).encode()
    text = b"\0".join([b"flowlite share 1", side.encode(), ours.hex().encode(), said])
    return hmac.digest(secret, text, hashlib.sha256)


class Stream:
    """One end of a connection. It gives and takes plain bytes, and encrypts them where there is a TLS session."""

    def __init__(self, network: socket.socket, shield: TlsSession | None) -> None:
        self.network = network
        self._shield = shield
        self._plain = b""
        self._ended = False
        self._until = time.monotonic() + OPENING_SECONDS
        network.settimeout(OPENING_SECONDS)
        if shield is not None:
            while not shield.open:
                self._flush()
                if not shield.open:
                    self._plain += shield.receive(self._from_network())
            self._flush()

    def read_exactly(self, size: int) -> bytes:
        """Reads exactly `size` bytes of the opening. Raises WireError, TimeoutError."""
        while len(self._plain) < size:
            self._fill()
        taken, self._plain = self._plain[:size], self._plain[size:]
        return taken

    def read_line(self) -> bytes:
        """Reads a line of the opening, without its newline."""
        while b"\n" not in self._plain:
            if len(self._plain) > HELLO_LIMIT:
                raise WireError("a first line without end")
            self._fill()
        line, _, self._plain = self._plain.partition(b"\n")
        return line

    def be_patient(self) -> None:
        """Ends the time limit of the opening: reads now wait without one."""
        self._until = math.inf
        self.network.settimeout(None)

    def send(self, data: bytes) -> None:
        """Sends data of the opening."""
        self.network.sendall(self._shield.seal(data) if self._shield is not None else data)

    def bridge(self, source: int, sink: int) -> None:
        """Copies bytes from `source` to the network and from the network to `sink`, until one side ends."""
        self.network.setblocking(False)
        os.set_blocking(source, False)
        os.set_blocking(sink, False)
        inward, outward = self._plain, b""
        while True:
            reading: list[int] = []
            writing: list[int] = []
            number = self.network.fileno()
            if len(outward) < _AHEAD:
                reading.append(source)
            if len(inward) < _AHEAD and not self._ended:
                reading.append(number)
            if inward:
                writing.append(sink)
            if outward:
                writing.append(number)
            if self._ended and not inward:
                return
            ready, free = _wait(reading, writing)
            try:
                if source in ready:
                    data = os.read(source, _BLOCK)
                    if not data:
                        return
                    outward += self._shield.seal(data) if self._shield is not None else data
                if number in ready:
                    inward += self._receive()
                    if self._shield is not None:
                        outward += self._shield.take()
                if sink in free:
                    inward = inward[os.write(sink, inward) :]
                if number in free or (outward and number not in writing):
                    outward = outward[self._send_some(outward) :]
            except BlockingIOError:
                continue
            except (OSError, WireError):
                return

    def _fill(self) -> None:
        if time.monotonic() > self._until:
            raise TimeoutError("the connection did not open in time")
        data = self._from_network()
        if self._shield is None:
            self._plain += data
        else:
            self._plain += self._shield.receive(data)
            self._flush()

    def _from_network(self) -> bytes:
        data = self.network.recv(_BLOCK)
        if not data:
            raise WireError("the other end hung up")
        return data

    def _receive(self) -> bytes:
        data = self.network.recv(_BLOCK)
        if not data:
            self._ended = True
            return b""
        return self._shield.receive(data) if self._shield is not None else data

    def _send_some(self, data: bytes) -> int:
        try:
            return self.network.send(data)
        except BlockingIOError:
            return 0

    def _flush(self) -> None:
        assert self._shield is not None
        if waiting := self._shield.take():
            self.network.sendall(waiting)


def _wait(reading: list[int], writing: list[int]) -> tuple[set[int], set[int]]:
    """Waits for the descriptors and returns those that can be read and those that can be written.

    It uses poll, since `select` is limited to descriptors below 1024.
    """
    poll = select.poll()
    for number in {*reading, *writing}:
        wanted = select.POLLIN * (number in reading) | select.POLLOUT * (number in writing)
        poll.register(number, wanted)
    found = poll.poll()
    broken = select.POLLERR | select.POLLHUP | select.POLLNVAL
    return (
        {each for each, what in found if each in reading and what & (select.POLLIN | broken)},
        {each for each, what in found if each in writing and what & (select.POLLOUT | broken)},
    )


def knock(
    stream: Stream, secret: bytes, *, task: str, epoch: int, instance: str, volume: str
) -> None:
    """Performs the member's side of the opening. Raises WireError: the other end is not this gang's leader."""
    theirs = stream.read_exactly(NONCE)
    hello: dict[str, Any] = {
        "task": task,
        "epoch": epoch,
        "instance": instance,
        "volume": volume,
        "nonce": os.urandom(NONCE).hex(),
    }
    said = {**hello, "proof": proof(secret, "member", theirs, hello).hex()}
    stream.send(json.dumps(said).encode() + b"\n")
    answer = stream.read_exactly(NONCE)
    if not hmac.compare_digest(answer, proof(secret, "leader", theirs, hello)):
        raise WireError("what answers does not hold the task's secret")


def admit(
    stream: Stream, secret: bytes, *, task: str, epoch: int, known: Callable[[str, str], bool]
) -> str:
    """Performs the leader's side of the opening and returns the requested volume.

    Args:
        known: Whether an instance is in the gang, and the volume is served.

    Raises:
        WireError: The peer is not a member of this gang. It was sent nothing that it could use.
    """
    ours = os.urandom(NONCE)
    stream.send(ours)
    try:
        hello = json.loads(stream.read_line())
        given = bytes.fromhex(str(hello["proof"]))
        mine = hello["task"] == task and hello["epoch"] == epoch
        right = hmac.compare_digest(given, proof(secret, "member", ours, hello))
        volume = str(hello["volume"])
        if not (right and mine and known(str(hello["instance"]), volume)):
            raise WireError("it could not prove the task's secret, or is not of this gang")
    except (ValueError, KeyError, TypeError, AttributeError):
        raise WireError("its first line is none of ours") from None
    stream.send(proof(secret, "leader", ours, hello))
    return volume
