"""The wire: authenticated frames over a byte stream. No I/O here; bytes go in and come out.

A frame is

    header length (u32) · blob length (u32) · header · blob · HMAC-SHA256 (32 bytes)

The MAC covers the number of the frame in its direction (u64, not sent), both lengths, header and blob. So a frame that
was changed, left out, moved, sent back or replayed does not verify, and the connection ends.

A connection opens with three frames; nothing else is looked at before they have verified:

    client -> server   hello: JSON {flowlite, task, role, peer, epoch, nonce}; key: derived from the secret alone
    server -> client   32 random bytes;  key: server's session key, frame 0
    client -> server   proof, empty;     key: client's session key, frame 0

Session keys, one per direction, derive from the secret and from both first frames whole, hence from both nonces, the
task, the role and the name of the peer. Whoever does not know the secret is turned away at the first frame; whoever
replays somebody else's first frame, at the second.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import struct
from collections.abc import Mapping
from typing import Any, NamedTuple

from .messages import Message

HEADER_LIMIT = 1024 * 1024
BLOB_LIMIT = 1024 * 1024
OPENING_LIMIT = 4096
"""Whole size of a frame before the peer has proved that it knows the secret."""

VERSION = 1
ROLES = ("member", "supervisor")

_LENGTHS = struct.Struct(">II")
_SEQUENCE = struct.Struct(">Q")
_TAG = 32
_NONCE = 32
_FRAME_OVERHEAD = _LENGTHS.size + _TAG

_encode_json = json.JSONEncoder(separators=(",", ":"), check_circular=False).encode


class WireError(Exception):
    """Bytes that no holder of the secret has sent in this place. The connection cannot go on."""


class NotAMessage(WireError):
    """A frame that is no JSON object. From a peer that is authenticated it says that the peer is none of ours."""


class Frame(NamedTuple):
    """A message, and the bytes beside it."""

    message: Message
    blob: bytes


class Hello(NamedTuple):
    """Who a connection says it is; true once the session is authenticated."""

    task: str
    role: str
    peer: str
    epoch: int


def encode(message: Mapping[str, Any]) -> bytes:
    """The header of a message. Encode once, then `Session.seal` it for as many peers as should get it."""
    return _encode_json(message).encode("ascii")


def decode(header: bytes) -> Message:
    """The message of a header. Raises `WireError` unless it is a JSON object."""
    try:
        message = json.loads(header, parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        raise NotAMessage(f"a header that is not JSON ({type(error).__name__})") from None
    if not isinstance(message, dict):
        raise NotAMessage("a header that is not a JSON object")
    return message


def _no_number(name: str) -> None:
    """NaN and infinities, which JSON does not know."""
    raise ValueError(name)


class _Sealer:
    """Numbers and signs the frames of one direction."""

    def __init__(self, key: bytes) -> None:
        self._mac = hmac.new(key, digestmod="sha256")
        self._next = 0

    def seal(self, header: bytes, blob: bytes = b"") -> bytes:
        if len(header) > HEADER_LIMIT or len(blob) > BLOB_LIMIT:
            raise WireError(
                f"a frame of {len(header)} + {len(blob)} bytes is over the cap of {HEADER_LIMIT} + {BLOB_LIMIT}"
            )
        lengths = _LENGTHS.pack(len(header), len(blob))
        mac = self._mac.copy()
        mac.update(_SEQUENCE.pack(self._next) + lengths + header)
        if blob:
            mac.update(blob)
        self._next += 1
        return b"".join((lengths, header, blob, mac.digest()))


class _Opener:
    """Cuts a byte stream into frames, within caps, and verifies each before anybody sees it."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._key = b""
        self._mac: hmac.HMAC | None = None
        self._next = 0

    def use(self, key: bytes) -> None:
        """From here on frames must be signed with `key`, numbered from 0."""
        self._key = key
        self._mac = None
        self._next = 0

    def feed(self, data: bytes) -> None:
        self._buffer += data

    def _lengths(self, opening: bool) -> tuple[int, int] | None:
        """The lengths of the frame at the front if it is wholly there. Caps are checked before waiting for its end."""
        if len(self._buffer) < _LENGTHS.size:
            return None
        header, blob = _LENGTHS.unpack_from(self._buffer)
        if opening and (blob or header + _FRAME_OVERHEAD > OPENING_LIMIT):
            raise WireError("the first frames of a connection are larger than allowed")
        if header > HEADER_LIMIT or blob > BLOB_LIMIT:
            raise WireError("a frame is larger than allowed")
        return (header, blob) if len(self._buffer) >= header + blob + _FRAME_OVERHEAD else None

    def peek(self) -> bytes | None:
        """The header of the opening frame at the front, not verified."""
        lengths = self._lengths(opening=True)
        if lengths is None:
            return None
        return bytes(self._buffer[_LENGTHS.size : _LENGTHS.size + lengths[0]])

    def take(self, *, opening: bool = False) -> tuple[bytes, bytes] | None:
        """The next frame as (header, blob), verified; None if it is not wholly there yet."""
        lengths = self._lengths(opening)
        if lengths is None:
            return None
        header_end = _LENGTHS.size + lengths[0]
        end = header_end + lengths[1]
        mac = self._numbered_mac()
        with memoryview(self._buffer) as view:
            mac.update(view[:end])
            genuine = hmac.compare_digest(mac.digest(), view[end : end + _TAG])
            header = bytes(view[_LENGTHS.size : header_end])
            blob = bytes(view[header_end:end])
        if not genuine:
            raise WireError("a frame that does not verify")
        del self._buffer[: end + _TAG]
        self._next += 1
        return header, blob

    def _numbered_mac(self) -> hmac.HMAC:
        if self._mac is None:
            self._mac = hmac.new(self._key, digestmod="sha256")
        mac = self._mac.copy()
        mac.update(_SEQUENCE.pack(self._next))
        return mac


