"""Logs are read back from files exactly: whole, once, in order, labelled, and safe to show on a terminal."""

from __future__ import annotations

import bisect
import itertools
import os
import re
import struct
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowlite.errors import ConfigError
from flowlite.output.reader import GOES_ON, LogLine, Logs, label, parse_since
from flowlite.output.redact import SHORTEST, SHOWN, Mask
from flowlite.output.stream_file import LONG_PENDING, LONGEST_LINE, MOST_LINES, is_clean
from flowlite.output.time_index import TimeIndex
from flowlite.terminal import before_last_state, clean_line, clean_lines
from tests.helpers import eventually

START = 1_700_000_000.0


@pytest.fixture(autouse=True, scope="module")
def short_pauses() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("flowlite.output.reader.SHORTEST_PAUSE", 0.0005)
        patch.setattr("flowlite.output.reader.LONGEST_PAUSE", 0.005)
        yield


@contextmanager
def shortened_at(size: int) -> Iterator[None]:
    """Unfinished lines are shortened, and files read backwards, in pieces of this size."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("flowlite.output.stream_file.LONG_PENDING", size)
        yield


def write(
    directory: Path,
    data: bytes,
    at: float = START,
    *,
    attempt: int = 1,
    node: int = 0,
    rank: int = 0,
    stream: str = "out",
) -> None:
    """What the supervisor does with a piece of a stream: index first, then the bytes. Times do not decrease."""
    path = directory / f"a{attempt}.n{node}.r{rank}.{stream}"
    with open(path, "ab") as file, open(f"{path}.idx", "a+b") as index:
        if index.tell():
            index.seek(-16, os.SEEK_END)
            at = max(struct.unpack("<Qd", index.read())[1], at)
        index.write(struct.pack("<Qd", file.tell(), at))
        index.flush()
        file.write(data)


def texts(logs: Logs) -> list[str]:
    return [line.text for line in logs]


def always() -> bool:
    return True


# One line


def test_a_line_prints_as_in_the_guide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    at = datetime.fromisoformat("2031-01-31T10:30:16.7+00:00").timestamp()
    assert str(LogLine(1, 3, "out", at, "loss 0.5")) == "[Node 1] [10:30:16] loss 0.5"
    assert label(12, at) == "[Node 12] [10:30:16]"
    assert label(12, at, rank=99) == "[Node 12, rank 99] [10:30:16]"
    assert label(12, at, "setup", 99) == "[Node 12 setup] [10:30:16]"


def test_labels_name_the_rank_where_nodes_have_several_workers(tmp_path: Path) -> None:
    write(tmp_path, b"loss 0.5\n", node=1, rank=3)
    logs = Logs(tmp_path, label_ranks=True)
    (line,) = logs
    assert isinstance(line, LogLine)
    assert tuple(line)[:3] == (1, 3, "out")
    assert str(line) == str(logs)
    assert str(logs).startswith("[Node 1, rank 3] [")
    assert str(Logs(tmp_path)).startswith("[Node 1] [")


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        ("plain", "plain"),
        ("tab\tstays", "tab\tstays"),
        ("grün ✓", "grün ✓"),
        ("\x1b[31mred\x1b[0m", "\x1b[31mred\x1b[0m"),
        ("\x1b[38;5;196mred\x1b[m", "\x1b[38;5;196mred\x1b[m"),
        ("\x1b[2Jgone", "gone"),
        ("\x1b[10;10Hmoved", "moved"),
        ("\x1b]0;a title\x07text", "text"),
        ("\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("\x1b]52;c;cm0gLXJm\x07clipboard", "clipboard"),
        ("\x1bP1;2|payload\x1b\\after", "after"),
        ("\x1b[?1049hscreen", "screen"),
        ("\x1b(0line", "line"),
        ("\x1bcreset", "reset"),
        ("bell\x07 null\x00 del\x7f back\x08", "bell null del back"),
        ("\x9b31mc1", "c1"),
        ("\x9d0;title\x9cafter", "after"),
        ("unfinished \x1b[", "unfinished "),
        ("unfinished \x1b", "unfinished "),
        ("10%\r50%\r100%", "100%"),
        ("windows\r", "windows"),
        ("100%\r\x1b[K", "100%"),
        ("10%\r\x1b[32m100%\x1b[0m\r", "\x1b[32m100%\x1b[0m"),
        ("\r\r", ""),
        ("", ""),
    ],
)
def test_only_colours_reach_the_terminal(raw: str, shown: str) -> None:
    assert clean_line(raw) == shown


@given(st.text(alphabet=st.characters(codec="utf-8")))
def test_whatever_a_worker_writes_cannot_steer_the_terminal(text: str) -> None:
    shown = clean_line(text)
    without_colours = re.sub(r"\x1b\[[0-9;:]*m", "", shown)
    assert not any(ord(c) < 32 and c != "\t" and c != "\n" for c in without_colours)
    assert not any(0x7F <= ord(c) <= 0x9F for c in without_colours)
    if is_clean(text.encode()):
        assert shown == text


# What has a meaning to a terminal, or ends what has one.
_MEANING = st.lists(
    st.sampled_from(
        [
            *"ab m;31[]\\P\r\r\n\t\0\x07\x08\x1b\x7f\x9b\x9c\x9d",
            "\x1b[31m",
            "\x1b[0m",
            "\x1b[2K",
            "\x1b]0;",
        ]
    ),
    max_size=20,
).map("".join)


@given(st.one_of(_MEANING, st.text(alphabet="ab\r\r\n\0\x07\x7f")))
def test_many_lines_are_cleaned_as_each_of_them(text: str) -> None:
    assert clean_lines(text.encode()) == [clean_line(line) for line in text.split("\n")]
    line = text.replace("\n", "")
    if "\r" in line:
        *_, last = ["", *(state for state in map(clean_line, line.split("\r")) if _seen(state))]
        assert clean_line(line) == last
    raw = line.encode()
    at = before_last_state(raw)
    if at:
        assert raw[at - 1 : at] == b"\r"
        assert _seen(clean_line(raw[at:].partition(b"\r")[0].decode()))
        assert clean_line(raw[at:].decode()) == clean_line(line)


def _seen(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;:]*m", "", text)


# Reading files


def test_streams_are_merged_by_time_and_keep_their_own_order(tmp_path: Path) -> None:
    write(tmp_path, b"a1\na2\n", START + 1, node=0, rank=0)
    write(tmp_path, b"b1\n", START, node=1, rank=1)
    write(tmp_path, b"b2\n", START + 2, node=1, rank=1)
    write(tmp_path, b"e1\n", START + 1.5, node=1, rank=1, stream="err")
    lines = list(Logs(tmp_path))
    assert [line.text for line in lines] == ["b1", "a1", "a2", "e1", "b2"]
    assert lines[0] == LogLine(1, 1, "out", START, "b1")
    assert lines[3].stream == "err"


def test_a_later_attempt_comes_after_an_earlier_one(tmp_path: Path) -> None:
    write(tmp_path, b"second\n", START, attempt=2)
    write(tmp_path, b"first, cut off", START + 100, attempt=1)
    write(tmp_path, b"tenth\n", START, attempt=10)
    assert texts(Logs(tmp_path)) == ["first, cut off", "second", "tenth"]


def test_a_clock_set_back_does_not_break_the_order_of_a_stream(tmp_path: Path) -> None:
    write(tmp_path, b"1\n", START + 10)
    write(tmp_path, b"2\n", START)
    write(tmp_path, b"x\n", START + 5, rank=1)
    assert [(line.text, line.time - START) for line in Logs(tmp_path)] == [
        ("x", 5),
        ("1", 10),
        ("2", 10),
    ]
    assert texts(Logs(tmp_path, since=START + 7)) == ["1", "2"]


def test_the_time_of_a_line_is_that_of_its_first_byte(tmp_path: Path) -> None:
    write(tmp_path, b"one\ntw", START)
    write(tmp_path, b"o\nthree\n", START + 5)
    assert [(line.text, line.time) for line in Logs(tmp_path)] == [
        ("one", START),
        ("two", START),
        ("three", START + 5),
    ]


def test_node_and_rank_choose(tmp_path: Path) -> None:
    for rank in range(4):
        write(tmp_path, f"rank {rank}\n".encode(), START + rank, node=rank // 2, rank=rank)
    assert texts(Logs(tmp_path, node=1)) == ["rank 2", "rank 3"]
    assert texts(Logs(tmp_path, rank=1)) == ["rank 1"]
    assert texts(Logs(tmp_path, node=0, rank=3)) == []


def test_since_chooses_by_time(tmp_path: Path) -> None:
    for second in range(100):
        write(tmp_path, f"{second}\n".encode(), START + second)
    assert texts(Logs(tmp_path, since=START + 97)) == ["97", "98", "99"]
    assert len(texts(Logs(tmp_path, since=START))) == 100
    assert texts(Logs(tmp_path, since=START + 1000)) == []
    # Lines that were returned already do not come again.
    first = Logs(tmp_path, since=START + 97)
    iterator = iter(first)
    assert next(iterator).text == "97"
    assert texts(Logs(tmp_path, since=START + 97, after=first.position)) == ["98", "99"]


def test_since_leaves_out_a_line_that_began_before(tmp_path: Path) -> None:
    write(tmp_path, b"began before, ", START)
    write(tmp_path, b"ended after\nnew\n", START + 10)
    assert texts(Logs(tmp_path, since=START + 5)) == ["new"]


@pytest.mark.parametrize("tail", [0, 1, 2, 3, 7, 8, 9, 1000])
def test_tail_gives_the_last_lines_over_all_ranks(tmp_path: Path, tail: int) -> None:
    for number in range(8):
        write(tmp_path, f"{number}\n".encode(), START + number, rank=number % 3)
    assert texts(Logs(tmp_path, tail=tail)) == [str(n) for n in range(8)][8 - min(tail, 8) :]


def test_tail_of_a_big_file_does_not_read_it_all(tmp_path: Path) -> None:
    with open(tmp_path / "a1.n0.r0.out", "wb") as file:
        file.truncate(20 << 30)
        file.seek(0, os.SEEK_END)
        file.write(b"\nthe end\n")
    assert texts(Logs(tmp_path, tail=1)) == ["the end"]


def test_negative_tail_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="tail=-1"):
        Logs(tmp_path, tail=-1)


def test_no_directory_and_foreign_files_are_no_logs(tmp_path: Path) -> None:
    assert str(Logs(tmp_path / "nothing")) == ""
    (tmp_path / "a1.n0.agent.log").write_text("not a worker's\n")
    (tmp_path / "a1.n0.r0.out.idx").write_bytes(b"")
    assert texts(Logs(tmp_path)) == []


def test_bytes_without_an_index_still_show(tmp_path: Path) -> None:
    (tmp_path / "a1.n0.r0.out").write_bytes(b"one\ntwo\n")
    (tmp_path / "a1.n0.r0.out.idx").write_bytes(b"cut")
    assert texts(Logs(tmp_path)) == ["one", "two"]


def test_invalid_utf8_is_replaced_for_display_only(tmp_path: Path) -> None:
    raw = b"\xff\xfe caf\xc3\n\xe2\x82\xac\xe2\x82\n"
    write(tmp_path, raw)
    assert texts(Logs(tmp_path)) == ["�� caf�", "€�"]
    assert (tmp_path / "a1.n0.r0.out").read_bytes() == raw


def test_a_line_of_less_than_a_megabyte_comes_whole(tmp_path: Path) -> None:
    long = "x" * (LONGEST_LINE - 1000)
    write(tmp_path, f"before\n{long}\nafter\n".encode())
    assert texts(Logs(tmp_path)) == ["before", long, "after"]


def test_a_longer_line_comes_in_pieces_that_say_so(tmp_path: Path) -> None:
    # Characters of three bytes, which no cut divides.
    long = "x" + "€" * (2 * LONGEST_LINE)
    write(tmp_path, f"before\n{long}\nafter\n".encode())
    first, *pieces, last = texts(Logs(tmp_path))
    assert (first, last) == ("before", "after")
    assert len(pieces) > 3
    assert all(piece.endswith(GOES_ON) for piece in pieces[:-1])
    assert "".join(piece.removesuffix(GOES_ON) for piece in pieces) == long
    assert all(len(piece.encode()) < 2 * LONGEST_LINE + 100 for piece in pieces)
    # The same from blocks, and from wherever somebody stopped reading.
    assert len("".join(Logs(tmp_path).blocks()).splitlines()) == 2 + len(pieces)
    logs = Logs(tmp_path)
    iterator = iter(logs)
    taken = [next(iterator).text for _ in range(3)]
    rest = texts(Logs(tmp_path, after=logs.position))
    shown = "".join(piece.removesuffix(GOES_ON) for piece in [*taken[1:], *rest[:-1]])
    assert shown == long


@pytest.mark.parametrize("at", range(1, 12))
def test_a_secret_that_a_cut_divides_is_not_shown(tmp_path: Path, at: int) -> None:
    secret = "hunter2-token"
    text = "x" * (LONGEST_LINE - at) + secret + "y" * 100
    write(tmp_path, f"{text}\n".encode())
    pieces = texts(Logs(tmp_path, mask=Mask([secret])))
    assert len(pieces) == 2
    joined = pieces[0].removesuffix(GOES_ON) + pieces[1]
    # Fewer characters than four say nothing of it.
    parts = (secret[:at], secret[at:])
    assert joined.strip("xy") == "".join(SHOWN if len(p) >= SHORTEST else p for p in parts)


def test_many_short_lines_come_in_small_lots(tmp_path: Path) -> None:
    write(tmp_path, b"\n" * (3 * MOST_LINES + 5))
    logs = Logs(tmp_path)
    assert texts(logs) == [""] * (3 * MOST_LINES + 5)
    assert max(block.count("\n") for block in logs.blocks()) <= MOST_LINES


def test_a_mad_clock_does_no_harm(tmp_path: Path) -> None:
    mad = [START, float("nan"), float("inf"), 1e300, -1e300]
    (tmp_path / "a1.n0.r0.out").write_bytes(b"".join(b"mad %d\n" % n for n in range(5)))
    records = [struct.pack("<Qd", 6 * number, at) for number, at in enumerate(mad)]
    (tmp_path / "a1.n0.r0.out.idx").write_bytes(b"".join(records))
    assert [(line.text, line.time) for line in Logs(tmp_path)] == [
        (f"mad {n}", START) for n in range(5)
    ]
    assert "[Node 0]" in str(Logs(tmp_path, tail=1))
    list(Logs(tmp_path, since=START))


@given(
    st.lists(st.tuples(st.integers(1, 9), st.integers(0, 3)), max_size=60),
    st.lists(st.tuples(st.integers(0, 400), st.integers(0, 12)), max_size=20),
    st.integers(2, 8),
)
def test_the_times_of_a_log_whose_index_does_not_fit_in_memory(
    steps: list[tuple[int, int]], asked: list[tuple[int, int]], window: int
) -> None:
    """It finds the same as a list of all records, in any order of questions, while the index grows."""
    with tempfile.TemporaryDirectory() as directory, pytest.MonkeyPatch.context() as patch:
        patch.setattr("flowlite.output.time_index._WINDOW", window)
        log = Path(directory, "a1.n0.r0.out")
        index = TimeIndex(log)
        offsets, times = [0], [START]
        for length, passed in steps:
            offsets.append(offsets[-1] + length)
            times.append(times[-1] + passed)
        written = 0
        for offset, more in [*asked, (0, len(offsets))]:
            with open(f"{log}.idx", "ab") as file:
                for record in list(zip(offsets, times, strict=True))[written : written + more]:
                    file.write(struct.pack("<Qd", *record))
                    written += 1
            index.refresh()
            known, at = offsets[:written], times[:written]
            number = bisect.bisect_right(known, offset)
            assert index.time_at(offset) == (at[max(0, number - 1)] if known else None)
            assert index.change_after(offset) == (known[number] if number < len(known) else None)
            since = START + offset / 4
            first = min(bisect.bisect_left(at, since), written - 1)
            assert index.first_since(since) == (known[first] if known else None)


def test_the_unfinished_line_of_a_killed_worker_is_shown(tmp_path: Path) -> None:
    write(tmp_path, b"whole\nhalf a li")
    assert texts(Logs(tmp_path, ended=always)) == ["whole", "half a li"]
    assert texts(Logs(tmp_path, ended=always, follow=True)) == ["whole", "half a li"]


def test_prints_as_text_and_can_be_read_twice(tmp_path: Path) -> None:
    write(tmp_path, b"one\n\x1b[2Jtwo\r\n")
    write(tmp_path, b"err \xff", START + 1, stream="err")
    logs = Logs(tmp_path, ended=always)
    expected = "\n".join(
        f"{label(0, START + (i > 1))} {text}" for i, text in enumerate(["one", "two", "err �"])
    )
    assert str(logs) == expected
    assert str(logs) == expected
    assert "\n".join(map(str, logs)) == expected


def test_text_and_lines_agree_on_empty_lines(tmp_path: Path) -> None:
    write(tmp_path, b"\n\nx\n\n")
    logs = Logs(tmp_path)
    assert texts(logs) == ["", "", "x", ""]
    assert str(logs).split("\n") == [str(line) for line in logs]


def test_the_closing_sentence_ends_the_text_of_an_ended_task(tmp_path: Path) -> None:
    write(tmp_path, b"one\n")
    closing = "first failure: node 2, rank 17: ValueError: no"
    ended = Logs(tmp_path, ended=always, closing=lambda: closing)
    assert str(ended).splitlines()[-1] == closing
    assert texts(ended) == ["one"]
    assert closing not in str(Logs(tmp_path, closing=lambda: closing))


# Exactness: any arrival, any place to go on from

NASTY = st.lists(
    st.sampled_from(
        [b"a", b"bc", b"\n", b"\r", b"\xe2", b"\x82", b"\xac", b"\x1b[", b"31m", b" " * 7, b"\n\n"]
    ),
    max_size=40,
).map(b"".join)
PENDING = st.sampled_from([6, LONG_PENDING])


def expected_lines(data: bytes) -> list[str]:
    parts = data.split(b"\n")
    if not parts[-1]:
        parts.pop()
    return [clean_line(part.decode("utf-8", "replace")) for part in parts]


@settings(max_examples=60, deadline=None)
@given(st.lists(NASTY, min_size=1, max_size=8), PENDING)
def test_chunks_of_any_size_give_the_same_lines(chunks: list[bytes], pending: int) -> None:
    with tempfile.TemporaryDirectory() as name, shortened_at(pending):
        directory, arrived, got = Path(name), iter(chunks), list[str]()
        done = False

        def ended() -> bool:
            # Each look at the files finds one chunk more.
            nonlocal done
            was_done = done
            chunk = next(arrived, None)
            if chunk is None:
                done = True
            else:
                write(directory, chunk)
            return was_done

        for line in Logs(directory, follow=True, ended=ended):
            got.append(line.text)
        assert got == expected_lines(b"".join(chunks))


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 2), NASTY), min_size=1, max_size=8),
    st.integers(0, 60),
    st.booleans(),
    PENDING,
)
def test_going_on_from_any_place_loses_and_repeats_nothing(
    chunks: list[tuple[int, bytes]], stop_after: int, by_blocks: bool, pending: int
) -> None:
    with tempfile.TemporaryDirectory() as name, shortened_at(pending):
        directory = Path(name)
        for number, (rank, data) in enumerate(chunks):
            write(directory, data, START + number, rank=rank)
        whole = list(Logs(directory, ended=always))
        first = Logs(directory, ended=always)
        if by_blocks:
            taken_text = "".join(itertools.islice(first.blocks(), stop_after))
            rest = "".join(Logs(directory, ended=always, after=first.position).blocks())
            assert sorted((taken_text + rest).split("\n")) == sorted(
                "".join(f"{x}\n" for x in whole).split("\n")
            )
            return
        taken = list(itertools.islice(first, stop_after))
        rest_lines = list(Logs(directory, ended=always, after=first.position))
        assert sorted(taken + rest_lines) == sorted(whole)
        for rank in range(3):
            mine = [line.text for line in taken + rest_lines if line.rank == rank]
            assert mine == [line.text for line in whole if line.rank == rank]


@settings(max_examples=60, deadline=None)
@given(st.lists(NASTY, min_size=1, max_size=8), st.integers(0, 12), PENDING)
def test_tail_is_the_end_of_everything(chunks: list[bytes], tail: int, pending: int) -> None:
    with tempfile.TemporaryDirectory() as name, shortened_at(pending):
        directory = Path(name)
        for number, data in enumerate(chunks):
            write(directory, data, START + number, rank=number % 2)
        everything = texts(Logs(directory, ended=always))
        limited = Logs(directory, ended=always, tail=tail)
        assert texts(limited) == (everything[-tail:] if tail else [])
        assert texts(Logs(directory, ended=always, after=limited.position)) == []


def test_small_blocks_and_index_records_change_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = b"".join(b"%d %s\n" % (n, b"y" * (n * 37 % 300)) for n in range(500))
    for at in range(0, len(data), 113):
        write(tmp_path, data[at : at + 113], START + at)
    monkeypatch.setattr("flowlite.output.reader.LARGEST_BLOCK", 50)
    monkeypatch.setattr("flowlite.output.reader.SMALLEST_BLOCK", 50)
    lines = list(Logs(tmp_path))
    assert [line.text for line in lines] == expected_lines(data)
    offsets = itertools.accumulate((len(line.text) + 1 for line in lines), initial=0)
    assert [line.time - START for line in lines] == [o // 113 * 113 for o in list(offsets)[:-1]]


def test_an_unfinished_line_of_a_running_worker_comes_whole_after_going_on(tmp_path: Path) -> None:
    write(tmp_path, b"one\ntw")
    logs = Logs(tmp_path)
    assert texts(logs) == ["one", "tw"]
    write(tmp_path, b"o\n")
    assert texts(Logs(tmp_path, after=logs.position)) == ["two"]


# Progress bars


def test_a_long_progress_bar_is_one_line_and_is_not_kept_in_memory(tmp_path: Path) -> None:
    states = [f"{percent:3}% |{'#' * percent:100}|" for percent in range(101)] * 40
    bar = "\r".join(states).encode()
    rounds = iter(range(0, len(bar), 9973))
    held: list[int] = []
    logs = Logs(
        tmp_path,
        follow=True,
        ended=lambda: not feed(),
        on_pause=lambda line: held.append(
            max(len(r.pending) for r in logs._reading._readers.values())
        ),
    )

    def feed() -> bool:
        at = next(rounds, None)
        if at is not None:
            write(tmp_path, bar[at : at + 9973])
        return at is not None

    lines = list(logs)
    assert [line.text for line in lines] == [states[-1]]
    assert max(held) < LONG_PENDING + 20_000
    assert logs.position == {"a1.n0.r0.out": len(bar)}


def test_a_shortened_bar_followed_by_lines_resumes_exactly(tmp_path: Path) -> None:
    bar = b"\r".join(b"step %06d" % n for n in range(20_000))
    write(tmp_path, bar[: 2 * LONG_PENDING])
    write(tmp_path, bar[2 * LONG_PENDING :] + b"\r\x1b[K\nnext\nlast\n", START + 1)
    logs = Logs(tmp_path)
    iterator = iter(logs)
    assert next(iterator).text == "step 019999"
    assert texts(Logs(tmp_path, after=logs.position)) == ["next", "last"]
    assert next(iterator).text == "next"
    assert texts(Logs(tmp_path, after=logs.position)) == ["last"]


def test_a_bar_that_was_shortened_while_it_was_followed_resumes_exactly(tmp_path: Path) -> None:
    bar = b"\r".join(b"step %06d" % n for n in range(20_000))
    logs = Logs(tmp_path, follow=True)
    for second in range(3):
        part = bar[second * LONG_PENDING :]
        write(tmp_path, part[:LONG_PENDING] if second < 2 else part, START + second)
        assert "".join(logs.take(False)) == ""
    write(tmp_path, b"\nnext\n", START + 3)
    lines = [f"{label(0, START)} step 019999\n", f"{label(0, START + 3)} next\n"]
    assert "".join(logs.take(False)) == "".join(lines)
    assert logs.position == {"a1.n0.r0.out": len(bar) + len("\nnext\n")}
    write(tmp_path, b"last\n", START + 4)
    assert texts(Logs(tmp_path, after=logs.position)) == ["last"]


def test_while_following_the_state_of_a_bar_is_told(tmp_path: Path) -> None:
    write(tmp_path, b"10%\r20%")
    shown: list[str] = []
    ended = threading.Event()

    def pause(line: LogLine | None) -> None:
        shown.append(line.text if line else "")
        if len(shown) == 1:
            write(tmp_path, b"\r30%")
        elif len(shown) == 2:
            write(tmp_path, b"\ndone\n")
        else:
            ended.set()

    assert texts(Logs(tmp_path, follow=True, ended=ended.is_set, on_pause=pause)) == ["30%", "done"]
    assert shown[:3] == ["20%", "30%", ""]


# Following


def test_any_number_of_followers_see_everything_once(tmp_path: Path) -> None:
    ended = threading.Event()
    seen: list[list[str]] = [[] for _ in range(4)]

    def follow(into: list[str]) -> None:
        for line in Logs(tmp_path, follow=True, ended=ended.is_set):
            into.append(line.text)

    followers = [threading.Thread(target=follow, args=(into,)) for into in seen]
    for follower in followers:
        follower.start()
    wanted = []
    for number in range(300):
        write(tmp_path, f"line {number}\n".encode(), START + number, rank=number % 5)
        wanted.append(f"line {number}")
    ended.set()
    for follower in followers:
        follower.join(90)
    for got in seen:
        assert sorted(got) == sorted(wanted)


def test_a_follower_sees_a_line_soon(tmp_path: Path) -> None:
    ended, got = threading.Event(), list[float]()

    def follow() -> None:
        for _ in Logs(tmp_path, follow=True, ended=ended.is_set):
            got.append(time.monotonic())

    thread = threading.Thread(target=follow)
    thread.start()
    time.sleep(0.3)
    written = time.monotonic()
    write(tmp_path, b"now\n")
    eventually(lambda: got)
    ended.set()
    thread.join(90)
    # It looks every few milliseconds; the machine may be busy.
    assert got[0] - written < 10.0


def test_a_line_cut_off_by_a_restart_is_shown_when_the_next_attempt_begins(tmp_path: Path) -> None:
    write(tmp_path, b"cut o")
    ended = threading.Event()
    pauses: list[LogLine | None] = []

    def pause(line: LogLine | None) -> None:
        pauses.append(line)
        if len(pauses) == 1:
            write(tmp_path, b"again\n", START + 1, attempt=2)
        elif len(pauses) == 3:
            ended.set()

    seen = []
    for line in Logs(tmp_path, follow=True, ended=ended.is_set, on_pause=pause):
        seen.append((line.text, len(pauses)))
    assert seen == [("cut o", 1), ("again", 1)]


def test_tail_and_follow_shows_the_end_and_then_all_that_is_new(tmp_path: Path) -> None:
    write(tmp_path, b"1\n2\n3\nunfini")
    ended = threading.Event()

    def pause(line: LogLine | None) -> None:
        write(tmp_path, b"shed\n5\n", START + 1)
        ended.set()

    logs = Logs(tmp_path, follow=True, tail=2, ended=ended.is_set, on_pause=pause)
    assert texts(logs) == ["2", "3", "unfinished", "5"]


# Times


def test_since_is_read_in_every_form() -> None:
    now = time.time()
    soon = 30  # in which a busy machine comes to the end of this
    assert parse_since(None) is None
    assert parse_since(12.5) == 12.5
    assert parse_since("5m") == pytest.approx(now - 300, abs=soon)
    assert parse_since("1.5h") == pytest.approx(now - 5400, abs=soon)
    assert parse_since("90 s") == pytest.approx(now - 90, abs=soon)
    assert parse_since("2d") == pytest.approx(now - 172800, abs=soon)
    assert parse_since(timedelta(minutes=1)) == pytest.approx(now - 60, abs=soon)
    moment = datetime(2024, 5, 6, 7, 8)
    assert parse_since(moment) == moment.timestamp()
    assert parse_since("2024-05-06T07:08") == moment.timestamp()
    today = parse_since("00:00")
    assert today is not None
    assert 0 <= time.time() - today <= 25 * 3600
    for wrong in ("yesterday", "5x", "", "25:99"):
        with pytest.raises(ConfigError, match="5m"):
            parse_since(wrong)


# Work for each character


@pytest.mark.parametrize(
    "unit",
    [b"\0" * 79 + b"\n", b"\0", b"\r", b"\0\r", b"a line of text\r\n", b"a\0b\0\r\n"],
    ids=["lines of NULs", "NULs", "returns", "NULs and returns", "Windows lines", "mixed"],
)
def test_no_function_is_called_for_each_control_character(tmp_path: Path, unit: bytes) -> None:
    size = 1 << 20
    write(tmp_path, unit * (size // len(unit)), START)
    calls = 0

    def count(frame: object, event: str, function: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    blocks = Logs(tmp_path, ended=always).blocks()
    sys.setprofile(count)
    try:
        for _ in blocks:
            pass
    finally:
        sys.setprofile(None)
    lines = size // len(unit) if b"\n" in unit else 0
    # 1 MB of NULs would be a million calls.
    assert calls < 2 * lines + 1_000
