"""Frames: whatever is cut, changed, swapped or repeated is refused, and only who knows the secret is heard."""

from __future__ import annotations

import contextlib
import hmac
import random
import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowlite.node.protocol import framing
from flowlite.node.protocol.framing import (
    BLOB_LIMIT,
    CHECK_ROLE,
    HEADER_LIMIT,
    MEASURE_ROLE,
    OPENING_LIMIT,
    RELAY_ROLE,
    RENDEZVOUS_ROLES,
    STEP_ROLE,
    VOLUME_ROLE,
    ClientSession,
    Frame,
    Hello,
    ServerSession,
    Session,
    WireError,
    encode,
)

SECRET = b"s" * 32
HELLO = Hello("task", "member", "i-1", 1)
TEXT = st.text(alphabet='ab\n"\\é\U0001f600', max_size=5)
JSON = st.integers(-(2**53), 2**53) | TEXT | st.lists(TEXT | st.none(), max_size=2)
Frames = list[tuple[dict[str, Any], bytes]]
FRAMES = st.lists(
    st.tuples(st.dictionaries(TEXT, JSON, max_size=2), st.binary(max_size=300)), max_size=4
)


def opened(secret: bytes = SECRET, task: str = "task") -> tuple[ClientSession, ServerSession]:
    client, server = ClientSession(secret, HELLO), ServerSession(SECRET, task)
    assert server.receive(flush(client)) == []
    assert client.receive(flush(server)) == []
    assert server.receive(flush(client)) == []
    assert client.authenticated
    assert server.authenticated
    return client, server


def flush(session: Session) -> bytes:
    sent, session.outgoing = session.outgoing, b""
    return sent


def sealed(session: Session, count: int) -> list[bytes]:
    return [session.seal(encode({"n": n}), b"x" * n) for n in range(count)]


@settings(max_examples=40)
@given(FRAMES, FRAMES, st.integers(0, 2**32))
def test_frames_arrive_whole_in_order_however_the_stream_is_cut(
    up: Frames, down: Frames, seed: int
) -> None:
    cuts = random.Random(seed)
    client, server = opened()
    for sender, receiver, frames in ((client, server, up), (server, client, down)):
        stream = b"".join(sender.seal(encode(message), blob) for message, blob in frames)
        got: list[Frame] = []
        while stream:
            size = cuts.randint(1, len(stream))
            got += receiver.receive(stream[:size])
            stream = stream[size:]
        assert got == [Frame(message, blob) for message, blob in frames]


def test_the_peer_is_known_once_it_has_proved_itself() -> None:
    _, server = opened()
    assert server.hello == HELLO


@settings(max_examples=300)
@given(st.data())
def test_a_changed_byte_is_never_accepted(data: st.DataObject) -> None:
    client, server = opened()
    good = sealed(client, 3)
    stream = bytearray(b"".join(good))
    place = data.draw(st.integers(0, len(stream) - 1))
    stream[place] ^= data.draw(st.integers(1, 255))
    try:
        got = server.receive(bytes(stream))
    except WireError:
        return
    # A length that grew may leave the session waiting for more; what it gave out must be what was sent.
    assert got == [Frame({"n": n}, b"x" * n) for n in range(len(got))]
    assert len(got) < 3


@given(st.permutations(range(4)).filter(lambda order: order != [0, 1, 2, 3]))
def test_moved_frames_are_refused(order: list[int]) -> None:
    client, server = opened()
    good = sealed(client, 4)
    with pytest.raises(WireError):
        server.receive(b"".join(good[n] for n in order))


def test_replayed_dropped_and_reflected_frames_are_refused() -> None:
    client, server = opened()
    good = sealed(client, 2)
    server.receive(good[0])
    with pytest.raises(WireError):
        server.receive(good[0])
    client, server = opened()
    with pytest.raises(WireError):
        server.receive(sealed(client, 2)[1])
    client, server = opened()
    with pytest.raises(WireError):
        client.receive(sealed(client, 1)[0])


