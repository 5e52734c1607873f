"""The leader's machine: the way of a gang, and every way it may go wrong, without sockets or clocks."""

from __future__ import annotations

from typing import Any

import pytest

from flowlite.node.protocol import messages as m
from flowlite.node.protocol.messages import GangSettings, MessageError
from flowlite.node.rendezvous.actions import (
    Close,
    CloseMaster,
    Finish,
    LeaderTime,
    OthersEnded,
    Peer,
    ProveMaster,
    Send,
    WorkerEnded,
)
from flowlite.node.rendezvous.leader import Rendezvous

IDS = ("i-a", "i-b", "i-c")
SUPERVISOR = 900


class Leader:
    """Drives a machine, and keeps what it says to whom."""

    def __init__(
        self, nodes: int = 2, per_node: int = 1, *, copies_for_all: bool = False, **changes: Any
    ) -> None:
        times = {
            "join_timeout": 10.0,
            "lost_after": 20.0,
            "fence_after": 60.0,
            "grace": 2.0,
            **changes,
        }
        self.settings = GangSettings("t", times.pop("attempt", 2), IDS[:nodes], per_node, **times)
        self.now = 1000.0
        self.machine = Rendezvous(
            self.settings, self.moment(), "token", copies_for_all=copies_for_all
        )
        self.ended_elsewhere: list[int] = []
        self.others_ended: float | None = None
        self.told: dict[int, list[dict[str, Any]]] = {}
        self.closed: list[int] = []
        self.master: list[str] = []
        self.finished = False
        self.port: int | None = 29500

    def moment(self) -> LeaderTime:
        return LeaderTime(self.now, self.now + 1e9)

    def act(self, actions: list[Any]) -> None:
        for action in actions:
            match action:
                case Send(connections, message):
                    for connection in connections:
                        self.told.setdefault(connection, []).append(message)
                case Close(connection):
                    self.closed.append(connection)
                    self.act(self.machine.disconnected(connection, self.moment()))
                case ProveMaster():
                    self.master.append("prove")
                    if self.port is None:
                        self.act(self.machine.master_failed("all ports are taken", self.moment()))
                    else:
                        self.act(self.machine.master_proved(self.port, self.moment()))
                case CloseMaster():
                    self.master.append("close")
                case WorkerEnded(body):
                    self.ended_elsewhere.append(body["rank"])
                case OthersEnded():
                    assert self.others_ended is None
                    self.others_ended = self.now
                case Finish():
                    self.finished = True

    def say(
        self,
        connection: int,
        kind: str,
        /,
        *,
        name: str | None = None,
        attempt: int | None = None,
        **fields: Any,
    ) -> None:
        role = "supervisor" if connection >= SUPERVISOR else "member"
        peer = Peer(role, name or IDS[connection % 10], f"10.0.0.{connection % 10 + 1}")
        message = {"type": kind, "task": "t", "attempt": attempt or self.settings.attempt, **fields}
        self.act(self.machine.receive(connection, peer, message, self.moment()))

    def join(
        self, connection: int, incarnation: str = "x", instance: str = "", **facts: Any
    ) -> None:
        instance = instance or IDS[connection % 10]
        self.say(
            connection,
            "join",
            name=instance,
            instance=instance,
            incarnation=incarnation,
            facts=facts,
        )

    def leave(self, connection: int) -> None:
        self.act(self.machine.disconnected(connection, self.moment()))

    def exit(self, connection: int, rank: int, **ended: Any) -> None:
        self.say(
            connection, "worker", rank=rank, **{"code": 0, "sizes": {}, "failure": None, **ended}
        )

    def attach(self, connection: int = SUPERVISOR, after: int = 0) -> None:
        self.say(connection, "attach", name="s", after=after)

    def wait(self, seconds: float, *alive: int) -> None:
        """Time passes, in which only these connections beat."""
        end = self.now + seconds
        while self.now < end:
            self.now += min(0.5, end - self.now)
            for connection in alive:
                self.say(connection, "beat")
            self.act(self.machine.tick(self.moment()))

    def heard(self, connection: int) -> list[str]:
        return [message["type"] for message in self.told.get(connection, [])]

    def events(self, connection: int = SUPERVISOR) -> list[dict[str, Any]]:
        return [
            message["event"]
            for message in self.told.get(connection, [])
            if message["type"] == "event"
        ]

    def kinds(self) -> list[str]:
        return [event["kind"] for event in self.events()]

    def go(self) -> None:
        for connection in range(len(self.settings.roster)):
            self.join(connection)
        for connection in range(len(self.settings.roster)):
            self.say(connection, "ready", facts={})


