"""Authenticated frames over a byte stream. This module does no I/O.

A frame is

    header length (u32) · blob length (u32) · header · blob · HMAC-SHA256 (32 bytes)

The MAC covers the frame's sequence number in its direction (u64, not sent), both lengths, header and blob. A frame that
was changed, dropped, reordered, reflected or replayed does not verify, and the connection ends.

A connection opens with three frames; nothing else is processed before they have verified:

    client -> server   hello: JSON {flowlite, task, role, peer, attempt, purpose, nonce}; key: from the secret alone
    server -> client   32 random bytes;  key: server's session key, frame 0
    client -> server   proof, empty;     key: client's session key, frame 0

The two session keys, one per direction, derive from the secret and from the complete first frame of each side, and
therefore from both nonces, the task, the role and the peer's name. A peer that does not know the secret is rejected at
the first frame; a peer that replays another peer's first frame, at the second. Each listener accepts the roles of its
own service only, so that a peer of one service cannot be passed on to another.

Every connection between the processes of a task opens in this way. `channel.py` and `stream.py` drive it over a socket
in an event loop, and over a blocking socket.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Collection, Mapping
from functools import lru_cache
from hashlib import sha256
from hmac import compare_digest
from typing import Any, NamedTuple

from .messages import Message

HEADER_LIMIT = 1024 * 1024
BLOB_LIMIT = 1024 * 1024
MEMBER_LIMIT = HEADER_LIMIT // 4
"""The most bytes of a header from a member. The leader passes on what it says in events, with more beside it."""
OPENING_LIMIT = 4096
"""The most bytes of a whole frame before the peer has proved that it knows the secret."""

VERSION = 2
RENDEZVOUS_ROLES = ("member", "supervisor")
"""The roles of the peers of the rendezvous."""
STEP_ROLE, RELAY_ROLE, VOLUME_ROLE = "step", "relay", "volume"
"""The roles of the peers of the router of steps, of the relay of commands, and of the server of volumes."""
CHECK_ROLE, MEASURE_ROLE = "check", "measure"
"""The roles of a node that checks the path to another one, and of one that measures it."""
CONTENTS_ROLE = "contents"
"""The role of a node that gets contents of the task from another one."""

_LENGTHS = struct.Struct(">II")
_SEQUENCE = struct.Struct(">Q")
# What the MAC covers before the header: the sequence number, and both lengths.
_NUMBERED = struct.Struct(">QII")
_TAG = 32
_NONCE = 32
_FRAME_OVERHEAD = _LENGTHS.size + _TAG

_encode_json = json.JSONEncoder(separators=(",", ":"), check_circular=False).encode


class WireError(Exception):
    """The peer sent bytes that no holder of the secret would send here. The connection cannot continue."""


class NotAMessage(WireError):
    """A header is not a JSON object. If the peer is authenticated, it runs other software than ours."""


class Frame(NamedTuple):
    """A message and its blob."""

    message: Message
    blob: bytes


class Hello(NamedTuple):
    """The identity that a peer claims. It is verified once the session is authenticated.

    Attributes:
        purpose: What a peer asks for of a service that has several things, such as the name of a volume.
    """

    task: str
    role: str
    peer: str
    attempt: int
    purpose: str = ""


def encode(message: Mapping[str, Any]) -> bytes:
    """Encodes a message as a header. Encode once, then call `Session.seal` for each peer that gets the message."""
    return _encode_json(message).encode("ascii")


def decode(header: bytes) -> Message:
    """Decodes a header. Raises `NotAMessage`, a `WireError`, unless it is a JSON object."""
    try:
        text = header.decode().strip(_JSON_SPACE)
        message, end = _decode_json(text)
    except (ValueError, RecursionError) as error:
        raise NotAMessage(f"a header that is not JSON ({type(error).__name__})") from None
    if not isinstance(message, dict) or end < len(text):
        raise NotAMessage("a header that is not a JSON object")
    return message


def _no_number(name: str) -> None:
    """Rejects NaN and infinities, which are not JSON."""
    raise ValueError(name)


# `json.loads` would make a decoder for each message, and its `decode` looks for the space around the value with regular
# expressions. Both take longer than to decode the value.
_decode_json = json.JSONDecoder(parse_constant=_no_number).raw_decode
_JSON_SPACE = " \t\n\r"


class _Mac:
    """HMAC-SHA256 (RFC 2104) with one key over many messages.

    It keeps the states of both hashes after the padded key. To copy those takes a quarter of the time of `hmac.HMAC`,
    for which OpenSSL looks up the algorithm anew; a leader signs and verifies eight frames for each member before GO.
    """

    __slots__ = ("_inner", "_outer")

    def __init__(self, key: bytes) -> None:
        padded = (key if len(key) <= _BLOCK else sha256(key).digest()).ljust(_BLOCK, b"\0")
        self._inner = sha256(padded.translate(_INNER_PADDING))
        self._outer = sha256(padded.translate(_OUTER_PADDING))

    def tag(self, *parts: bytes) -> bytes:
        """Returns the code of the parts, one after the other."""
        inner = self._inner.copy()
        for part in parts:
            inner.update(part)
        outer = self._outer.copy()
        outer.update(inner.digest())
        return outer.digest()


_BLOCK = 64
_INNER_PADDING = bytes(byte ^ 0x36 for byte in range(256))
_OUTER_PADDING = bytes(byte ^ 0x5C for byte in range(256))


class _Sealer:
    """Numbers and signs the frames of one direction."""

    __slots__ = ("_mac", "_next")

    def __init__(self, mac: _Mac) -> None:
        self._mac = mac
        self._next = 0

    def seal(self, header: bytes, blob: bytes = b"") -> bytes:
        if len(header) > HEADER_LIMIT or len(blob) > BLOB_LIMIT:
            raise WireError(
                f"a frame of {len(header)} + {len(blob)} bytes is over the cap of {HEADER_LIMIT} + {BLOB_LIMIT}"
            )
        signed = _NUMBERED.pack(self._next, len(header), len(blob)) + header
        tag = self._mac.tag(signed, blob)
        self._next += 1
        return b"".join((signed[_SEQUENCE.size :], blob, tag))


class _Opener:
    """Splits a byte stream into frames within the size limits, and verifies each frame before it returns it.

    Attributes:
        left: Whether bytes are left that were not returned.
    """

    __slots__ = ("_at", "_buffer", "_mac", "_next", "left", "longest")

    def __init__(self) -> None:
        self.longest = HEADER_LIMIT
        self.left = False
        # The bytes before `_at` were returned. A read that holds whole frames, as most do, is not copied.
        self._buffer: bytes | bytearray = b""
        self._at = 0
        self._mac: _Mac | None = None
        self._next = 0

    def use(self, mac: _Mac) -> None:
        """Expects the following frames to be signed with the key of `mac` and numbered from 0."""
        self._mac = mac
        self._next = 0

    def feed(self, data: bytes) -> None:
        if not self.left:
            self._buffer, self._at = data, 0
        else:
            if isinstance(self._buffer, bytes):
                self._buffer = bytearray(memoryview(self._buffer)[self._at :])
            else:
                del self._buffer[: self._at]
            self._buffer += data
            self._at = 0
        self.left = len(self._buffer) > 0

    def _lengths(self, opening: bool) -> tuple[int, int] | None:
        """Returns the lengths of the first frame once it is complete, else None. The limits are checked before that."""
        size = len(self._buffer) - self._at
        if size < _LENGTHS.size:
            return None
        header, blob = _LENGTHS.unpack_from(self._buffer, self._at)
        if opening and (blob or header + _FRAME_OVERHEAD > OPENING_LIMIT):
            raise WireError("the first frames of a connection are larger than allowed")
        if header > self.longest or blob > BLOB_LIMIT:
            raise WireError("a frame is larger than allowed")
        return (header, blob) if size >= header + blob + _FRAME_OVERHEAD else None

    def peek(self) -> bytes | None:
        """Returns the header of the first frame of the opening, not verified."""
        lengths = self._lengths(opening=True)
        if lengths is None:
            return None
        start = self._at + _LENGTHS.size
        return bytes(self._buffer[start : start + lengths[0]])

    def take(self, *, opening: bool = False) -> tuple[bytes, bytes] | None:
        """Returns the next frame, verified, as (header, blob); None while it is incomplete."""
        lengths = self._lengths(opening)
        if lengths is None:
            return None
        assert self._mac is not None, "a frame before its key is known"
        buffer = self._buffer
        start = self._at + _LENGTHS.size
        header_end = start + lengths[0]
        end = header_end + lengths[1]
        header = bytes(buffer[start:header_end])
        blob = bytes(memoryview(buffer)[header_end:end]) if lengths[1] else b""
        tag = self._mac.tag(_NUMBERED.pack(self._next, *lengths) + header, blob)
        if not compare_digest(tag, buffer[end : end + _TAG]):
            raise WireError("a frame that does not verify")
        self._at = end + _TAG
        self._next += 1
        if self._at == len(buffer):
            self._buffer, self._at, self.left = b"", 0, False
        return header, blob

    def rest(self) -> bytes:
        """Takes all bytes that are left, which are no frames."""
        left = bytes(self._buffer[self._at :])
        self._buffer, self._at, self.left = b"", 0, False
        return left


def _derive(secret: _Mac, label: bytes, transcript: bytes = b"") -> _Mac:
    return _Mac(secret.tag(b"flowlite wire 1 %b\0%b" % (label, transcript)))


@lru_cache(maxsize=4)
def _keys_of(secret: bytes) -> tuple[_Mac, _Mac]:
    """Returns the keys that all connections of a task have in common: the secret itself, and that of first frames."""
    if len(secret) < 16:
        raise ValueError(f"the task's secret must have 16 bytes or more, not {len(secret)}")
    own = _Mac(secret)
    return own, _derive(own, b"hello")


class Session:
    """One end of one connection.

    `receive` returns complete, verified frames. Send what `outgoing` holds after each call, before anything else.
    """

    authenticated: bool

    def __init__(self, secret: bytes) -> None:
        self._secret, self._hello_key = _keys_of(secret)
        self._opener = _Opener()
        self._sealer: _Sealer | None = None
        self.authenticated = False
        self.outgoing = b""

    def seal(self, header: bytes, blob: bytes = b"") -> bytes:
        """Encodes and signs a message. Frames must be sent in the order in which they were sealed."""
        if self._sealer is None or not self.authenticated:
            raise WireError("the connection is not authenticated yet")
        return self._sealer.seal(header, blob)

    def open(self, data: bytes = b"") -> bool:
        """Processes received bytes of the opening. Returns whether both sides have proved that they know the secret.

        Raises:
            WireError: As for `receive`.
        """
        self._opener.feed(data)
        return self.authenticated or self._open()

    def receive(self, data: bytes) -> list[Frame]:
        """Processes received bytes and returns the complete frames.

        Raises:
            WireError: The peer does not know the secret, or the stream was tampered with. Close the connection.
        """
        opener = self._opener
        opener.feed(data)
        frames: list[Frame] = []
        if self.authenticated or self._open():
            while opener.left and (taken := opener.take()) is not None:
                frames.append(Frame(decode(taken[0]), taken[1]))
        return frames

    def next_frame(self) -> Frame | None:
        """Returns the next of the frames received after the opening; None while it is incomplete. Raises WireError."""
        taken = self._opener.take()
        return None if taken is None else Frame(decode(taken[0]), taken[1])

    def rest(self) -> bytes:
        """Ends the frames: returns the bytes received after the last one that was taken."""
        return self._opener.rest()

    def _open(self) -> bool:
        """Continues the opening and returns whether the peer is now authenticated."""
        raise NotImplementedError

    def _keys(self, hello: bytes, challenge: bytes) -> tuple[_Mac, _Mac]:
        """Returns the session keys (client's, server's)."""
        transcript = sha256(hello).digest() + sha256(challenge).digest()
        return (
            _derive(self._secret, b"client", transcript),
            _derive(self._secret, b"server", transcript),
        )


class ClientSession(Session):
    """The end that connects. Send `outgoing` first."""

    def __init__(self, secret: bytes, hello: Hello) -> None:
        super().__init__(secret)
        nonce = os.urandom(_NONCE).hex()
        self._hello = encode({"flowlite": VERSION, **hello._asdict(), "nonce": nonce})
        self.outgoing = _Sealer(self._hello_key).seal(self._hello)

    def _open(self) -> bool:
        challenge = self._opener.peek()
        if challenge is None:
            return False
        client, server = self._keys(self._hello, challenge)
        self._opener.use(server)
        self._opener.take(opening=True)
        if len(challenge) != _NONCE:
            raise WireError("the first frame of what answers is not a nonce")
        self._sealer = _Sealer(client)
        self.outgoing = self._sealer.seal(b"")
        self.authenticated = True
        return True


class ServerSession(Session):
    """The end that listens.

    Attributes:
        hello: The peer's identity; None until its first frame has verified. Trust it once `authenticated`.
    """

    def __init__(self, secret: bytes, task: str, roles: Collection[str] = RENDEZVOUS_ROLES) -> None:
        """
        Args:
            roles: The roles of the peers of this service.
        """
        super().__init__(secret)
        self._task = task
        self._roles = roles
        self.hello: Hello | None = None
        self._opener.use(self._hello_key)

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
        if not self._opener.left or self._opener.take(opening=True) is None:
            return False
        if self.hello.role == "member":
            self._opener.longest = MEMBER_LIMIT
        self.authenticated = True
        return True

    def _greeted(self, header: bytes) -> Hello:
        fields = decode(header)
        if fields.get("flowlite") != VERSION:
            raise WireError(f"the peer speaks version {fields.get('flowlite')!r}, not {VERSION}")
        task, role, peer, attempt, purpose = map(fields.get, Hello._fields)
        if task != self._task or not isinstance(role, str) or role not in self._roles:
            raise WireError("the peer belongs to another task, or has no role here")
        if not isinstance(peer, str) or not isinstance(attempt, int) or isinstance(attempt, bool):
            raise WireError("the peer does not say who it is")
        if not isinstance(purpose, str):
            raise WireError("the peer does not say what it asks for")
        if len(str(fields.get("nonce"))) != 2 * _NONCE:
            raise WireError("the peer's first frame has no nonce")
        return Hello(task, role, peer, attempt, purpose)
