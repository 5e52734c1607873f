"""A check before GO that nodes reach each other, and not only the leader: collectives connect any node to any other.

Each node listens on a port that the kernel chooses, as NCCL and Gloo do, and reports the port when it joins. The order
to prepare brings the ports of all other nodes. The node connects to them and exchanges a block in both directions,
because packets that exceed the MTU of some part of the path are lost where small ones are not. Nodes with the same
address are not checked; they share a machine.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from ..protocol.framing import (
    CHECK_ROLE,
    ClientSession,
    Frame,
    Hello,
    ServerSession,
    Session,
    WireError,
    encode,
)
from ..protocol.messages import MessageError, unpack_addresses
from ..rendezvous.member_client import PrepareError
from ..system import addresses, retrying
from ..system.retrying import RetryWindow, Trouble

BLOCK_SECONDS = 15.0
"""Time limit for sending a block and receiving one."""
BULK_SECONDS = 0.5
"""How long each path is measured."""
ALL_PAIRS = 16
"""In gangs of up to this many nodes, all pairs are checked. In larger ones a node checks those at distances of 1, 2,
4, …, as in NCCL's trees."""

LOOPBACK = ("127.", "::1")
"""Prefixes of addresses that no other machine can reach."""
_BLOCK = 64 * 1024
_LOST = f"{_BLOCK // 1024} kB do not get through"
# One lost block may be a short outage. After a longer one, the next connection fails, which resets the count.
_BLOCKS_LOST = 2
_NAMED = 4


class ConnectivityCheck:
    """One node's part in the check.

    Args:
        task: The task's id.
        attempt: The number of the attempt.
        rank: This node's rank.
        nodes: The number of nodes.
        secret: The task's secret; connections without it get no answer.
        silence: Returns the seconds since the last message of a node, by its rank; on nodes other than the leader,
            since the last message of the leader.
        longest: Seconds that an outage may last.

    Attributes:
        port: The port it listens on; None if it does not listen.
    """

    def __init__(
        self,
        task: str,
        attempt: int,
        rank: int,
        nodes: int,
        secret: bytes,
        *,
        silence: Callable[[int], float],
        longest: float,
    ) -> None:
        self._silence = silence
        self._longest = longest
        self._rank = rank
        self._nodes = nodes
        self._secret = secret
        self._hello = Hello(task, CHECK_ROLE, str(rank), attempt)
        self._address = ""
        self._server: asyncio.Server | None = None
        self.port: int | None = None

    async def open(self, address: str | None) -> None:
        """Listen at this node's address. If that is not possible, other nodes do not check this one."""
        if self._nodes < 2 or not address or address.startswith(LOOPBACK):
            return
        self._address = address
        try:
            self._server = await asyncio.start_server(self._answer, address, 0)
        except OSError:
            return
        self.port = int(self._server.sockets[0].getsockname()[1])

    def close(self) -> None:
        """Stop listening."""
        if self._server is not None:
            self._server.close()
            self._server = None

    async def reach(self, order: Mapping[str, Any]) -> None:
        """Check the connections to other nodes.

        Raises:
            PrepareError: Some cannot be reached; the text names them and the probable cause.
        """
        if "connectivity" not in order:
            return
        try:
            places = unpack_addresses(order["connectivity"])
        except MessageError as error:
            raise PrepareError(f"the leader did not say where the nodes meet: {error}") from None
        targets = [(rank, *_place(places[rank])) for rank in others(self._rank, len(places))]
        found = await asyncio.gather(
            *(
                self._reach(rank, address, port)
                for rank, address, port in targets
                if port and address != self._address
            )
        )
        wrong = [each for each in found if each]
        if wrong:
            passing = all(each.passing for each in wrong)
            more = f"; and {len(wrong) - _NAMED} more nodes" if wrong[_NAMED:] else ""
            remedy = ""
            if any(each.firewall for each in wrong):
                remedy = (
                    ". Ranks talk to each other on all ports: allow TCP between the nodes, ports "
                    f"{_port_range()} at least"
                )
            named = "; ".join(each.text for each in wrong[:_NAMED])
            raise PrepareError(f"{named}{more}{remedy}", passing=passing)

    async def measure(self, order: Mapping[str, Any]) -> dict[str, float]:
        """Measure the paths to other nodes, after `reach`, one after the other.

        All nodes measure the path to the next rank at the same time, then the path to the rank after that. In a full
        duplex network, these transfers do not slow each other down.

        Returns:
            Bytes per second by the rank of the other node. Zero if the path broke.
        """
        if "connectivity" not in order:
            return {}
        places = unpack_addresses(order["connectivity"])
        nodes = len(places)
        found: dict[str, float] = {}
        for distance in _distances(nodes):
            if distance > nodes // 2:
                break
            rank = (self._rank + distance) % nodes
            address, port = _place(places[rank])
            if not port or address == self._address:
                continue
            try:
                async with asyncio.timeout(BLOCK_SECONDS):
                    found[str(rank)] = await self._send_bulk(address, port)
            except (OSError, TimeoutError, WireError):
                found[str(rank)] = 0.0
        return found

    async def _send_bulk(self, address: str, port: int) -> float:
        """Sends to a node for a moment. Returns the bytes per second that it has received."""
        reader, writer = await asyncio.open_connection(address, port)
        try:
            session = ClientSession(self._secret, self._hello)
            await authenticate(reader, writer, session)
            writer.write(session.seal(encode({"bulk": BULK_SECONDS}), b""))
            block, sent, began = bytes(4 * _BLOCK), 0, time.perf_counter()
            while time.perf_counter() - began < BULK_SECONDS:
                writer.write(block)
                sent += len(block)
                await writer.drain()
            writer.write_eof()
            message, _ = await read_frame(reader, session)
            received = message.get("received")
            if type(received) is not int or not 0 <= received <= sent:
                raise WireError("a node claims to have received more than was sent")
            return received / (time.perf_counter() - began)
        finally:
            writer.transport.abort()

    async def _reach(self, rank: int, address: str, port: int) -> Trouble | None:
        """Returns what is wrong with the path to a node; None if nothing is."""
        name = f"node {rank} ({address}, port {port})"
        trial = RetryWindow(partial(self._silence, rank), self._longest)
        blocks_lost = 0
        while True:
            try:
                async with asyncio.timeout(retrying.TRY_SECONDS):
                    reader, writer = await asyncio.open_connection(address, port)
            except (OSError, TimeoutError) as error:
                blocks_lost = 0
                if wrong := trial.failed(error):
                    return replace(wrong, text=f"{name} {wrong.text}")
                await asyncio.sleep(retrying.AGAIN)
                continue
            trial.reached = True
            session = ClientSession(self._secret, self._hello)
            try:
                async with asyncio.timeout(BLOCK_SECONDS):
                    await authenticate(reader, writer, session)
                    writer.write(session.seal(encode({}), bytes(_BLOCK)))
                    await read_frame(reader, session)
                return None
            except TimeoutError as error:
                if not session.authenticated:
                    if wrong := trial.failed(error):
                        return replace(wrong, text=f"{name} {wrong.text}")
                    continue
                blocks_lost += 1
                if blocks_lost >= _BLOCKS_LOST:
                    return Trouble(f"{name} answers, but {_LOST}: {self._mtu()}", passing=False)
            except (OSError, WireError):
                # The node is ending, or does not know the secret: treat it as a refused connection.
                if trial.failed(ConnectionRefusedError()):
                    return Trouble(f"{name} hangs up")
                await asyncio.sleep(retrying.AGAIN)
            finally:
                writer.transport.abort()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(2 * BLOCK_SECONDS):
                session = ServerSession(self._secret, self._hello.task, (CHECK_ROLE,))
                await authenticate(reader, writer, session)
                if session.hello is not None and session.hello.attempt == self._hello.attempt:
                    message, _ = await read_frame(reader, session)
                    answer, block = {}, bytes(_BLOCK)
                    if "bulk" in message:
                        answer, block = {"received": await _received(reader)}, b""
                    writer.write(session.seal(encode(answer), block))
                    await writer.drain()
                    await reader.read()
        except (OSError, TimeoutError, WireError):
            pass
        finally:
            writer.transport.abort()

    def _mtu(self) -> str:
        interface = addresses.interface_towards(self._address) or "the interface"
        try:
            with open(f"/sys/class/net/{interface}/mtu", encoding="ascii") as file:
                size = f" of {file.read().strip()}"
        except OSError:
            size = ""
        return (
            f"full packets are lost on the way. Give {interface}, whose MTU{size} is too large for it, the smallest "
            "MTU of the way (ip link set mtu), or let ICMP through"
        )


