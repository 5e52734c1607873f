"""The senses of a supervisor: who answers, what the others say, and whether it is our own network that is gone."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from flowlite.errors import HostKeyError, NodeUnreachable, ProviderError
from flowlite.supervise.attempt import node_verdict as verdict_module
from flowlite.supervise.attempt import reachability as reach_module
from flowlite.supervise.attempt.node_handle import Node
from flowlite.supervise.attempt.node_verdict import ProbeAnswer, Verdict
from flowlite.supervise.attempt.reachability import GivenUp, NodeLost, Reachability
from flowlite.supervise.threads import _THREADS, Threads
from tests.supervise.fake_nodes import FakeNode

U, A, D, G = ProbeAnswer.UNREACHABLE, ProbeAnswer.ALIVE, ProbeAnswer.DEAD, ProbeAnswer.GONE


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same decisions, without the seconds."""
    monkeypatch.setattr(reach_module, "PROBE_EVERY", 0.001)
    # Nodes here answer at once: only a machine that is busy would need this time.
    monkeypatch.setattr(reach_module, "PROBE_SECONDS", 10.0)
    monkeypatch.setattr(reach_module, "_LOOK_AFTER", 0.02)
    monkeypatch.setattr(verdict_module, "PATIENCE", 0.0)
    monkeypatch.setattr(verdict_module, "TELL_AFTER", 0.0)
    monkeypatch.setattr(reach_module, "_AT_ONCE", 0.0)


@dataclass
class Scene:
    """Some nodes, something else that answers or not, and what was told."""

    nodes: list[FakeNode]
    elsewhere: str = ""
    told: list[float | None] = field(default_factory=list)

    def play(self, act: Callable[[Reachability], Awaitable[Any]]) -> Any:
        async def run() -> Any:
            asked = Reachability(self.nodes, Threads(), lambda: self.elsewhere, self.told.append)
            async with asyncio.timeout(60):
                return await act(asked)

        return asyncio.run(run())


async def alone(asked: Reachability, node: Node, times: int = 5) -> Verdict:
    """The verdict after so many looks."""
    verdict = Verdict.WAIT
    for _ in range(times):
        verdict, _ = await asked.judge_alone(node)
    return verdict


@pytest.mark.parametrize(
    ("others", "elsewhere", "verdict"),
    [
        ([(A, False)], "", Verdict.LOST),
        ([(A, True)], "", Verdict.WAIT),
        ([(A, False), (A, True)], "", Verdict.WAIT),
        ([(U, True)], "", Verdict.CUT_OFF),
        ([(G, True)], "", Verdict.CUT_OFF),
        ([], "", Verdict.CUT_OFF),
        ([], "another host", Verdict.LOST),
        ([(U, True)], "another host", Verdict.LOST),
        ([(D, True)], "", Verdict.LOST),
    ],
    ids=[
        "another says that it is silent",
        "another hears it",
        "one of two hears it",
        "the other is silent, too",
        "the other is gone",
        "alone",
        "alone, but another host answers",
        "both silent, but another host answers",
        "the other's agent is dead",
    ],
)
def test_a_leader_that_does_not_answer(
    others: list[tuple[ProbeAnswer, bool]], elsewhere: str, verdict: Verdict
) -> None:
    nodes = [FakeNode(0, U), *(FakeNode(n + 1, *other) for n, other in enumerate(others))]
    scene = Scene(nodes, elsewhere)
    assert scene.play(lambda asked: alone(asked, nodes[0])) is verdict
    assert (len(scene.told) == 1) is (verdict is Verdict.CUT_OFF)


