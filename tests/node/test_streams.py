"""Streams go on exactly where they stood, whatever was lost, late or doubled on the way."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowlite.node.log_stream import output_tail
from flowlite.node.log_stream.flow_control import BLOCK, StreamRelay, StreamSender, parse_stream
from flowlite.node.log_stream.tailer import IDLE, Tailer
from flowlite.node.protocol.messages import GangSettings, MessageError

GANG = GangSettings("t", 1, ("i-a", "i-b"), 2)


def chunk(rank: int, offset: int, gen: int = 1, stream: str = "out") -> dict[str, object]:
    return {"rank": rank, "stream": stream, "offset": offset, "gen": gen}


def test_the_relay_passes_exactly_what_continues_a_stream() -> None:
    relay = StreamRelay(GANG)
    assert not relay.passes(0, chunk(0, 0), 10), "nobody asked yet"
    relay.pull({"0.out": 100})
    assert not relay.passes(0, chunk(0, 0), 10)
    assert relay.passes(0, chunk(0, 100), 10)
    assert not relay.passes(0, chunk(0, 100), 10), "a duplicate"
    assert not relay.passes(0, chunk(0, 120), 10), "a gap"
    assert relay.passes(0, chunk(0, 110), 10)
    assert relay.passes(1, chunk(3, 0, stream="result"), 10)
    relay.pull({"0.out": 110}, ["out"])
    assert not relay.passes(0, chunk(0, 110, gen=1), 10), "sent for the pull before"
    assert relay.passes(0, chunk(0, 110, gen=2), 10)
    assert not relay.passes(0, chunk(0, 0, gen=2, stream="err"), 10), "not asked for"
    relay.detach()
    assert not relay.passes(0, chunk(0, 120, gen=2), 10)


def test_a_member_that_comes_back_goes_on_from_what_was_passed_on() -> None:
    relay = StreamRelay(GANG)
    relay.pull({"0.out": 5, "2.out": 7, "2.err": 9})
    relay.passes(1, chunk(2, 7), 100)
    order = relay.order(1)
    assert order["offsets"] == {"2.out": 107, "2.err": 9}
    assert order["window"] == GANG.window == 8 * 1024 * 1024
    assert GangSettings("t", 1, tuple(f"i{n}" for n in range(256))).window == 256 * 1024


def test_acknowledgements_go_to_the_node_of_the_rank() -> None:
    relay = StreamRelay(GANG)
    assert relay.acknowledge({"0.out": 1, "1.err": 2, "3.out": 3}) == {
        0: {"0.out": 1, "1.err": 2},
        1: {"3.out": 3},
    }


@pytest.mark.parametrize("name", ["", "out", "0.", "x.out", "0.log", "-1.out", "1.out.x", "٣.out"])
def test_names_that_are_no_streams_are_refused(name: str) -> None:
    with pytest.raises(MessageError):
        parse_stream(name)


def test_ranks_that_are_not_there_are_refused() -> None:
    relay = StreamRelay(GANG)
    with pytest.raises(MessageError, match="not in a gang of 4"):
        relay.pull({"4.out": 0})
    with pytest.raises(MessageError, match="not on it"):
        relay.passes(0, chunk(2, 0), 1)
    with pytest.raises(MessageError, match="number of bytes"):
        relay.acknowledge({"0.out": "much"})


class Line:
    """A sender and a relay with a line between them that a test may tear."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.sender = StreamSender()
        self.relay = StreamRelay(GANG)
        self.kept = {"0.out": b"", "1.err": b""}
        self.under_way: list[tuple[dict[str, object], bytes]] = []
        self.paths = {name: directory / name for name in self.kept}
        self.emptied: list[tuple[int, str]] = []
        self.follower = Tailer(
            self.sender, lambda: self.paths, self.send, lambda *each: self.emptied.append(each)
        )

    def send(self, rank: int, stream: str, offset: int, block: bytes) -> bool:
        self.under_way.append((chunk(rank, offset, self.sender.generation, stream), block))
        return True

    def pull(self) -> None:
        self.relay.pull({name: len(kept) for name, kept in self.kept.items()})
        self.sender.pull(self.relay.order(0))

    def deliver(self, count: int) -> None:
        for header, block in self.under_way[:count]:
            if self.relay.passes(0, header, len(block)):
                self.kept[f"{header['rank']}.{header['stream']}"] += block
        del self.under_way[:count]

    def acknowledge(self) -> None:
        for offsets in self.relay.acknowledge(
            {n: len(kept) for n, kept in self.kept.items()}
        ).values():
            self.sender.acknowledge(offsets)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.sampled_from(["write", "send", "deliver", "ack", "lose", "rejoin", "reattach"]),
        max_size=40,
    )
)
def test_no_byte_is_lost_or_doubled_whatever_breaks(
    tmp_path_factory: pytest.TempPathFactory, steps: list[str]
) -> None:
    line = Line(tmp_path_factory.mktemp("line"))
    line.pull()
    written = dict.fromkeys(line.kept, b"")

    def step(name: str, number: int) -> None:
        if name == "write":
            stream = ("0.out", "1.err")[number % 2]
            text = bytes([number % 251]) * (number * 997 % 5000)
            written[stream] += text
            with open(line.paths[stream], "ab") as file:
                file.write(text)
        elif name == "send":
            line.follower.advance()
        elif name == "deliver":
            line.deliver(number % 3)
        elif name == "ack":
            line.acknowledge()
        elif name == "lose":
            line.under_way.clear()
            line.sender.pause()
        elif name == "rejoin":
            line.under_way.clear()
            line.sender.pull(line.relay.order(0))
        elif name == "reattach":
            line.pull()

    for number, name in enumerate(steps):
        step(name, number)
        assert all(written[stream].startswith(kept) for stream, kept in line.kept.items())
    for name in ("reattach", "send", "send"):
        step(name, 0)
    line.deliver(len(line.under_way))
    assert line.kept == written
    line.follower.close()


