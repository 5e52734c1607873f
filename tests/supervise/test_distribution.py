"""Contents on their way to many nodes: sent from here once, then from node to node, whatever becomes of a node."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from flowlite.bundle.agent_zip import build_agent_zip
from flowlite.connect import uv
from flowlite.connect.local import LocalConnection
from flowlite.errors import NodeUnreachable, ProviderError
from flowlite.node.host_lease import cleanup
from flowlite.supervise.attempt import bring_python, distribution, start_agents
from flowlite.supervise.attempt.distribution import FAN_OUT, FROM_NODES, Distribution
from flowlite.supervise.attempt.node_handle import Node
from flowlite.supervise.attempt.reachability import GivenUp
from flowlite.supervise.attempt.start_agents import BringUp
from flowlite.supervise.threads import Threads
from tests.helpers import eventually, put_agent

CONTENT = os.urandom(2_000_000)
SHA256 = hashlib.sha256(CONTENT).hexdigest()


def make_distribution(nodes: int, threads: Threads | None = None) -> Distribution:
    return Distribution(
        "t1",
        1,
        [f"n{number}" for number in range(nodes)],
        b"the secret of the task, as it is",
        threads or Threads(),
        asyncio.Event(),
        project=False,
        files={SHA256: len(CONTENT)},
    )


class Ground:
    """Nodes that share this machine, and no directory."""

    def __init__(self, home: Path, directory: Path) -> None:
        self.agent = build_agent_zip(home)
        self.directory = directory
        self.sent: list[str] = []

    def node(self, number: int, address: str = "127.0.0.1") -> Node:
        home = self.directory / f"n{number}"
        home.mkdir(exist_ok=True)
        settings = SimpleNamespace(
            home=str(home), cache=f"{home}/blobs", python=sys.executable, bind=""
        )
        found = SimpleNamespace(
            settings=settings,
            instance=SimpleNamespace(id=f"n{number}", address=address),
            connection=LocalConnection(),
            agent=str(self.agent[0]),
            program=(sys.executable, "-I", "-S", str(self.agent[0])),
            name=f"node {number}",
            rank=number,
        )
        return cast(Node, found)

    def blob(self, node: Node) -> Path:
        return Path(str(node.settings.cache), SHA256)

    def send(self, node: Node) -> None:
        """What the supervisor does where a node gets nothing from others."""
        if not self.blob(node).exists() or self.blob(node).read_bytes() != CONTENT:
            self.sent.append(node.name)
            self.blob(node).parent.mkdir(exist_ok=True)
            self.blob(node).write_bytes(CONTENT)

    async def bring(self, among: Distribution, node: Node) -> None:
        await among.bring(node)
        self.send(node)
        among.sent_to(node, everything=True)

    def all_have_it(self, nodes: list[Node]) -> bool:
        return all(self.blob(node).read_bytes() == CONTENT for node in nodes)


@pytest.fixture
def ground(flow_home: Path, tmp_path: Path) -> Ground:
    put_agent(flow_home)
    return Ground(flow_home, tmp_path)


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(300):
            await test()

    asyncio.run(bounded())


def test_it_is_sent_from_here_once(ground: Ground) -> None:
    async def test() -> None:
        nodes = [ground.node(number) for number in range(7)]
        among = make_distribution(len(nodes))
        assert among.lacks(nodes[0], ground.agent)
        await asyncio.gather(*(ground.bring(among, node) for node in nodes))
        assert ground.sent == ["node 0"]
        assert ground.all_have_it(nodes)
        assert among.sent == 6
        assert not among.lacks(nodes[0], ground.agent)
        await among.close()

    run(test)


def test_a_node_that_has_it_already_is_enough(ground: Ground) -> None:
    async def test() -> None:
        nodes = [ground.node(number) for number in range(3)]
        ground.send(nodes[2])
        among = make_distribution(len(nodes))
        among.add(nodes[2])
        await asyncio.gather(*(ground.bring(among, node) for node in nodes[:2]))
        assert ground.sent == ["node 2"]
        assert ground.all_have_it(nodes)
        await among.close()

    run(test)


def test_a_corrupt_node_corrupts_nobody(ground: Ground, capsys: pytest.CaptureFixture[str]) -> None:
    async def test() -> None:
        nodes = [ground.node(number) for number in range(6)]
        for node in nodes[:2]:
            ground.send(node)
        ground.blob(nodes[0]).write_bytes(bytes(len(CONTENT)))
        among = make_distribution(len(nodes))
        for node in nodes[:2]:
            among.add(node)
        await asyncio.gather(*(ground.bring(among, node) for node in nodes[2:]))
        assert ground.sent == ["node 0", "node 1"]
        assert ground.all_have_it(nodes[1:])
        await among.close()

    run(test)
    said = capsys.readouterr()
    assert "node 0: " in said.out + said.err
    assert "it sent a content that does not have its hash" in said.out + said.err


def test_a_node_that_is_killed_on_the_way_is_replaced(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is killed when its server listens, so that whoever has been told of it finds nobody there."""
    started: list[int] = []
    start = Distribution._start

    def start_and_die(self: Distribution, source: Any, order: Any) -> int:
        port = start(self, source, order)
        if not started:
            started.append(port)
            pid = eventually(lambda: _server_at(port))
            os.kill(pid, signal.SIGKILL)
            eventually(lambda: not Path(f"/proc/{pid}/cmdline").exists() or _is_dead(pid))
        return port

    monkeypatch.setattr(Distribution, "_start", start_and_die)

    async def test() -> None:
        nodes = [ground.node(number) for number in range(6)]
        among = make_distribution(len(nodes))
        await asyncio.gather(*(ground.bring(among, node) for node in nodes))
        assert started
        assert len(ground.sent) == 2, "the first one, and one more in its place"
        assert ground.all_have_it(nodes)
        assert not among.why_not
        await among.close()

    run(test)