@pytest.mark.parametrize(
    ("answer", "verdict"), [(A, Verdict.WAIT), (U, Verdict.LOST), (D, Verdict.LOST)]
)
@pytest.mark.parametrize("rank", [0, 1])
def test_a_node_is_asked_once_more_before_it_is_given_up(
    rank: int, answer: ProbeAnswer, verdict: Verdict
) -> None:
    """The connection that is there is stuck after an outage; a new one tells how the node is."""
    nodes = [FakeNode(0, A, False), FakeNode(1, A, False)]
    node = nodes[rank]
    node.life, node.afresh = U, answer

    async def act(asked: Reachability) -> None:
        for _ in range(2):
            assert await look(asked) is Verdict.WAIT
        assert node.last_looks == 0
        assert await look(asked) is verdict
        assert node.last_looks == 1
        # What an answer proves holds from then on.
        assert asked.out_of_reach == ({node.instance.id} if answer is U else set())

    async def look(asked: Reachability) -> Verdict:
        if rank == 0:
            return (await asked.judge_alone(node))[0]
        return (await asked.judge_member(node, leader_answers=True))[0]

    Scene(nodes).play(act)


@pytest.mark.parametrize(
    ("sends", "verdict"), [(32_000, Verdict.WAIT), (60, Verdict.LOST)], ids=["logs", "a few words"]
)
def test_a_node_whose_data_fills_the_way_is_not_silent(sends: int, verdict: Verdict) -> None:
    nodes = [FakeNode(0, U), FakeNode(1, A, False)]
    nodes[0].sends = sends

    async def act(asked: Reachability) -> None:
        assert await alone(asked, nodes[0], 8) is verdict
        assert bool(asked.out_of_reach) is (verdict is Verdict.LOST)

    Scene(nodes).play(act)


def test_silence_while_nothing_answered_is_no_proof_when_the_others_are_back_first() -> None:
    nodes = [FakeNode(0, U), FakeNode(1, U, False)]
    scene = Scene(nodes)

    async def act(asked: Reachability) -> None:
        assert await alone(asked, nodes[0], 5) is Verdict.CUT_OFF
        nodes[1].life = A
        # Its own connection recovers a little later than the other's: silence counts from now on.
        assert await alone(asked, nodes[0], 2) is Verdict.WAIT
        nodes[0].life = A
        assert await alone(asked, nodes[0], 1) is Verdict.WAIT
        nodes[0].life = U
        assert await alone(asked, nodes[0], 5) is Verdict.LOST

    scene.play(act)


def test_two_unanswered_probes_are_not_enough() -> None:
    nodes = [FakeNode(0, U), FakeNode(1, A, False)]
    assert Scene(nodes).play(lambda asked: alone(asked, nodes[0], 2)) is Verdict.WAIT


def test_being_cut_off_is_told_once_and_ends_with_the_first_answer() -> None:
    node = FakeNode(0, U)
    scene = Scene([node])

    async def act(asked: Reachability) -> None:
        await alone(asked, node, 8)
        assert asked.cut_off_since is not None
        assert asked.out_of_reach == {"n0"}
        node.life = A
        await asked.look(node)
        assert asked.cut_off_since is None
        assert asked.out_of_reach == set()

    scene.play(act)
    assert len(scene.told) == 2
    assert scene.told[1] is None


def test_a_refusal_is_told_when_it_is_known_and_kept_until_an_answer() -> None:
    node = FakeNode(0, U)
    scene = Scene([node])

    async def act(asked: Reachability) -> None:
        await alone(asked, node)
        assert (len(scene.told), asked.refusal) == (1, "")
        node.refusal = "its key is another one"
        await alone(asked, node)
        assert (len(scene.told), asked.refusal) == (2, "its key is another one")
        # A later attempt that only hangs says nothing new.
        node.refusal = ""
        await alone(asked, node)
        assert (len(scene.told), asked.refusal) == (2, "its key is another one")
        node.life = A
        await asked.look(node)
        assert (scene.told[2:], asked.refusal) == ([None], "")

    scene.play(act)


def test_a_probe_that_hangs_counts_as_unanswered_and_is_not_asked_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    node = FakeNode(0, A)
    node.hangs = threading.Event()

    async def act(asked: Reachability) -> None:
        with monkeypatch.context() as impatient:
            impatient.setattr(reach_module, "PROBE_SECONDS", 0.05)
            for _ in range(4):
                assert (await asked.look(node)).life is U
        assert node.probes <= 1
        assert node.hangs is not None
        node.hangs.set()
        assert (await asked.look(node)).life is A
        assert asked.out_of_reach == set()

    Scene([node]).play(act)


