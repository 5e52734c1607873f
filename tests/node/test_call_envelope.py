"""The file that calls and results travel in: written whole or not at all, verified before it is looked at."""

from __future__ import annotations

import hashlib
import os
import struct
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowlite.node.serialization import envelope
from flowlite.node.serialization.envelope import (
    ALIGNMENT,
    EnvelopeError,
    open_envelope,
    write_envelope,
)


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.lists(st.binary(max_size=200), max_size=4), max_size=5),
    st.text(max_size=20),
    st.booleans(),
)
def test_parts_come_back_aligned(
    tmp_path_factory: pytest.TempPathFactory, parts: list[list[bytes]], name: str, sealed: bool
) -> None:
    path = tmp_path_factory.mktemp("e") / "file"
    sha256 = write_envelope(path, {"name": name}, parts, sealed=sealed)
    raw = path.read_bytes()
    assert sha256 == (raw[-32:].hex() if sealed else hashlib.sha256(raw).hexdigest())
    found = open_envelope(path, sha256=None if sealed else sha256)
    assert found.header["name"] == name
    assert [bytes(part) for part in found.parts] == [b"".join(part) for part in parts]
    assert all(offset % ALIGNMENT == 0 for offset, _ in found.header["parts"])


def test_large_and_many_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(envelope, "_LARGEST_WRITE", 1 << 20)
    large = os.urandom(1 << 10) * (5 << 10)
    pieces = [large, *(bytes([i % 256]) * (i % 5) for i in range(3000))]
    for sealed in (False, True):
        sha256 = write_envelope(tmp_path / "f", {}, [pieces, [memoryview(large)]], sealed=sealed)
        found = open_envelope(tmp_path / "f", sha256=None if sealed else sha256)
        assert bytes(found.parts[0]) == b"".join(pieces)
        assert found.parts[1] == large


@settings(max_examples=50, deadline=None)
@given(st.lists(st.binary(max_size=40), max_size=6), st.integers(0, 400), st.integers(0, 7))
def test_the_seal_is_over_all_blocks(
    tmp_path_factory: pytest.TempPathFactory, pieces: list[bytes], place: int, bit: int
) -> None:
    path = tmp_path_factory.mktemp("e") / "file"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(envelope, "_BLOCK", 32)
        write_envelope(path, {}, [pieces], sealed=True)
        raw = bytearray(path.read_bytes())
        body, seal = raw[:-32], raw[-32:]
        blocks = [hashlib.sha256(body[at : at + 32]).digest() for at in range(0, len(body), 32)]
        assert hashlib.sha256(b"".join(blocks)).digest() == seal
        assert bytes(open_envelope(path).parts[0]) == b"".join(pieces)
        raw[place % len(raw)] ^= 1 << bit
        path.write_bytes(raw)
        with pytest.raises(EnvelopeError, match="hash does not match"):
            open_envelope(path)


def test_a_result_is_not_taken_for_a_call_nor_a_call_for_a_result(tmp_path: Path) -> None:
    path = tmp_path / "f"
    write_envelope(path, {}, [[b"abc"]], sealed=True)
    with pytest.raises(EnvelopeError, match="not a call or result"):
        open_envelope(path, sha256=hashlib.sha256(path.read_bytes()).hexdigest())
    write_envelope(path, {}, [[b"abc"]], sealed=False)
    with pytest.raises(EnvelopeError, match="hash does not match"):
        open_envelope(path)


def test_parts_are_private_to_the_reader(tmp_path: Path) -> None:
    sha256 = write_envelope(tmp_path / "f", {}, [[b"abc"]], sealed=False)
    found = open_envelope(tmp_path / "f", sha256=sha256)
    found.parts[0][0] = 0
    assert hashlib.sha256((tmp_path / "f").read_bytes()).hexdigest() == sha256


def test_another_file_in_its_place_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "f"
    sha256 = write_envelope(path, {}, [[b"one"]], sealed=False)
    open_envelope(path, sha256=sha256)
    write_envelope(path, {}, [[b"two"]], sealed=False)
    with pytest.raises(EnvelopeError, match="not the file that was sent"):
        open_envelope(path, sha256=sha256)


def test_a_change_in_place_is_noticed_after_it_was_verified(tmp_path: Path) -> None:
    path = tmp_path / "f"
    sha256 = write_envelope(path, {}, [[b"x" * 100]], sealed=False)
    open_envelope(path, sha256=sha256)
    times = os.stat(path)
    with open(path, "r+b") as file:
        file.seek(-40, os.SEEK_END)
        file.write(b"!")
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    with pytest.raises(EnvelopeError, match="not the file that was sent"):
        open_envelope(path, sha256=sha256)


def _sealed(path: Path, body: bytes) -> Path:
    path.write_bytes(body + hashlib.sha256(hashlib.sha256(body).digest()).digest())
    return path


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"x" * 100,
        struct.pack("<8sI", envelope.SEALED, 0xFFFFFFFF),
        struct.pack("<8sI", envelope.SEALED, 2) + b"{}",
        struct.pack("<8sI", envelope.SEALED, 4) + b"null",
        struct.pack("<8sI", envelope.SEALED, 19) + b'{"parts":[[0,1000]]}'[:19],
        struct.pack("<8sI", envelope.SEALED, 20) + b'{"parts":[[0,1000]]}',
        struct.pack("<8sI", envelope.SEALED, 18) + b'{"parts":[[-5,1]]}',
        struct.pack("<8sI", envelope.SEALED, 15) + b'{"parts":["a"]}',
    ],
)
def test_what_is_no_envelope_is_a_clean_error(body: bytes, tmp_path: Path) -> None:
    with pytest.raises(EnvelopeError):
        open_envelope(_sealed(tmp_path / "f", body))


def test_a_full_disk_leaves_nothing(tmp_path: Path) -> None:
    target = tmp_path / "f"
    program = textwrap.dedent(f"""
        import resource
        from flowlite.node.serialization.envelope import write_envelope
        import signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
        try:
            write_envelope({str(target)!r}, {{}}, [[bytes(3 << 20)]], sealed=True)
        except OSError as error:
            print("OSError", error.strerror)
    """)
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=root, capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("OSError")
    assert list(tmp_path.iterdir()) == []
