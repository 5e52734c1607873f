"""Real gangs over loopback: server, member links and a supervisor link, with everything that happens to connections."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import resource
import socket
import time
from collections.abc import Coroutine, Mapping
from pathlib import Path
from typing import Any

import pytest

from flowlite.node.preflight.connectivity import authenticate
from flowlite.node.protocol import messages as m
from flowlite.node.protocol.channel import Channel
from flowlite.node.protocol.framing import (
    HEADER_LIMIT,
    ClientSession,
    Frame,
    Hello,
    ServerSession,
    encode,
)
from flowlite.node.rendezvous.member_client import Fenced, PrepareError, Refused
from flowlite.node.rendezvous.supervisor_client import LeaderRefused, LeaderUnreachable
from tests.node.gang import (
    SECRET,
    FakeMaster,
    FakeNode,
    Gang,
    make,
    runs_until_stopped,
    settings,
)
from tests.node.proxy import Proxy


def run(scenario: Coroutine[Any, Any, None], within: float = 90.0) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(within):
            await scenario

    asyncio.run(bounded())


async def until(condition: Any, within: float = 60.0) -> None:
    deadline = time.monotonic() + within
    while not condition():
        assert time.monotonic() < deadline, "it did not come about in time"
        await asyncio.sleep(0.005)


def test_a_leader_with_a_low_limit_of_descriptors_takes_all_members() -> None:
    """Logins have a soft limit of 1,024 on most machines, and a gang may have more nodes than that."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)

    async def scenario() -> None:
        async with make(nodes=80) as gang:
            gang.attach()
            gang.join()
            assert (await gang.until("ended"))["outcome"] == m.DONE
            await gang.supervisor.release()  # type: ignore[union-attr]

    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 100, hard))
    try:
        run(scenario(), within=30.0)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_supervisor_of_very_many_ranks_comes_back() -> None:
    async def scenario() -> None:
        async with make(nodes=2, processes=10_000) as gang:
            kept = {
                f"{rank}.{stream}": bytearray(1234)
                for rank in range(20_000)
                for stream in m.STREAMS
            }
            gang.streams.update(kept)
            supervisor = gang.attach()
            supervisor.start()
            await until(lambda: supervisor.attached or supervisor.trouble)
            assert supervisor.trouble == ""
            # It is told to nodes when they join.
            relay = gang.server._machine._session.relay
            await until(lambda: relay.active)
            assert relay.order(1)["offsets"]["19999.result"] == 1234

    run(scenario(), within=30.0)


def test_what_a_member_says_is_never_too_long_for_the_supervisor() -> None:
    """A node that knows the secret fills a message to its limit; the event with it would be over that."""

    async def scenario() -> None:
        async with make(nodes=2) as gang:
            reader, writer = await asyncio.open_connection("127.0.0.1", gang.leader[1])
            settings, name = gang.settings, gang.settings.roster[1]
            hello = Hello(settings.task, "member", name, settings.attempt)
            session = ClientSession(SECRET, hello)
            await authenticate(reader, writer, session)
            stamp = {"task": settings.task, "attempt": settings.attempt}
            facts = {"hostname": ""}
            join = {"type": "join", "instance": name, "incarnation": "x", "facts": facts, **stamp}
            facts["hostname"] = "A" * (HEADER_LIMIT - len(encode(join)))
            writer.write(session.seal(encode(join)))
            with contextlib.suppress(OSError):
                await reader.read()
            assert gang.server.turned_away == 1
            supervisor = gang.attach()
            supervisor.start()
            await until(lambda: supervisor.attached or supervisor.trouble)
            assert supervisor.trouble == ""
            writer.close()

    run(scenario())


def test_a_gang_from_join_to_release() -> None:
    async def scenario() -> None:
        async with make(nodes=3, processes=2) as gang:
            gang.attach()
            gang.join()
            ended = await gang.until("ended")
            assert ended["outcome"] == m.DONE
            assert gang.server.outcome == m.DONE
            assert gang.kinds().count("worker") == 6
            await gang.supervisor.release()  # type: ignore[union-attr]
            await asyncio.gather(*gang.members)
            assert await gang.serving == m.DONE  # type: ignore[misc]
        assert [node.go["rank"] for node in gang.nodes if node.go] == [0, 1, 2]
        assert all(node.go["addresses"] == ["127.0.0.1"] * 3 for node in gang.nodes if node.go)
        assert all(node.link.outcome == m.DONE for node in gang.nodes if node.link)
        assert gang.master.proved == 1
        assert not gang.master.open

    run(scenario())