@pytest.mark.parametrize("late", [False, True], ids=["broken off", "taken for no answer"])
def test_an_answer_from_before_the_doubt_is_not_believed(
    late: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody looked before the agent had started, and nobody took the answer."""
    node = FakeNode(1, ProbeAnswer.ABSENT)
    node.hangs = threading.Event()
    if late:
        monkeypatch.setattr(reach_module, "PROBE_SECONDS", 0.05)

    async def act(asked: Reachability) -> None:
        assert node.hangs is not None
        looking = asyncio.create_task(asked.look(node))
        while not node.probes:
            await asyncio.sleep(0.001)
        if late:
            assert (await looking).life is U
            monkeypatch.setattr(reach_module, "PROBE_SECONDS", 10.0)
        else:
            looking.cancel()
        node.hangs.set()
        node.life = A
        # The leader tells that it has joined.
        asked.heard(node)
        assert (await asked.judge_member(node, leader_answers=True))[0] is Verdict.WAIT
        assert node.probes == 2

    Scene([FakeNode(0, A), node]).play(act)


def test_that_something_else_answered_counts_only_when_it_is_asked() -> None:
    """It was asked once, when nobody waited for the answer any more; then nothing answers."""
    began, go_on = threading.Event(), threading.Event()

    def elsewhere() -> str:
        if began.is_set():
            return ""
        began.set()
        go_on.wait(5)
        return "another host"

    async def act() -> None:
        asked = Reachability([FakeNode(0, U)], Threads(), elsewhere, lambda since: None)
        asking = asyncio.create_task(asked._ask_elsewhere())
        while not began.is_set():
            await asyncio.sleep(0.001)
        asking.cancel()
        go_on.set()
        pending = asked._asking_elsewhere
        assert pending is not None
        await pending
        assert await asked._ask_elsewhere() == ""

    asyncio.run(act())


def test_a_member_is_lost_on_the_word_of_a_leader_that_answers() -> None:
    node = FakeNode(1, U)

    async def act(asked: Reachability) -> None:
        for _ in range(6):
            assert (await asked.judge_member(node, leader_answers=False))[0] is Verdict.WAIT
        for verdict in (Verdict.WAIT, Verdict.WAIT, Verdict.LOST):
            assert (await asked.judge_member(node, leader_answers=True))[0] is verdict

    scene = Scene([FakeNode(0, A), node])
    scene.play(act)
    assert scene.told == []


def test_a_leader_that_has_left_takes_no_proof_from_a_member() -> None:
    """Who asks all others goes on counting, whatever is still looked at by the word of a leader that is silent."""
    nodes = [FakeNode(0, D), FakeNode(1, U)]

    async def act(asked: Reachability) -> None:
        for verdict in (Verdict.WAIT, Verdict.WAIT, Verdict.LOST):
            assert (await asked.judge_member(nodes[1], leader_answers=False))[0] is Verdict.WAIT
            assert (await asked.judge_alone(nodes[1]))[0] is verdict

    Scene(nodes).play(act)


def test_while_nothing_answers_no_silence_counts() -> None:
    """What was counted of a member before the outage is no proof after it."""
    nodes = [FakeNode(0, A), FakeNode(1, U)]

    async def act(asked: Reachability) -> None:
        for _ in range(2):
            await asked.judge_member(nodes[1], leader_answers=True)
        nodes[0].life = U
        assert await alone(asked, nodes[0], 1) is Verdict.WAIT
        nodes[0].life = A
        for verdict in (Verdict.WAIT, Verdict.WAIT, Verdict.LOST):
            assert (await asked.judge_member(nodes[1], leader_answers=True))[0] is verdict

    Scene(nodes).play(act)


# Doing something on a node


@pytest.fixture
def later() -> asyncio.Event:
    return asyncio.Event()


def test_a_probe_does_not_wait_for_long_calls_on_other_nodes() -> None:
    threads, go_on = Threads(), threading.Event()
    node = FakeNode(0, A)

    async def act() -> None:
        long_ones = [threads.run(go_on.wait, 60) for _ in range(_THREADS)]
        asked = Reachability([node], threads, str, lambda since: None)
        try:
            assert (await asked.look(node)).life is A
            assert not any(each.done() for each in map(asyncio.ensure_future, long_ones))
        finally:
            go_on.set()

    asyncio.run(act())


def test_a_node_whose_call_waits_for_a_thread_is_not_probed(later: asyncio.Event) -> None:
    """The node was not asked for anything yet, so that its silence is none."""
    threads, go_on = Threads(), threading.Event()
    node = FakeNode(0, U)
    waits: list[asyncio.Future[str]] = []

    class Counted(Reachability):
        @staticmethod
        async def _wait_for(doing: asyncio.Future[Any], given_up: asyncio.Event) -> None:
            waits.append(doing)
            await Reachability._wait_for(doing, given_up)

    async def act() -> None:
        for _ in range(_THREADS):
            threads.run(go_on.wait, 60)
        asked = Counted([node], threads, str, lambda since: None)
        doing = asyncio.create_task(asked.persist(node, lambda _: "done", later))
        while len(waits) < 4 and not node.probes:
            await asyncio.sleep(0.001)
        assert node.probes == 0
        go_on.set()
        assert await doing == "done"

    asyncio.run(act())


def test_what_does_not_get_through_is_done_again(later: asyncio.Event) -> None:
    node = FakeNode(0, U)
    scene = Scene([node])
    tries: list[int] = []

    def do(_: Node) -> str:
        tries.append(len(tries))
        if len(tries) < 20:
            raise NodeUnreachable("no answer")
        return "done"

    # Cut off all the while: that is no reason to give anything up.
    assert scene.play(lambda asked: asked.persist(node, do, later)) == "done"
    assert len(tries) == 20
    assert scene.told[-1] is None


def test_a_node_that_is_lost_meanwhile_is_not_waited_for(later: asyncio.Event) -> None:
    nodes = [FakeNode(0, A), FakeNode(1, U)]
    hanging = threading.Event()

    def do(_: Node) -> None:
        hanging.wait(10)

    with pytest.raises(NodeLost, match="as unreachable"):
        Scene(nodes).play(lambda asked: asked.persist(nodes[1], do, later))
    hanging.set()


def test_what_takes_long_on_a_node_that_lives_is_waited_for(later: asyncio.Event) -> None:
    node = FakeNode(0, A)
    release = threading.Event()

    async def act(asked: Reachability) -> str:
        doing = asyncio.create_task(asked.persist(node, lambda _: release.wait(10), later))
        while node.probes < 5:
            await asyncio.sleep(0.005)
        release.set()
        return str(await doing)

    assert Scene([node]).play(act) == "True"


@pytest.mark.parametrize(
    "error", [HostKeyError("another key"), ProviderError("no"), OSError(28, "full")]
)
def test_other_troubles_are_the_callers(error: Exception, later: asyncio.Event) -> None:
    def do(_: Node) -> None:
        raise error

    with pytest.raises(type(error)):
        Scene([FakeNode(0, A)]).play(lambda asked: asked.persist(asked._nodes[0], do, later))


def test_nobody_waits_for_what_is_given_up() -> None:
    def do(_: Node) -> None:
        raise NodeUnreachable("no answer")

    async def act(asked: Reachability) -> None:
        given_up = asyncio.Event()
        given_up.set()
        with pytest.raises(GivenUp):
            await asked.persist(asked._nodes[0], do, given_up)

    Scene([FakeNode(0, U)]).play(act)


def test_the_error_of_a_call_that_nobody_waits_for_is_not_printed() -> None:
    printed: list[str] = []

    async def give_up() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: printed.append(context["message"]))
        threads, lost = Threads(), threading.Event()

        def call() -> None:
            lost.wait(30)
            raise NodeUnreachable("it is gone")

        calls = [asyncio.ensure_future(begin(call)) for begin in (threads.run, threads.look)]
        lost.set()
        await asyncio.wait(calls)
        calls.clear()
        gc.collect()

    asyncio.run(give_up())
    assert printed == []
