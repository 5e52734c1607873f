"""Following a gang: a node is lost only when a second source says so again and again."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from flowlite.node.protocol import messages
from flowlite.node.protocol.framing import ServerSession, encode
from flowlite.provider import Instance, NodeSettings, Plan
from flowlite.supervise.attempt import attempt as gang
from flowlite.supervise.attempt import liveness, node_verdict, reachability
from flowlite.supervise.attempt.attempt import Attempt
from flowlite.supervise.attempt.node_handle import Finding, Node
from flowlite.supervise.attempt.node_verdict import ProbeAnswer
from flowlite.supervise.attempt.outcome import End, end_by_leader, end_by_reports
from flowlite.supervise.attempt.start_agents import node_call
from flowlite.supervise.record.paths import TaskPaths
from flowlite.supervise.record.task_view import TaskView
from flowlite.supervise.threads import Threads
from tests.test_store import task

U, A, D, G = ProbeAnswer.UNREACHABLE, ProbeAnswer.ALIVE, ProbeAnswer.DEAD, ProbeAnswer.GONE


class FakeNode(Node):
    """A node whose probes were made up beforehand; the last one goes on for ever."""

    def __init__(self, name: str, rank: int, lives: list[ProbeAnswer]) -> None:
        settings = NodeSettings(home="/nowhere", python="python")
        super().__init__(None, Instance(name, "t1"), settings, rank, 1)  # type: ignore[arg-type]
        self.lives = lives
        self.probes = 0

    def probe(self) -> Finding:
        self.probes += 1
        return Finding(self.lives[min(self.probes, len(self.lives)) - 1], "as made up")

    def probe_afresh(self) -> Finding:
        return self.probe()

    def received(self) -> int:
        return 0


class FakeLink:
    """Notes what is said to the leader, which is on the line."""

    attached = True
    silence = 0.0

    def __init__(self) -> None:
        self.said: list[tuple[str, str]] = []

    async def lost(self, instance: str, why: str, *, answers: bool = False) -> None:
        self.said.append((instance, why))


def attempt(home: Path, nodes: list[FakeNode]) -> Attempt:
    (home / "tasks").mkdir(exist_ok=True)
    paths = TaskPaths(home, "t1")
    paths.make()
    plan = Plan("local", "this machine", len(nodes), 1).to_json()
    return Attempt(
        asked=TaskView.of(task("t1", plan=plan)),
        paths=paths,
        name="digits",
        attempt=1,
        nodes=list(nodes),
        max_run_seconds=None,
        agent=(Path("/agent.pyz"), ""),
        threads=Threads(),
        on_event=lambda event: None,
        before_writing=lambda: None,
    )


@pytest.mark.parametrize(
    ("lives", "lost", "replaced"),
    [
        ([U] * 2 + [A] + [U] * 2 + [A], False, False),
        ([A], False, False),
        ([U] * 3, True, True),
        ([U, A, D], True, False),
        ([G], True, True),
    ],
    ids=["now and then", "alive", "out of reach", "agent dead", "machine gone"],
)
def test_a_suspected_node_is_lost_only_if_the_second_source_says_so(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    lives: list[ProbeAnswer],
    lost: bool,
    replaced: bool,
) -> None:
    monkeypatch.setattr(liveness, "PROBE_EVERY", 0.0)
    monkeypatch.setattr(liveness, "LOOK_EVERY", 0.0)
    monkeypatch.setattr(node_verdict, "PATIENCE", 0.0)
    monkeypatch.setattr(node_verdict, "TELL_AFTER", 0.0)
    nodes = [FakeNode("a", 0, [A]), FakeNode("b", 1, lives)]
    link = FakeLink()

    async def run() -> Attempt:
        made = attempt(tmp_path, nodes)
        event = {"kind": "suspect", "instance": "b", "rank": 1, "why": "silent", "seq": 1}
        made._handle(link, event)  # type: ignore[arg-type]
        for _ in range(2000):
            await asyncio.sleep(0)
            if link.said or nodes[1].probes > len(lives) + 5:
                break
            await asyncio.sleep(0.001)
        await made.close()
        return made

    made = asyncio.run(run())
    assert nodes[1].probes >= len(lives)
    assert link.said == ([("b", "silent; as made up")] if lost else [])
    assert list(made._watch.replace) == (["b"] if replaced else [])


class GrowingLink(FakeLink):
    """A link to the leader of a gang that is asked to grow."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []

    async def grow(self, reason: str) -> None:
        self.asked.append(reason)


