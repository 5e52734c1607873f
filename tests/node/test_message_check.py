"""Whatever another machine says is taken whole or refused: nobody who acts on it meets a field that is not there."""

from __future__ import annotations

import asyncio
import copy
import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowlite.node.protocol import message_check
from flowlite.node.protocol import messages as m
from flowlite.node.protocol.framing import Frame
from flowlite.node.protocol.message_check import EVENTS, FILES, check, check_file
from flowlite.node.protocol.messages import GangSettings, MessageError
from flowlite.node.rendezvous.actions import LeaderTime, Peer
from flowlite.node.rendezvous.leader import Rendezvous
from flowlite.node.rendezvous.member import Member
from flowlite.node.rendezvous.supervisor_client import LeaderRefused, SupervisorClient
from flowlite.supervise.attempt.leader_events import LeaderEventFilter
from flowlite.supervise.process.journal import Journal
from tests.tasks_made_by_hand import HandMade

FIELDS = {
    **message_check.FROM_MEMBER,
    **message_check.FROM_SUPERVISOR,
    **message_check.TO_MEMBER,
    **message_check.TO_SUPERVISOR,
}
STAMP = {"task": "task-1", "attempt": 1}
FACTS = {
    "hostname": "h",
    "python_minor": "3.12",
    "code": "c",
    "agent": "a",
    "gpus": {"count": 1, "kind": "H200"},
    "clock": 1e9,
    "disk_free_bytes": 1,
    "disk_total_bytes": 2,
    "shm_bytes": 3,
    "memlock_bytes": 4,
    "infiniband": True,
    "connectivity": 5,
}
PREPARED = {
    "packages": ["torch==2"],
    "versions": {"torch": "2"},
    "talks": True,
    "gpu_memory": [[1, 2]],
    "doubt": None,
}
WORKER = {
    "rank": 1,
    "local_rank": 0,
    "node": 1,
    "code": 1,
    "signal": None,
    "failure": {"kind": "exception", "type": "E", "message": "no", "why": ""},
    "stopped": False,
    "tail": ["last words"],
    "sizes": {"out": 1, "err": 0, "result": 2},
    "started": 1e9,
    "ended": 1e9,
}
NODE = {"instance": "i-1", "rank": 1}
MESSAGES: dict[str, dict[str, Any]] = {
    "join": {"instance": "i-1", "incarnation": "x", "facts": FACTS},
    "ready": {"facts": PREPARED},
    "unready": {"error": "no", "passing": True, "sick": False},
    "started": {},
    "worker": WORKER,
    "halt": {"kind": "fenced", "reason": "no"},
    "notice": {"number": 1, "kind": "warning", "text": "no"},
    "stopped": {},
    "vanish": {"kind": "preempted", "reason": "no", "seconds": 1.5},
    "calls": {"callers": 1, "waiting": [1], "listeners": 0, "round": 1},
    "stoppable": {},
    "welcome": {"rank": 1, "roster": "r"},
    "refuse": {"reason": "no"},
    "prepare": {
        "master_addr": "a",
        "master_port": 1,
        "volume_token": "",
        "connectivity": {"addresses": ["a 1", "b 2"]},
    },
    "go": {"roster": "r", "master_addr": "a", "master_port": 1, "addresses": ["a", "b"]},
    "ended": {"outcome": "done", "reason": ""},
    "hold": {"seconds": 1.0, "round": 1, "growing": True},
    "resume": {"call": 1},
    "attach": {"after": 0},
    "lost": {"instance": "i-1", "why": "no", "answers": True},
    "grow": {"reason": "no"},
    "state": {"phase": "running", "joined": 2, "ready": 2},
    "beat": {"steady": 1.5},
    "stop": {"reason": "no", "kind": "cancel", "grace": 1.0},
    "release": {},
    "pull": {"offsets": {"1.out": 1}, "gen": 1, "window": 10, "streams": ["out"]},
    "ack": {"offsets": {"1.out": 1}},
    "chunk": {"gen": 1, "rank": 1, "stream": "out", "offset": 0, "time": 1e9, "node": 1},
}
TOLD: dict[str, dict[str, Any]] = {
    "joined": {**NODE, "address": "a", "facts": FACTS},
    "back": NODE,
    "warning": {**NODE, "text": "no"},
    "checkpoint": {**NODE, "text": "no"},
    "unkept": {**NODE, "text": "no"},
    "start": {**NODE, "text": "no"},
    "sick": {**NODE, "text": "no"},
    "preflight": {"text": "no"},
    "preempting": {**NODE, "text": "no", "seconds": 1.5},
    "should_stop": {"text": "no", "call": 1},
    "stoppable": {},
    "preparing": {"master_addr": "a", "master_port": 1},
    "ready": {**NODE, "facts": PREPARED},
    "go": {
        "addresses": ["a", "b"],
        "master_addr": "a",
        "master_port": 1,
        "copies_for_all": True,
    },
    "copied": {},
    "started": NODE,
    "worker": WORKER,
    "first_failure": {**WORKER, "reason": "no"},
    "suspect": {**NODE, "why": "no"},
    "lost": {**NODE, "why": "no"},
    "stopping": {"outcome": "failed", "reason": "no"},
    "stopped": NODE,
    "ended": {
        "outcome": "failed",
        "reason": "no",
        "first_failure": WORKER,
        "missing": ["i-1"],
        "unstopped": [],
    },
}
PROCESS = {"pid": 1, "start": "2"}
LEFT: dict[str, dict[str, Any]] = {
    "leader.json": {"address": "a", "port": 1},
    "agent.pid": PROCESS,
    "env.json": {"reaper": PROCESS},
    "report.json": {"outcome": "done", "reason": "", "workers": [WORKER]},
}
MESSAGES["event"] = {"event": {"seq": 1, "time": 1e9, "kind": "worker", **WORKER}}
NONSENSE: list[Any] = [
    None,
    True,
    -1,
    1.5,
    2**70,
    -(2**70),
    float("nan"),
    float("inf"),
    float("-inf"),
    1e300,
    "",
    "../../etc",
    "\x1b[2J",
    [],
    [[]],
    {},
    {"a": {}},
    ["x"] * 3000,
    "y" * 70_000,
]


