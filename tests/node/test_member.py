"""The node's machine: it does what it is ordered once, tells what it did until it is heard, and fences itself."""

from __future__ import annotations

from typing import Any

import pytest

from flowlite.node.protocol import messages as m
from flowlite.node.protocol.framing import encode
from flowlite.node.protocol.messages import GangSettings, MessageError
from flowlite.node.rendezvous.member import (
    FENCED,
    MOST_NOTICES,
    NOTICE_EVERY,
    REFUSED,
    RELEASED,
    Follow,
    HangUp,
    HoldWorkers,
    Leave,
    Member,
    Prepare,
    ReleaseWorkers,
    SendToLeader,
    Start,
    Stop,
)

SETTINGS = GangSettings(
    "t", 2, ("i-a", "i-b"), 2, lost_after=20.0, fence_after=60.0, join_timeout=300.0
)
GO: dict[str, Any] = {
    "roster": SETTINGS.digest,
    "addresses": ["10.0.0.1", "10.0.0.2"],
    "master_addr": "10.0.0.1",
    "master_port": 1,
}
PREPARE: dict[str, Any] = {"master_addr": "10.0.0.1", "master_port": 1, "volume_token": "x"}


class Node:
    """Drives a machine."""

    def __init__(self) -> None:
        self.now = 50.0
        self.machine = Member(SETTINGS, "i-b", "x", self.now)
        self.done: list[Any] = []

    def act(self, actions: list[Any]) -> list[Any]:
        self.done += actions
        return actions

    def hear(self, kind: str, /, **fields: Any) -> list[Any]:
        message = {"type": kind, "task": "t", "attempt": 2, **fields}
        return self.act(self.machine.receive(message, self.now))

    def connect(self) -> list[Any]:
        self.act(self.machine.connected({"hostname": "h"}))
        return self.hear("welcome", rank=1, roster=SETTINGS.digest)

    def run(self) -> None:
        self.connect()
        self.hear("prepare", **PREPARE)
        self.act(self.machine.prepared({}))
        self.hear("go", **GO)
        self.act(self.machine.started())

    def wait(self, seconds: float, *, beats: bool = False) -> list[Any]:
        began, end = len(self.done), self.now + seconds
        while self.now < end:
            self.now += 0.5
            if beats:
                self.hear("beat")
            self.act(self.machine.tick(self.now))
        return self.done[began:]

    def told(self) -> list[str]:
        return [action.message["type"] for action in self.done if isinstance(action, SendToLeader)]

    def only(self, kind: type) -> list[Any]:
        return [action for action in self.done if isinstance(action, kind)]


def worker(rank: int, code: int = 0) -> dict[str, Any]:
    return {"rank": rank, "code": code, "sizes": {"out": 5}}


def test_the_way_of_a_node_that_does_well() -> None:
    node = Node()
    node.run()
    node.act(node.machine.worker_ended(worker(2)))
    node.act(node.machine.worker_ended(worker(3)))
    node.hear("ended", outcome="done", reason="all well")
    assert not node.only(Leave)
    node.hear("release")
    assert node.told() == ["join", "ready", "started", "worker", "worker"]
    assert node.only(Prepare) == [Prepare(PREPARE)]
    assert node.only(Start)[0].go == {**GO, "rank": 1}
    assert node.only(Leave) == [Leave(RELEASED, "all well")]
    assert node.only(Stop) == []
    assert node.machine.outcome == "done"
    assert all(
        a.message["task"] == "t" and a.message["attempt"] == 2 for a in node.only(SendToLeader)
    )


def test_orders_are_obeyed_once() -> None:
    node = Node()
    node.connect()
    for _ in range(2):
        node.hear("prepare", **PREPARE)
    node.act(node.machine.prepared({}))
    for _ in range(2):
        node.hear("go", **GO)
    for _ in range(2):
        node.hear("stop", reason="r", grace=10.0)
    assert [len(node.only(kind)) for kind in (Prepare, Start, Stop)] == [1, 1, 1]


