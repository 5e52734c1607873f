"""Small files of a node come many at a time, and nothing else arrives under their names."""

from __future__ import annotations

import errno
import hashlib
import io
import json
import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowlite.api import node_files
from flowlite.api.node_access import NodeAccess
from flowlite.connect.bounded import MOST_OUTPUT
from flowlite.connect.local import LocalConnection
from flowlite.connect.values import Completed
from flowlite.errors import NodeUnreachable
from flowlite.node.host_lease import cleanup
from flowlite.node.outputs import contents as node_contents
from flowlite.node.system import atomic_files
from flowlite.supervise.attempt.outputs import output_directory, packs
from flowlite.supervise.attempt.outputs.manifest import OutputFile
from flowlite.supervise.attempt.outputs.output_directory import OutputDirectory

PROGRAM = (sys.executable, "-m", "flowlite.node")


class Counting(LocalConnection):
    """Counts what is asked of the node."""

    def __init__(self) -> None:
        super().__init__()
        self.commands = 0
        self.reads: list[str] = []

    def run(
        self,
        argv: Sequence[str],
        *,
        input: bytes | None = None,
        timeout: float | None = None,
        most: int = MOST_OUTPUT,
    ) -> Completed:
        self.commands += 1
        return super().run(argv, input=input, timeout=timeout, most=most)

    def read(self, path: str, offset: int = 0) -> Iterator[bytes]:
        self.reads.append(path)
        return super().read(path, offset)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """900 small files with all sorts of contents, and one large one."""
    root = tmp_path / "there"
    for number in range(900):
        path = root / f"d{number % 7}" / f"f{number}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(os.urandom(number * 3) + b"\n{}\n" * (number % 5))
    (root / "large").write_bytes(os.urandom(packs.PACKED_BELOW + 5))
    (root / "program").write_bytes(b"#!/bin/sh\n")
    (root / "program").chmod(0o755)
    return root


def contents(root: Path) -> dict[str, bytes]:
    return {str(p.relative_to(root)): p.read_bytes() for p in root.rglob("*") if p.is_file()}


def test_nine_hundred_files_take_one_request(source: Path, tmp_path: Path) -> None:
    connection = Counting()
    there = NodeAccess(connection, False, (), str(tmp_path), PROGRAM)
    found = node_files.files_at(there, str(source))
    here, moved = tmp_path / "here", [0]

    def add(count: int) -> None:
        moved[0] += count

    copied = node_files.bring(there, found, OutputDirectory(here), add)
    assert contents(here) == contents(source)
    assert os.access(here / "program", os.X_OK)
    assert not os.access(here / "d0" / "f0", os.X_OK)
    assert (copied.files, copied.bytes, moved[0]) == (902, found.size, found.size)
    # The list, and one pack.
    assert (connection.commands, connection.reads) == (2, [str(source / "large")])
    # Again, nothing is sent but the digests.
    assert node_files.bring(there, found, OutputDirectory(here), add).files == 902
    assert (connection.commands, connection.reads) == (3, [str(source / "large")])
    assert not (here / ".flow-incoming").exists()


SIZES = [10, 3 * packs.PACKED_BELOW]


def two_sources(tmp_path: Path, size: int) -> list[Path]:
    """Two directories on different nodes, with a file of one name, size and time in each."""
    sources = [tmp_path / "node0", tmp_path / "node1"]
    for source, content in zip(sources, (b"a", b"b"), strict=True):
        source.mkdir()
        (source / "f").write_bytes(content * size)
        os.utime(source / "f", ns=(10**18, 10**18))
    return sources


@pytest.mark.parametrize("size", SIZES)
def test_another_file_of_the_same_size_and_time_is_not_taken_for_it(
    tmp_path: Path, size: int
) -> None:
    here = OutputDirectory(tmp_path / "here")
    results = []
    for rank, source in enumerate(two_sources(tmp_path, size)):
        there = NodeAccess(Counting(), False, (), str(tmp_path), PROGRAM, f"i-{rank}")
        found = node_files.files_at(there, str(source))
        results.append(node_files.bring(there, found, here, lambda _: None))
    assert [(each.files, each.taken) for each in results] == [(1, []), (0, ["f"])]
    assert (tmp_path / "here" / "f").read_bytes() == b"a" * size


