"""What an ignore file says, and which names never travel, as tables."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any

import pytest

from flowlite.bundle.ignore_rules import (
    IGNORE_FILE,
    is_generated,
    is_skipped_directory,
    read_patterns,
)
from flowlite.errors import BundleError
from flowlite.node.system import atomic_files


@pytest.mark.parametrize(
    ("content", "patterns"),
    [
        (b"", []),
        (b"*.pt\n\n  /data/  \n# big\n#x\n!kept.pt\n   \nx", ["*.pt", "/data/", "!kept.pt", "x"]),
        (b"\xef\xbb\xbfsecret\r\ndata\r\n", ["secret", "data"]),
        # A name in another encoding is found again among the names of files.
        (b"caf\xe9", [os.fsdecode(b"caf\xe9")]),
    ],
)
def test_the_lines_of_an_ignore_file(tmp_path: Path, content: bytes, patterns: list[str]) -> None:
    (tmp_path / IGNORE_FILE).write_bytes(content)
    assert read_patterns(str(tmp_path)) == patterns


def test_an_ignore_file_that_comes_in_parts_is_read_to_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As from some network file systems. What is named behind the first part would be sent."""

    class InParts(io.FileIO):
        def read(self, size: int | None = -1) -> bytes:
            return super().read(min(3, size or 0))

        def readinto(self, buffer: Any) -> int:
            part = self.read(len(buffer))
            buffer[: len(part)] = part
            return len(part)

    (tmp_path / IGNORE_FILE).write_text("*.pt\nsecret\n")
    monkeypatch.setattr(atomic_files, "open_regular", InParts)
    assert read_patterns(str(tmp_path)) == ["*.pt", "secret"]


def test_an_ignore_file_that_is_none_sends_nothing(tmp_path: Path) -> None:
    """What it would name might travel."""
    assert read_patterns(str(tmp_path)) == []
    path = tmp_path / IGNORE_FILE
    path.write_bytes(b"#" * (1 << 20))
    assert read_patterns(str(tmp_path)) == []
    path.write_bytes(b"#" * ((1 << 20) + 1))
    with pytest.raises(BundleError, match="longer than"):
        read_patterns(str(tmp_path))
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(BundleError, match="not a regular file"):
        read_patterns(str(tmp_path))
    path.unlink()
    path.symlink_to("/dev/zero")
    with pytest.raises(BundleError, match="not a regular file"):
        read_patterns(str(tmp_path))
    path.unlink()
    path.mkdir()
    with pytest.raises(BundleError, match=r"cannot be read|not a regular file"):
        read_patterns(str(tmp_path))


@pytest.mark.parametrize(
    ("name", "generated"),
    [
        ("__pycache__", True),
        ("node_modules", True),
        ("site-packages", True),
        ("flow-outputs", True),
        (".flow-incoming", True),
        ("model.cpython-311.pyc", True),
        ("model.pyo", True),
        ("mine.egg-info", True),
        ("pyc", False),
        ("outputs", False),
        ("model.py", False),
    ],
)
def test_what_is_generated(name: str, generated: bool) -> None:
    assert is_generated(name) is generated


@pytest.mark.parametrize(
    ("name", "skipped"),
    [
        (".git", True),
        ("__pycache__", True),
        ("env", True),
        ("of-conda", True),
        ("model", False),
    ],
)
def test_a_directory_is_skipped_for_any_of_the_reasons(
    tmp_path: Path, name: str, skipped: bool
) -> None:
    (tmp_path / "env").mkdir()
    (tmp_path / "env" / "pyvenv.cfg").touch()
    (tmp_path / "of-conda" / "conda-meta").mkdir(parents=True)
    (tmp_path / "of-conda" / "conda-meta" / "history").touch()
    assert is_skipped_directory(str(tmp_path), name) is skipped