def test_the_way_of_a_gang_that_does_well() -> None:
    leader = Leader()
    leader.attach()
    leader.join(1)
    assert leader.machine.phase == m.GATHERING
    leader.join(0)
    assert leader.machine.phase == m.PREPARING
    assert leader.master == ["prove"]
    leader.say(0, "ready", facts={})
    assert "go" not in leader.heard(0)
    leader.say(1, "ready", facts={})
    assert leader.machine.phase == m.RUNNING
    assert leader.master == ["prove", "close"], "nothing of ours holds the port at GO"
    leader.say(0, "started")
    leader.say(1, "started")
    leader.exit(1, 1)
    leader.exit(0, 0)
    assert leader.machine.outcome == m.DONE
    assert [kind for kind in leader.heard(0) if kind != "beat"] == [
        "welcome",
        "prepare",
        "go",
        "ended",
    ]
    assert leader.kinds() == [
        *("joined", "joined", "preparing", "ready", "ready", "go", "started", "started"),
        *("worker", "worker", "ended"),
    ]
    assert [event["seq"] for event in leader.events()] == list(range(1, 12))
    go = next(message for message in leader.told[1] if message["type"] == "go")
    assert m.unpack_addresses(go) == ["127.0.0.1", "10.0.0.2"]
    assert (go["master_addr"], go["master_port"]) == ("127.0.0.1", 29500)


def test_release_lets_everybody_go_and_the_server_finish() -> None:
    leader = Leader()
    leader.attach()
    leader.go()
    leader.exit(0, 0)
    leader.exit(1, 1)
    leader.say(SUPERVISOR, "release")
    assert leader.heard(0)[-1] == leader.heard(1)[-1] == "release"
    assert not leader.finished
    leader.leave(0)
    leader.leave(1)
    assert leader.finished


def test_a_released_gang_does_not_wait_for_those_who_do_not_hang_up() -> None:
    leader = Leader()
    leader.attach()
    leader.go()
    leader.say(SUPERVISOR, "release")
    assert leader.machine.phase == m.RUNNING, "release before the end only says: do not linger"
    leader.exit(0, 0)
    leader.exit(1, 1)
    leader.wait(3, 0, 1)
    assert leader.finished


def test_a_gang_that_nobody_collects_lingers_and_goes() -> None:
    leader = Leader(linger=30.0)
    leader.go()
    leader.exit(0, 0)
    leader.exit(1, 1)
    leader.wait(29, 0, 1)
    assert "release" not in leader.heard(0)
    leader.wait(4, 0, 1)
    assert leader.finished


def test_a_supervisor_on_the_line_is_still_collecting() -> None:
    leader = Leader(linger=30.0)
    leader.attach()
    leader.go()
    leader.exit(0, 0)
    leader.exit(1, 1)
    leader.wait(120, 0, 1, SUPERVISOR)
    assert not leader.finished


def test_a_missing_member_is_named_with_what_is_known_of_it() -> None:
    leader = Leader(nodes=3)
    leader.attach()
    leader.join(0, hostname="alpha")
    for _ in range(3):
        leader.machine.turned_away("10.0.0.9")
    leader.wait(12, 0)
    ended = leader.events()[-1]
    assert leader.machine.phase == m.STOPPING
    leader.say(0, "stopped")
    ended = leader.events()[-1]
    assert (ended["kind"], ended["outcome"]) == ("ended", m.MISSING)
    assert ended["missing"] == ["i-b", "i-c"]
    assert "2 of 3 nodes did not join within 10 s" in ended["reason"]
    assert "node 1 (i-b): never heard of" in ended["reason"]
    assert "node 2 (i-c): never heard of" in ended["reason"]
    assert "3 connections from 10.0.0.9 could not prove the task's secret" in ended["reason"]
    assert "node 0" not in ended["reason"]


def test_a_member_that_never_gets_ready_is_named() -> None:
    leader = Leader(prepare_timeout=20.0)
    leader.join(0)
    leader.join(1, hostname="beta")
    leader.say(0, "ready", facts={})
    leader.wait(21, 0, 1)
    assert leader.machine.outcome == m.MISSING
    assert "node 1 (i-b): joined from 10.0.0.2 (host beta)" in leader.machine.reason
    assert "node 0" not in leader.machine.reason
    assert "last heard" in leader.machine.reason


