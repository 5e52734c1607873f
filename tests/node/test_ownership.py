"""Directories that others can change: which are refused, by Python and by the shell alike."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from flowlite.bundle.agent_zip import build_agent_zip
from flowlite.connect import programs, pythons, uv
from flowlite.connect.local import LocalConnection
from flowlite.connect.values import hash_of
from flowlite.errors import ProviderError
from flowlite.node.system import ownership, runtime_dir
from tests.helpers import put_agent

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="nodes run Linux"),
    pytest.mark.needs("root"),
]

NOBODY = 65534
# What is done to a directory, and whether others can then change what lies in `inner/deep` below it.
CASES = {
    "ours alone": (0o700, 0, False),
    "others read": (0o755, 0, False),
    "the group writes": (0o775, 0, True),
    "all write": (0o777, 0, True),
    "all write, sticky": (0o1777, 0, False),
    "set-group-id, the group writes": (0o2775, 0, True),
    "of another user": (0o755, NOBODY, True),
    "of another user, sticky": (0o1777, NOBODY, True),
}


def safe_in_shell(path: str) -> str:
    script = f'{programs.SAFE_IN_SHELL}safe "$1"'
    done = subprocess.run(
        ["sh", "-c", script, "sh", path], capture_output=True, text=True, timeout=90, check=False
    )
    assert bool(done.returncode) == bool(done.stderr)
    return done.stderr


@pytest.mark.parametrize(
    ("mode", "uid", "taken"),
    [(0o1777, NOBODY, True), (0o1777, 0, False), (0o2775, NOBODY, False), (0o755, NOBODY, False)],
)
def test_what_another_user_has_made_where_all_may(
    tmp_path: Path, mode: int, uid: int, taken: bool
) -> None:
    place = tmp_path / "open"
    (place / "made").mkdir(parents=True)
    (place / "link").symlink_to(tmp_path)
    place.chmod(mode)
    for name in ("made", "link"):
        os.chown(place / name, uid, -1, follow_symlinks=False)
        assert bool(ownership.taken(f"{place}/{name}")) == taken
    assert ownership.taken(f"{place}/new") == ownership.taken(f"{place}/new/below") == ""


@pytest.mark.parametrize("what", CASES)
@pytest.mark.parametrize("made", [True, False])
def test_who_can_change_a_directory(tmp_path: Path, what: str, made: bool) -> None:
    mode, uid, unsafe = CASES[what]
    middle = tmp_path / "middle"
    middle.mkdir()
    inner = middle / "inner" / "deep"
    if made:
        inner.mkdir(parents=True)
    os.chown(middle, uid, -1)
    middle.chmod(mode)
    found = ownership.problem(str(inner))
    assert bool(found) == unsafe, found
    assert not unsafe or str(middle) in found
    assert bool(safe_in_shell(str(inner))) == unsafe


def test_a_link_of_another_user_can_lead_elsewhere_tomorrow(tmp_path: Path) -> None:
    shared, own = tmp_path / "shared", tmp_path / "own"
    shared.mkdir(mode=0o1777)
    shared.chmod(0o1777)
    own.mkdir()
    link = shared / "link"
    link.symlink_to(own)
    assert ownership.problem(str(link / "blobs")) == ""
    os.chown(link, NOBODY, -1, follow_symlinks=False)
    assert f"{link} belongs to uid {NOBODY}" in ownership.problem(str(link / "blobs"))


def test_links_are_followed_to_where_they_lead(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("open/../open")
    assert "can be written by others" in ownership.problem(str(tmp_path / "a" / "x"))
    (tmp_path / "round").symlink_to("round")
    assert "circles" in ownership.problem(str(tmp_path / "round"))


def test_names_within_are_looked_at(tmp_path: Path) -> None:
    (tmp_path / "tasks").mkdir()
    assert ownership.problem(str(tmp_path), "tasks", "envs") == ""
    os.chown(tmp_path / "tasks", NOBODY, -1)
    assert "tasks belongs to uid" in ownership.problem(str(tmp_path), "tasks", "envs")


class TestStart:
    """Flowlite's program is started from a directory of ours, and when it is what its name says."""

    @pytest.fixture
    def program(self, tmp_path: Path) -> Path:
        put_agent(tmp_path / "home")
        built = build_agent_zip(tmp_path / "home")
        place = tmp_path / "node" / "blobs" / built.sha256
        place.parent.mkdir(parents=True)
        place.write_bytes(built.path.read_bytes())
        return place

    def start(self, program: Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            programs.started(sys.executable, str(program), "look", str(program.parent)),
            capture_output=True,
            text=True,
            timeout=90,
            check=False,
        )

    def test_it_runs(self, program: Path) -> None:
        done = self.start(program)
        assert (done.returncode, json.loads(done.stdout)["workers"]) == (0, [])

    def test_a_planted_program_does_not_run(self, program: Path, tmp_path: Path) -> None:
        proof = tmp_path / "proof"
        program.write_text(f"open({str(proof)!r}, 'w')\n")
        assert self.start(program).returncode == 126
        assert not proof.exists()

    def test_nothing_runs_where_others_write(self, program: Path) -> None:
        program.parent.parent.chmod(0o777)
        done = self.start(program)
        assert done.returncode == programs.UNSAFE
        assert done.stderr == f"{program.parent.parent} can be written by others (mode 0777)\n"

    def test_what_is_not_there_is_told_as_by_python(self, program: Path) -> None:
        program.unlink()
        assert self.start(program).returncode == 2