def test_the_first_failure_stops_everybody() -> None:
    async def work(node: FakeNode, rank: int) -> Mapping[str, Any]:
        if rank == 3:
            failure = {"kind": "exception", "type": "ValueError", "message": "no such layer"}
            return {"code": 1, "failure": failure}
        return await runs_until_stopped(node, rank)

    async def scenario() -> None:
        async with make(nodes=2, processes=2, work=work) as gang:
            gang.attach()
            gang.join()
            ended = await gang.until("ended")
            assert ended["outcome"] == m.FAILED
            assert ended["reason"] == "first failure: node 1, rank 3: ValueError: no such layer"
            assert ended["unstopped"] == []
            assert gang.kinds().count("worker") == 4
            assert [node.calls for node in gang.nodes] == [["prepare", "start", "stop"]] * 2

    run(scenario())


def test_a_supervisor_cancels() -> None:
    async def scenario() -> None:
        async with make(work=runs_until_stopped) as gang:
            link = gang.attach()
            gang.join()
            await gang.until("go")
            await link.stop("cancel", "the user said so")
            ended = await gang.until("ended")
            assert (ended["outcome"], ended["reason"]) == (m.STOPPED, "the user said so")

    run(scenario())


def test_a_node_at_its_deadline_stops_the_gang() -> None:
    async def scenario() -> None:
        async with make(work=runs_until_stopped) as gang:
            gang.attach()
            gang.join()
            await gang.until("go")
            gang.nodes[1].link.halt("deadline", "max_run_time_hours is over")  # type: ignore[union-attr]
            ended = await gang.until("ended")
            assert ended["outcome"] == m.DEADLINE
            assert ended["reason"] == "node 1 (i-0001): max_run_time_hours is over"

    run(scenario())


def test_who_is_missing_is_named_and_why_if_that_is_known() -> None:
    async def scenario() -> None:
        async with make(nodes=3, join_timeout=5.0) as gang:
            gang.attach()
            gang.join(0)
            stranger = gang.join_as(gang.nodes[1], secret=b"another secret" * 3)
            ended = await gang.until("ended")
            assert ended["outcome"] == m.MISSING
            assert ended["missing"] == ["i-0001", "i-0002"]
            assert "node 2 (i-0002): never heard of" in ended["reason"]
            assert "from 127.0.0.1 could not prove the task's secret" in ended["reason"]
            stranger.cancel()
        assert gang.nodes[0].calls == ["stop"]

    run(scenario())


def test_a_node_that_the_leader_does_not_understand_ends_the_gang_and_is_told() -> None:
    async def scenario() -> None:
        gang = settings()
        async with Gang(
            gang, [FakeNode(gang, 0), FakeNode(gang, 1, memlock_bytes="unlimited")]
        ) as them:
            them.attach()
            them.join(0)
            with pytest.raises(Refused, match=r"join\.facts\.memlock_bytes is not a whole number"):
                await them.join_as(them.nodes[1])
            assert (await them.until("ended"))["outcome"] == m.CHECKS

    run(scenario())


def test_a_wrong_secret_never_gets_in_and_the_member_says_why() -> None:
    async def scenario() -> None:
        async with make(fence_after=3.0, join_timeout=3.0) as gang:
            with pytest.raises(Fenced, match="did not let this node join within") as fenced:
                await gang.join_as(gang.nodes[1], secret=b"another secret" * 3)
            assert f"127.0.0.1:{gang.leader[1]}" in str(fenced.value)
            assert gang.server.turned_away > 0

    run(scenario())


def test_an_older_epoch_is_refused() -> None:
    async def scenario() -> None:
        async with make(attempt=2) as gang:
            old = FakeNode(settings(attempt=1), 1)
            with pytest.raises(Refused, match="attempt 2, not 1"):
                await gang.join_as(old)
            assert old.calls == []

    run(scenario())