def test_the_barrier_waits_for_a_member_whose_connection_broke() -> None:
    leader = Leader()
    leader.join(0)
    leader.join(1)
    leader.say(1, "ready", facts={})
    leader.leave(1)
    leader.say(0, "ready", facts={})
    assert leader.machine.phase == m.PREPARING
    leader.join(11)
    assert leader.machine.phase == m.RUNNING
    assert leader.heard(11) == ["welcome", "go"]


@pytest.mark.parametrize(
    ("facts", "found"),
    [
        (
            {"gpus": {"count": 7, "kind": "H100"}},
            "node 1 (i-b) has 7 × H100, 2 other nodes have 8 × H100",
        ),
        (
            {"gpus": {"count": 8, "kind": "A100"}},
            "node 1 (i-b) has 8 × A100, 2 other nodes have 8 × H100",
        ),
        ({"gpus": None}, "node 1 (i-b) has no GPU, 2 other nodes have 8 × H100"),
        ({"python_minor": "3.12"}, "node 1 (i-b) has Python 3.12, 2 other nodes have Python 3.11"),
        ({"code": "ffff"}, "node 1 (i-b) has code ffff, 2 other nodes have code c0de"),
    ],
)
def test_nodes_that_differ_never_start(facts: dict[str, Any], found: str) -> None:
    same = {"gpus": {"count": 8, "kind": "H100"}, "python_minor": "3.11", "code": "c0de"}
    leader = Leader(nodes=3)
    leader.attach()
    for connection in range(3):
        leader.join(connection, **{**same, **(facts if connection == 1 else {})})
    assert leader.machine.outcome == m.CHECKS
    assert leader.machine.reason.startswith(found)
    assert leader.master == []
    for connection in range(3):
        leader.say(connection, "stopped")
    assert leader.kinds()[-1] == "ended"
    assert "prepare" not in leader.heard(0)


def test_a_clock_that_is_off_and_a_full_disk_are_warned_about() -> None:
    leader = Leader()
    leader.attach()
    leader.join(0, clock=leader.now + 1e9 - 4, disk_free_bytes=50e9, disk_total_bytes=100e9)
    assert "warning" not in leader.kinds()
    leader.join(1, clock=leader.now + 1e9 + 60, disk_free_bytes=1e9, disk_total_bytes=100e9)
    texts = [event["text"] for event in leader.events() if event["kind"] == "warning"]
    assert len(texts) == 2
    assert "clock of node 1 (i-b) is 60 s ahead" in texts[0]
    assert "disk of node 1 (i-b) is nearly full: 1.0 GB of 100.0 GB" in texts[1]
    assert leader.machine.phase == m.PREPARING


def test_a_master_port_that_cannot_be_had_fails_the_checks() -> None:
    leader = Leader()
    leader.port = None
    leader.join(0)
    leader.join(1)
    assert leader.machine.outcome == m.CHECKS
    assert "node 0 (i-a) cannot hold a master port: all ports are taken" in leader.machine.reason


def test_a_node_that_cannot_prepare_is_named() -> None:
    leader = Leader()
    leader.join(0)
    leader.join(1)
    leader.say(1, "unready", error="volume 'ckpt' is not the same place as on node 0")
    assert leader.machine.outcome == m.CHECKS
    assert leader.machine.reason == "node 1 (i-b): volume 'ckpt' is not the same place as on node 0"
    assert leader.heard(0)[-1] == "stop"
    assert leader.master == ["prove", "close"]


def test_a_network_that_was_out_is_no_mistake_of_the_users() -> None:
    """Another attempt may fare better, so it ends as one whose nodes did not meet, which is retried."""
    leader = Leader()
    leader.join(0)
    leader.join(1)
    leader.say(1, "unready", error="MASTER_PORT was reached before", passing=True)
    assert leader.machine.outcome == m.MISSING


def test_a_broken_machine_is_named_and_can_be_replaced() -> None:
    leader = Leader()
    leader.join(0)
    leader.join(1)
    leader.say(1, "unready", error="GPU 3 is lost", sick=True)
    assert leader.machine.outcome == m.SICK
    assert leader.machine.reason == "node 1 (i-b): GPU 3 is lost"


def test_workers_that_cannot_start_end_the_gang_as_an_error() -> None:
    leader = Leader()
    leader.go()
    leader.say(1, "unready", error="workers cannot start: no python")
    assert leader.machine.outcome == m.ERROR