def test_a_recorded_conversation_is_worth_nothing() -> None:
    client, server = ClientSession(SECRET, HELLO), ServerSession(SECRET, "task")
    hello = flush(client)
    server.receive(hello)
    challenge = flush(server)
    client.receive(challenge)
    proof = flush(client) + client.seal(encode({"type": "join"}))
    victim = ServerSession(SECRET, "task")
    assert victim.receive(hello) == []
    with pytest.raises(WireError):
        victim.receive(proof)
    assert not victim.authenticated
    listener = ClientSession(SECRET, HELLO)
    with pytest.raises(WireError):
        listener.receive(challenge)


def test_a_wrong_secret_is_turned_away_at_the_first_frame() -> None:
    client, server = ClientSession(b"w" * 32, HELLO), ServerSession(SECRET, "task")
    with pytest.raises(WireError):
        server.receive(flush(client))
    assert not flush(server)
    assert server.hello is None


def test_a_server_without_the_secret_learns_nothing_and_is_not_believed() -> None:
    client, impostor = ClientSession(SECRET, HELLO), ServerSession(b"w" * 32, "task")
    with pytest.raises(WireError):
        impostor.receive(flush(client))
    with pytest.raises(WireError):
        client.receive(struct.pack(">II", 32, 0) + b"n" * 32 + b"m" * 32)
    assert not client.authenticated
    assert not flush(client)


def test_another_task_and_an_unknown_role_are_turned_away() -> None:
    with pytest.raises(WireError, match="another task"):
        opened(task="other")
    server = ServerSession(SECRET, "task")
    with pytest.raises(WireError, match="role"):
        server.receive(flush(ClientSession(SECRET, Hello("task", "admin", "i-1", 1))))


@settings(max_examples=300)
@given(st.binary(max_size=200))
def test_garbage_never_opens_a_session(garbage: bytes) -> None:
    for session in (ServerSession(SECRET, "task"), ClientSession(SECRET, HELLO)):
        with contextlib.suppress(WireError):
            assert session.receive(garbage) == []
        assert not session.authenticated


@pytest.mark.parametrize(
    ("header", "blob"), [(OPENING_LIMIT, 0), (10, 1), (2**32 - 1, 0), (0, 2**32 - 1)]
)
def test_large_first_frames_are_refused_before_they_are_there(header: int, blob: int) -> None:
    for session in (ServerSession(SECRET, "task"), ClientSession(SECRET, HELLO)):
        with pytest.raises(WireError, match="larger"):
            session.receive(struct.pack(">II", header, blob))


def test_caps_hold_in_both_directions() -> None:
    client, server = opened()
    for header, blob in ((HEADER_LIMIT + 1, 0), (0, BLOB_LIMIT + 1)):
        with pytest.raises(WireError, match="larger"):
            server.receive(struct.pack(">II", header, blob))
        with pytest.raises(WireError, match="over the cap"):
            client.seal(b"x" * header, b"x" * blob)
    client, server = opened()
    largest = client.seal(encode({}), b"x" * BLOB_LIMIT)
    assert server.receive(largest) == [Frame({}, b"x" * BLOB_LIMIT)]