class Breaking(Counting):
    """Its reads break after the first block."""

    def read(self, path: str, offset: int = 0) -> Iterator[bytes]:
        yield next(super().read(path, offset))
        raise NodeUnreachable("cut")


def test_a_file_is_not_continued_with_the_content_of_another_node(tmp_path: Path) -> None:
    here = OutputDirectory(tmp_path / "here")
    first, second = two_sources(tmp_path, SIZES[1])
    broken = NodeAccess(Breaking(), False, (), str(tmp_path), PROGRAM, "i-0")
    with pytest.raises(NodeUnreachable):
        node_files.bring(broken, node_files.files_at(broken, str(first)), here, lambda _: None)
    assert list((tmp_path / "here" / ".flow-incoming").iterdir())
    # The same path, as on two hosts.
    shutil.rmtree(first)
    second.rename(first)
    there = NodeAccess(Counting(), False, (), str(tmp_path), PROGRAM, "i-1")
    node_files.bring(there, node_files.files_at(there, str(first)), here, lambda _: None)
    assert (tmp_path / "here" / "f").read_bytes() == b"b" * SIZES[1]


def test_files_that_changed_meanwhile(source: Path, tmp_path: Path) -> None:
    there = NodeAccess(Counting(), False, (), str(tmp_path), PROGRAM)
    found = node_files.files_at(there, str(source / "d0"))
    (source / "d0" / "f0").unlink()
    os.mkfifo(source / "d0" / "f0")
    (source / "d0" / "f7").unlink()
    (source / "d0" / "f7").symlink_to("/etc/hostname")
    (source / "d0" / "f14").write_bytes(bytes(2 << 20))
    group = list(found.files)
    got = packs.fetch(there.connection, PROGRAM, found.root, group)
    lacking = {file.path for file, each in zip(group, got, strict=True) if each is None}
    assert lacking == {"f0", "f7", "f14"}


def test_a_directory_that_a_task_works_in_is_copied(source: Path, tmp_path: Path) -> None:
    """A log grows while its directory comes, and a file for a moment is gone."""
    there = NodeAccess(Counting(), False, (), str(tmp_path), PROGRAM)
    found = node_files.files_at(there, str(source))
    for grows in ("d1/f1", "large"):
        with (source / grows).open("ab") as log:
            log.write(b"more")
    (source / "d0" / "f14").unlink()
    (source / "d0" / "f7").unlink()
    (source / "d0" / "f7").mkdir()
    here = tmp_path / "here"
    copied = node_files.bring(there, found, OutputDirectory(here), lambda _: None)
    assert contents(here) == contents(source)
    assert copied.left_out == {"files that the task removed while they came": 2}
    assert (copied.files, copied.taken) == (900, [])


def test_what_is_here_under_the_name_stays(source: Path, tmp_path: Path) -> None:
    there = NodeAccess(Counting(), False, (), str(tmp_path), PROGRAM)
    found = node_files.files_at(there, str(source / "d1"))
    here = tmp_path / "here"
    here.mkdir()
    (here / "f1").write_text("mine")
    copied = node_files.bring(there, found, OutputDirectory(here), lambda _: None)
    assert copied.taken == ["f1"]
    assert (here / "f1").read_text() == "mine"
    assert copied.files == len(found.files) - 1
    assert len(contents(here / ".flow-incoming")) == 0


FILES = st.lists(st.binary(max_size=40), max_size=8)


@given(FILES)
def test_a_pack_is_split_as_it_was_made(given: list[bytes]) -> None:
    files = [OutputFile(f"f{n}", len(each), 0, False) for n, each in enumerate(given)]
    answer = b"".join(json.dumps({"size": len(e)}).encode() + b"\n" + e for e in given)
    assert packs.parse(answer, files) == given


@given(st.binary(max_size=200), st.integers(1, 4))
def test_noise_is_refused_or_has_the_listed_sizes(noise: bytes, count: int) -> None:
    files = [OutputFile(f"f{n}", 3, 0, False) for n in range(count)]
    try:
        found = packs.parse(noise, files)
    except (ValueError, TypeError, KeyError):
        return
    assert all(each is None or len(each) == 3 for each in found)


