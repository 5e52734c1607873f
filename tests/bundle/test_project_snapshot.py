"""The snapshot: contents by their hash, as they are at submission, read again only where something changed."""

from __future__ import annotations

import hashlib
import os
import resource
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from flowlite.bundle import project_snapshot
from flowlite.bundle.project_files import ProjectListing, list_files
from flowlite.bundle.project_snapshot import KEPT_SECONDS, remove_unused, take_snapshot
from flowlite.errors import BundleError, StoreError
from flowlite.node.project_files.manifest import ProjectManifest


@pytest.fixture
def root(tmp_path: Path, flow_home: Path) -> Path:
    directory = tmp_path / "work"
    directory.mkdir()
    (directory / "data.csv").write_text("1")
    return directory


def take(home: Path, listing: ProjectListing, **others: Path) -> ProjectManifest:
    target = home / "project.json"
    sha256 = take_snapshot(home, listing, others, target)
    content = target.read_bytes()
    assert sha256 == hashlib.sha256(content).hexdigest()
    return ProjectManifest.from_json(content)


def contents(home: Path, manifest: ProjectManifest) -> dict[str, bytes]:
    return {e.path: (home / "files" / e.sha256).read_bytes() for e in manifest.files}


def long_ago(path: Path) -> None:
    os.utime(path, (time.time() - 100, time.time() - 100))


def test_an_edit_after_it_changes_nothing(flow_home: Path, root: Path) -> None:
    taken = take(flow_home, list_files(str(root)))
    (root / "data.csv").write_text("2")
    assert contents(flow_home, taken) == {"data.csv": b"1"}
    assert contents(flow_home, take(flow_home, list_files(str(root)))) == {"data.csv": b"2"}


def test_an_edit_that_leaves_size_and_time_is_seen(flow_home: Path, root: Path) -> None:
    """A change of the content changes the file's ctime, which nobody can set."""
    long_ago(root / "data.csv")
    take(flow_home, list_files(str(root)))
    facts = os.stat(root / "data.csv")
    (root / "data.csv").write_text("2")
    os.utime(root / "data.csv", ns=(facts.st_atime_ns, facts.st_mtime_ns))
    assert contents(flow_home, take(flow_home, list_files(str(root)))) == {"data.csv": b"2"}


@pytest.fixture
def limited() -> Iterator[None]:
    """Files take 100,000 bytes at most. As on a disk that fills up, the write that reaches that is a short one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_content_of_which_only_a_part_can_be_written_is_refused(
    flow_home: Path, root: Path, request: pytest.FixtureRequest
) -> None:
    (root / "data.csv").write_bytes(b"x" * 150_000)
    request.getfixturevalue("limited")
    with pytest.raises(StoreError, match="the project's files cannot be kept"):
        take(flow_home, list_files(str(root)))
    assert not [path for path in (flow_home / "files").iterdir() if path.suffix == ".part"]


def test_what_has_not_changed_is_not_read_again(
    flow_home: Path, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(project_snapshot, "_SETTLED_SECONDS", -60.0)
    first = take(flow_home, list_files(str(root)))

    def never(*_: object) -> bytes:
        raise AssertionError("it was read")

    with monkeypatch.context() as unread:
        unread.setattr(project_snapshot, "_read", never)
        assert take(flow_home, list_files(str(root))).files == first.files
    # Its content was removed: it is needed again.
    for each in (flow_home / "files").iterdir():
        if not each.name.startswith("index"):
            each.unlink()
    assert contents(flow_home, take(flow_home, list_files(str(root)))) == {"data.csv": b"1"}


def test_a_file_from_elsewhere_stands_in_place_of_an_empty_directory(
    flow_home: Path, root: Path, tmp_path: Path
) -> None:
    (tmp_path / "other").write_text("other")
    (root / "runs").mkdir()
    (root / "logs").mkdir()
    listing = list_files(str(root))
    assert listing.directories == {"runs", "logs"}
    taken = take(flow_home, listing, runs=tmp_path / "other")
    assert contents(flow_home, taken) == {"data.csv": b"1", "runs": b"other"}
    assert taken.directories == ("logs",)


def test_files_from_elsewhere_stand_in_place_of_the_projects(
    flow_home: Path, root: Path, tmp_path: Path
) -> None:
    (tmp_path / "other").write_text("other")
    other = tmp_path / "other"
    taken = take(flow_home, list_files(str(root)), **{"data.csv": other, "sub/x": other})
    assert contents(flow_home, taken) == {"data.csv": b"other", "sub/x": b"other"}


def test_a_file_that_is_being_written_to_is_refused(
    flow_home: Path, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = project_snapshot._read

    def grows(file: object, source: Path) -> bytes:
        with open(source, "a") as more:
            more.write("x")
        return read(file, source) if source.stat().st_size % 2 == 0 else b""  # type: ignore[arg-type]

    monkeypatch.setattr(project_snapshot, "_read", grows)
    with pytest.raises(BundleError, match=r"data\.csv is being written to.*\.flowignore"):
        take(flow_home, list_files(str(root)))
    assert [p for p in (flow_home / "files").iterdir() if p.suffix == ".part"] == []


def test_a_file_that_vanishes_meanwhile_is_left_out(flow_home: Path, root: Path) -> None:
    listing = list_files(str(root))
    listing.files["gone.csv"] = 3
    taken = take(flow_home, listing)
    assert contents(flow_home, taken) == {"data.csv": b"1"}


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_cannot_be_read_is_named(flow_home: Path, root: Path) -> None:
    (root / "data.csv").chmod(0)
    with pytest.raises(BundleError, match=r"data\.csv cannot be read: Permission denied"):
        take(flow_home, list_files(str(root)))


def test_a_file_below_another_file_is_refused(flow_home: Path, root: Path, tmp_path: Path) -> None:
    with pytest.raises(BundleError, match=r"files: 'data\.csv/x' leads through 'data\.csv'"):
        take_snapshot(
            flow_home, list_files(str(root)), {"data.csv/x": root / "data.csv"}, tmp_path / "m.json"
        )


def test_what_nobody_used_lately_is_removed(flow_home: Path, root: Path, tmp_path: Path) -> None:
    needed = take(flow_home, list_files(str(root)))
    old = flow_home / "files" / hashlib.sha256(b"old").hexdigest()
    old.write_bytes(b"old")
    for each in (flow_home / "files").iterdir():
        os.utime(each, (0, time.time() - KEPT_SECONDS - 60))
    assert remove_unused(flow_home, [flow_home / "project.json"], dry_run=True) > 0
    assert old.exists()
    remove_unused(flow_home, [flow_home / "project.json", tmp_path / "of no task"])
    assert not old.exists()
    assert contents(flow_home, needed) == {"data.csv": b"1"}
    # A task that is being submitted uses it, and its manifest is not known yet.
    again = take(flow_home, list_files(str(root)))
    remove_unused(flow_home, [])
    assert contents(flow_home, again) == {"data.csv": b"1"}
    assert remove_unused(tmp_path / "nowhere", []) == 0


def test_executable_bits_are_kept(flow_home: Path, root: Path) -> None:
    (root / "run.sh").write_text("#!/bin/sh\n")
    (root / "run.sh").chmod(0o755)
    manifest = take(flow_home, list_files(str(root)))
    assert {e.path: e.executable for e in manifest.files} == {"data.csv": False, "run.sh": True}


def test_nothing_but_what_is_listed(flow_home: Path, root: Path, tmp_path: Path) -> None:
    assert take(flow_home, ProjectListing(str(root))).files == ()
