"""Gets the contents that a node lacks from other nodes of its task."""

from __future__ import annotations

import hashlib
import json
import os
import socket
import sys
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from ..project_files.manifest import ManifestError
from ..protocol import stream as streams
from ..protocol.framing import CONTENTS_ROLE, Hello, WireError
from ..system import atomic_files
from .credentials import Gang, written_out
from .serve import ABSENT
from .task_contents import TaskContents

if TYPE_CHECKING:
    from ..protocol.tls import TlsSession

# A node behind a firewall that drops packets is found out after this time.
_CONNECT_SECONDS = 5.0
# A node that sends nothing for this long is replaced by another one, and one that sends less than this in a second.
_STALL_SECONDS = 20.0
_LEAST_PER_SECOND = 1 << 20
_PATIENCE = 60.0
# Hashes in a line, which is limited to 4096 bytes.
_HASHES = 60


class _Refused(Exception):
    """This node cannot go on with a peer. The text is for people."""


class Fetch:
    """One node that gets what it lacks from others, one after the other."""

    def __init__(
        self,
        wanted: TaskContents,
        secret: bytes,
        hello: Hello,
        new_tls: Callable[[], TlsSession],
    ) -> None:
        self._wanted = wanted
        self._secret = secret
        self._hello = hello
        self._new_tls = new_tls

    def from_peer(self, address: str, port: int) -> str:
        """Gets from a peer what is lacking. Returns what is wrong with the peer; "" if nothing is.

        Raises:
            OSError: A content cannot be written here.
        """
        lacking = self._wanted.lacking()
        seconds = _PATIENCE + sum(map(self._wanted.sizes.__getitem__, lacking)) / _LEAST_PER_SECOND
        try:
            with _connected(address, port) as network:
                try:
                    stream = streams.Stream(network, self._new_tls())
                    streams.ask(stream, self._secret, self._hello)
                    stream.go_on(_STALL_SECONDS)
                except OSError as error:
                    raise _Refused(f"does not answer as a node of this task ({error})") from error
                peer = _Peer(stream, time.monotonic() + seconds)
                for start in range(0, len(lacking), _HASHES):
                    self._take(peer, lacking[start : start + _HASHES])
        except (_Refused, WireError) as error:
            return str(error)
        return ""

    def _take(self, peer: _Peer, names: list[str]) -> None:
        peer.ask(names)
        for name in names:
            size = int.from_bytes(peer.exactly(8), "big")
            if size == ABSENT:
                continue
            if size != self._wanted.sizes[name]:
                raise _Refused("has a content of another size")
            self._store(peer, name, size)

    def _store(self, peer: _Peer, sha256: str, size: int) -> None:
        """Writes a content as it arrives. It gets its name only if it has that hash."""
        place = self._wanted.path(sha256)
        atomic_files.make(os.path.dirname(place))
        with atomic_files.new(place) as descriptor:
            digest, left = hashlib.sha256(), size
            while left:
                block = peer.some(left)
                digest.update(block)
                atomic_files.write(descriptor, block)
                left -= len(block)
            if digest.hexdigest() != sha256:
                raise _Refused("sent a content that does not have its hash")


class _Peer:
    """The bytes that a peer sends, within limits of time. All that goes wrong with it is `_Refused` or WireError."""

    def __init__(self, stream: streams.Stream, until: float) -> None:
        self._stream = stream
        self._until = until
        self._here = memoryview(b"")

    def ask(self, names: list[str]) -> None:
        """Asks for contents, which come in this order."""
        try:
            self._stream.send(" ".join(names).encode() + b"\n")
        except OSError as error:
            raise _Refused(f"takes no more requests ({error})") from error

    def exactly(self, size: int) -> bytes:
        """Returns so many bytes."""
        parts, left = [], size
        while left:
            parts.append(self.some(left))
            left -= len(parts[-1])
        return b"".join(parts)

    def some(self, most: int) -> memoryview:
        """Returns the next bytes, `most` at most."""
        if not self._here:
            if time.monotonic() > self._until:
                raise _Refused("is too slow")
            try:
                self._here = memoryview(self._stream.some())
            except OSError as error:
                raise _Refused(f"sends no more ({error})") from error
        taken, self._here = self._here[:most], self._here[most:]
        return taken


def _connected(address: str, port: int) -> socket.socket:
    try:
        return socket.create_connection((address, port), _CONNECT_SECONDS)
    except OSError as error:
        raise _Refused(f"cannot be reached from here ({error})") from error


def fetch(order: Mapping[str, Any]) -> dict[str, Any]:
    """Fetches what this node lacks, from the first peer that has it.

    Args:
        order: As for `TaskContents`; also "peers": [[address, port], ...], and with any of them "gang": {"task",
            "attempt", "peer", "secret", "certificate"}.

    Returns:
        {"lacking": number of contents, "bytes": of these, "troubles": [what is wrong with each peer that was asked]}
    """
    wanted = TaskContents(order)
    troubles: list[str] = []
    if order["peers"] and wanted.lacking():
        from ..protocol import tls

        facts = order["gang"]
        gang = Gang(facts)
        hello = Hello(gang.task, CONTENTS_ROLE, str(facts["peer"]), gang.attempt)
        with written_out(order["home"], facts) as paths:
            new_tls = tls.client(paths.certificate)
            secret = paths.secret.read_bytes()
        fetching = Fetch(wanted, secret, hello, new_tls)
        for address, port in order["peers"]:
            troubles.append(fetching.from_peer(address, int(port)))
            if not wanted.lacking():
                break
            troubles[-1] = troubles[-1] or "lacks some of the contents"
    lacking = wanted.lacking()
    size = sum(map(wanted.sizes.__getitem__, lacking))
    return {"lacking": len(lacking), "bytes": size, "troubles": troubles}


def main(_: list[str]) -> int:
    """`contents-fetch`: reads its order and prints the answer, or {"failed": text}."""
    try:
        answer = fetch(json.loads(sys.stdin.buffer.read()))
    except (OSError, ManifestError) as error:
        answer = {"failed": str(error)}
    sys.stdout.write(json.dumps(answer))
    return 0