@pytest.mark.parametrize(
    "answer", [b"", b'{"size": 4}\nabc', b'{"size": -1}\n', b'{"size": 3}\nabcd', b"[]\n", b"3\n"]
)
def test_what_no_agent_says_is_refused(answer: bytes) -> None:
    with pytest.raises((ValueError, TypeError, KeyError)):
        packs.parse(answer, [OutputFile("f", 3, 0, False)])


def test_a_file_that_comes_in_parts_is_sent_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class InParts(io.FileIO):
        def read(self, size: int | None = -1) -> bytes:
            return super().read(min(3, size or 0))

    (tmp_path / "f").write_bytes(b"0123456789")
    monkeypatch.setattr(atomic_files, "open_regular", lambda path, _: InParts(path))
    out = io.BytesIO()
    node_contents.write(str(tmp_path), ["f"], out)
    assert out.getvalue() == b'{"size": 10}\n0123456789'


def test_large_files_stay_alone() -> None:
    sizes = [10, packs.PACKED_BELOW, 20, *[900_000] * 6]
    files = [OutputFile(str(n), size, 0, False) for n, size in enumerate(sizes)]
    found = list(packs.groups(files))
    assert sorted(f.path for group in found for f in group) == [f.path for f in files]
    assert [files[1]] in found
    assert all(sum(f.size for f in group) <= 4 << 20 for group in found)


def test_only_directories_that_were_written_into_are_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The target may be a home with a million directories, or the root of file systems that cannot be synced."""
    for name in ("other/deep", "runs/old"):
        (tmp_path / name).mkdir(parents=True)
    synced: list[Path] = []

    def note(path: Path) -> None:
        synced.append(path)
        if path == tmp_path:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))

    monkeypatch.setattr(output_directory, "sync", note)
    file = OutputFile("runs/new/a.txt", 1, 1, False)
    OutputDirectory(tmp_path).take_all([(file.path, file, "", b"x")])
    destination = OutputDirectory(tmp_path)
    digest = hashlib.sha256(b"x").hexdigest()
    # What an interrupted copy has brought has to be on the disk, too.
    assert destination.compare({file.path: file}, lambda _: [digest]).here == [file]
    del synced[:]
    destination.finish()
    assert synced == [tmp_path, tmp_path / "runs", tmp_path / "runs/new"]


def _small(path: str) -> tuple[str, OutputFile, str, bytes]:
    return path, OutputFile(path, 1, 10**18, False), f"i-0 /w/{path}", b"x"


def test_a_directory_is_looked_at_once_for_all_files_of_a_pack(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each file looked at all directories above it: 301 files in nested directories took 6 s."""
    made: list[str] = []
    mkdir = os.mkdir

    def counting(path: str, *mode: int) -> None:
        made.append(os.path.relpath(path, tmp_path / "here"))
        mkdir(path, *mode)

    monkeypatch.setattr(os, "mkdir", counting)
    here = OutputDirectory(tmp_path / "here", own=True)
    files = [_small(f"a/b/{number // 5}/{number}") for number in range(20)]
    assert here.take_all(files) == []
    here.finish()
    assert contents(tmp_path / "here") == {path: b"x" for path, *_ in files}
    below = [path for path in made if path.startswith("a")]
    assert below == ["a", "a/b", *(f"a/b/{number}" for number in range(4))]


def test_outputs_may_be_in_directories_of_any_depth(tmp_path: Path) -> None:
    """As of a program that copies a directory into itself. Python's recursion ends at a thousand levels."""
    root = tmp_path / "h"
    deep = "/".join(["d"] * 1100)
    here = OutputDirectory(root, own=True)
    try:
        assert here.take_all([_small(f"{deep}/f"), _small("d/f")]) == []
        here.finish()
        assert (root / deep / "f").read_bytes() == b"x"
    finally:
        # pytest would remove it with recursion.
        cleanup.remove_tree(str(root))
    assert not root.exists()