async def authenticate(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, session: Session
) -> None:
    """Opens the connection. Raises WireError: the other end does not know the secret, or hung up; OSError."""
    while True:
        if session.outgoing:
            writer.write(session.outgoing)
            session.outgoing = b""
            await writer.drain()
        if session.authenticated:
            return
        session.open(await _some(reader))


async def read_frame(reader: asyncio.StreamReader, session: Session) -> Frame:
    """Reads the next frame of a session that is authenticated. Raises WireError, OSError."""
    while (frame := session.next_frame()) is None:
        session.open(await _some(reader))
    return frame


async def _some(reader: asyncio.StreamReader) -> bytes:
    data = await reader.read(_BLOCK)
    if not data:
        raise WireError("the other end hung up")
    return data


async def _received(reader: asyncio.StreamReader) -> int:
    """Returns how many bytes come until the sender has sent all."""
    received = 0
    while block := await reader.read(4 * _BLOCK):
        received += len(block)
    return received


def others(rank: int, nodes: int) -> list[int]:
    """The ranks of the nodes that a node checks."""
    return sorted({(rank + distance) % nodes for distance in _distances(nodes)})


def _distances(nodes: int) -> list[int]:
    """How far away, by rank, the nodes are that a node checks; in order."""
    if nodes <= ALL_PAIRS:
        return list(range(1, nodes))
    return [1 << power for power in range(nodes.bit_length()) if 1 << power < nodes]


def _place(text: str) -> tuple[str, int]:
    address, _, port = text.rpartition(" ")
    return address, int(port) if port.isdecimal() else 0


def _port_range() -> str:
    try:
        with open("/proc/sys/net/ipv4/ip_local_port_range", encoding="ascii") as file:
            first, last = file.read().split()
    except (OSError, ValueError):
        first, last = "32768", "60999"
    return f"{first} to {last}"