def test_everything_told_is_told_again_after_a_rejoin() -> None:
    node = Node()
    node.run()
    node.act(node.machine.worker_ended(worker(2)))
    node.act(node.machine.disconnected())
    assert not [
        a for a in node.act(node.machine.worker_ended(worker(3))) if isinstance(a, SendToLeader)
    ]
    again = [
        action.message["type"] for action in node.connect() if isinstance(action, SendToLeader)
    ]
    assert again == ["ready", "started", "worker", "worker"]


def test_notices_are_numbered_told_again_and_not_without_end() -> None:
    node = Node()
    node.connect()
    for number in range(MOST_NOTICES + 5):
        node.act(node.machine.notice(f"trouble {number}"))
    told = [a.message for a in node.only(SendToLeader) if a.message["type"] == "notice"]
    assert [each["number"] for each in told] == list(range(1, MOST_NOTICES + 1))
    assert told[2]["text"] == "trouble 2"
    node.act(node.machine.disconnected())
    again = [a.message["type"] for a in node.connect() if isinstance(a, SendToLeader)]
    assert again.count("notice") == MOST_NOTICES


def test_a_node_that_has_warned_often_is_heard_again_later() -> None:
    """In a run of weeks a bucket may fail and recover many times. How the last copy went must still be told."""
    node = Node()
    node.connect()
    for number in range(2 * MOST_NOTICES):
        node.act(node.machine.notice(f"trouble {number}"))
    node.wait(NOTICE_EVERY, beats=True)
    node.act(node.machine.notice("the last copy failed"))
    told = [a.message for a in node.only(SendToLeader) if a.message["type"] == "notice"]
    assert (told[-1]["number"], told[-1]["text"]) == (MOST_NOTICES + 1, "the last copy failed")
    node.act(node.machine.disconnected())
    again = [a.message for a in node.connect() if isinstance(a, SendToLeader)]
    assert [a["number"] for a in again if a["type"] == "notice"] == list(range(2, MOST_NOTICES + 2))


def test_a_stop_before_go_means_there_is_no_start() -> None:
    node = Node()
    node.connect()
    node.hear("prepare", **PREPARE)
    node.hear("stop", reason="missing", grace=10.0)
    node.act(node.machine.prepared({}))
    assert "ready" not in node.told()
    node.act(node.machine.stopped())
    assert node.told() == ["join", "stopped"]
    assert node.hear("go", **GO) == []
    assert not node.only(Start)


def test_go_is_obeyed_only_when_ready_and_only_with_our_roster() -> None:
    node = Node()
    node.connect()
    with pytest.raises(MessageError, match="before this node was ready"):
        node.hear("go", **GO)
    node.hear("prepare", **PREPARE)
    node.act(node.machine.prepared({}))
    node.hear("go", **{**GO, "roster": "another"})
    assert not node.only(Start)
    assert node.only(Stop), "what was prepared is given up"
    node.act(node.machine.stopped())
    assert node.only(Leave)[0].how == REFUSED


@pytest.mark.parametrize(
    "fields", [{"rank": 0, "roster": SETTINGS.digest}, {"rank": 1, "roster": "another"}]
)
def test_a_leader_of_another_roster_is_not_followed(fields: dict[str, Any]) -> None:
    node = Node()
    node.act(node.machine.connected({}))
    node.hear("welcome", **fields)
    assert node.only(Leave)[0].how == REFUSED
    assert "roster is not ours" in node.only(Leave)[0].reason


def test_nothing_is_obeyed_before_welcome() -> None:
    node = Node()
    node.act(node.machine.connected({}))
    with pytest.raises(MessageError, match="before welcome"):
        node.hear("prepare", **PREPARE)


def test_an_older_epoch_changes_nothing_and_a_newer_one_ends_this_node() -> None:
    node = Node()
    node.run()
    assert node.hear("stop", attempt=1, reason="old", grace=1.0) == []
    assert node.hear("ended", attempt=1, outcome="failed", reason="old") == []
    node.hear("beat", attempt=3)
    assert node.only(Stop)[0].reason == "the gang is of attempt 3 already"
    assert not node.only(Leave), "not before the workers are gone"
    node.act(node.machine.stopped())
    assert node.only(Leave)[0].how == REFUSED


def test_a_refusal_stops_the_workers_first() -> None:
    node = Node()
    node.run()
    node.hear("refuse", reason="your seat is taken")
    assert node.only(Stop) == [Stop("your seat is taken", 10.0)]
    node.act(node.machine.stopped())
    assert node.only(Leave) == [Leave(REFUSED, "your seat is taken")]