def test_a_read_with_whole_frames_is_looked_through_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A leader of thousands looks for a frame only where bytes are left: four times for a member that joins."""
    looks: list[bool] = []
    look = framing._Opener._lengths

    def counted(opener: framing._Opener, opening: bool) -> tuple[int, int] | None:
        looks.append(opening)
        return look(opener, opening)

    client, server = ClientSession(SECRET, HELLO), ServerSession(SECRET, "task")
    hello = flush(client)
    with monkeypatch.context() as counting:
        counting.setattr(framing._Opener, "_lengths", counted)
        server.receive(hello)
    client.receive(flush(server))
    proof_and_join, ready = flush(client) + client.seal(encode({"n": 1})), client.seal(encode({}))
    with monkeypatch.context() as counting:
        counting.setattr(framing._Opener, "_lengths", counted)
        assert len(server.receive(proof_and_join)) == 1
        assert len(server.receive(ready)) == 1
    assert looks == [True, True, False, False]


def test_space_around_a_header_is_json_and_a_second_value_is_not() -> None:
    client, server = opened()
    assert server.receive(client.seal(b' {"a": 1}\r\n\t')) == [Frame({"a": 1}, b"")]
    with pytest.raises(WireError):
        server.receive(client.seal(b"{} {}"))


@pytest.mark.parametrize(
    "header",
    [b"", b"[]", b"1", b"\xff", b"[" * 100_000, b"9" * 10_000, b'{"a":', b"{}{}", b"{}x"],
)
def test_a_header_that_is_no_object_is_refused_even_from_a_friend(header: bytes) -> None:
    client, server = opened()
    with pytest.raises(WireError):
        server.receive(client.seal(header))


def test_short_secrets_are_refused() -> None:
    with pytest.raises(ValueError, match="16 bytes"):
        ServerSession(b"short", "task")


ROLES = (*RENDEZVOUS_ROLES, STEP_ROLE, RELAY_ROLE, VOLUME_ROLE, CHECK_ROLE, MEASURE_ROLE)


@given(st.sampled_from(ROLES), st.sampled_from(ROLES))
def test_a_peer_of_one_service_is_no_peer_of_another(claimed: str, served: str) -> None:
    server = ServerSession(SECRET, "task", (served,))
    hello = flush(ClientSession(SECRET, Hello("task", claimed, "i-1", 1)))
    if claimed == served:
        assert server.receive(hello) == []
    else:
        with pytest.raises(WireError, match="role"):
            server.receive(hello)
        assert not flush(server)


@settings(max_examples=100)
@given(st.integers(0, 2), st.data())
def test_a_changed_byte_of_the_opening_ends_it(number: int, data: st.DataObject) -> None:
    """Whichever of the three frames it is in, the side that receives it is not authenticated."""
    client, server = ClientSession(SECRET, HELLO), ServerSession(SECRET, "task")
    for step, (sender, receiver) in enumerate(
        ((client, server), (server, client), (client, server))
    ):
        sent = bytearray(flush(sender))
        if step == number:
            sent[data.draw(st.integers(0, len(sent) - 1))] ^= data.draw(st.integers(1, 255))
            with contextlib.suppress(WireError):
                assert not receiver.open(bytes(sent))
            assert not receiver.authenticated
            assert not flush(receiver)
            return
        receiver.open(bytes(sent))


@settings(max_examples=60)
@given(st.binary(max_size=300), st.binary(max_size=300), st.integers(0, 2**32))
def test_a_plain_stream_follows_whole_however_it_is_cut(up: bytes, down: bytes, seed: int) -> None:
    """As for volumes: three frames, one that admits the peer, and then bytes that are no frames."""
    cuts = random.Random(seed)
    client = ClientSession(SECRET, Hello("task", VOLUME_ROLE, "i-1", 1, "data"))
    server = ServerSession(SECRET, "task", (VOLUME_ROLE,))

    def move(data: bytes, receiver: Session) -> None:
        while data:
            size = cuts.randint(1, len(data))
            receiver.open(data[:size])
            data = data[size:]

    move(flush(client), server)
    move(flush(server), client)
    move(flush(client) + up, server)
    assert server.hello == Hello("task", VOLUME_ROLE, "i-1", 1, "data")
    move(server.seal(encode({})) + down, client)
    assert client.next_frame() == Frame({}, b"")
    assert (server.rest(), client.rest()) == (up, down)


def test_the_secret_is_proved_in_one_place() -> None:
    """Whoever compares a proof of his own has a protocol of his own, which would have to be audited too."""
    node = Path(framing.__file__).parents[1]
    found = {
        str(path.relative_to(node))
        for path in node.rglob("*.py")
        if "compare_digest" in path.read_text()
    }
    assert found == {"protocol/framing.py"}


@given(st.binary(max_size=200), st.lists(st.binary(max_size=200), max_size=4))
def test_the_code_of_frames_is_hmac_sha256(key: bytes, parts: list[bytes]) -> None:
    mac = framing._Mac(key)
    for _ in range(2):
        assert mac.tag(*parts) == hmac.digest(key, b"".join(parts), "sha256")