def test_a_second_claimant_is_refused_and_the_gang_goes_on() -> None:
    async def scenario() -> None:
        async with make() as gang:
            gang.attach()
            gang.join(1)
            await gang.until("joined")
            with pytest.raises(Refused, match=r"two agents claim to be node 1 \(i-0001\)"):
                await gang.join_as(FakeNode(gang.settings, 1))
            gang.join(0)
            assert (await gang.until("ended"))["outcome"] == m.DONE
            assert "warning" in gang.kinds()

    run(scenario())


def test_a_node_that_cannot_prepare_and_one_that_cannot_start() -> None:
    class Broken(FakeNode):
        async def prepare(self, order: Mapping[str, Any]) -> dict[str, Any]:
            raise PrepareError("/shared is not a volume here; mount it")

    class BrokenLater(FakeNode):
        async def start(self, go: Mapping[str, Any]) -> None:
            raise RuntimeError("fork failed")

    async def scenario(broken: type[FakeNode], outcome: str, reason: str) -> None:
        gang = settings()
        async with Gang(
            gang, [FakeNode(gang, 0, work=runs_until_stopped), broken(gang, 1)]
        ) as them:
            them.attach()
            them.join()
            ended = await them.until("ended")
            assert (ended["outcome"], ended["reason"]) == (outcome, reason)

    run(scenario(Broken, m.CHECKS, "node 1 (i-0001): /shared is not a volume here; mount it"))
    run(
        scenario(
            BrokenLater, m.ERROR, "node 1 (i-0001): workers cannot start: RuntimeError: fork failed"
        )
    )


def test_a_port_that_cannot_be_had() -> None:
    async def scenario() -> None:
        gang = settings()
        master = FakeMaster(error="29500 to 29999 are all taken")
        async with Gang(gang, [FakeNode(gang, rank) for rank in range(2)], master) as them:
            them.attach()
            them.join()
            ended = await them.until("ended")
            assert ended["outcome"] == m.CHECKS
            assert "node 0 (i-0000) cannot hold a master port: 29500 to 29999" in ended["reason"]

    run(scenario())


def test_a_stop_while_preparing_cancels_it() -> None:
    cancelled: list[int] = []

    class Slow(FakeNode):
        async def prepare(self, order: Mapping[str, Any]) -> dict[str, Any]:
            try:
                await asyncio.sleep(100)
            except asyncio.CancelledError:
                cancelled.append(self.rank)
                raise
            return {}

    async def scenario() -> None:
        gang = settings()
        async with Gang(gang, [Slow(gang, rank) for rank in range(2)]) as them:
            link = them.attach()
            them.join()
            await them.until("preparing")
            await link.stop("cancel", "changed my mind")
            assert (await them.until("ended"))["outcome"] == m.STOPPED
        assert sorted(cancelled) == [0, 1]
        assert [node.calls for node in them.nodes] == [["stop"], ["stop"]]

    run(scenario())


def test_a_leader_that_is_gone_makes_its_members_stop_their_workers() -> None:
    async def scenario() -> None:
        async with make(work=runs_until_stopped, fence_after=5.0, lost_after=3.0) as gang:
            gang.attach()
            gang.join()
            await gang.until("go")
            await until(lambda: all("start" in node.calls for node in gang.nodes))
            await gang.server.close()
            for member in gang.members:
                with pytest.raises(Fenced, match="silent"):
                    await member
            assert all(node.calls[-1] == "stop" for node in gang.nodes)

    run(scenario())


def test_a_member_whose_agent_dies_is_suspected_and_lost_when_confirmed() -> None:
    async def scenario() -> None:
        async with make(work=runs_until_stopped) as gang:
            link = gang.attach()
            gang.join()
            await gang.until("go")
            gang.members[1].cancel()
            suspect = await gang.until("suspect")
            assert suspect["instance"] == "i-0001"
            await link.lost("i-0001", "its agent is not running")
            ended = await gang.until("ended")
            assert ended["outcome"] == m.LOST
            assert ended["reason"] == "node 1 (i-0001) is lost: its agent is not running"
            assert ended["unstopped"] == ["i-0001"]
            assert gang.nodes[0].calls[-1] == "stop"

    run(scenario())