def test_a_silent_leader_makes_the_node_stop_its_workers() -> None:
    node = Node()
    node.run()
    assert not [a for a in node.wait(59) if isinstance(a, Stop)]
    assert len([a for a in node.done if isinstance(a, HangUp)]) == 2, (
        "another connection is tried meanwhile"
    )
    node.wait(2)
    assert node.only(Stop)[0].reason == "the leader has been silent for 60 s"
    assert not node.only(Leave)
    node.act(node.machine.stopped())
    assert node.only(Leave)[0].how == FENCED
    # The leader, should it still be there, learns the reason before the workers' ends.
    node.machine.left = None
    again = [
        action.message["type"] for action in node.connect() if isinstance(action, SendToLeader)
    ]
    assert again.index("halt") < again.index("stopped")


def test_before_go_a_silent_leader_is_borne_for_as_long_as_nodes_have_to_meet() -> None:
    """Nothing runs here yet that could run a second time elsewhere."""
    node = Node()
    node.connect()
    node.hear("prepare", **PREPARE)
    node.act(node.machine.prepared({}))
    node.wait(299)
    assert not node.only(Stop)
    node.wait(2)
    assert node.only(Stop)[0].reason == "the leader has been silent for 300 s"
    assert "halt" not in node.told()


def test_beats_of_the_leader_keep_a_node_going() -> None:
    node = Node()
    node.run()
    node.wait(300, beats=True)
    assert not node.only(Stop)
    assert 250 < node.told().count("beat") <= 301


def test_a_leader_that_never_answers_is_waited_for_as_long_as_a_join_may_take() -> None:
    node = Node()
    node.wait(299)
    assert not node.only(Leave)
    node.wait(2)
    leave = node.only(Leave)[0]
    assert leave.how == FENCED
    assert "did not let this node join within 300 s" in leave.reason


def test_a_node_that_slept_first_listens() -> None:
    node = Node()
    node.run()
    node.now += 3600
    node.act(node.machine.tick(node.now))
    # The next heartbeat of its leader is on its way.
    node.wait(SETTINGS.heartbeat)
    assert not node.only(Stop)
    node.hear("beat")
    node.wait(5)
    assert not node.only(Stop)


def test_a_node_that_slept_and_hears_nothing_then_stops_its_workers() -> None:
    node = Node()
    node.run()
    node.now += 3600
    node.act(node.machine.tick(node.now))
    node.wait(2 * SETTINGS.heartbeat)
    assert [each.grace for each in node.only(Stop)] == [0.0]


def test_a_leader_that_goes_silent_after_the_end_is_no_alarm() -> None:
    node = Node()
    node.run()
    node.act(node.machine.worker_ended(worker(2)))
    node.act(node.machine.worker_ended(worker(3)))
    node.hear("ended", outcome="done", reason="all well")
    node.wait(61)
    assert node.only(Leave)[0].how == RELEASED
    assert not node.only(Stop)


def test_a_release_during_a_stop_waits_for_the_workers() -> None:
    node = Node()
    node.run()
    node.hear("stop", reason="failed", grace=1.0)
    node.hear("ended", outcome="failed", reason="r")
    node.hear("release")
    assert not node.only(Leave)
    node.act(node.machine.stopped())
    assert node.only(Leave)[0].how == RELEASED


def test_texts_too_long_to_send_are_shortened() -> None:
    node = Node()
    node.run()
    failure = {
        "kind": "exception",
        "type": "ValueError",
        "message": "a" + "x" * 5_000_000 + "z",
        "traceback": None,
    }
    node.act(
        node.machine.worker_ended({**worker(2, 1), "failure": failure, "tail": ["y" * 10**6] * 50})
    )
    node.act(node.machine.halt("error", "r" * 10**6))
    bodies = [action.message for action in node.only(SendToLeader)[-2:]]
    assert all(len(encode(body)) < 64 * 1024 for body in bodies)
    message = bodies[0]["failure"]["message"]
    assert (message[0], message[-1]) == ("a", "z")
    assert len(bodies[0]["tail"]) == 20
    assert bodies[0]["failure"]["type"] == "ValueError"


