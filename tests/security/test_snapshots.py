"""A source snapshot that wants to write elsewhere than into its own directory: it goes nowhere."""

from __future__ import annotations

import hashlib
import os
import stat
import zipfile
from pathlib import Path

import pytest

from flowlite.node.worker.load_call import LoadError, _extract

PAYLOAD = b"print('not here')\n"


def make(directory: Path, *entries: tuple[str, bytes, int]) -> tuple[Path, str]:
    """A zip with these (name, content, mode), and its hash."""
    path = directory / "source-0.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for name, content, mode in entries:
            entry = zipfile.ZipInfo("placeholder")
            # Set afterwards: making an entry would put its name right.
            entry.filename = name
            entry.create_system, entry.external_attr = 3, mode << 16
            archive.writestr(entry, content)
    return path, hashlib.sha256(path.read_bytes()).hexdigest()


def everything_below(directory: Path) -> set[str]:
    return {str(path.relative_to(directory)) for path in directory.rglob("*")}


@pytest.mark.parametrize(
    "name",
    ["../evil.py", "../../evil.py", "a/../../evil.py", "/evil.py", "//evil.py", "..\\evil.py"],
)
def test_a_name_that_leads_out_stays_inside(tmp_path: Path, name: str) -> None:
    home = tmp_path / "deep" / "home"
    home.mkdir(parents=True)
    path, sha256 = make(home, (name, PAYLOAD, 0o644), ("good.py", b"", 0o644))

    extracted = Path(_extract(str(path), sha256))

    outside = everything_below(tmp_path) - {
        str(each.relative_to(tmp_path)) for each in [extracted, *extracted.rglob("*")]
    }
    assert outside == {"deep", "deep/home", "deep/home/source-0.zip"}
    assert not Path("/evil.py").exists()
    assert (extracted / "good.py").exists()


def test_a_symbolic_link_is_not_made_and_not_followed(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.mkdir()
    home = tmp_path / "home"
    home.mkdir()
    path, sha256 = make(
        home,
        ("link", os.fsencode(target), stat.S_IFLNK | 0o777),
        ("good.py", b"", 0o644),
    )

    extracted = Path(_extract(str(path), sha256))

    assert not any(each.is_symlink() for each in extracted.rglob("*"))
    assert list(target.iterdir()) == []


def test_a_link_does_not_lead_a_later_entry_out(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.mkdir()
    home = tmp_path / "home"
    home.mkdir()
    path, sha256 = make(
        home,
        ("link", os.fsencode(target), stat.S_IFLNK | 0o777),
        ("link/evil.py", PAYLOAD, 0o644),
    )

    with pytest.raises(LoadError, match="cannot be extracted"):
        _extract(str(path), sha256)

    assert list(target.iterdir()) == []
    assert everything_below(home) == {"source-0.zip"}


def test_a_snapshot_with_another_hash_is_not_opened(tmp_path: Path) -> None:
    path, _ = make(tmp_path, ("good.py", b"", 0o644))

    with pytest.raises(LoadError, match="SHA-256 differs"):
        _extract(str(path), "0" * 64)

    assert everything_below(tmp_path) == {"source-0.zip"}