def test_an_older_epoch_is_refused_and_a_newer_one_ends_this_gang() -> None:
    leader = Leader()
    leader.say(1, "join", attempt=1, instance="i-b", incarnation="x", facts={})
    assert leader.heard(1) == ["refuse"]
    assert leader.closed == [1]
    assert leader.machine.phase == m.GATHERING
    leader.join(0)
    leader.say(11, "join", attempt=3, instance="i-b", incarnation="x", facts={})
    assert leader.heard(11) == ["refuse"]
    assert leader.machine.outcome == m.ERROR
    assert "superseded" in leader.machine.reason
    assert leader.heard(0)[-1] == "stop"


def test_messages_of_an_older_epoch_change_nothing_even_from_a_member() -> None:
    leader = Leader()
    leader.go()
    leader.say(1, "worker", attempt=1, rank=1, code=1, sizes={}, failure=None)
    assert leader.machine.outcome is None
    leader.attach()
    leader.say(SUPERVISOR, "stop", attempt=1, kind="cancel", reason="old")
    assert leader.machine.outcome is None


def test_whoever_comes_after_the_end_hears_how_the_gang_has_ended() -> None:
    leader = Leader()
    leader.join(2)
    assert "done" not in leader.told[2][-1]["reason"]
    leader.go()
    leader.exit(0, 0)
    leader.exit(1, 1)
    leader.join(12)
    assert leader.told[12][-1]["type"] == "refuse"
    assert leader.told[12][-1]["reason"].endswith(f"({m.DONE}: {leader.machine.reason})")


def test_a_stranger_is_refused() -> None:
    leader = Leader()
    leader.join(2)
    assert leader.heard(2) == ["refuse"]
    leader.say(1, "join", name="i-b", instance="i-a", incarnation="x", facts={})
    assert leader.heard(1) == ["refuse"], "a peer may only join as who it authenticated as"


def test_a_second_claimant_of_an_id_is_refused_and_warned_about() -> None:
    leader = Leader()
    leader.attach()
    leader.join(1, "first")
    leader.join(11, "second")
    assert leader.heard(11) == ["refuse"]
    assert leader.closed == [11]
    assert "two agents claim to be node 1 (i-b)" in leader.told[11][0]["reason"]
    assert leader.kinds() == ["joined", "warning"]
    leader.join(0)
    assert leader.heard(1) == ["welcome", "prepare"]


def test_before_go_a_restarted_agent_takes_its_seat_again_and_prepares_anew() -> None:
    leader = Leader()
    leader.join(0)
    leader.join(1, "first")
    leader.say(1, "ready", facts={})
    leader.leave(1)
    leader.join(11, "second")
    assert leader.heard(11) == ["welcome", "prepare"]
    leader.say(0, "ready", facts={})
    assert leader.machine.phase == m.PREPARING, (
        "what the first incarnation had prepared is gone with it"
    )
    leader.say(11, "ready", facts={})
    assert leader.machine.phase == m.RUNNING
    leader.join(21, "first")
    assert leader.heard(21) == ["refuse"]


def test_after_go_another_incarnation_is_refused_and_its_node_suspected() -> None:
    leader = Leader()
    leader.attach()
    leader.go()
    leader.leave(1)
    leader.join(11, "second")
    assert leader.heard(11) == ["refuse"]
    assert leader.kinds()[-1] == "suspect"
    assert "another agent of it asks to join" in leader.events()[-1]["why"]


def test_a_rejoin_resumes_and_repeats_count_once() -> None:
    leader = Leader(per_node=2)
    leader.attach()
    leader.go()
    leader.exit(1, 2)
    leader.leave(1)
    leader.join(11)
    assert leader.heard(11) == ["welcome", "go"]
    leader.say(11, "ready", facts={})
    leader.say(11, "started")
    leader.say(11, "started")
    leader.exit(11, 2)
    leader.exit(11, 2)
    assert leader.kinds().count("worker") == 1
    assert leader.kinds().count("started") == 1
    with pytest.raises(MessageError, match="before join"):
        leader.exit(1, 3)


def test_a_rejoin_on_a_second_connection_closes_the_first() -> None:
    leader = Leader()
    leader.go()
    leader.join(11)
    assert leader.closed == [1]
    leader.exit(11, 1)
    leader.exit(0, 0)
    assert leader.machine.outcome == m.DONE