def test_the_window_bounds_what_is_under_way(tmp_path: Path) -> None:
    line = Line(tmp_path)
    line.paths["0.out"].write_bytes(os.urandom(20_000_000))
    line.pull()
    while line.follower.advance():
        pass
    assert sum(len(block) for _, block in line.under_way) == GANG.window
    assert max(len(block) for _, block in line.under_way) == BLOCK
    line.deliver(4)
    line.acknowledge()
    before = len(line.under_way)
    while line.follower.advance():
        pass
    assert sum(len(block) for _, block in line.under_way[before:]) == 4 * BLOCK
    line.follower.close()


def test_streams_take_turns(tmp_path: Path) -> None:
    line = Line(tmp_path)
    line.paths["0.out"].write_bytes(b"x" * 10_000_000)
    line.paths["1.err"].write_bytes(b"a line\n")
    line.pull()
    line.follower.advance()
    assert {header["rank"] for header, _ in line.under_way} == {0, 1}
    line.follower.close()


def test_streams_take_turns_also_where_a_slow_network_has_room_for_one_block_at_a_time(
    tmp_path: Path,
) -> None:
    line = Line(tmp_path)
    for path in line.paths.values():
        path.write_bytes(b"x" * 20_000_000)
    line.pull()
    while line.follower.advance():
        pass
    before = len(line.under_way)
    for _ in range(6):
        line.deliver(1)
        line.acknowledge()
        line.follower.advance()
    assert len(line.under_way) == before
    assert {header["rank"] for header, _ in line.under_way[-6:]} == {0, 1}
    line.follower.close()


def test_a_result_waits_for_its_worker_and_nothing_follows_the_end(tmp_path: Path) -> None:
    line = Line(tmp_path)
    line.kept["0.result"] = b""
    line.paths["0.result"] = tmp_path / "0.result"
    line.paths["0.result"].write_bytes(b"half")
    line.pull()
    line.follower.advance()
    assert line.under_way == []
    line.paths["0.result"].write_bytes(b"whole")
    line.paths["0.out"].write_bytes(b"text and what a stray adds")
    line.follower.finish(0, {"out": 4, "result": 5})
    line.follower.advance()
    assert sorted(block for _, block in line.under_way) == [b"text", b"whole"]
    line.follower.advance()
    assert len(line.under_way) == 2
    line.follower.close()


def test_a_quiet_file_is_looked_at_less_often(tmp_path: Path) -> None:
    line = Line(tmp_path)
    line.pull()
    for _ in range(20):
        line.follower.advance()
    assert line.follower.delay == IDLE <= 0.1
    line.paths["0.out"].write_bytes(b"x")
    line.follower.advance()
    assert line.follower.delay < IDLE
    line.follower.close()


def test_a_file_that_cannot_be_read_now_holds_no_other_up_and_is_tried_again(
    tmp_path: Path,
) -> None:
    line = Line(tmp_path)
    (tmp_path / "here").write_text("no directory")
    line.paths["0.out"] = tmp_path / "here" / "0.out"
    line.paths["1.err"].write_bytes(b"a line\n")
    line.pull()
    for _ in range(2):
        line.follower.advance()
    assert [block for _, block in line.under_way] == [b"a line\n"]
    (tmp_path / "here").unlink()
    (tmp_path / "here").mkdir()
    line.paths["0.out"].write_bytes(b"another\n")
    line.follower.advance()
    assert [block for _, block in line.under_way] == [b"a line\n", b"another\n"]
    line.follower.close()


def test_the_last_lines_in_a_file_that_was_removed_are_sent(tmp_path: Path) -> None:
    line = Line(tmp_path)
    path = line.paths["0.out"]
    with open(path, "ab", buffering=0) as file:
        file.write(b"a line\n")
        line.pull()
        line.follower.advance()
        path.unlink()
        file.write(b"the last one\n")
    sizes = output_tail.sizes({"out": path, "err": tmp_path / "never"})
    assert line.follower.finish(0, sizes) == {"out": 20, "err": 0}
    line.follower.advance()
    line.deliver(2)
    assert line.kept["0.out"] == b"a line\nthe last one\n"
    line.follower.close()


def test_a_worker_that_empties_the_file_of_its_output_is_told_once(tmp_path: Path) -> None:
    line = Line(tmp_path)
    for path in line.paths.values():
        path.write_bytes(b"some lines\n")
    line.pull()
    line.follower.advance()
    assert line.emptied == []
    for text in (b"", b"one\n"):
        # As a shell does for `> /dev/stdout`.
        line.paths["0.out"].write_bytes(text)
        line.follower.advance()
    assert line.emptied == [(0, "out")]
    line.follower.close()
