"""Simulated members join our rendezvous over TCP until all have GO; notes the seconds from the first dial.

It also notes the processor time of the leader alone: what one process does here for all members, they do side by side.
The server is the one of the leader's agent, in a process of its own. The members really shake hands and sign every
frame, and answer "prepare" at once; what they say is encoded beforehand, since real members do that side by side.
"""

import asyncio
import multiprocessing
import multiprocessing.connection
import resource
import selectors
import socket
import sys
import time
from pathlib import Path
from typing import Any

from flowlite.node.agent.main import collect_seldom
from flowlite.node.protocol.framing import ClientSession, Hello, encode
from flowlite.node.protocol.messages import GangSettings
from flowlite.node.rendezvous.server import RendezvousServer

CONNECT = 64
"""How many members connect before what has come for the others is looked at."""
READ = 8 * 1024
"""Bytes that a member reads at once, as a real one does."""

SECRET = b"benchmark-secret"
TASK = "benchmark"
FACTS = {
    "hostname": "host",
    "python": "3.11.7",
    "python_minor": "3.11",
    "code": "c" * 64,
    "agent": "a" * 64,
}


class NoMaster:
    """A master port that nobody will use."""

    def prove(self) -> int:
        """A port."""
        return 29500

    def close(self) -> None:
        """Nothing to close."""


class SimulatedMember:
    """One node's connection to the leader."""

    def __init__(self, settings: GangSettings, instance: str) -> None:
        self.socket = socket.socket()
        self.socket.setblocking(False)
        self._session = ClientSession(SECRET, Hello(settings.task, "member", instance, 1))
        self._join = self._encoded(
            "join",
            instance=instance,
            incarnation=f"{instance}-1",
            facts={**FACTS, "clock": time.time()},
        )
        self._ready = self._encoded("ready", facts={})
        self._joined = False

    def greet(self) -> None:
        """Says who it is, once connected."""
        self.socket.send(self._session.outgoing)

    def answer(self) -> bool:
        """Takes what the leader sent, and answers; gives whether it was GO."""
        frames = self._session.receive(self.socket.recv(READ))
        if self._session.authenticated and not self._joined:
            self._joined = True
            self.socket.send(self._session.outgoing + self._session.seal(self._join))
        kinds = [frame.message["type"] for frame in frames]
        if "prepare" in kinds:
            self.socket.send(self._session.seal(self._ready))
        return "go" in kinds

    @staticmethod
    def _encoded(kind: str, **fields: Any) -> bytes:
        return encode({"type": kind, "task": TASK, "attempt": 1, **fields})


def settings_of(count: int) -> GangSettings:
    """A gang of that many nodes."""
    return GangSettings(TASK, 1, tuple(f"node-{i:05}" for i in range(count)))


async def serve(count: int, ready: multiprocessing.connection.Connection) -> None:
    """The leader's side, with an agent's garbage collector; never returns."""
    collect_seldom()
    server = RendezvousServer(settings_of(count), SECRET, bind="127.0.0.1", master=NoMaster())
    ready.send(await server.start())
    await server.run()


def join(count: int, port: int) -> float:
    """All members at once; gives the seconds until the last one has GO.

    A member greets soon after it is connected, as real ones do, and not only when the last one is connected.
    """
    settings = settings_of(count)
    members = [SimulatedMember(settings, instance) for instance in settings.roster]
    selector = selectors.DefaultSelector()
    begin = time.monotonic()
    waiting = count
    for number, member in enumerate(members, 1):
        member.socket.connect_ex(("127.0.0.1", port))
        selector.register(member.socket, selectors.EVENT_WRITE, member)
        if number % CONNECT == 0:
            waiting -= _attend(selector, 0)
    while waiting:
        waiting -= _attend(selector, None)
    return time.monotonic() - begin


def _attend(selector: selectors.BaseSelector, patience: float | None) -> int:
    """Lets the members greet and answer; gives how many have got GO."""
    gone = 0
    for key, events in selector.select(patience):
        if events & selectors.EVENT_WRITE:
            key.data.greet()
            selector.modify(key.fileobj, selectors.EVENT_READ, key.data)
        elif key.data.answer():
            gone += 1
    return gone


def main() -> None:
    """Serves in a child, joins here."""
    count = int(sys.argv[2])
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    here, there = multiprocessing.Pipe()
    leader = multiprocessing.Process(target=lambda: asyncio.run(serve(count, there)), daemon=True)
    leader.start()
    taken = join(count, here.recv())
    leader.kill()
    leader.join()
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    Path(sys.argv[1], "own").write_text(repr(used.ru_utime + used.ru_stime))
    Path(sys.argv[1], "seconds").write_text(repr(taken))


if __name__ == "__main__":
    multiprocessing.set_start_method("fork")
    main()