def test_the_first_failure_received_stops_the_gang_and_the_others_are_told_too() -> None:
    leader = Leader(per_node=2)
    leader.attach()
    leader.go()
    failure = {"kind": "exception", "type": "ValueError", "message": "no such layer"}
    leader.exit(1, 3, code=1, failure=failure)
    assert leader.machine.phase == m.STOPPING
    assert leader.heard(0)[-1] == leader.heard(1)[-1] == "stop"
    leader.exit(0, 0, code=None, signal=15)
    leader.exit(0, 1, code=None, signal=15)
    leader.say(0, "stopped")
    assert leader.machine.phase == m.STOPPING
    leader.say(1, "stopped")
    ended = leader.events()[-1]
    assert (ended["kind"], ended["outcome"]) == ("ended", m.FAILED)
    assert ended["reason"] == "first failure: node 1, rank 3: ValueError: no such layer"
    assert ended["first_failure"]["rank"] == 3
    assert ended["unstopped"] == []
    assert leader.kinds().count("first_failure") == 1
    assert leader.kinds().count("worker") == 3


def test_a_node_that_does_not_confirm_its_stop_is_named() -> None:
    leader = Leader(grace=2.0, lost_after=20.0)
    leader.attach()
    leader.go()
    leader.say(SUPERVISOR, "stop", kind="cancel", reason="the user said so")
    leader.say(0, "stopped")
    leader.wait(21, 0, 1, SUPERVISOR)
    assert leader.machine.phase == m.STOPPING
    leader.wait(2, 0, 1, SUPERVISOR)
    ended = leader.events()[-1]
    assert (ended["outcome"], ended["unstopped"]) == (m.STOPPED, ["i-b"])
    leader.leave(1)
    leader.join(11)
    assert leader.heard(11) == ["welcome", "stop", "ended"], "when it turns up, it is told to stop"


@pytest.mark.parametrize(
    ("kind", "outcome"),
    [("cancel", m.STOPPED), ("deadline", m.DEADLINE), ("preempted", m.PREEMPTED), ("?", m.ERROR)],
)
def test_stops_have_outcomes(kind: str, outcome: str) -> None:
    leader = Leader()
    leader.go()
    leader.say(1, "halt", kind=kind, reason="because")
    assert leader.machine.outcome == outcome
    assert leader.machine.reason == "node 1 (i-b): because"
    leader.say(0, "halt", kind="error", reason="another")
    assert leader.machine.outcome == outcome, "the first reason counts"


def test_a_notice_becomes_one_warning_however_often_it_is_told() -> None:
    leader = Leader()
    leader.attach()
    leader.go()
    leader.say(1, "notice", number=1, kind="warning", text="/data does not answer")
    leader.leave(1)
    leader.join(11)
    leader.say(11, "notice", number=1, kind="warning", text="/data does not answer")
    leader.say(11, "notice", number=2, kind="warning", text="/data answers again")
    warnings = [event["text"] for event in leader.events() if event["kind"] == "warning"]
    assert warnings == ["node 1 (i-b): /data does not answer", "node 1 (i-b): /data answers again"]
    assert leader.machine.phase == m.RUNNING


def test_a_stop_while_gathering_ends_without_waiting_for_those_who_never_came() -> None:
    leader = Leader()
    leader.attach()
    leader.say(SUPERVISOR, "stop", kind="cancel", reason="never mind")
    assert leader.machine.phase == m.ENDED
    leader.join(1)
    assert leader.heard(1) == ["refuse"]


def test_silence_is_suspected_and_lost_only_with_a_second_witness() -> None:
    leader = Leader(lost_after=20.0)
    leader.attach()
    leader.go()
    leader.say(SUPERVISOR, "lost", instance="i-b", why="the provider says terminated")
    assert leader.machine.phase == m.RUNNING, "it was just heard from"
    leader.wait(19, 0, SUPERVISOR)
    assert "suspect" not in leader.kinds()
    leader.wait(2, 0, SUPERVISOR)
    assert leader.kinds()[-1] == "suspect"
    assert "no sign of life for 20 s" in leader.events()[-1]["why"]
    assert leader.machine.phase == m.RUNNING, "one source ends nothing"
    leader.say(SUPERVISOR, "lost", instance="i-b", why="its machine is off")
    assert leader.machine.outcome == m.LOST
    assert leader.machine.reason == "node 1 (i-b) is lost: its machine is off"
    leader.say(0, "stopped")
    ended = leader.events()[-1]
    assert (ended["kind"], ended["unstopped"]) == ("ended", ["i-b"])


def test_a_broken_connection_is_suspected_soon_and_forgiven_at_a_rejoin() -> None:
    leader = Leader()
    leader.attach()
    leader.go()
    leader.leave(1)
    leader.wait(0.4, 0, SUPERVISOR)
    assert "suspect" not in leader.kinds(), "a connection may break and come back"
    leader.wait(1, 0, SUPERVISOR)
    assert leader.kinds()[-1] == "suspect"
    leader.join(11)
    assert leader.kinds()[-1] == "back"
    leader.say(SUPERVISOR, "lost", instance="i-b", why="too late")
    assert leader.machine.phase == m.RUNNING