def test_a_torn_connection_is_mended_without_anybody_noticing() -> None:
    async def scenario() -> None:
        async with make(work=runs_until_stopped) as gang, Proxy(gang.leader) as proxy:
            link = gang.attach()
            gang.join(leader=proxy.address)
            await gang.until("go")
            for _ in range(5):
                proxy.tear()
                await asyncio.sleep(0.1)
                await until(lambda: proxy.connections == 2)
            await link.stop("cancel", "enough")
            ended = await gang.until("ended")
            assert ended["unstopped"] == []
            assert proxy.breaks >= 10
            assert not {"suspect", "lost"} & set(gang.kinds())
            assert all(node.calls == ["prepare", "start", "stop"] for node in gang.nodes)

    run(scenario())


def test_orders_given_while_the_line_is_down_arrive_when_it_is_up() -> None:
    async def scenario() -> None:
        async with make(work=runs_until_stopped) as gang, Proxy(gang.leader) as proxy:
            link = gang.attach(leader=proxy.address, silence=4.0)
            gang.join()
            await gang.until("go")
            proxy.refusing = True
            proxy.tear()
            await until(lambda: not link.attached)
            await link.stop("cancel", "while nobody listens")
            with pytest.raises(LeaderUnreachable, match=r"no word from the leader for 4 s"):
                await gang.until("ended")
            proxy.refusing = False
            assert (await gang.until("ended"))["outcome"] == m.STOPPED
            assert [event["seq"] for event in gang.events] == list(range(1, len(gang.events) + 1))

    run(scenario())


def test_a_supervisor_of_another_epoch_is_refused() -> None:
    async def scenario() -> None:
        async with make(attempt=2) as gang:
            gang.settings = settings(attempt=1)
            gang.attach()
            with pytest.raises(LeaderRefused, match="attempt 2, not 1"):
                await gang.until("ended")
            assert gang.server.outcome is None

    run(scenario())


def test_a_supervisor_with_a_wrong_secret_learns_nothing() -> None:
    async def scenario() -> None:
        async with make() as gang:
            gang.attach(secret=b"another secret" * 3, silence=0.3)
            with pytest.raises(LeaderUnreachable):
                await gang.until("ended")
            assert gang.events == []

    run(scenario())


def test_a_supervisor_that_was_killed_gets_the_whole_story_again_or_goes_on(tmp_path: Path) -> None:
    async def work(node: FakeNode, rank: int) -> Mapping[str, Any]:
        node.append(rank, "out", b"line\n" * 1000)
        node.append(rank, "result", b"42")
        return {}

    async def scenario() -> None:
        async with make(directory=tmp_path, work=work) as gang:
            gang.join()
            first = gang.attach()
            await gang.until("go")
            after = first.last_seq
            await first.close()
            gang.attach(after=after)
            await gang.until("ended")
            assert [event["seq"] for event in gang.events] == list(range(1, len(gang.events) + 1))
            before, gang.events = gang.events, []
            gang.attach()
            await gang.until("ended")
            # Only how long ago it was is another.
            ages, before_ages = ([event.pop("age") for event in e] for e in (gang.events, before))
            assert gang.events == before
            assert all(later > age for age, later in zip(before_ages, ages, strict=True))
            await until(
                lambda: all(len(gang.streams.get(f"{rank}.result", b"")) == 2 for rank in range(4))
            )
            await until(
                lambda: all(len(gang.streams.get(f"{rank}.out", b"")) == 5000 for rank in range(4))
            )

    run(scenario())


def test_whoever_stops_listening_takes_no_event_along() -> None:
    async def scenario() -> None:
        async with make(nodes=4) as gang:
            link = gang.attach()
            link.start()
            gang.join()
            seen: list[int] = []

            async def listen() -> None:
                async for event in link.events():
                    seen.append(event["seq"])
                    await asyncio.sleep(0)

            while (
                gang.server._machine.phase != m.ENDED or not seen or seen[-1] < link._received_seq
            ):
                listener = asyncio.create_task(listen())
                await asyncio.sleep(0.0003)
                listener.cancel()
                await asyncio.wait([listener])
            assert seen == list(range(1, len(seen) + 1))

    run(scenario())