def test_texts_that_cannot_be_stored_are_escaped() -> None:
    node = Node()
    node.run()
    failure = {"kind": "exit", "type": "SystemExit", "message": "no caf\u00e9 in 'a\udcff', \ud800"}
    node.act(node.machine.worker_ended({**worker(2, 1), "failure": failure}))
    node.act(node.machine.notice("a\udcff is not kept", "unkept"))
    ended, notice = (action.message for action in node.only(SendToLeader)[-2:])
    assert ended["failure"]["message"] == "no caf\u00e9 in 'a\\udcff', \\ud800"
    assert notice["text"] == "a\\udcff is not kept"


def test_a_node_that_is_starved_all_the_time_fences_itself_all_the_same() -> None:
    node = Node()
    node.run()
    for _ in range(30):
        node.now += 3.0
        node.act(node.machine.tick(node.now))
    assert node.only(Stop)


def test_a_failure_to_prepare_is_told_and_a_halt_too() -> None:
    node = Node()
    node.connect()
    node.hear("prepare", **PREPARE)
    node.act(node.machine.unprepared("no volume"))
    node.act(node.machine.halt("deadline", "time is up"))
    assert node.told() == ["join", "unready", "halt"]
    # What is not said to pass is the user's to mend, and not tried again.
    (told,) = [a.message for a in node.only(SendToLeader) if a.message["type"] == "unready"]
    assert (told["error"], told["passing"], told["sick"]) == ("no volume", False, False)


def test_each_order_to_the_workers_is_passed_on() -> None:
    node = Node()
    node.run()
    assert node.hear("hold", seconds=5, round=2, growing=True) == [HoldWorkers(5.0, 2, True)]
    assert node.hear("hold", seconds=5) == [HoldWorkers(5.0, 0, False)]
    assert node.hear("resume", call=3) == [ReleaseWorkers(3)]
    assert node.hear("pull", gen=1, offsets={}, window=10, streams=["out"]) == [Follow()]
    assert node.hear("stop", reason="no", grace=4.0, kind="preempted") == [Stop("no", 4.0, True)]
    assert node.hear("stop", reason="again", grace=1.0) == []


def test_when_the_leader_counts_as_silent() -> None:
    node = Node()
    assert node.machine.silent(node.now)
    node.connect()
    heard = node.now
    assert [node.machine.silent(heard + after) for after in (0.0, 9.9, 10.0)] == [
        False,
        False,
        True,
    ]


def test_pulls_and_acknowledgements_move_the_streams() -> None:
    node = Node()
    node.run()
    assert node.machine.sender.offset("2.out") is None
    node.hear("pull", gen=1, offsets={"2.out": 100}, window=1000, streams=["out"])
    assert node.machine.sender.offset("2.out") == 100
    assert node.machine.sender.offset("2.err") is None
    node.machine.sender.sent("2.out", 1000)
    assert node.machine.sender.room == 0
    assert node.hear("ack", offsets={"2.out": 600}) == [Follow()]
    assert node.machine.sender.room == 500
    node.act(node.machine.disconnected())
    assert node.machine.sender.room == 0
    node.connect()
    with pytest.raises(MessageError):
        node.hear("ack", offsets={"2.out": -1})


@pytest.mark.parametrize("kind", ["join", "ready", "attach", "event", "nonsense"])
def test_what_is_no_message_of_a_leader_is_refused(kind: str) -> None:
    node = Node()
    node.connect()
    with pytest.raises(MessageError):
        node.hear(kind)


def test_addresses_of_large_gangs_are_packed() -> None:
    few, many = ["10.0.0.1"] * 3, [f"10.0.{n // 256}.{n % 256}" for n in range(4096)]
    assert m.pack_addresses(few) == {"addresses": few}
    packed = m.pack_addresses(many)
    assert m.unpack_addresses(packed) == many
    assert len(packed["packed"]) < 25_000
    for nonsense in (
        {},
        {"packed": "!"},
        {"packed": "AAAA"},
        {"addresses": [1]},
        {"addresses": "x"},
    ):
        with pytest.raises(MessageError):
            m.unpack_addresses(nonsense)