def test_without_a_supervisor_the_leader_decides_when_the_node_has_fenced_itself() -> None:
    leader = Leader(lost_after=20.0, fence_after=60.0)
    leader.go()
    leader.wait(59, 0)
    assert leader.machine.phase == m.RUNNING
    leader.wait(2, 0)
    assert leader.machine.outcome == m.LOST


def test_a_supervisor_that_looks_at_the_node_itself_decides_first() -> None:
    leader = Leader(lost_after=20.0, fence_after=60.0)
    leader.attach()
    leader.go()
    leader.wait(89, 0, SUPERVISOR)
    assert leader.machine.phase == m.RUNNING
    leader.wait(2, 0, SUPERVISOR)
    assert leader.machine.outcome == m.LOST


def test_a_leader_that_hears_nobody_names_itself() -> None:
    leader = Leader(nodes=3, lost_after=20.0, fence_after=60.0)
    leader.go()
    leader.wait(61, 0)
    assert leader.machine.outcome == m.LOST
    assert leader.machine.reason.startswith("node 0 (i-a), the leader, was cut off from the others")


def test_a_node_that_stopped_for_want_of_its_leader_is_not_to_blame() -> None:
    leader = Leader(nodes=3, lost_after=20.0, fence_after=60.0)
    leader.attach()
    leader.go()
    leader.wait(62, 0, SUPERVISOR)
    told = {"instance": "i-b", "why": "its agent has left"}
    leader.say(SUPERVISOR, "lost", **told, answers=True)
    assert "node 0 (i-a), the leader, was cut off" in leader.machine.reason


def test_nor_is_one_that_was_heard_once_more_before_it_left() -> None:
    """Its connection breaks before it has said that it fenced itself."""
    leader = Leader(nodes=3, lost_after=20.0, fence_after=60.0)
    leader.attach()
    leader.go()
    leader.wait(62, 0, SUPERVISOR)
    leader.say(2, "beat")
    leader.join(1)
    leader.leave(1)
    leader.wait(3, 0, 2, SUPERVISOR)
    told = {"instance": "i-b", "why": "its agent has left"}
    leader.say(SUPERVISOR, "lost", **told, answers=True)
    assert "node 0 (i-a), the leader, was cut off" in leader.machine.reason


def test_one_that_is_lost_long_after_the_leader_was_cut_off_is_named() -> None:
    leader = Leader(nodes=3, lost_after=20.0, fence_after=60.0)
    leader.attach()
    leader.go()
    leader.wait(30, 0, SUPERVISOR)
    leader.wait(25, 0, 1, 2, SUPERVISOR)
    leader.leave(1)
    leader.wait(3, 0, 2, SUPERVISOR)
    told = {"instance": "i-b", "why": "its agent has left"}
    leader.say(SUPERVISOR, "lost", **told, answers=True)
    assert leader.machine.reason.startswith("node 1 (i-b) is lost")


def test_a_leader_that_hears_others_again_names_itself_all_the_same() -> None:
    leader = Leader(nodes=3, lost_after=20.0, fence_after=60.0)
    leader.go()
    leader.wait(59, 0)
    leader.say(2, "beat")
    leader.wait(2, 0, 2)
    assert "node 0 (i-a), the leader, was cut off" in leader.machine.reason


def test_a_member_that_fenced_itself_and_is_back_is_not_to_blame_for_its_leaders_cut() -> None:
    leader = Leader(nodes=3, lost_after=20.0, fence_after=60.0)
    leader.go()
    leader.wait(59, 0)
    leader.say(1, "halt", kind="fenced", reason="the leader has been silent for 60 s")
    assert leader.machine.reason.startswith("node 0 (i-a), the leader, was cut off from the others")


def test_a_member_that_fenced_itself_while_the_leader_heard_another_is_named() -> None:
    leader = Leader(nodes=3, lost_after=20.0, fence_after=60.0)
    leader.go()
    leader.wait(59, 0, 2)
    leader.say(1, "halt", kind="fenced", reason="the leader has been silent for 60 s")
    assert leader.machine.reason == "node 1 (i-b): the leader has been silent for 60 s"


def test_a_node_that_nobody_reaches_is_to_blame_also_beside_others() -> None:
    leader = Leader(nodes=3, lost_after=20.0, fence_after=60.0)
    leader.attach()
    leader.go()
    leader.wait(22, 0, SUPERVISOR)
    leader.say(SUPERVISOR, "lost", instance="i-b", why="it does not answer", answers=False)
    assert leader.machine.reason == "node 1 (i-b) is lost: it does not answer"


