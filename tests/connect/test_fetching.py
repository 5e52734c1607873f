"""Fetching a file again after it broke off: what came is not fetched twice, and no part of it stays."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowlite.connect import fetching
from flowlite.connect.fetching import Partial, fetch
from flowlite.node.forkserver import worker_group

CONTENT = bytes(range(256)) * 40


class Source:
    """A file on a node, whose way here breaks after so many bytes each time."""

    def __init__(self, content: bytes, *breaks: int, block: int = 1000) -> None:
        self.content = content
        self.breaks = list(breaks)
        self.block = block
        self.asked: list[int] = []

    def read(self, offset: int) -> Iterator[bytes]:
        self.asked.append(offset)
        left = self.breaks.pop(0) if self.breaks else len(self.content)
        while offset < len(self.content):
            block = self.content[offset : offset + min(self.block, left)]
            if not block:
                raise ConnectionError("the way there broke")
            yield block
            offset += len(block)
            left -= len(block)


def small_disk(monkeypatch: pytest.MonkeyPatch, directory: Path, free: int, other: int) -> None:
    """A disk of its own for a directory: so much is free on it now, beside files of others."""

    def disk(_: Path) -> tuple[int, int]:
        used = sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())
        return free - used, free + other

    monkeypatch.setattr(fetching, "room_on_disk", disk)


def files(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def test_a_fetch_goes_on_where_it_broke_off(tmp_path: Path) -> None:
    source, target = Source(CONTENT, 2500, 0, 3000), tmp_path / "a1.r0.result"
    for have in (2500, 2500, 5500):
        with pytest.raises(ConnectionError):
            fetch(source.read, target, len(CONTENT))
        assert files(tmp_path) == [".a1.r0.result.part"]
        assert Partial(target, len(CONTENT)).have == have
    fetch(source.read, target, len(CONTENT))
    assert source.asked == [0, 2500, 2500, 5500]
    assert target.read_bytes() == CONTENT
    assert files(tmp_path) == ["a1.r0.result"]
    # It is here: nothing more is asked of the node.
    fetch(source.read, target, len(CONTENT))
    assert len(source.asked) == 4


def test_a_source_without_end_fills_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def zeros(offset: int) -> Iterator[bytes]:
        while True:
            yield bytes(700)

    target = tmp_path / "a1.r0.result"
    with pytest.raises(OSError, match="more than the 1000 bytes came that it has") as seen:
        fetch(zeros, target, 1000)
    assert seen.value.errno == errno.EFBIG
    assert files(tmp_path) == []
    # Without a known size, the disk is not filled.
    small_disk(monkeypatch, tmp_path, 10_000, 500)
    with pytest.raises(OSError, match=r"No space left on device: 9\.8 kB came, more are to come"):
        fetch(zeros, target, None)
    assert files(tmp_path) == []
    target.write_bytes(b"")
    fetch(lambda offset: iter([bytes(9000)]), target, None)
    assert target.stat().st_size == 9000


def test_a_file_that_may_change_is_brought_from_its_beginning(tmp_path: Path) -> None:
    source, target = Source(CONTENT, 2500), tmp_path / "agent.log"
    with pytest.raises(ConnectionError):
        fetch(source.read, target, None)
    assert files(tmp_path) == []
    fetch(source.read, target, None)
    assert source.asked == [0, 0]
    assert target.read_bytes() == CONTENT


def test_a_relative_path_is_below_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for size in (len(CONTENT), None):
        target = Path(f"new-{size}", "below", "result")
        fetch(Source(CONTENT).read, target, size)
        assert (tmp_path / target).read_bytes() == CONTENT


def test_what_has_no_room_here_is_not_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = Source(CONTENT), tmp_path / "result"
    monkeypatch.setattr(fetching, "room_on_disk", lambda directory: (5000, 10_000))
    with pytest.raises(
        OSError, match=r"No space left.*10\.2 kB are to come, and 5 kB are free"
    ) as seen:
        fetch(source.read, target, len(CONTENT))
    assert seen.value.errno == errno.ENOSPC
    assert source.asked == []
    assert files(tmp_path) == []


def test_a_file_system_without_a_limit_has_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A ramfs, and a tmpfs of size 0, say that they have 0 of 0 blocks; so do those that do not know."""
    said = SimpleNamespace(f_frsize=4096, f_blocks=0, f_bfree=0, f_bavail=0)
    monkeypatch.setattr(os, "statvfs", lambda path: said)
    source, target = Source(CONTENT), tmp_path / "result"
    fetch(source.read, target, len(CONTENT))
    assert target.read_bytes() == CONTENT
    assert not worker_group._full_disk(tmp_path)


def test_only_the_rest_needs_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, target = Source(CONTENT, 9000), tmp_path / "result"
    with pytest.raises(ConnectionError):
        fetch(source.read, target, len(CONTENT))
    monkeypatch.setattr(fetching, "room_on_disk", lambda directory: (5000, 10_000))
    fetch(source.read, target, len(CONTENT))
    assert target.read_bytes() == CONTENT


def test_what_is_shorter_than_was_reported_is_no_file(tmp_path: Path) -> None:
    source, target = Source(CONTENT), tmp_path / "result"
    with pytest.raises(OSError, match="10240 bytes of 10241 came"):
        fetch(source.read, target, len(CONTENT) + 1)
    assert not target.exists()


def test_an_empty_file(tmp_path: Path) -> None:
    fetch(Source(b"").read, tmp_path / "result", 0)
    assert (tmp_path / "result").read_bytes() == b""


@given(
    content=st.binary(min_size=1, max_size=60),
    acts=st.lists(
        st.tuples(st.sampled_from(["begin", "go on", "finish"]), st.integers(0, 3)), max_size=30
    ),
)
def test_several_readers_bring_the_same_file(
    tmp_path_factory: pytest.TempPathFactory, content: bytes, acts: list[tuple[str, int]]
) -> None:
    partial = Partial(tmp_path_factory.mktemp("results") / "result", len(content))
    readers: list[int] = []
    for act, number in acts:
        if act == "begin" or not readers:
            readers.append(partial.begin())
        elif act == "go on":
            who = number % len(readers)
            piece = content[readers[who] :][: 3 + 7 * number]
            readers[who] = partial.add(readers[who], piece)
        elif partial.have == len(content):
            partial.finish()
        else:
            with pytest.raises(OSError, match="came"):
                partial.finish()
    if not partial.whole:
        partial.add(partial.begin(), content[partial.have :])
    partial.finish()
    assert partial.target.read_bytes() == content
    assert [path.name for path in partial.target.parent.iterdir()] == ["result"]