def test_no_python_is_installed_where_others_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = tmp_path / "uv"
    tool.write_text(f"#!/bin/sh\ntouch {tmp_path}/proof\n")
    tool.chmod(0o700)
    found = uv.Program(tool, hash_of(tool))
    monkeypatch.setattr(uv, "programs_for", lambda *_: [found])
    root = tmp_path / "node"
    root.mkdir()
    root.chmod(0o777)
    with pytest.raises(ProviderError, match=r"can be written by others \(mode 777\)"):
        pythons.install(LocalConnection(), str(root), "linux-x86_64-glibc", "3.12", {}, tmp_path)
    assert not (tmp_path / "proof").exists()


class TestRuntimeDirectory:
    @pytest.fixture(autouse=True)
    def places(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
        """Short ones: a socket's path has a limit."""
        base = Path(f"/tmp/fl-{os.urandom(3).hex()}")
        (base / "tmp").mkdir(parents=True)
        (base / "tmp").chmod(0o1777)
        monkeypatch.setenv("TMPDIR", str(base / "tmp"))
        monkeypatch.setattr(runtime_dir, "_home", lambda: str(base / "home"))
        (base / "home").mkdir()
        yield base
        subprocess.run(["rm", "-rf", str(base)], check=True)

    def test_it_is_in_the_directory_for_temporary_files(self, places: Path) -> None:
        assert runtime_dir.find() == f"{places}/tmp/flowlite-0"
        assert runtime_dir.problem() == ""

    @pytest.mark.parametrize("how", ["theirs", "open", "a link", "a file", "not sticky"])
    def test_one_that_others_made_is_left_alone(self, places: Path, how: str) -> None:
        first = places / "tmp" / "flowlite-0"
        if how == "a link":
            first.symlink_to(places / "home")
        elif how == "a file":
            first.write_text("")
        else:
            first.mkdir(mode=0o700)
        if how == "theirs":
            os.chown(first, NOBODY, -1)
        if how == "open":
            first.chmod(0o777)
        if how == "not sticky":
            (places / "tmp").chmod(0o777)
        assert runtime_dir.find().startswith(f"{places}/home/.cache/flowlite-")
        assert str(places / "tmp") in runtime_dir.problem()

    def test_with_no_place_at_all_it_says_what_to_do(self, places: Path) -> None:
        for name in ("tmp/flowlite-0", "home"):
            (places / name).mkdir(exist_ok=True)
            os.chown(places / name, NOBODY, -1)
        with pytest.raises(runtime_dir.NoRuntimeDirectory, match="belongs to uid 65534") as raised:
            runtime_dir.find()
        assert "set TMPDIR to a directory of your own" in str(raised.value)