def test_before_go_silence_is_borne_for_as_long_as_nodes_have_to_meet() -> None:
    leader = Leader(lost_after=20.0, fence_after=60.0, join_timeout=300.0)
    leader.join(0)
    leader.join(1)
    assert leader.machine.phase == m.PREPARING
    leader.wait(299, 0)
    assert leader.machine.phase == m.PREPARING
    leader.wait(2, 0)
    assert leader.machine.outcome == m.LOST
    assert leader.machine.reason == "node 1 (i-b) is lost: silent for 300 s"


def test_a_leader_that_slept_blames_nobody() -> None:
    leader = Leader(lost_after=20.0, fence_after=60.0)
    leader.attach()
    leader.go()
    leader.now += 3600
    leader.act(leader.machine.tick(leader.moment()))
    leader.wait(5, 0, 1, SUPERVISOR)
    assert "suspect" not in leader.kinds()
    assert leader.machine.phase == m.RUNNING


def test_both_sides_are_kept_alive_by_beats() -> None:
    leader = Leader()
    leader.attach()
    leader.go()
    leader.wait(10, 0, 1, SUPERVISOR)
    for connection in (0, 1, SUPERVISOR):
        assert 8 <= leader.heard(connection).count("beat") <= 11


def test_a_supervisor_resumes_by_number_and_a_new_one_takes_over() -> None:
    leader = Leader()
    leader.attach()
    leader.go()
    seen = len(leader.events())
    leader.leave(SUPERVISOR)
    leader.exit(0, 0)
    leader.attach(SUPERVISOR + 10, after=seen)
    assert leader.told[SUPERVISOR + 10][0]["type"] == "state"
    assert [event["seq"] for event in leader.events(SUPERVISOR + 10)] == [seen + 1]
    leader.attach(SUPERVISOR + 20, after=seen + 1)
    assert leader.closed == [SUPERVISOR + 10]
    with pytest.raises(MessageError, match="not attached"):
        leader.say(SUPERVISOR + 10, "stop", kind="cancel", reason="I am not the one any more")


def test_a_supervisor_that_knows_more_than_the_leader_is_refused() -> None:
    leader = Leader()
    leader.attach(after=1)
    assert leader.heard(SUPERVISOR) == ["refuse"]
    assert leader.closed == [SUPERVISOR]


def test_a_silent_supervisor_is_hung_up_on() -> None:
    leader = Leader(lost_after=20.0)
    leader.attach()
    leader.go()
    leader.wait(21, 0, 1)
    assert leader.closed == [SUPERVISOR]


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        ("join", {"instance": "i-b", "facts": {}}),
        ("join", {"instance": 5, "incarnation": "x", "facts": {}}),
        ("welcome", {"rank": 0, "roster": ""}),
        ("attach", {"after": 0}),
        ("worker", {"rank": True, "sizes": {}}),
        ("nonsense", {}),
    ],
)
def test_what_is_no_message_of_a_member_is_refused(kind: str, fields: dict[str, Any]) -> None:
    leader = Leader()
    leader.go()
    with pytest.raises(MessageError):
        leader.say(1, kind, **fields)
    with pytest.raises(MessageError):
        leader.machine.receive(
            1, Peer("member", "i-b", ""), {"type": kind, **fields}, leader.moment()
        )
    assert leader.machine.phase == m.RUNNING


@pytest.mark.parametrize(
    ("kind", "fields", "field"),
    [
        (
            "join",
            {"instance": "i-b", "incarnation": "x", "facts": {"shm_bytes": "all"}},
            "join.facts.shm_bytes is not a whole number (str)",
        ),
        (
            "ready",
            {"facts": {"speeds": {"gpu": None}}},
            "ready.facts.speeds.* is not a number (NoneType)",
        ),
    ],
)
def test_reports_that_the_leader_does_not_understand_end_the_wait(
    kind: str, fields: dict[str, Any], field: str
) -> None:
    leader = Leader()
    leader.attach()
    leader.join(0)
    if kind == "ready":
        leader.join(1)
    for _ in range(4):
        with pytest.raises(MessageError):
            leader.say(1, kind, **fields)
    assert leader.machine.outcome is None
    leader.say(1, kind, **fields)
    assert leader.machine.outcome == m.CHECKS
    assert "node 1 (i-b) cannot start" in leader.machine.reason
    assert field in leader.machine.reason
    assert 1 in leader.closed


