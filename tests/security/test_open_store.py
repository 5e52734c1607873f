"""The key-value store for Horovod, to which anyone who reaches the leader's private address can write."""

from __future__ import annotations

import contextlib
import socket
from http.client import HTTPConnection

import pytest

from flowlite.node.leader_run import horovod


@pytest.fixture
def store() -> str:
    return horovod.serve("127.0.0.1")


def _ask(store: str, method: str, path: str, value: bytes | None = None) -> tuple[int, bytes]:
    connection = HTTPConnection(store, timeout=60)
    try:
        connection.request(method, path, value)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def test_a_value_is_kept_until_it_is_removed(store: str) -> None:
    assert _ask(store, "GET", "/scope/1") == (404, b"")
    assert _ask(store, "PUT", "/scope/1", b"10.0.0.1:99") == (200, b"")
    assert _ask(store, "GET", "/scope/1") == (200, b"10.0.0.1:99")
    assert _ask(store, "DELETE", "/scope/1") == (200, b"")
    assert _ask(store, "GET", "/scope/1") == (404, b"")


def test_it_listens_on_an_address_of_ipv6_too() -> None:
    place = horovod.serve("::1")
    connection = HTTPConnection("::1", int(place.rpartition(":")[2]), timeout=60)
    with contextlib.closing(connection):
        connection.request("GET", "/scope/1")
        assert connection.getresponse().status == 404


@pytest.mark.timeout(60)
@pytest.mark.parametrize("length", ["-1", "+5", "x", "1e3", "9" * 5000, str(1 << 40)])
def test_a_length_that_is_none_is_refused(store: str, length: str) -> None:
    """A negative one would read until the connection ends."""
    host, _, port = store.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=60) as peer:
        peer.sendall(f"PUT /scope/1 HTTP/1.1\r\nContent-Length: {length}\r\n\r\n".encode())
        assert b" 413 " in peer.recv(4096)
    assert _ask(store, "GET", "/scope/1") == (404, b"")


def test_all_values_together_have_a_bound(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(horovod, "_MOST_BYTES", 3_000)
    value = bytes(1_000)
    assert [_ask(store, "PUT", f"/{key}", value)[0] for key in (1, 2, 2, 3)] == [200, 200, 200, 413]
    assert _ask(store, "DELETE", "/1")[0] == 200
    assert _ask(store, "PUT", "/3", value)[0] == 200
    assert [_ask(store, "PUT", f"/{'k' * 2000}", b"")[0]] == [413]
