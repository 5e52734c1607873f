"""Streams kept byte for byte: overlaps left out, gaps refused, a crash at any write harmless."""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowlite.supervise.attempt.log_writer import Collector
from flowlite.supervise.record.paths import TaskPaths


def new(home: Path, attempt: int = 1) -> tuple[Collector, TaskPaths]:
    paths = TaskPaths(home, "t1")
    (home / "tasks").mkdir(exist_ok=True)
    paths.make()
    return Collector(paths, attempt), paths


def index_of(path: Path) -> list[tuple[int, float]]:
    return list(struct.iter_unpack("<Qd", Path(f"{path}.idx").read_bytes()))


def test_pieces_become_a_file_with_an_index(tmp_path: Path) -> None:
    collector, paths = new(tmp_path)
    collector.add(3, 1, "out", 0, 10.0, b"one\n")
    collector.add(3, 1, "out", 4, 11.0, b"two\n")
    collector.add(3, 1, "err", 0, 12.0, b"e")
    file = paths.stream(1, 1, 3, "out")
    assert file.name == "a1.n1.r3.out"
    assert file.read_bytes() == b"one\ntwo\n"
    assert index_of(file) == [(0, 10.0), (4, 11.0)]
    assert collector.offsets() == {"3.out": 8, "3.err": 1}
    assert file.stat().st_mode & 0o777 == 0o600


def test_what_is_here_already_is_left_out(tmp_path: Path) -> None:
    collector, paths = new(tmp_path)
    collector.add(0, 0, "out", 0, 1.0, b"abc")
    collector.add(0, 0, "out", 0, 2.0, b"abc")
    collector.add(0, 0, "out", 1, 3.0, b"bcde")
    file = paths.stream(1, 0, 0, "out")
    assert file.read_bytes() == b"abcde"
    assert index_of(file) == [(0, 1.0), (3, 3.0)]


def test_a_gap_is_refused(tmp_path: Path) -> None:
    collector, _ = new(tmp_path)
    collector.add(0, 0, "out", 0, 1.0, b"abc")
    with pytest.raises(ValueError, match="bytes from 4 came when 3 were here"):
        collector.add(0, 0, "out", 4, 1.0, b"x")


def test_another_supervisor_goes_on_where_the_first_was_killed(tmp_path: Path) -> None:
    first, paths = new(tmp_path)
    first.add(0, 0, "out", 0, 1.0, b"abc")
    file = paths.stream(1, 0, 0, "out")
    # Killed after it wrote the index of a piece, in the middle of a record, and before the piece itself.
    with open(f"{file}.idx", "ab") as index:
        index.write(struct.pack("<Qd", 3, 2.0) + b"\0\0\0")
    second, _ = new(tmp_path)
    assert second.offsets() == {"0.out": 3}
    second.add(0, 0, "out", 3, 5.0, b"def")
    second.add(0, 0, "out", 6, 6.0, b"g")
    assert file.read_bytes() == b"abcdefg"
    assert index_of(file) == [(0, 1.0), (3, 2.0), (6, 6.0)]


def test_attempts_are_kept_apart(tmp_path: Path) -> None:
    first, _ = new(tmp_path)
    first.add(0, 0, "out", 0, 1.0, b"old")
    second, paths = new(tmp_path, attempt=2)
    assert second.offsets() == {}
    second.add(0, 0, "out", 0, 1.0, b"new")
    assert paths.stream(1, 0, 0, "out").read_bytes() == b"old"


def test_a_full_disk_leaves_no_half_of_a_piece(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    collector, paths = new(tmp_path)
    collector.add(0, 0, "out", 0, 1.0, b"abc")
    write = os.write
    room = [3]

    def full(descriptor: int, data: bytes) -> int:
        if len(data) == struct.calcsize("<Qd"):
            return write(descriptor, data)
        if room[0] == 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        taken = write(descriptor, data[: room[0]])
        room[0] -= taken
        return taken

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(OSError, match="No space left"):
        collector.add(0, 0, "out", 3, 2.0, b"defgh")
    monkeypatch.undo()
    file = paths.stream(1, 0, 0, "out")
    assert file.read_bytes() == b"abc"
    assert collector.offsets() == {"0.out": 3}
    collector.add(0, 0, "out", 3, 3.0, b"defgh")
    assert file.read_bytes() == b"abcdefgh"
    assert index_of(file) == [(0, 1.0), (3, 2.0)]


def test_what_is_missing_of_final_sizes(tmp_path: Path) -> None:
    collector, _ = new(tmp_path)
    collector.add(0, 0, "out", 0, 1.0, b"abc")
    assert collector.missing(0, {"out": 3, "err": 0, "result": 9}) == []
    assert collector.missing(0, {"out": 4, "err": 1}) == ["out", "err"]


def test_more_streams_than_may_be_open(tmp_path: Path) -> None:
    collector, paths = new(tmp_path)
    before = len(os.listdir("/proc/self/fd")) if Path("/proc").exists() else 0
    for piece in range(3):
        for rank in range(300):
            collector.add(rank, 0, "out", piece, float(piece), b"x")
    assert all(paths.stream(1, 0, rank, "out").read_bytes() == b"xxx" for rank in range(300))
    # Two for each of 300 streams would be 600.
    assert not Path("/proc").exists() or len(os.listdir("/proc/self/fd")) < before + 550
    collector.close()
    collector.add(7, 0, "out", 3, 9.0, b"y")
    assert paths.stream(1, 0, 7, "out").read_bytes() == b"xxxy"


def test_what_two_readings_bring_is_here_once(tmp_path: Path) -> None:
    """A reading of the disk was given up, another one has brought all of it, and now the first one goes on."""
    collector, paths = new(tmp_path)

    def late() -> Iterator[bytes]:
        collector.add_all(0, 0, "out", 0, [b"1\n", b"2\nend\n"], None)
        yield b"1\n2\n"
        yield b"end\n"

    collector.add_all(0, 0, "out", 0, late(), None)

    assert paths.stream(1, 0, 0, "out").read_bytes() == b"1\n2\nend\n"


@given(
    content=st.binary(max_size=60),
    cuts=st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)), max_size=12),
)
def test_any_pieces_in_any_order_give_the_stream(
    tmp_path_factory: pytest.TempPathFactory, content: bytes, cuts: list[tuple[int, int]]
) -> None:
    collector, paths = new(tmp_path_factory.mktemp("home"))
    for start, end in cuts:
        if start <= collector.size(0, "out"):
            collector.add(0, 0, "out", start, 1.0, content[start:end])
        if start % 7 == 0:
            collector.close()
    have = collector.size(0, "out")
    collector.add_all(0, 0, "out", have, [content[have:]], None)
    file = paths.stream(1, 0, 0, "out")
    assert (file.read_bytes() if file.exists() else b"") == content


def test_times_are_stored_in_order_although_a_clock_was_set_back(tmp_path: Path) -> None:
    collector, paths = new(tmp_path)
    collector.add(0, 0, "out", 0, 10.0, b"one\n")
    collector.add(0, 0, "out", 4, 9.0, b"two\n")
    collector.close()
    Collector(paths, 1).add(0, 0, "out", 8, 8.0, b"three\n")
    assert index_of(paths.stream(1, 0, 0, "out")) == [(0, 10.0), (4, 10.0), (8, 10.0)]