def _derive(secret: bytes, label: bytes, transcript: bytes = b"") -> bytes:
    return hmac.digest(secret, b"flowlite wire 1 %b\0%b" % (label, transcript), "sha256")


class Session:
    """One end of one connection.

    `receive` gives whole verified frames; whatever `outgoing` then holds must be sent first.
    """

    authenticated: bool

    def __init__(self, secret: bytes) -> None:
        if len(secret) < 16:
            raise ValueError(f"the task's secret must have 16 bytes or more, not {len(secret)}")
        self._secret = secret
        self._opener = _Opener()
        self._sealer: _Sealer | None = None
        self.authenticated = False
        self.outgoing = b""

    def seal(self, header: bytes, blob: bytes = b"") -> bytes:
        """An encoded message as bytes for the connection. Frames must be sent in the order they were sealed in."""
        if self._sealer is None or not self.authenticated:
            raise WireError("the connection is not authenticated yet")
        return self._sealer.seal(header, blob)

    def receive(self, data: bytes) -> list[Frame]:
        """Take what the connection brought.

        Raises:
            WireError: The peer does not know the secret, or the stream was tampered with. Close the connection.
        """
        self._opener.feed(data)
        if not self.authenticated and not self._open():
            return []
        frames: list[Frame] = []
        while (taken := self._opener.take()) is not None:
            frames.append(Frame(decode(taken[0]), taken[1]))
        return frames

    def _open(self) -> bool:
        """Go on with the opening; gives whether the peer is now authenticated."""
        raise NotImplementedError

    def _keys(self, hello: bytes, challenge: bytes) -> tuple[bytes, bytes]:
        """(client's, server's) session key."""
        transcript = hashlib.sha256(hello).digest() + hashlib.sha256(challenge).digest()
        return (
            _derive(self._secret, b"client", transcript),
            _derive(self._secret, b"server", transcript),
        )


class ClientSession(Session):
    """The end that dials. Send `outgoing` first of all."""

    def __init__(self, secret: bytes, hello: Hello) -> None:
        super().__init__(secret)
        nonce = os.urandom(_NONCE).hex()
        self._hello = encode({"flowlite": VERSION, **hello._asdict(), "nonce": nonce})
        self.outgoing = _Sealer(_derive(secret, b"hello")).seal(self._hello)

    def _open(self) -> bool:
        challenge = self._opener.peek()
        if challenge is None:
            return False
        client, server = self._keys(self._hello, challenge)
        self._opener.use(server)
        self._opener.take(opening=True)
        if len(challenge) != _NONCE:
            raise WireError("the leader's first frame is not a nonce")
        self._sealer = _Sealer(client)
        self.outgoing = self._sealer.seal(b"")
        self.authenticated = True
        return True


class ServerSession(Session):
    """The end that listens.

    Attributes:
        hello: Who the peer is; None until its first frame has verified. Trust it once `authenticated`.
    """

    def __init__(self, secret: bytes, task: str) -> None:
        super().__init__(secret)
        self._task = task
        self.hello: Hello | None = None
        self._opener.use(_derive(secret, b"hello"))

    def _open(self) -> bool:
        if self.hello is None:
            first = self._opener.take(opening=True)
            if first is None:
                return False
            self.hello = self._greeted(first[0])
            challenge = os.urandom(_NONCE)
            client, server = self._keys(first[0], challenge)
            self._opener.use(client)
            self._sealer = _Sealer(server)
            self.outgoing = self._sealer.seal(challenge)
        if self._opener.take(opening=True) is None:
            return False
        self.authenticated = True
        return True

    def _greeted(self, header: bytes) -> Hello:
        fields = decode(header)
        if fields.get("flowlite") != VERSION:
            raise WireError(f"the peer speaks version {fields.get('flowlite')!r}, not {VERSION}")
        task, role, peer, epoch = (fields.get(name) for name in Hello._fields)
        if task != self._task or role not in ROLES:
            raise WireError("the peer belongs to another task, or has no role here")
        if not isinstance(peer, str) or not isinstance(epoch, int) or isinstance(epoch, bool):
            raise WireError("the peer does not say who it is")
        if len(str(fields.get("nonce"))) != 2 * _NONCE:
            raise WireError("the peer's first frame has no nonce")
        return Hello(task, role, peer, epoch)