def _server_at(port: int) -> int:
    """The process that listens on a port of this machine."""
    wanted = f":{port:04X} "
    lines = Path("/proc/net/tcp").read_text().splitlines()[1:]
    inodes = {line.split()[9] for line in lines if wanted in line and line.split()[3] == "0A"}
    for link in Path("/proc").glob("[0-9]*/fd/*"):
        with contextlib.suppress(OSError):
            if link.readlink().name.removeprefix("socket:").strip("[]") in inodes:
                return int(link.parts[2])
    return 0


def _is_dead(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def test_nodes_that_do_not_reach_one_another_are_all_sent_to(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A node that listens there is not reached at the other address.
    told: list[str] = []

    def unreachable(number: int) -> Node:
        node = ground.node(number)
        node.settings.bind = "127.0.0.1"  # type: ignore[misc]
        node.instance.address = "127.0.0.2"  # type: ignore[misc]
        return node

    async def test() -> None:
        nodes = [unreachable(number) for number in range(12)]
        among = make_distribution(len(nodes))
        among.changed = told.append
        await asyncio.gather(*(ground.bring(among, node) for node in nodes))
        assert sorted(ground.sent) == sorted(node.name for node in nodes)
        assert ground.all_have_it(nodes)
        assert "cannot be reached" in among.why_not
        assert not among.worth(10**9)
        await among.close()

    run(test)
    assert any("do not get it from one another" in text for text in told)


def test_a_node_that_cannot_fetch_is_sent_to(
    ground: Ground, capsys: pytest.CaptureFixture[str]
) -> None:
    async def test() -> None:
        nodes = [ground.node(number) for number in range(2)]
        ground.send(nodes[0])
        (ground.directory / "n1" / "blobs").write_text("in the way")
        among = make_distribution(2)
        among.add(nodes[0])
        await among.bring(nodes[1])
        assert not among.why_not
        await among.close()

    run(test)
    said = capsys.readouterr()
    assert "node 1: gets nothing from other nodes" in said.out + said.err


class Simulated(Distribution):
    """No node is asked anything: who gets contents from whom, and how much is done here for it."""

    def lead(self) -> None:
        self.pairs: list[tuple[int, int]] = []
        self.depth: dict[int, int] = {}
        self.serving: dict[int, int] = {}
        self.most_at_once = 0
        self.dead_nodes: set[int] = set()

    async def _fetch(self, node: Node, source: Any) -> bool:
        to, of = node.rank, source.node.rank
        self.serving[of] = self.serving.get(of, 0) + 1
        assert self.serving[of] <= FAN_OUT
        self.most_at_once = max(self.most_at_once, sum(self.serving.values()))
        await asyncio.sleep(0)
        self.serving[of] -= 1
        if of in self.dead_nodes:
            self._failed(source, "is dead")
            return False
        self.pairs.append((of, to))
        self.depth[to] = self.depth.get(of, 0) + 1
        self.sent += 1
        self.add(node)
        return True


def simulated(nodes: int) -> tuple[Simulated, list[Node]]:
    among = Simulated("t1", 1, [], bytes(32), Threads(), asyncio.Event(), project=True, files={})
    among.lead()
    return among, [
        cast(Node, SimpleNamespace(rank=n, name=f"node {n}", instance=SimpleNamespace(id=f"n{n}")))
        for n in range(nodes)
    ]


async def sent_from_here(among: Simulated, nodes: Sequence[Node]) -> list[int]:
    """Brings the contents to all nodes. Returns the ranks of those that no other node gave them to."""
    sent: list[int] = []

    async def one(node: Node) -> None:
        await among.bring(node)
        if node.rank not in among.depth:
            sent.append(node.rank)
        among.sent_to(node, everything=True)

    await asyncio.gather(*(one(node) for node in nodes))
    return sent


def test_a_thousand_nodes_form_a_flat_tree() -> None:
    async def test() -> None:
        among, nodes = simulated(1024)
        assert await sent_from_here(among, nodes) == [0]
        assert {to for _, to in among.pairs} == set(range(1, 1024))
        assert max(among.depth.values()) <= 16
        # Each takes a thread, and others need some, too.
        assert among.most_at_once == distribution._MOST_AT_ONCE
        assert str(among) == ""

    run(test)


def test_inner_nodes_that_die_are_replaced_without_sending_more() -> None:
    async def test() -> None:
        among, nodes = simulated(256)
        among.dead_nodes = set(range(3, 256, 17))
        assert await sent_from_here(among, nodes) == [0]
        assert not among.why_not

    run(test)


def test_when_sending_from_here_fails_another_node_is_the_first() -> None:
    async def test() -> None:
        among, nodes = simulated(3)
        await among.bring(nodes[0])
        waiting = [asyncio.ensure_future(among.bring(node)) for node in nodes[1:]]
        await asyncio.sleep(0)
        assert not any(each.done() for each in waiting)
        assert str(among) == "0 of 0 nodes have it, 0 get it from them"
        among.sent_to(nodes[0], everything=False)
        await waiting[0]
        assert not waiting[1].done()
        among.sent_to(nodes[1], everything=True)
        await waiting[1]
        assert among.pairs == [(1, 2)]

    run(test)


def test_a_node_that_turns_out_to_have_everything_gives_it_to_those_that_wait() -> None:
    async def test() -> None:
        among, nodes = simulated(3)
        await among.bring(nodes[0])
        waiting = asyncio.ensure_future(among.bring(nodes[1]))
        await asyncio.sleep(0)
        assert not waiting.done()
        among.add(nodes[2])
        await waiting
        assert among.pairs == [(2, 1)]

    run(test)


def test_who_waits_is_let_go_when_the_attempt_is_given_up() -> None:
    async def test() -> None:
        among, nodes = simulated(2)
        await among.bring(nodes[0])
        waiting = asyncio.ensure_future(among.bring(nodes[1]))
        await asyncio.sleep(0)
        among.given_up.set()
        with pytest.raises(GivenUp):
            await waiting

    run(test)


@pytest.mark.parametrize("error", [NodeUnreachable("gone"), ProviderError("no"), OSError("disk")])
def test_a_node_that_cannot_serve_is_not_asked_again(
    ground: Ground, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def refuse(*_: Any) -> int:
        raise error

    monkeypatch.setattr(Distribution, "_start", refuse)

    async def test() -> None:
        nodes = [ground.node(number) for number in range(2)]
        among = make_distribution(2)
        await asyncio.gather(*(ground.bring(among, node) for node in nodes))
        assert ground.sent == ["node 0", "node 1"]
        await among.close()

    run(test)


@pytest.mark.parametrize(
    "answer", [b"", b"[]", b'{"port": "x"}', b'{"port": -1}', b'{"port": 65536}', b"x" * 9000]
)
def test_nonsense_of_a_node_is_no_port(ground: Ground, answer: bytes) -> None:
    closed: list[bool] = []
    pipe = SimpleNamespace(
        said=b"",
        send=lambda _: None,
        receive=lambda _: answer + b"\n" if answer else b"",
        close=lambda: closed.append(True),
    )
    node = ground.node(0)
    node.connection = SimpleNamespace(pipe=lambda *_: pipe)  # type: ignore[misc, assignment]
    with pytest.raises(ProviderError):
        make_distribution(1)._start(distribution._Source(node), {})
    assert closed == [True]


class Reach:
    """Calls nodes at once."""

    async def persist(self, node: Node, do: Callable[[Node], Any], _: asyncio.Event) -> Any:
        return do(node)


class InThreads(Reach):
    """Calls nodes in threads."""

    async def persist(self, node: Node, do: Callable[[Node], Any], _: asyncio.Event) -> Any:
        return await asyncio.to_thread(do, node)


def bring_up(
    tmp_path: Path, nodes: list[Node], call: dict[str, Any], secret: bytes = bytes(32)
) -> BringUp:
    (tmp_path / "secret").write_bytes(secret)
    return BringUp(
        asked=cast(Any, SimpleNamespace(call=call)),
        paths=cast(Any, SimpleNamespace(secret=tmp_path / "secret", task_id="t1")),
        name="t",
        attempt=1,
        nodes=nodes,
        max_run_seconds=None,
        agent=(tmp_path, ""),
        threads=Threads(),
        reach=cast(Any, Reach()),
    )


def machines(count: int, network: str = "10.0.0", **settings: Any) -> list[Node]:
    of_all = {
        "workdir": None,
        "cache": "/cache",
        "home": "/home",
        "python_spec": None,
        **settings,
    }
    return [
        cast(
            Node,
            SimpleNamespace(
                rank=n,
                name=f"node {n}",
                has_run=False,
                instance=SimpleNamespace(id=f"n{n}", address=f"{network}.{n + 1}"),
                settings=SimpleNamespace(**of_all),
            ),
        )
        for n in range(count)
    ]


PROJECT = {"kind": "command", "project": {"manifest": "m", "sha256": "s"}}


def test_which_gangs_get_contents_from_one_another(tmp_path: Path) -> None:
    def found(nodes: list[Node], call: dict[str, Any]) -> Distribution | None:
        return bring_up(tmp_path, nodes, call)._distribution(nodes, asyncio.Event())

    many = machines(FROM_NODES)
    assert found(many, PROJECT) is not None
    assert found(many[1:], PROJECT) is None, "few are sent to from here"
    assert found(many, {"kind": "command"}) is None, "there is nothing to send"
    assert found(machines(FROM_NODES, "127.0.0"), PROJECT) is None, "one machine has one cache"
    same = [*many[1:], machines(2)[1]]
    assert found(same, PROJECT) is None, "two of them share a machine"
    assert found(machines(FROM_NODES, workdir="/here"), PROJECT) is None, "the files are there"
    bundle = tmp_path / "call.bin"
    call = {"kind": "function", "bundle": str(bundle), "sha256": SHA256}
    bundle.write_bytes(b"small")
    assert found(many, call) is None
    bundle.write_bytes(CONTENT)
    spread_of_call = found(many, call)
    assert spread_of_call is not None
    assert (spread_of_call.files, spread_of_call.project) == ({SHA256: len(CONTENT)}, False)
    assert found(machines(FROM_NODES, cache=None), call) is None, "no place that tasks share"


def test_a_gang_is_equipped_by_its_own_nodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One node has the contents, one has run before, and all others lack them."""
    nodes = machines(FROM_NODES)
    steps: list[tuple[int, bool]] = []

    def equip(_: BringUp, node: Node, among: Distribution | None = None) -> bool:
        node.has_run = node.rank == 2
        steps.append((node.rank, among is not None))
        return among is None or node.rank in (1, 2)

    monkeypatch.setattr(BringUp, "_equip", equip)

    async def test() -> None:
        it = bring_up(tmp_path, nodes, PROJECT)
        made: list[Simulated] = []

        def make(*arguments: Any, **named: Any) -> Simulated:
            among = Simulated(*arguments, **named)
            among.lead()
            made.append(among)
            return among

        monkeypatch.setattr(distribution, "Distribution", make)
        await it._equip_all(nodes, asyncio.Event())
        (among,) = made
        lacking = set(range(FROM_NODES)) - {1, 2}
        got = {to for _, to in among.pairs}
        # Node 0 came first, when nobody had them yet.
        assert got == lacking - {0}
        assert 2 not in {of for of, _ in among.pairs}, "nobody knows what it has"
        assert sorted(steps) == sorted(
            [(n, True) for n in range(FROM_NODES)] + [(n, False) for n in lacking]
        )
        assert str(it.sending) == ""

    run(test)


def test_hosts_are_shown_that_the_task_lives_while_others_get_their_contents(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the lease of a host lapses, and its secrets are removed, before its agent starts."""
    nodes, all_are_shown = watched_machines(FROM_NODES, tmp_path, monkeypatch)

    class Patient(Simulated):
        async def _fetch(self, node: Node, source: Any) -> bool:
            while not all_are_shown():
                await asyncio.sleep(0.01)
            return await super()._fetch(node, source)

    def make(*arguments: Any, **named: Any) -> Simulated:
        among = Patient(*arguments, **named)
        among.lead()
        return among

    monkeypatch.setattr(distribution, "Distribution", make)
    monkeypatch.setattr(BringUp, "_equip", lambda _, __, among=None: among is None)

    async def test() -> None:
        await bring_up(tmp_path, nodes, PROJECT)._equip_all(nodes, asyncio.Event())
        assert all_are_shown()

    run(test)


def test_a_few_hosts_are_shown_that_the_task_lives_while_one_of_them_takes_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes, all_are_shown = watched_machines(2, tmp_path, monkeypatch)

    def equip(_: BringUp, node: Node) -> bool:
        return node.rank == 0 or bool(eventually(all_are_shown))

    monkeypatch.setattr(BringUp, "_equip", equip)

    async def test() -> None:
        it = bring_up(tmp_path, nodes, {"kind": "command"})
        it.reach = cast(Any, InThreads())
        await it._equip_all(nodes, asyncio.Event())

    run(test)


def watched_machines(
    count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[list[Node], Callable[[], bool]]:
    """Nodes with directories, and whether the holder of a lease would see that something was written on each."""
    monkeypatch.setattr(start_agents, "_LIFE_EVERY", 0.01)
    homes = [tmp_path / f"n{number}" for number in range(count)]
    nodes = machines(count)
    for node, home in zip(nodes, homes, strict=True):
        home.mkdir()
        node.settings.home = str(home)  # type: ignore[misc]
        node.connection = LocalConnection()  # type: ignore[misc]
    before = [cleanup.facts(str(home)) for home in homes]

    def all_are_shown() -> bool:
        pairs = zip(homes, before, strict=True)
        return all(cleanup.facts(str(home)) != found for home, found in pairs)

    return nodes, all_are_shown


def test_uv_goes_from_node_to_node(
    ground: Ground, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is a program, so that a node that got it from another one can run it."""
    program = tmp_path / "uv"
    program.write_bytes(b"#!/bin/sh\necho it runs\n#" + os.urandom(2_000_000).hex().encode())
    sha256 = hashlib.sha256(program.read_bytes()).hexdigest()
    found = uv.Program(program, sha256)
    monkeypatch.setattr(uv, "programs_for", lambda *_: iter([found]))
    monkeypatch.setattr(bring_python, "platform_without_uv", lambda *_: "linux")
    monkeypatch.setattr(BringUp, "encrypted", True)
    put: list[int] = []
    put_uv = bring_python.put_uv

    def counted(node: Node, program: uv.Program) -> str:
        put.extend([node.rank] * (not Path(f"{node.settings.cache}/{sha256}").exists()))
        return put_uv(node, program)

    monkeypatch.setattr(bring_python, "put_uv", counted)
    nodes = [ground.node(number) for number in range(5)]
    for node in nodes:
        node.has_run, node.listed = False, True
        node.look_for_agent = lambda: None  # type: ignore[method-assign]
        node.settings.python_spec = {"version": "3.11"}  # type: ignore[misc]
        node.settings.container = None  # type: ignore[misc]

    async def test() -> None:
        it = bring_up(tmp_path, nodes, {"kind": "command"})
        it.asked.setup = ()  # type: ignore[misc]
        it.agent = ground.agent
        it.paths.home = tmp_path  # type: ignore[misc]
        it.reach = cast(Any, InThreads())
        await it._bring_uv(nodes, asyncio.Event())

    run(test)
    assert len(put) == 1, "it is sent from here once"
    for node in nodes:
        sent = bring_python._send(node, "linux", tmp_path)
        assert os.access(sent, os.X_OK)
    assert len(put) == 1
