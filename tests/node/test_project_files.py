"""The working directory on a node: made whole, of contents that are what their hashes say, nothing outside of it."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowlite.node.project_files import make
from flowlite.node.project_files.manifest import Entry, ManifestError, ProjectManifest

SHA = "a" * 64


class Node:
    """A node's directory, and the contents beside it."""

    def __init__(self, directory: Path) -> None:
        self.home, self.blobs = directory / "home", directory / "blobs"
        self.home.mkdir()
        self.blobs.mkdir()

    def keep(self, content: bytes) -> str:
        name = hashlib.sha256(content).hexdigest()
        (self.blobs / name).write_bytes(content)
        return name

    def wants(self, files: dict[str, bytes], **more: Any) -> ProjectManifest:
        entries = [
            Entry(path, hashlib.sha256(content).hexdigest(), len(content), path.endswith(".sh"))
            for path, content in files.items()
        ]
        manifest = ProjectManifest(tuple(entries), **more)
        (self.home / make.MANIFEST).write_bytes(manifest.to_json())
        return manifest

    def make(self, *packs: Path) -> dict[str, Any]:
        return make.make(str(self.home), str(self.blobs), [str(pack) for pack in packs])

    def pack(self, *contents: bytes) -> Path:
        head = [[hashlib.sha256(each).hexdigest(), len(each)] for each in contents]
        path = self.home / "pack-1"
        path.write_bytes(json.dumps(head).encode() + b"\n" + b"".join(contents))
        return path


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def test_files_links_and_empty_directories(node: Node) -> None:
    node.wants(
        {"a/b/train.py": b"print()", "run.sh": b"#!/bin/sh\n", "\udcff\n": b"odd"},
        links={"a/link": "../run.sh"},
        directories=("runs/new",),
    )
    for content in (b"print()", b"#!/bin/sh\n", b"odd"):
        node.keep(content)
    assert node.make() == {"made": True}
    root = node.home / "project"
    assert (root / "a/b/train.py").read_bytes() == b"print()"
    assert os.readlink(root / "a/link") == "../run.sh"
    assert (root / "runs/new").is_dir()
    assert (root / os.fsdecode(b"\xff\n")).read_bytes() == b"odd"
    assert os.access(root / "run.sh", os.X_OK)
    modes = {p.lstat().st_mode & 0o077 for p in root.rglob("*") if not p.is_symlink()}
    assert modes == {0}, "others may read what lies there"


def test_what_a_task_writes_changes_no_content(node: Node) -> None:
    node.wants({"big.bin": b"x" * 3_000_000})
    name = node.keep(b"x" * 3_000_000)
    node.make()
    with open(node.home / "project/big.bin", "r+b") as file:
        file.write(b"changed")
    assert hashlib.sha256((node.blobs / name).read_bytes()).hexdigest() == name


def test_what_is_lacking_comes_in_packs(node: Node) -> None:
    manifest = node.wants({"one": b"1", "again": b"1", "two": b"22"})
    node.keep(b"22")
    assert node.make() == {"lacking": [[manifest.files[0].sha256, 1]]}
    assert node.make(node.pack(b"1")) == {"made": True}
    assert (node.home / "project/again").read_bytes() == b"1"
    assert sorted(path.name for path in node.home.iterdir()) == ["project", "project.json"]


def test_a_damaged_content_is_removed_and_asked_for_again(node: Node) -> None:
    node.wants({"one": b"1", "two": b"2"})
    node.keep(b"2")
    damaged = node.keep(b"1")
    (node.blobs / damaged).write_bytes(b"X")
    assert node.make() == {"lacking": [[damaged, 1]]}
    assert not (node.home / "project").exists()
    assert node.make(node.pack(b"1")) == {"made": True}