def test_every_link_says_whether_the_gang_is_still_asked_to_grow(tmp_path: Path) -> None:
    made = attempt(tmp_path, [FakeNode("a", 0, [A])])

    async def passed_on(link: GrowingLink, *requests: str) -> list[str]:
        passing = asyncio.create_task(made._pass_on_growth(link))  # type: ignore[arg-type]
        for request in (None, *requests):
            if request is not None:
                made.ask_to_grow(request)
            for _ in range(5):
                await asyncio.sleep(0)
        passing.cancel()
        await asyncio.gather(passing, return_exceptions=True)
        return link.asked

    async def run() -> None:
        # An agent of before `grow` existed refuses that message, and says nothing of "stoppable".
        assert await passed_on(GrowingLink()) == []
        stoppable = {"kind": "stoppable", "seq": 1}
        made._handle(GrowingLink(), stoppable)  # type: ignore[arg-type]
        # The supervisor before this one may have asked.
        assert await passed_on(GrowingLink(), "room") == ["", "room"]
        # A link that broke, perhaps before it said so, and one on which it is taken back.
        assert await passed_on(GrowingLink(), "") == ["room", ""]
        assert await passed_on(GrowingLink()) == [""]
        await made.close()

    asyncio.run(run())


EVENT = {"seq": 1, "time": 1e9, "kind": "started", "instance": "a", "rank": 0}
NONSENSE = {
    "no seq": {"type": "event", "event": {k: v for k, v in EVENT.items() if k != "seq"}},
    "a seq that is no number": {"type": "event", "event": {**EVENT, "seq": float("nan")}},
    "an event that is left out": {"type": "event", "event": {**EVENT, "seq": 7}},
    "a kind of our own": {"type": "event", "event": {**EVENT, "kind": "cut_off"}},
    "a stream of its own": {
        "type": "chunk",
        "gen": 1,
        "rank": 0,
        "node": 0,
        "stream": "out/../../x",
        "offset": 0,
        "time": 1e9,
    },
    "a rank that is not in the gang": {
        "type": "chunk",
        "gen": 1,
        "rank": 10**6,
        "node": 0,
        "stream": "out",
        "offset": 0,
        "time": 1e9,
    },
}


@pytest.mark.parametrize("said", NONSENSE.values(), ids=NONSENSE)
def test_a_leader_that_says_what_no_agent_says_is_named(
    tmp_path: Path, said: dict[str, Any]
) -> None:
    """It proves that it knows the secret, so it is no stranger; its attempt ends, and its machine is not used again."""
    node = FakeNode("a", 0, [A])
    secret = bytes(32)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        session, state = ServerSession(secret, "t1"), {"phase": "running", "joined": 1, "ready": 1}
        while not session.authenticated:
            session.receive(await reader.read(4096))
            writer.write(session.outgoing)
            session.outgoing = b""
        stamp = {"task": "t1", "attempt": 1}
        for message in ({"type": "state", **state}, said):
            writer.write(session.seal(encode({**message, **stamp})))
        await reader.read()
        writer.close()

    async def run() -> End:
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]

        async def open_tcp(*_: object) -> Any:
            return await asyncio.open_connection("127.0.0.1", port)

        node._connection = SimpleNamespace(open_tcp=open_tcp, close=lambda: None)  # type: ignore[assignment]
        made = attempt(tmp_path, [node])
        made._paths.secret.write_bytes(secret)
        made._new_tls = lambda: None  # type: ignore[method-assign]
        link = made._make_link({"address": "127.0.0.1", "port": port}, 0)
        try:
            async with asyncio.timeout(60):
                end = await made._listen(link)
        finally:
            await link.close()
            await made.close()
            server.close()
        assert end is not None
        return end

    end = asyncio.run(run())
    assert end.outcome == messages.LOST
    assert end.reason.startswith("node 0 (a), the leader, is lost: what it says is not what")
    assert end.replace == ("a",)
    assert list((tmp_path / "tasks" / "t1" / "logs").iterdir()) == []


def test_a_node_that_is_back_is_not_probed_any_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reachability, "PROBE_EVERY", 0.005)
    node = FakeNode("b", 0, [U])
    link = FakeLink()

    async def run() -> None:
        made = attempt(tmp_path, [node])
        for kind in ("suspect", "back"):
            made._handle(link, {"kind": kind, "instance": "b", "why": ""})  # type: ignore[arg-type]
        await asyncio.sleep(0.1)
        await made.close()

    asyncio.run(run())
    assert link.said == []
    assert node.probes <= 1


def test_silence_before_a_node_was_back_does_not_count_against_it_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(liveness, "PROBE_EVERY", 0.001)
    nodes = [FakeNode("a", 0, [A]), FakeNode("b", 1, [U])]
    link = FakeLink()

    async def run() -> set[str]:
        made = attempt(tmp_path, nodes)
        made._handle(link, {"kind": "suspect", "instance": "b", "why": "silent"})  # type: ignore[arg-type]
        while "b" not in made._reach.out_of_reach:
            await asyncio.sleep(0.001)
        made._handle(link, {"kind": "back", "instance": "b", "why": ""})  # type: ignore[arg-type]
        doubted = made._reach.out_of_reach
        await made.close()
        return doubted

    assert asyncio.run(asyncio.wait_for(run(), 90)) == set()


# How it ended


def body(rank: int, node: int, **changes: Any) -> dict[str, Any]:
    return {"rank": rank, "node": node, "code": 0, "signal": None, "failure": None, **changes}


def reported(*reports: dict[str, Any] | None) -> list[Node]:
    nodes: list[Node] = []
    for rank, report in enumerate(reports):
        node = FakeNode(f"n{rank}", rank, [A])
        node.report_seen = report
        nodes.append(node)
    return nodes