def test_what_cannot_be_kept_is_told_to_whoever_listens(tmp_path: Path) -> None:
    async def work(node: FakeNode, rank: int) -> Mapping[str, Any]:
        node.append(rank, "out", b"line\n")
        return {}

    async def scenario() -> None:
        async with make(directory=tmp_path, work=work) as gang:
            gang.join()
            link = gang.attach()

            def full(*_: object) -> None:
                raise OSError(28, "No space left on device")

            link._on_chunk = full
            with pytest.raises(OSError, match="No space left"):
                await gang.until("never")

    run(scenario())


@pytest.mark.parametrize("seed", range(3))
def test_logs_arrive_byte_by_byte_while_both_hops_keep_breaking(tmp_path: Path, seed: int) -> None:
    pattern = random.Random(seed).randbytes(1 << 20)

    def text(rank: int, stream: str, size: int) -> bytes:
        start = rank * 1000 + len(stream)
        return (pattern[start:] + pattern)[:size]

    async def work(node: FakeNode, rank: int) -> Mapping[str, Any]:
        chance = random.Random(f"{seed}.{rank}")
        for stream in ("out", "err"):
            whole, at = text(rank, stream, 700_000), 0
            while at < len(whole):
                size = chance.choice([1, 100, 5_000, 150_000])
                node.append(rank, stream, whole[at : at + size])
                at += size
                await asyncio.sleep(0.002)
        node.append(rank, "result", text(rank, "result", 300_000))
        return {}

    async def scenario() -> None:
        async with (
            make(directory=tmp_path, work=work) as gang,
            Proxy(gang.leader, seed) as members,
            Proxy(gang.leader, seed + 100) as supervisors,
        ):
            gang.attach(leader=supervisors.address)
            gang.join(leader=members.address)
            await gang.until("go")
            members.budget, supervisors.budget = (50_000, 900_000), (100_000, 1_500_000)
            members.tear()
            supervisors.tear()
            assert (await gang.until("ended"))["outcome"] == m.DONE
            expected = {
                f"{rank}.{stream}": text(rank, stream, size)
                for rank in range(4)
                for stream, size in (("out", 700_000), ("err", 700_000), ("result", 300_000))
            }
            await until(lambda: sum(map(len, gang.streams.values())) >= 4 * 1_700_000, within=60)
            assert gang.streams == expected
            assert members.breaks > 8
            assert supervisors.breaks > 4

    run(scenario())


def test_logs_are_seen_soon_and_the_last_ones_at_once(tmp_path: Path) -> None:
    goes_on = asyncio.Event()

    async def work(node: FakeNode, rank: int) -> Mapping[str, Any]:
        await goes_on.wait()
        node.append(rank, "out", b"last words\n")
        return {}

    async def scenario() -> None:
        async with make(nodes=1, processes=1, directory=tmp_path, work=work) as gang:
            gang.attach()
            gang.join()
            await gang.until("started")
            await asyncio.sleep(0.3)
            gang.nodes[0].append(0, "out", b"a line\n")
            await until(lambda: gang.streams.get("0.out", bytearray()) == bytearray(b"a line\n"))
            goes_on.set()
            await gang.until("ended")
            await until(lambda: gang.streams["0.out"] == b"a line\nlast words\n")

    run(scenario())


def test_streams_nobody_asks_for_stay_where_they_are(tmp_path: Path) -> None:
    async def work(node: FakeNode, rank: int) -> Mapping[str, Any]:
        for stream in ("out", "result"):
            node.append(rank, stream, b"x" * 10)
        return {}

    async def scenario() -> None:
        async with make(directory=tmp_path, work=work) as gang:
            gang.attach(streams=("out", "err"))
            gang.join()
            await gang.until("ended")
            await until(lambda: len(gang.streams) == 4)
            assert set(gang.streams) == {f"{rank}.out" for rank in range(4)}

    run(scenario())