def event(kind: str) -> dict[str, Any]:
    return {"seq": 1, "time": 1e9, "kind": kind, **copy.deepcopy(TOLD[kind])}


def paths(value: Any, above: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The way to every value inside."""
    inside = value.items() if isinstance(value, dict) else enumerate(value)
    found = []
    for name, each in inside:
        found.append((*above, name))
        if isinstance(each, dict | list):
            found += paths(each, (*above, name))
    return found


@st.composite
def spoiled(draw: st.DrawFn, value: dict[str, Any]) -> dict[str, Any]:
    """The same with up to three fields missing or replaced, and more of what nobody reads."""
    made: dict[str, Any] = copy.deepcopy(value)
    if draw(st.booleans()):
        made = {"more": copy.deepcopy(draw(st.sampled_from(NONSENSE))), **made}
    for _ in range(draw(st.integers(1, 3))):
        ways = paths(made)
        if not ways:
            break
        *above, last = draw(st.sampled_from(ways))
        inner: Any = made
        for name in above:
            inner = inner[name]
        if draw(st.booleans()) and isinstance(inner, dict):
            del inner[last]
        else:
            inner[last] = copy.deepcopy(draw(st.sampled_from(NONSENSE)))
    return made


def test_every_kind_is_tried() -> None:
    assert set(MESSAGES) == set(FIELDS)
    assert set(TOLD) == set(EVENTS)
    assert set(LEFT) == set(FILES)


@pytest.mark.parametrize("kind", FIELDS)
def test_a_whole_message_is_taken(kind: str) -> None:
    assert check({"type": kind, **STAMP, **MESSAGES[kind]}, FIELDS, "task-1") == kind


@pytest.mark.parametrize("kind", EVENTS)
def test_a_whole_event_is_taken(kind: str) -> None:
    message = {"type": "event", **STAMP, "event": event(kind)}
    check(message, message_check.TO_SUPERVISOR, "task-1")
    assert LeaderEventFilter(["i-0", "i-1"], 2).event(event(kind)) is not None


@pytest.mark.parametrize("value", [None, True, -1, 2**70, float("nan"), float("inf"), "1", [1]])
def test_no_such_number_is_taken(value: object) -> None:
    message = {"type": "event", **STAMP, "event": {**event("started"), "seq": value}}
    with pytest.raises(MessageError, match=r"event\.event\.seq is not a number from 0 on"):
        check(message, message_check.TO_SUPERVISOR, "task-1")


def test_what_is_missing_is_named() -> None:
    message: dict[str, Any] = {"type": "event", **STAMP, "event": event("first_failure")}
    del message["event"]["sizes"]
    with pytest.raises(MessageError, match=r"event\.event\.sizes is missing"):
        check(message, message_check.TO_SUPERVISOR, "task-1")


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        ({"packages": ["a==1", "b==2", 3]}, r"ready\.facts\.packages\[2\] is not a text \(int\)"),
        ({"packages": [None, "b==2"]}, r"ready\.facts\.packages\[0\] is not a text"),
        ({"gpu_memory": [[0, 1], [0, -1]]}, r"gpu_memory\[1\]\[1\] is not a number from 0 on"),
        ({"gpu_memory": [[0, 1], [0]]}, r"gpu_memory\[1\] is not a list of two"),
        ({"speeds": {"a": 1.0, "b": "2"}}, r"ready\.facts\.speeds\.\* is not a number \(str\)"),
    ],
)
def test_the_place_of_what_is_wrong_is_named(facts: dict[str, Any], said: str) -> None:
    with pytest.raises(MessageError, match=said):
        check({"type": "ready", **STAMP, "facts": facts}, FIELDS, "task-1")


# Nobody who acts on a message raises anything else


async def _take_in(spoiled_message: dict[str, Any], journal: Journal) -> None:
    """As a supervisor does."""
    heard = LeaderEventFilter(["i-0", "i-1"], 2)

    def keep(rank: int, node: int, *_: object) -> None:
        heard.check_chunk(rank, node)

    link = SupervisorClient(
        task="task-1",
        attempt=1,
        secret=bytes(32),
        dial=None,
        on_chunk=keep,
        offsets=dict,  # type: ignore[arg-type]
    )
    link._take(Frame(spoiled_message, b"12"), {})
    while link._incoming:
        said = link._incoming.popleft()
        assert isinstance(said, dict)
        taken = heard.event(said)
        if taken is not None:
            journal.gang_event(taken)
    journal.flush()


@pytest.fixture
def journal(flow_home: Any) -> Journal:
    made = HandMade("odd", nodes=2, per_node=1)
    return Journal(made.store, made.lease, made.store.get_task(made.id))


@pytest.mark.parametrize("kind", [*sorted(message_check.TO_SUPERVISOR.keys() - {"event"}), *TOLD])
def test_a_supervisor_takes_what_a_leader_says_or_refuses_it(kind: str, journal: Journal) -> None:
    whole = {"event": event(kind)} if kind in TOLD else MESSAGES[kind]
    name = "event" if kind in TOLD else kind

    @settings(max_examples=50, deadline=None)
    @given(spoiled(whole))
    def takes(said: dict[str, Any]) -> None:
        # A refusal is what a leader may say; everything else is refused here by name.
        with suppress(MessageError, LeaderRefused):
            asyncio.run(_take_in({"type": name, **STAMP, **said}, journal))

    takes()


@pytest.mark.parametrize("kind", sorted(message_check.FROM_MEMBER.keys() - {"chunk"}))
def test_a_leader_takes_what_a_member_says_or_refuses_it(kind: str) -> None:
    gang = GangSettings("task-1", 1, ("i-0", "i-1"))

    @settings(max_examples=50, deadline=None)
    @given(spoiled(MESSAGES[kind]), st.booleans())
    def takes(said: dict[str, Any], going: bool) -> None:
        now = LeaderTime(0.0, 1e9)
        leader = Rendezvous(gang, now)

        def say(node: int, what: str, more: dict[str, Any]) -> None:
            peer = Peer("member", f"i-{node}", "10.0.0.1")
            leader.receive(node, peer, {"type": what, **STAMP, **more}, now)

        for number in (0, 1) if going or kind != "join" else ():
            say(number, "join", {**MESSAGES["join"], "instance": f"i-{number}"})
        if going:
            leader.master_proved(29500, now)
            for number in (0, 1) if kind != "ready" else (0,):
                say(number, "ready", MESSAGES["ready"])
        with suppress(MessageError):
            say(1, kind, said)
            leader.tick(LeaderTime(0.5, 1e9))

    takes()


@pytest.mark.parametrize("kind", sorted(message_check.TO_MEMBER))
def test_a_member_takes_what_a_leader_says_or_refuses_it(kind: str) -> None:
    gang = GangSettings("task-1", 1, ("i-0", "i-1"))

    @settings(max_examples=50, deadline=None)
    @given(spoiled(MESSAGES[kind]))
    def takes(said: dict[str, Any]) -> None:
        member = Member(gang, "i-1", "x", 0.0)
        member.connected({})
        member.receive({"type": "welcome", **STAMP, "rank": 1, "roster": gang.digest}, 0.0)
        with suppress(MessageError):
            for action in member.receive({"type": kind, **STAMP, **said}, 0.1):
                if order := getattr(action, "order", None) or getattr(action, "go", None):
                    m.unpack_addresses(order)

    takes()


@pytest.mark.parametrize("name", FILES)
def test_a_file_of_an_agent_is_whole_or_refused(name: str) -> None:
    check_file(name, LEFT[name])

    @settings(max_examples=50, deadline=None)
    @given(spoiled(LEFT[name]))
    def takes(said: dict[str, Any]) -> None:
        try:
            check_file(name, said)
        except MessageError:
            return
        for body in said.get("workers", ()):
            assert body["rank"] >= 0
            assert isinstance(body["sizes"], dict)
        if "port" in said:
            assert isinstance(said["address"], str)
        json.dumps(said)

    takes()