def end_of(nodes: list[Node], stop: End | None = None) -> tuple[End, list[str]]:
    told: list[str] = []
    end = end_by_reports(nodes, {}, len(nodes), stop, lambda event: told.append(event["kind"]))
    return end, told


def test_the_leader_says_how_it_ended() -> None:
    event = {"outcome": "lost", "reason": "node 1 is lost", "first_failure": None}
    assert end_by_leader(event, {}).reason == "node 1 is lost"
    failed = body(3, 1, code=42)
    event = {"outcome": "failed", "reason": "something", "first_failure": failed}
    assert end_by_leader(event, {}).reason == "first failure: node 1, rank 3: exited with 42"


def test_the_report_of_the_leader_counts() -> None:
    done = {"outcome": "done", "reason": "", "workers": [body(0, 0)]}
    end, told = end_of(reported(done, None))
    assert (end.outcome, told) == ("done", [])
    bad = {
        "outcome": "failed",
        "reason": "i-rank 0 says so",
        "first_failure": body(1, 1, code=9),
        "workers": [body(0, 0, code=1)],
    }
    member = {"outcome": "failed", "reason": "", "workers": [body(1, 1, code=9, ended=99.0)]}
    end, told = end_of(reported(bad, member))
    assert end.reason == "first failure: node 1, rank 1: exited with 9"
    assert told == ["worker", "worker", "first_failure"]


def test_without_the_leader_the_other_reports_count() -> None:
    well = [{"outcome": "fenced", "reason": "", "workers": [body(r, r)]} for r in range(2)]
    nodes = reported(None, well[1])
    assert end_of(nodes)[0].outcome == messages.LOST
    stopped = {"outcome": "preempted", "workers": [body(1, 1, signal=15, code=None, stopped=True)]}
    assert end_of(reported(None, stopped))[0].outcome == messages.LOST
    bad = {"outcome": "fenced", "workers": [body(1, 1, code=3)]}
    assert end_of(reported(None, bad))[0].reason == "first failure: node 1, rank 1: exited with 3"


def test_a_leader_that_was_given_up_and_stopped_was_not_preempted() -> None:
    signalled = {"outcome": "preempted", "reason": "the agent of node 0 got SIGTERM"}
    told: list[Any] = []
    end = end_by_reports(reported(signalled, None), {}, 2, None, told.append, lived=True)
    assert end.outcome == messages.LOST
    # One that has said so before was.
    end = end_by_reports(reported(signalled, None), {}, 2, None, told.append)
    assert (end.outcome, end.reason) == (messages.PREEMPTED, signalled["reason"])


def test_a_gang_that_was_told_to_stop_has_stopped() -> None:
    stop = End("stopped", "cancelled")
    bad = {"outcome": "fenced", "workers": [body(1, 1, code=3)]}
    assert end_of(reported(None, bad), stop)[0].outcome == "stopped"


def test_paths_of_a_call_on_its_node() -> None:
    call = {
        "kind": "function",
        "bundle": "/home/call.bin",
        "sha256": "ab",
        "source": [{"zip": "/home/source-cd.zip", "sha256": "cd"}],
        "imports": ["torch"],
    }
    assert node_call(call) == {
        **call,
        "bundle": "call.bin",
        "source": [{"zip": "source-cd.zip", "sha256": "cd"}],
    }
    assert node_call({"kind": "command", "argv": ["x"]}) == {"kind": "command", "argv": ["x"]}


@pytest.mark.parametrize(
    ("lives", "waits"),
    [([[U], [U]], True), ([[U], [D]], False), ([[U]], True)],
    ids=["nobody was reached", "one was stopped", "it is alone"],
)
def test_a_gang_of_which_nobody_was_reached_is_replaced_only_when_one_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lives: list[list[ProbeAnswer]], waits: bool
) -> None:
    """Its nodes may hear each other, and run on however long: no clock says that they have ended."""
    monkeypatch.setattr(gang, "_LOOK_EVERY", 0.01)
    monkeypatch.setattr(gang, "_LOOK_AFTER", 0.01)
    monkeypatch.setattr(gang.fencing, "replaced_from", lambda since, *_: since)
    nodes = [FakeNode(f"n{rank}", rank, each) for rank, each in enumerate(lives)]
    stopped: list[str] = []

    def stop(node: FakeNode, grace: float) -> bool:
        if node.probe().life is U:
            return False
        stopped.append(node.instance.id)
        return True

    monkeypatch.setattr(FakeNode, "stop", stop)

    async def run() -> None:
        made = attempt(tmp_path, nodes)
        made._certain = False
        clearing = asyncio.create_task(made.clear())
        await asyncio.wait({clearing}, timeout=0.5)
        assert clearing.done() is not waits
        # One is reached at last, and stopped: now the others will miss it.
        nodes[-1].lives = [D]
        async with asyncio.timeout(60):
            # Whoever could not be stopped at once must not be used again.
            assert await clearing == [f"n{rank}" for rank, each in enumerate(lives) if each == [U]]
        await made.close()

    asyncio.run(run())
    assert stopped == [nodes[-1].instance.id]