@pytest.mark.alone
def test_beats_go_on_while_a_supervisor_does_not_read(tmp_path: Path) -> None:
    """Logs pile up to the window and no further; nobody is suspected for it."""

    async def work(node: FakeNode, rank: int) -> Mapping[str, Any]:
        node.append(rank, "out", b"x" * 30_000_000)
        return await runs_until_stopped(node, rank)

    async def scenario() -> None:
        async with (
            make(nodes=2, processes=1, directory=tmp_path, work=work, lost_after=6.0) as gang,
            Proxy(gang.leader) as proxy,
        ):
            link = gang.attach(leader=proxy.address)
            gang.join()
            await gang.until("started")
            proxy.stalled = True
            await asyncio.sleep(8)
            proxy.stalled = False
            await link.stop("cancel", "enough")
            assert (await gang.until("ended"))["outcome"] == m.STOPPED
            assert not {"suspect", "lost"} & set(gang.kinds())
            assert sum(map(len, gang.streams.values())) <= 60_000_000

    run(scenario())


def test_logs_that_wait_for_a_slow_supervisor_keep_their_order(tmp_path: Path) -> None:
    """Beats go out while the connection is full, and must not let newer logs pass those that wait."""
    pattern = random.Random(0).randbytes(4_000_000)

    async def work(node: FakeNode, rank: int) -> Mapping[str, Any]:
        node.append(rank, "out", pattern)
        return {}

    async def scenario() -> None:
        async with (
            make(nodes=1, processes=1, directory=tmp_path, work=work, beat=0.02) as gang,
            Proxy(gang.leader) as proxy,
        ):
            proxy.slowness = 0.0005
            gang.attach(leader=proxy.address)
            ended = asyncio.create_task(gang.until("ended"))
            await until(lambda: gang.server._connections)
            for connection in gang.server._connections.values():
                assert connection._socket is not None
                connection._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 16)
            gang.join()
            assert (await ended)["outcome"] == m.DONE
            await until(lambda: len(gang.streams.get("0.out", b"")) == len(pattern), within=20)
            assert gang.streams["0.out"] == pattern

    run(scenario())


@pytest.mark.alone
def test_a_gang_of_a_thousand_nodes_starts() -> None:
    async def scenario() -> None:
        async with make(
            nodes=1024, processes=1, beat=1.0, lost_after=30.0, join_timeout=60.0
        ) as gang:
            gang.attach()
            gang.join()
            ended = await gang.until("ended", within=60)
            assert ended["outcome"] == m.DONE
            ranks = {node.go["rank"] for node in gang.nodes if node.go}
            assert ranks == set(range(1024))
            await gang.supervisor.release()  # type: ignore[union-attr]

    run(scenario(), within=90)


def test_a_flood_beyond_the_socket_waits_its_turn_and_arrives_whole() -> None:
    """More than the kernel takes at once, from a writer that never waits, to a reader that begins late."""

    class Reader(Channel):
        def __init__(self) -> None:
            super().__init__(ServerSession(SECRET, "task-1"))
            self.got: list[int] = []
            self.rooms = 0
            self.ended = False

        def on_frame(self, frame: Frame) -> None:
            assert frame.blob == bytes([frame.message["n"] % 256]) * len(frame.blob)
            self.got.append(frame.message["n"])

        def on_closed(self, error: Exception | None) -> None:
            self.ended = True

    class Writer(Channel):
        def on_room(self) -> None:
            self.rooms = getattr(self, "rooms", 0) + 1

    async def scenario() -> None:
        here, there = socket.socketpair()
        reader = Reader()
        writer = Writer(ClientSession(SECRET, Hello("task-1", "member", "i", 1)))
        writer.begin(here)
        reader.begin(there)
        await until(lambda: writer.session.authenticated and reader.session.authenticated)
        asyncio.get_running_loop().remove_reader(there)
        for n in range(200):
            writer.send(encode({"n": n}), bytes([n % 256]) * (n * 300))
        assert writer.full
        writer.close()
        asyncio.get_running_loop().add_reader(there, reader._readable)
        await until(lambda: reader.ended)
        assert reader.got == list(range(200))

    run(scenario())
