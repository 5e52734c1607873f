"""A host that sends more than the windows of its channels allow, as no sshd does."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from flowlite.connect.ssh.library import paramiko
from flowlite.connect.ssh.transport import WINDOW, Transport, _Packets
from tests.helpers import eventually

BLOCK = bytes(30_000)


class _Anybody(paramiko.ServerInterface):
    def check_auth_none(self, username: str) -> int:
        return paramiko.AUTH_SUCCESSFUL  # type: ignore[attr-defined, no-any-return]

    def check_channel_request(self, kind: str, chanid: int) -> int:
        return paramiko.OPEN_SUCCEEDED  # type: ignore[attr-defined, no-any-return]


@pytest.fixture
def pair() -> Iterator[tuple[Transport, paramiko.Transport]]:
    """Our side and a server, connected."""
    here, there = socket.socketpair()
    server = paramiko.Transport(there)
    server.add_server_key(paramiko.ECDSAKey.generate())
    server.start_server(event=threading.Event(), server=_Anybody())
    client = Transport(here)
    client.start_client(timeout=90)
    client.auth_none("somebody")
    yield client, server
    client.close()
    server.close()


def _send(server: paramiko.Transport, channel: paramiko.Channel, size: int, *, errors: bool) -> int:
    """Sends data without a look at the window; gives how much went out."""
    sent = 0
    while sent < size and server.is_active():
        message = paramiko.Message()
        if errors:
            message.add_byte(paramiko.common.cMSG_CHANNEL_EXTENDED_DATA)
            message.add_int(channel.remote_chanid)
            message.add_int(1)
        else:
            message.add_byte(paramiko.common.cMSG_CHANNEL_DATA)
            message.add_int(channel.remote_chanid)
        message.add_string(BLOCK)
        try:
            server._send_user_message(message)  # type: ignore[attr-defined]
        except (OSError, EOFError):
            break
        sent += len(BLOCK)
    return sent


@pytest.mark.parametrize("errors", [False, True], ids=["output", "errors"])
def test_it_is_left(pair: tuple[Transport, paramiko.Transport], errors: bool) -> None:
    client, server = pair
    channel = client.ask_channel("session")
    theirs = server.accept(60)
    assert theirs is not None
    _send(server, theirs, 4 * WINDOW, errors=errors)
    eventually(lambda: not client.is_active())
    assert "the host sends more than it may" in client.why()
    assert len(channel.in_buffer) + len(channel.in_stderr_buffer) <= WINDOW + 2 * len(BLOCK)


def test_a_full_window_is_none_of_it(pair: tuple[Transport, paramiko.Transport]) -> None:
    client, server = pair
    channel = client.ask_channel("session")
    theirs = server.accept(60)
    assert theirs is not None
    whole = WINDOW // len(BLOCK) * len(BLOCK)
    assert _send(server, theirs, whole, errors=False) == whole
    eventually(lambda: len(channel.in_buffer) == whole)
    assert client.is_active()


def test_what_has_come_is_read_at_once(
    pair: tuple[Transport, paramiko.Transport], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A message has a head and a body. For each of them the system would be asked twice."""
    client, server = pair
    channel = client.ask_channel("session")
    theirs = server.accept(60)
    assert theirs is not None
    packets: Any = client.packetizer
    calls: list[int] = []
    receive = packets._Packetizer__socket._receive

    def noting(size: int) -> bytes:
        found: bytes = receive(size)
        calls.append(len(found))
        return found

    monkeypatch.setattr(packets._Packetizer__socket, "_receive", noting)
    for number in range(20):
        theirs.sendall(b"%02d" % number)
        assert channel.recv(2) == b"%02d" % number
    assert len(calls) <= 21


def test_what_is_offered_is_what_paramiko_offers() -> None:
    here, there = socket.socketpair()
    ours, theirs = Transport(here), paramiko.Transport(there)
    try:
        for kind in ("ciphers", "macs", "keys", "pubkeys", "kex", "compression"):
            assert getattr(ours, f"preferred_{kind}") == getattr(theirs, f"preferred_{kind}")
    finally:
        here.close()
        there.close()


def test_a_greeting_is_not_read_ahead() -> None:
    """One without end takes memory until it has lasted too long."""
    asked: list[int] = []

    class Endless:
        send = close = None

        def recv(self, size: int) -> bytes:
            asked.append(size)
            return b"x" * size if len(asked) < 9 else b""

    with pytest.raises(EOFError):
        _Packets(Endless()).readline(60)
    assert max(asked) <= 128
