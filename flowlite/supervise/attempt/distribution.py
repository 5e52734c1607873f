"""Brings the contents of a task to many nodes: to one from here, and to the others from those that have them already.

A node that has all contents serves up to `FAN_OUT` others at a time, so that they spread like a tree. Who gets them
from whom is decided here, one node at a time: only a node that has everything is ever asked, so that none waits for one
that waits itself, and one that dies is replaced by another. Nodes verify what they get by its hash
(`flowlite/node/contents`). Where nodes do not reach one another, all of them are sent to from here, as few are.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import field
from pathlib import Path
from typing import Any, TypeVar

from flowlite.connect.bounded import parse_object
from flowlite.connect.pipe import Pipe
from flowlite.errors import NodeUnreachable, ProviderError
from flowlite.node.quick_dataclass import dataclass
from flowlite.node.system import trace
from flowlite.supervise.attempt import certificates
from flowlite.supervise.attempt.node_handle import Node
from flowlite.supervise.attempt.reachability import GivenUp
from flowlite.supervise.record.log import say
from flowlite.supervise.threads import Threads
from flowlite.supervise.waiting import wait_until

Value = TypeVar("Value")

FROM_NODES = 16
"""From so many nodes on, they get contents from one another."""
WORTH = 1 << 20
"""What a node lacks is sent from here if it is less than this: to start a program there takes as long."""
FAN_OUT = 4
"""How many nodes get contents from one node at a time."""

# Calls to nodes take a thread each, and others need some, too.
_MOST_AT_ONCE = 48
_TRIES = 3
# A node with which so many others failed is not asked again.
_FAILURES_OF_ONE = 2
# After so many failures, and more of them than successes, nodes are taken not to reach one another.
_FAILURES_IN_ALL = 8
_OTHERS_TOLD = 2
_OPENING_SECONDS = 60.0
_FETCH_SECONDS = 7200.0
_MOST_SAID = 4096
_LAST_PORT = 65535


@dataclass(eq=False)
class _Source:
    """A node that has all contents. `opening` is its server: the pipe to it, and its port."""

    node: Node
    failures: int = 0
    dead: bool = False
    opening: asyncio.Future[int] | None = None
    pipe: Pipe | None = None

    @property
    def open(self) -> bool:
        """Whether its server listens."""
        return (
            not self.dead
            and self.opening is not None
            and self.opening.done()
            and self.opening.exception() is None
        )

    @property
    def place(self) -> tuple[str, int]:
        """Where its server listens."""
        assert self.opening is not None
        return self.node.instance.address, self.opening.result()


@dataclass(eq=False)
class Distribution:
    """The distribution of one attempt. Everything but `lacks` is called in the event loop.

    Attributes:
        project: Whether the contents of the project's manifest on the nodes belong to it.
        files: Further contents, in the cache of each node: size by hash.
        changed: Called when `str()` has changed.
        sent: How many nodes got contents from another one.
        why_not: Why nodes do not get them from one another; "" if they do.
    """

    task_id: str
    attempt: int
    roster: Sequence[str]
    secret: bytes
    threads: Threads
    given_up: asyncio.Event
    project: bool
    files: Mapping[str, int]
    changed: Callable[[str], None] = lambda _: None
    sent: int = 0
    why_not: str = ""
    _sources: dict[str, _Source] = field(default_factory=dict)
    _open: list[_Source] = field(default_factory=list)
    # The places at sources that are free, in the order in which they are taken.
    _free: deque[_Source] = field(default_factory=deque)
    _waiting: deque[tuple[Node, asyncio.Future[_Source | None]]] = field(default_factory=deque)
    _sent_from_here: Node | None = None
    _fetching: int = 0
    _failures: int = 0
    _certificate: asyncio.Future[certificates.Certificate] | None = None
    _closed: bool = False

    def __str__(self) -> str:
        """How far it is, in words."""
        if self.why_not:
            return f"the nodes do not get it from one another: {self.why_not}"
        if not self._fetching and not self._waiting:
            return ""
        has = len(self._sources)
        return f"{has} of {len(self.roster)} nodes have it, {self._fetching} get it from them"

    def lacks(self, node: Node, agent: tuple[Path, str]) -> bool:
        """Whether a node lacks so much of `files` that it should get it from others. Called in a thread.

        Args:
            agent: The agent's zipapp on this machine, and its hash.

        Raises:
            NodeUnreachable: The node cannot be reached.
            ProviderError: The node cannot say it.
        """
        if not self.files or self.why_not:
            return False
        node.connection.put_cached(
            agent[0], node.agent, agent[1], mode=0o700, cache=node.settings.cache
        )
        answer = self._run_fetch(node, [], {}, project=False)
        return bool(_number(answer, "bytes") >= WORTH)

    def worth(self, lacking: int) -> bool:
        """Whether a node that lacks so many bytes should get them from others."""
        return lacking >= WORTH and not self.why_not

    def add(self, node: Node) -> None:
        """Notes that a node has all contents."""
        if node.instance.id not in self._sources:
            source = self._sources[node.instance.id] = _Source(node)
            self._free.extend([source] * FAN_OUT)
            self._grant()

    def sent_to(self, node: Node, *, everything: bool) -> None:
        """Notes the end of sending to a node from here. `everything`: whether it has all contents now."""
        if self._sent_from_here is node:
            self._sent_from_here = None
        if everything:
            self.add(node)
        self._grant()

    async def bring(self, node: Node) -> None:
        """Has a node get what it lacks from others. On return it has it, or is to be sent to from here.

        Raises:
            GivenUp: The attempt was given up.
        """
        for _ in range(_TRIES):
            source = await self._turn(node)
            if source is None:
                return
            try:
                with trace.span("contents from another node", node=node.rank):
                    if await self._fetch(node, source):
                        return
            finally:
                self._fetching -= 1
                self._free.append(source)
                self._grant()

    async def close(self) -> None:
        """Ends the servers. A node that has not got everything by now does not get it from others any more."""
        self._closed = True
        self._free.clear()
        self._grant()
        pipes = [source.pipe for source in self._sources.values() if source.pipe is not None]
        # Without threads the supervisor is ending, and all its pipes with it.
        with suppress(RuntimeError):
            await self.threads.each(pipes, _close)

    # Whose turn it is

    async def _turn(self, node: Node) -> _Source | None:
        """Waits for a node that has the contents; None: this one is sent to from here."""
        turn: asyncio.Future[_Source | None] = asyncio.get_running_loop().create_future()
        self._waiting.append((node, turn))
        self._grant()
        return await self._unless_given_up(turn)

    def _grant(self) -> None:
        while self._waiting:
            node, turn = self._waiting[0]
            if turn.done():
                self._waiting.popleft()
                continue
            source = None
            if not self.why_not and not self._closed:
                if self._fetching >= _MOST_AT_ONCE:
                    break
                source = self._free_source(node)
                if source is None:
                    alive = any(
                        not each.dead and each.node is not node for each in self._sources.values()
                    )
                    if alive or self._sent_from_here is not None:
                        break
                    self._sent_from_here = node
            self._waiting.popleft()
            # Counted here: those that are let go now go on only after this loop.
            self._fetching += source is not None
            turn.set_result(source)
        self.changed(str(self))

    def _free_source(self, node: Node) -> _Source | None:
        own = 0
        while len(self._free) > own:
            source = self._free.popleft()
            if source.dead or self._closed:
                continue
            if source.node is not node:
                return source
            self._free.append(source)
            own += 1
        return None

    # From one node to another

    async def _fetch(self, node: Node, source: _Source) -> bool:
        """Has a node fetch from another one. Returns False if it should try yet another one."""
        try:
            certificate = await self._get_certificate()
            if source.opening is None:
                source.opening = asyncio.ensure_future(self._serve(source, certificate))
            await self._unless_given_up(source.opening)
        except (ProviderError, OSError, TypeError, ImportError) as error:
            source.dead = True
            self._failed(source, f"cannot serve the others: {error}")
            return False
        others = [each for each in self._open if each is not source and each.node is not node]
        peers = [each for each in (source, *others[-_OTHERS_TOLD:]) if each.open]
        if not peers:
            return False
        gang = {**self._gang(certificate), "peer": node.instance.id}
        places = [each.place for each in peers]
        began = time.monotonic()
        try:
            doing = asyncio.ensure_future(
                self.threads.run(self._run_fetch, node, places, gang, self.project)
            )
            answer = await self._unless_given_up(doing)
            found = answer.get("troubles")
            troubles = [str(each)[:300] for each in found] if isinstance(found, list) else []
            lacking = _number(answer, "lacking")
        except (ProviderError, OSError) as error:
            # What ails this node shows when it is sent to from here.
            say(f"{node.name}: gets nothing from other nodes: {error}")
            return True
        for peer, trouble in zip(peers, troubles, strict=False):
            if trouble:
                self._failed(peer, f"{node.name} got nothing more from it: it {trouble}")
        if lacking:
            return False
        self.sent += 1
        last = peers[min(len(peers), max(1, len(troubles))) - 1].node
        seconds = time.monotonic() - began
        say(f"{node.name}: got what it lacked from {last.name} in {seconds:.1f} s")
        self.add(node)
        return True

    def _failed(self, source: _Source, why: str) -> None:
        say(f"{source.node.name}: {why}")
        source.failures += 1
        self._failures += 1
        if source.failures >= _FAILURES_OF_ONE:
            source.dead = True
        if self._failures >= max(_FAILURES_IN_ALL, self.sent + 1) and not self.why_not:
            self.why_not = f"{source.node.name}: {why}"
            trace.mark("nodes do not reach one another", why=self.why_not)

    def _run_fetch(
        self,
        node: Node,
        peers: Sequence[tuple[str, int]],
        gang: Mapping[str, Any],
        project: bool,
    ) -> dict[str, Any]:
        order = {**self._order(node, project), "peers": list(peers), "gang": dict(gang)}
        argv = [*node.program, "contents-fetch"]
        done = node.connection.run(argv, input=json.dumps(order).encode(), timeout=_FETCH_SECONDS)
        try:
            answer = parse_object(done.stdout)
        except ValueError as error:
            raise ProviderError(done.last_words) from error
        if "failed" in answer:
            raise ProviderError(str(answer["failed"]))
        return answer

    async def _serve(self, source: _Source, certificate: certificates.Certificate) -> int:
        """Starts the server of a node and returns its port."""
        order = {
            **self._order(source.node, self.project),
            "gang": {
                **self._gang(certificate),
                "roster": list(self.roster),
                "bind": source.node.settings.bind or source.node.instance.address,
                "key": (certificate.key or b"").decode(),
            },
        }
        port = await self.threads.run(self._start, source, order)
        self._open.append(source)
        return port

    def _start(self, source: _Source, order: Mapping[str, Any]) -> int:
        node = source.node
        pipe = node.connection.pipe([*node.program, "contents-serve"], _OPENING_SECONDS)
        try:
            pipe.send(json.dumps(order).encode() + b"\n")
            said, until = b"", time.monotonic() + _OPENING_SECONDS
            while not said.endswith(b"\n") and len(said) < _MOST_SAID:
                block = pipe.receive(max(0.0, until - time.monotonic()))
                if not block:
                    told = pipe.said.decode(errors="replace").strip().splitlines()[-1:]
                    raise ProviderError(" ".join(told) or "it says nothing")
                said += block
            answer = parse_object(said)
            if "failed" in answer:
                raise ProviderError(str(answer["failed"]))
            port = _number(answer, "port")
            if port > _LAST_PORT:
                raise ProviderError("its answer has no port")
        except ValueError as error:
            pipe.close()
            raise ProviderError(f"what it says is no answer: {error}") from error
        except BaseException:
            pipe.close()
            raise
        source.pipe = pipe
        if self._closed:
            pipe.close()
        return port

    def _order(self, node: Node, project: bool) -> dict[str, Any]:
        settings = node.settings
        return {
            "home": settings.home,
            "blobs": settings.cache or f"{settings.home}/blobs",
            "project": project,
            "more": dict(self.files),
        }

    def _gang(self, certificate: certificates.Certificate) -> dict[str, Any]:
        return {
            "task": self.task_id,
            "attempt": self.attempt,
            "secret": self.secret.hex(),
            "certificate": certificate.certificate.decode(),
        }

    async def _get_certificate(self) -> certificates.Certificate:
        """Returns the certificate that encrypts this distribution. It is never on a disk of this machine."""
        if self._certificate is None:
            self._certificate = asyncio.ensure_future(self.threads.run(certificates.make))
        return await self._unless_given_up(self._certificate)

    async def _unless_given_up(self, doing: asyncio.Future[Value]) -> Value:
        """Waits for a result. Raises GivenUp if the attempt is given up before; then `doing` goes on."""
        if not doing.done():
            await wait_until(self.given_up, doing)
        if not doing.done():
            raise GivenUp
        return doing.result()


def _number(answer: Mapping[str, Any], name: str) -> int:
    """A number of an answer. Raises ProviderError: there is none."""
    value = answer.get(name)
    if type(value) is not int or value < 0:
        raise ProviderError(f"its answer has no {name}")
    return value


def _close(pipe: Pipe) -> None:
    try:
        pipe.close()
    except (NodeUnreachable, OSError):
        # A node that is gone serves nobody.
        return
