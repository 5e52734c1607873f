"""The rendezvous encrypted: nothing to read on the wire, one certificate and no other, and no cost where it is off."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from flowlite.node.protocol import stream, tls
from flowlite.node.protocol.framing import WireError
from flowlite.supervise.attempt import certificates
from flowlite.supervise.record.paths import TaskPaths
from tests.helpers import eventually
from tests.node.agents import RealGang
from tests.node.proxy import Proxy

LINE = "the learning rate is 3e-4"


class Tap(Proxy):
    """A proxy that keeps a copy of everything that passes."""

    def __init__(self, target: tuple[str, int]) -> None:
        super().__init__(target)
        self.heard = bytearray()

    def on_data(self, data: bytes) -> None:
        self.heard += data


def echo(text: str) -> dict[str, object]:
    return {"kind": "command", "argv": ["sh", "-c", f"echo '{text}'"]}


async def run_tapped(gang: RealGang) -> bytes:
    """Runs a gang of two with a tap between node 1 and the leader; gives what was heard."""
    gang.start()
    leader = gang.paths[0].leader
    await asyncio.to_thread(eventually, leader.exists)
    place = json.loads(leader.read_bytes())
    async with Tap((place["address"], place["port"])) as tap:
        gang.open_link()
        address, port = tap.address
        gang.paths[1].leader.write_text(json.dumps({"address": address, "port": port}))
        ended = await gang.finish()
        assert ended["outcome"] == "done", gang.logs()
        return bytes(tap.heard)


@pytest.mark.parametrize("encrypted", [True, False], ids=["encrypted", "plain"])
def test_a_log_line_can_be_read_on_the_wire_only_where_it_does_not_leave_the_machine(
    tmp_path: Path, encrypted: bool
) -> None:
    with RealGang(tmp_path, echo(LINE), processes_per_node=1, tls=encrypted) as gang:
        gang.tell_leader = _place_of_leader(gang)  # type: ignore[method-assign]
        heard = asyncio.run(run_tapped(gang))
        assert gang.text(1) == f"{LINE}\n"
        assert (LINE.encode() in heard) is not encrypted
        assert (gang.task.encode() in heard) is not encrypted
        assert len(heard) > 1000
        gang.assert_nothing_left()


def _place_of_leader(gang: RealGang) -> Callable[[], dict[str, object]]:
    """Instead of telling node 1 where the leader is: it is told where the tap is."""
    return lambda: dict(json.loads(gang.paths[0].leader.read_bytes()))


def test_logs_of_megabytes_come_whole(tmp_path: Path) -> None:
    argv = ["sh", "-c", "i=0; while [ $i -lt 40000 ]; do echo line $i of $RANK; i=$((i+1)); done"]
    call = {"kind": "command", "argv": argv}
    with RealGang(tmp_path, call, processes_per_node=2, tls=True) as gang:
        assert gang.run()["outcome"] == "done"
        for rank in range(4):
            assert gang.text(rank) == "".join(f"line {i} of {rank}\n" for i in range(40000))
        gang.assert_nothing_left()


def test_a_member_that_was_given_another_certificate_does_not_join(tmp_path: Path) -> None:
    with RealGang(
        tmp_path, echo(LINE), processes_per_node=1, tls=True, join_timeout=6.0, linger=0.5
    ) as gang:
        gang.paths[1].certificate.write_bytes(certificates.make().certificate)
        ended = gang.run()
        assert ended["outcome"] == "missing"
        assert "never heard of" in ended["reason"]
        assert "certificate" in gang.paths[1].log.read_text()


def test_somebody_who_does_not_encrypt_is_turned_away(tmp_path: Path) -> None:
    with RealGang(tmp_path, echo(LINE), processes_per_node=1, tls=True) as gang:
        gang.start()

        async def knock() -> bytes:
            place = gang.tell_leader()
            reader, writer = await asyncio.open_connection(place["address"], place["port"])
            writer.write(b"\0" * 64)
            async with asyncio.timeout(60):
                heard = await reader.read()
            writer.close()
            return heard

        heard = asyncio.run(knock())
        assert LINE.encode() not in heard
        assert asyncio.run(gang.finish())["outcome"] == "done"
        assert "turned away" in gang.paths[0].log.read_text()
        gang.assert_nothing_left()


def loads_ssl(pid: int) -> bool:
    return "/_ssl." in Path(f"/proc/{pid}/maps").read_text()


def test_an_agent_of_a_gang_that_stays_on_its_machine_does_not_load_ssl(tmp_path: Path) -> None:
    for encrypted in (True, False):
        call = {"kind": "command", "argv": ["sleep", "60"]}
        with RealGang(tmp_path / str(encrypted), call, processes_per_node=1, tls=encrypted) as gang:
            gang.start()
            asyncio.run(gang.until("started"))
            assert [loads_ssl(agent.pid) for agent in gang.agents] == [encrypted, encrypted]


# The TLS sessions alone


@pytest.fixture
def pair(tmp_path: Path) -> tuple[tls.TlsSession, tls.TlsSession]:
    """(the dialing end, the leader's end) of one connection, not opened yet."""
    made = certificates.make()
    (tmp_path / "crt").write_bytes(made.certificate)
    (tmp_path / "key").write_bytes(made.key or b"")
    return (
        tls.client(tmp_path / "crt")(),
        tls.server(tmp_path / "crt", tmp_path / "key")(),
    )


def shake(client: tls.TlsSession, server: tls.TlsSession, piece: int = 1 << 20) -> None:
    """Passes what both want sent, in pieces of this size."""
    while not (client.open and server.open):
        for sender, taker in ((client, server), (server, client)):
            wanted = sender.take()
            for at in range(0, len(wanted), piece):
                assert taker.receive(wanted[at : at + piece]) == b""


@pytest.mark.parametrize("piece", [1, 7, 1 << 20])
def test_bytes_may_come_in_any_pieces(
    pair: tuple[tls.TlsSession, tls.TlsSession], piece: int
) -> None:
    client, server = pair
    shake(client, server, piece)
    text = bytes(range(256)) * 400
    for sender, taker in ((client, server), (server, client)):
        sealed = sender.seal(text)
        assert text[:256] not in sealed
        got = b"".join(taker.receive(sealed[at : at + 997]) for at in range(0, len(sealed), 997))
        assert got == text


def test_a_changed_byte_ends_the_connection(pair: tuple[tls.TlsSession, tls.TlsSession]) -> None:
    client, server = pair
    shake(client, server)
    sealed = bytearray(client.seal(b"x" * 100))
    sealed[50] ^= 1
    with pytest.raises(WireError):
        server.receive(bytes(sealed))


def test_a_peer_that_sends_its_handshake_in_single_bytes_is_given_up(
    pair: tuple[tls.TlsSession, tls.TlsSession], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The places of those who have not proved the secret are few."""
    monkeypatch.setattr(stream, "OPENING_SECONDS", 0.3)
    ours, theirs = socket.socketpair()
    done = threading.Event()

    def drip() -> None:
        # The head of a record of 16 KiB, then its content.
        for byte in b"\x16\x03\x01\x40\x00" + bytes(100):
            if done.wait(0.02):
                return
            theirs.send(bytes([byte]))
        theirs.close()

    with ours, theirs:
        dripping = threading.Thread(target=drip)
        dripping.start()
        try:
            with pytest.raises(TimeoutError):
                stream.Stream(ours, pair[1])
        finally:
            done.set()
            dripping.join()


def test_another_certificate_is_refused_before_anything_is_said(
    pair: tuple[tls.TlsSession, tls.TlsSession], tmp_path: Path
) -> None:
    _, server = pair
    (tmp_path / "other").write_bytes(certificates.make().certificate)
    client = tls.client(tmp_path / "other")()
    with pytest.raises(WireError):
        shake(client, server)
    assert not client.open


# The certificate


def test_the_certificate_of_an_attempt_is_made_once_and_its_key_is_forgotten(
    tmp_path: Path,
) -> None:
    paths = TaskPaths(tmp_path, "t1")
    paths.directory.mkdir(parents=True)
    made = certificates.of_attempt(paths, 1)
    assert made.key is not None
    assert certificates.of_attempt(paths, 1) == made
    assert certificates.of_attempt(paths, 2) != made
    for path in (paths.certificate(1), paths.certificate_key(1)):
        assert path.stat().st_mode & 0o777 == 0o600
    certificates.forget_key(paths, 1)
    certificates.forget_key(paths, 1)
    assert certificates.of_attempt(paths, 1) == certificates.Certificate(made.certificate, None)


@pytest.mark.parametrize(
    ("addresses", "needed"),
    [
        (["127.0.0.1", "127.0.0.2", "::1"], False),
        (["127.0.0.1", "10.0.0.2"], True),
        (["fe80::1%eth0"], True),
        ([""], True),
    ],
)
def test_encryption_is_needed_where_an_address_is_not_a_loopback(
    addresses: list[str], needed: bool
) -> None:
    assert certificates.needed(addresses) is needed