def test_a_rank_that_is_elsewhere_cannot_be_reported() -> None:
    leader = Leader()
    leader.go()
    for rank, said in ((0, "not on it"), (2, "not on it"), (-1, "not a number from 0 on")):
        with pytest.raises(MessageError, match=said):
            leader.exit(1, rank, code=1)


def test_four_thousand_nodes_join_in_time_that_grows_no_faster_than_they() -> None:
    """Message counts only: every node is told four things, whatever the size of the gang."""
    for count in (64, 1024):
        settings = GangSettings("t", 1, tuple(f"i-{n:05}" for n in range(count)))
        machine, sent = Rendezvous(settings, LeaderTime(0, 0)), 0
        actions: list[Any] = []
        for kind, fields in (("join", {"incarnation": "x", "facts": {}}), ("ready", {"facts": {}})):
            for number, instance in enumerate(settings.roster):
                message = {"type": kind, "task": "t", "attempt": 1, "instance": instance, **fields}
                actions += machine.receive(
                    number, Peer("member", instance, "10.0.0.1"), message, LeaderTime(0, 0)
                )
            if kind == "join":
                actions += machine.master_proved(29500, LeaderTime(0, 0))
        sent = sum(len(action.connections) for action in actions if isinstance(action, Send))
        assert machine.phase == m.RUNNING
        assert sent == 3 * count


class TestCopiesForAll:
    """The leader's node copies what all nodes write, when every worker has ended."""

    def started(self, nodes: int = 2, **changes: Any) -> Leader:
        leader = Leader(nodes, copies_for_all=True, lost_after=20.0, grace=2.0, **changes)
        leader.attach()
        leader.go()
        return leader

    def copied(self, leader: Leader) -> None:
        leader.act(leader.machine.copied(leader.moment()))

    @pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1), (1, 2, 0)])
    def test_a_gang_that_does_well_ends_after_the_copy(self, order: tuple[int, ...]) -> None:
        leader = self.started(3)
        for rank in order:
            assert leader.others_ended is None or rank == 0
            leader.exit(rank, rank)
            leader.wait(1.0, 0, 1, 2, SUPERVISOR)
        assert leader.others_ended is not None
        assert leader.ended_elsewhere == [rank for rank in order if rank > 0]
        assert leader.kinds().count("worker") == 3, "no report is held back"
        assert leader.machine.phase == "running"
        self.copied(leader)
        assert (leader.machine.phase, leader.machine.outcome) == ("ended", "done")

    def test_a_copy_that_is_early_does_not_end_the_gang(self) -> None:
        leader = self.started()
        leader.exit(0, 0)
        self.copied(leader)
        assert leader.machine.phase == "running"
        leader.exit(1, 1)
        assert leader.machine.outcome == "done"

    def test_after_a_failure_it_waits_for_nodes_that_stop(self) -> None:
        leader = self.started(3)
        leader.exit(0, 0, code=1)
        leader.say(0, "stopped")
        leader.say(1, "stopped")
        leader.wait(1.0, 0, 1, 2, SUPERVISOR)
        assert leader.others_ended is None
        leader.say(2, "stopped")
        leader.wait(0.5, 0, 1, 2, SUPERVISOR)
        assert leader.others_ended is not None

    def test_a_node_that_does_not_stop_leaves_all_its_time_to_the_copy(self) -> None:
        leader = self.started(after_stop=100.0)
        leader.say(0, "halt", kind="deadline", reason="over")
        began = leader.now
        leader.wait(60.0, 0, SUPERVISOR)
        assert leader.others_ended == began + 2.0 + 10.0
        assert leader.machine.phase == "stopping"
        leader.wait(70.0, 0, SUPERVISOR)
        assert leader.machine.phase == "ended"

    def test_nobody_waits_for_a_lost_node(self) -> None:
        leader = self.started()
        leader.leave(1)
        leader.wait(21.0, 0, SUPERVISOR)
        leader.say(SUPERVISOR, "lost", name="s", instance=IDS[1], why="it is gone")
        leader.wait(0.5, 0, SUPERVISOR)
        assert leader.others_ended is not None

    def test_a_gang_that_never_ran_waits_for_nothing(self) -> None:
        leader = Leader(copies_for_all=True)
        leader.join(0)
        leader.say(0, "halt", kind="cancel", reason="no")
        leader.say(0, "stopped")
        leader.wait(0.5, 0)
        assert leader.machine.phase == "ended"
        assert leader.others_ended is not None