def test_a_pack_with_another_content_than_its_hash_is_passed_over(node: Node) -> None:
    manifest = node.wants({"one": b"1"})
    pack = node.pack(b"1")
    pack.write_bytes(pack.read_bytes()[:-1] + b"X")
    assert node.make(pack) == {"lacking": [[manifest.files[0].sha256, 1]]}


def test_it_is_made_once(node: Node) -> None:
    node.wants({"one": b"1"})
    node.keep(b"1")
    node.make()
    (node.home / "project/one").write_bytes(b"of the first attempt")
    node.wants({"two": b"2"})
    assert node.make() == {"made": True}
    assert (node.home / "project/one").read_bytes() == b"of the first attempt"


def test_nothing_half_made_is_left(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    node.wants({"one": b"1"}, links={"link": "one"})
    node.keep(b"1")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "symlink", full)
    with pytest.raises(OSError, match="No space left"):
        node.make()
    assert [path.name for path in node.home.iterdir()] == ["project.json"]


OUTSIDE = ["../x", "/etc/passwd", "a/../../x", "", ".", "a//b", "a/./b", "a/..", "..", "a\0b"]


@pytest.mark.parametrize("path", OUTSIDE)
def test_a_path_that_leads_out_is_refused(path: str) -> None:
    entry: list[object] = [path, SHA, 1, False]
    for content in (
        {"files": [entry], "links": {}, "directories": []},
        {"files": [], "links": {path: "x"}, "directories": []},
        {"files": [], "links": {}, "directories": [path]},
    ):
        with pytest.raises(ManifestError, match="leads out of the project"):
            ProjectManifest.from_json(json.dumps(content).encode())


@pytest.mark.parametrize("target", ["..", "../x", "/etc", "a/../../x"])
def test_a_link_that_leads_out_is_refused(target: str) -> None:
    with pytest.raises(ManifestError, match="leads out of the project"):
        ProjectManifest.from_json(ProjectManifest(links={"link": target}).to_json())


@pytest.mark.parametrize("below", ["files", "links", "directories"])
def test_nothing_is_written_through_a_link(below: str) -> None:
    content: dict[str, Any] = {"files": [], "links": {"link": "sub"}, "directories": []}
    if below == "files":
        content["files"] = [["link/x", SHA, 1, False]]
    elif below == "links":
        content["links"]["link/x"] = "y"
    else:
        content["directories"] = ["link/x"]
    with pytest.raises(ManifestError, match="leads through 'link'"):
        ProjectManifest.from_json(json.dumps(content).encode())


def test_a_path_is_a_file_or_a_directory() -> None:
    with pytest.raises(ManifestError, match="it names 'a' as a directory, too"):
        ProjectManifest.from_json(
            ProjectManifest((Entry("a", SHA, 1, False),), directories=("a",)).to_json()
        )


STEP = st.sampled_from(["a", "b", "..", ".", "", "c\n"])
PATH = st.lists(STEP, min_size=1, max_size=4).map("/".join)


@given(
    paths=st.lists(PATH, max_size=4),
    links=st.dictionaries(PATH, PATH, max_size=4),
    directories=st.lists(PATH, max_size=3),
)
def test_whatever_a_manifest_says_nothing_appears_outside(
    paths: list[str],
    links: dict[str, str],
    directories: list[str],
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    base = tmp_path_factory.mktemp("node")
    node = Node(base)
    node.wants(dict.fromkeys(paths, b"1"), links=links, directories=tuple(directories))
    node.keep(b"1")
    try:
        node.make()
    except (ManifestError, OSError):
        assert not (node.home / "project").exists()
    assert {path.name for path in base.iterdir()} == {"home", "blobs"}
    assert {path.name for path in node.home.iterdir()} <= {"project", "project.json"}


@pytest.mark.parametrize("text", [b"", b"[]", b"{}", b'{"files": [[1]], "links": {}}', b"null"])
def test_what_is_no_manifest_is_refused(text: bytes) -> None:
    with pytest.raises(ManifestError):
        ProjectManifest.from_json(text)
