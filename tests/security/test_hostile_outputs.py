"""A hostile node lists and sends what is copied here: nothing appears outside of the directory that was named."""

from __future__ import annotations

import contextlib
import errno
import json
import os
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowlite.cli.commands import outputs
from flowlite.cli.commands.cp import _place_here
from flowlite.errors import ConfigError, FlowError
from flowlite.node.outputs import listing
from flowlite.node.project_files.links import leads_out
from flowlite.node.project_files.manifest import ManifestError, ProjectManifest
from flowlite.supervise.attempt.outputs import manifest, output_directory
from flowlite.supervise.attempt.outputs.manifest import OutputManifest
from flowlite.supervise.attempt.outputs.output_directory import NameTaken, OutputDirectory

# The second leads out when it is followed through the first, and not by its letters.
THROUGH_ANOTHER = [["a/b/c/short", "../../../s"], ["way", "a/b/c/short/../../victim"]]


HEAD = {"left_out": {}, "place": "p", "root": "/w", "too_many": False}


def listed(*lines: Sequence[object], **more: object) -> OutputManifest:
    """What a node says, read as the client reads it."""
    head = {**HEAD, **more}
    return manifest.read("\n".join(map(json.dumps, (head, *lines))).encode())


def lay(root: Path, found: OutputManifest) -> None:
    """Copies all of it, as the client does."""
    destination = OutputDirectory(root)
    for file in found.files:
        with contextlib.suppress(NameTaken):
            destination.take(file.path, file, "", lambda staged: _write(staged, b"x"))
    destination.take_all([(file.path, file, "", b"x") for file in found.files])
    for path, target in found.links:
        with contextlib.suppress(NameTaken):
            destination.link(path, target)


def _is_circle(path: Path) -> bool:
    """Whether links lead back to themselves, for which `realpath` returns what no program would open."""
    try:
        path.stat()
    except OSError as error:
        return error.errno == errno.ELOOP
    return False


def _write(staged: Path, content: bytes) -> None:
    staged.parent.mkdir(parents=True, exist_ok=True)
    staged.write_bytes(content)


def test_a_link_that_leads_out_through_another_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="a link leads out"):
        listed(["s/f", 1, 1, False], *THROUGH_ANOTHER)
    content = json.dumps({"files": [], "links": dict(THROUGH_ANOTHER), "directories": []})
    with pytest.raises(ManifestError, match="leads out"):
        ProjectManifest.from_json(content.encode())
    for path, target in THROUGH_ANOTHER:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        os.symlink(target, tmp_path / path)
    os.utime(tmp_path)
    found = listing.outputs(str(tmp_path), str(tmp_path / "home"), ["**"])
    assert [path for path, _ in found["links"]] == ["a/b/c/short"]


_PARTS = st.sampled_from(["a", "b", "..", ".", "", ".flow-incoming", "c"])
_PATHS = st.lists(_PARTS, min_size=1, max_size=6).map("/".join)


@settings(max_examples=300, deadline=None)
@given(
    st.lists(_PATHS, max_size=4),
    st.lists(st.tuples(_PATHS, _PATHS), max_size=4),
)
def test_whatever_a_node_lists_twice_nothing_appears_outside(
    tmp_path_factory: pytest.TempPathFactory, files: list[str], links: list[tuple[str, str]]
) -> None:
    above = tmp_path_factory.mktemp("above")
    root = above / "x" / "here"
    lines = [*([path, 1, 1, False] for path in files), *(list(each) for each in links)]
    try:
        found = listed(*lines)
    except ValueError:
        return
    # A second round finds what the first one has left, links among it.
    lay(root, found)
    lay(root, found)
    assert [path.name for path in above.iterdir()] in ([], ["x"])
    assert all(path == root for path in (above / "x").glob("*"))
    for path in root.rglob("*"):
        inside = os.path.realpath(path).startswith(os.path.realpath(root))
        assert inside or _is_circle(path), path


@given(_PATHS, _PATHS)
def test_a_link_that_stays_inside_does_so_by_its_letters_too(path: str, target: str) -> None:
    if manifest.is_inside(path) and not leads_out(path, target):
        whole = os.path.normpath(os.path.join("/root/of", os.path.dirname(path), target))
        assert f"{whole}/".startswith("/root/of/")


def test_names_of_files_that_are_still_coming_are_not_taken_from_a_node(tmp_path: Path) -> None:
    destination = OutputDirectory(tmp_path / "here")
    with pytest.raises(NameTaken):
        destination.link(".flow-incoming/f", "../g")
    with pytest.raises(NameTaken):
        destination.link(".flow-incoming", "g")
    found = listed([".flow-incoming/f", 1, 1, False])
    with pytest.raises(NameTaken):
        destination.take(
            ".flow-incoming/f", found.files[0], "", lambda staged: _write(staged, b"x")
        )
    assert destination.take_all([(".flow-incoming/f", found.files[0], "", b"x")]) == [
        ".flow-incoming/f"
    ]


WANTED = [
    ["runs/**"], ["**"], ["*.log", "runs"], [".git/config"], ["**", ".git/config"], ["a/__pycache__/**"], ["**/*.pt"],
]  # fmt: skip


@pytest.mark.parametrize("wanted", WANTED, ids=" ".join)
def test_a_node_lists_only_what_it_was_asked_for(tmp_path: Path, wanted: list[str]) -> None:
    """What an agent lists is taken. `flow outputs TASK --to .` puts no hook into the repository that is there."""
    names = (
        "a.log",
        "runs/x.pt",
        "runs/.git/hooks/pre-commit",
        ".git/config",
        ".git/x.pt",
        ".envrc",
    )
    for name in (
        *names,
        "a/__pycache__/b.pyc",
        "a/.git",
        "runs/a/b.pt",
        "sub/.ipynb_checkpoints/c.pt",
    ):
        (tmp_path / "w" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "w" / name).touch()
    (tmp_path / "w" / "runs" / "newest.pt").symlink_to("x.pt")
    found = listing.outputs(str(tmp_path / "w"), str(tmp_path), wanted)
    listed_there = [each[0] for each in (*found["files"], *found["links"])]
    asked = manifest._asked(wanted)
    assert listed_there
    assert all(map(asked, listed_there))
    hostile = [".git/hooks/pre-commit", "runs/.git/config", "runs/.GIT/config", "sub/.git/x.pt"]
    hostile += [] if "**" in wanted else ["sitecustomize.py", "conftest.py", ".vscode/tasks.json"]
    for path in hostile:
        for line in ([path, 1, 1, True], [path, "x"]):
            with pytest.raises(ValueError, match="was not asked for"):
                manifest.read(json.dumps(HEAD).encode() + b"\n" + json.dumps(line).encode(), asked)


@pytest.mark.parametrize(
    "link", [".{}.part", ".{}.tmp", "{}.part", ".flow-incoming.{}", "link-{}", ".{}"]
)
def test_what_has_come_is_copied_through_no_link_of_a_node(tmp_path: Path, link: str) -> None:
    """`flow outputs TASK --to .`: links that stay inside lead to the user's own files there."""
    place, project = tmp_path / "flow-outputs" / "job", tmp_path / "project"
    mine = {"train.py": "mine", ".git/config": "mine", "sub/model.pt": "mine"}
    for name, text in mine.items():
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).write_text(text)
    found = listed(
        ["model.pt", 1, 1, False], ["sub/model.pt", 1, 1, False], ["z", 1, 1, True],
        [link.format("model.pt"), "train.py"], [link.format("z"), ".git/config"],
        ["sub/" + link.format("model.pt"), "../train.py"],
    )  # fmt: skip
    lay(place, found)
    refused = outputs._copy(place, list(outputs._files(place)), project)
    assert {name: (project / name).read_text() for name in mine} == mine
    assert refused == ["sub/model.pt"]
    assert not (project / "model.pt").is_symlink()
    assert (project / "model.pt").read_text() == "x"
    assert (project / "z").stat().st_mode & 0o111
    # Again, nothing changes.
    assert outputs._copy(place, list(outputs._files(place)), project) == refused


@pytest.fixture
def everybodys(tmp_path: Path) -> Path:
    """A directory such as /tmp."""
    place = tmp_path / "tmp"
    place.mkdir()
    place.chmod(0o1777)
    return place


@pytest.mark.needs("root")
@pytest.mark.parametrize("made", ["by another user", "open to all", "a link"])
def test_what_comes_is_not_put_where_another_user_can_change_it(
    everybodys: Path, tmp_path: Path, made: str
) -> None:
    victim = tmp_path / "victim"
    victim.mkdir()
    incoming = everybodys / ".flow-incoming"
    if made == "a link":
        incoming.symlink_to(victim)
        os.chown(incoming, 4321, 4321, follow_symlinks=False)
    else:
        incoming.mkdir()
        incoming.chmod(0o777 if made == "open to all" else 0o755)
        os.chown(incoming, 0 if made == "open to all" else 4321, 0)
    with pytest.raises(OSError, match="could change what is put there"):
        lay(everybodys, listed(["a.txt", 1, 1, False]))
    assert not any(victim.iterdir())
    assert [each.name for each in everybodys.iterdir()] == [".flow-incoming"]


@pytest.mark.needs("root")
def test_what_comes_is_not_put_into_a_directory_that_another_user_has_made(
    everybodys: Path,
) -> None:
    """`flow cp TASK:runs /tmp` writes into `/tmp/runs`, whose owner could replace each file."""
    (everybodys / "runs").mkdir(mode=0o777)
    os.chown(everybodys / "runs", 4321, 4321)
    with pytest.raises(ConfigError, match="runs belongs to uid 4321"):
        _place_here("out/runs", everybodys, single=False)
    # One that was named is meant.
    assert _place_here("m.pt", everybodys / "runs", single=True)[1] == "m.pt"
    os.chown(everybodys / "runs", 0, 0)
    assert _place_here("out/runs", everybodys, single=False)[0] == everybodys / "runs"


@pytest.mark.needs("root")
@pytest.mark.parametrize("made", ["by another user", "a link"])
def test_a_directory_of_a_group_leads_nowhere_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, made: str
) -> None:
    """Whoever can write there could have the files removed that a link in the place of `.flow-incoming` leads to."""
    monkeypatch.setattr(output_directory, "_ABANDONED_SECONDS", -1.0)
    home, place = tmp_path / "home", tmp_path / "lab"
    home.mkdir()
    (home / "mine").touch()
    place.mkdir()
    place.chmod(0o2775)
    os.chown(place, 4320, 4320)
    incoming = place / ".flow-incoming"
    if made == "a link":
        incoming.symlink_to(home)
    else:
        incoming.mkdir(mode=0o700)
    os.chown(incoming, 4321, 4320, follow_symlinks=False)
    with pytest.raises(OSError, match="uid 4321 has made it"):
        lay(place, listed(["a.txt", 1, 1, False]))
    # It may be put there meanwhile.
    OutputDirectory(place).finish()
    assert [each.name for each in home.iterdir()] == ["mine"]


def test_it_goes_on_where_it_broke_off_also_without_permissions(
    everybodys: Path, tmp_path: Path
) -> None:
    # A file system without permissions shows everything as open to all.
    open_to_all = tmp_path / "stick"
    for place in (everybodys, open_to_all):
        (place / ".flow-incoming").mkdir(parents=True, mode=0o700)
    for place in (open_to_all, open_to_all / ".flow-incoming"):
        place.chmod(0o777)
    for place in (everybodys, open_to_all):
        lay(place, listed(["a.txt", 1, 1, False]))
        assert (place / "a.txt").read_bytes() == b"x"


def test_a_file_where_a_directory_should_be_is_named(tmp_path: Path) -> None:
    for others in (["a/b", 1, 1, False], ["a", 2, 1, False], ["a", "c"]):
        with pytest.raises(ValueError, match=r"leads through|twice"):
            listed(["a", 1, 1, False], others)
    (tmp_path / "a").touch()
    found = listed(["a/b", 1, 1, False])
    with pytest.raises(NameTaken):
        OutputDirectory(tmp_path).take(
            "a/b", found.files[0], "", lambda staged: _write(staged, b"x")
        )


@pytest.mark.parametrize(
    "lines",
    [
        [["a", 1, 1, False], [".bashrc", 1, 1, False]],
        [[".ssh/authorized_keys", 1, 1, False]],
        [["a", 1, 1, False], ["b", "a"]],
    ],
)
def test_one_file_was_asked_for_and_others_come(lines: list[list[object]]) -> None:
    with pytest.raises(ValueError, match="more than one file"):
        listed(*lines, single=True)


def test_copies_have_the_names_that_were_asked_for(tmp_path: Path) -> None:
    """`flow cp TASK:model.pt ~` writes ~/model.pt and nothing else, whatever the node calls it."""
    assert _place_here("runs/m.pt", tmp_path, single=True) == (tmp_path, "m.pt")
    assert _place_here("runs/m.pt", tmp_path / "n", single=True) == (tmp_path, "n")
    assert _place_here("runs", tmp_path, single=False) == (tmp_path / "runs", "")
    assert _place_here("/x/runs/", tmp_path, single=False) == (tmp_path / "runs", "")
    # With a slash at its end, the target is a directory, which may not exist yet.
    assert _place_here("runs/m.pt", f"{tmp_path}/n/", single=True) == (tmp_path / "n", "m.pt")
    assert _place_here("runs", f"{tmp_path}/n/", single=False) == (tmp_path / "n" / "runs", "")
    for path in (".", "..", "~", "a/..", "/", "../.."):
        assert _place_here(path, tmp_path, single=False) == (tmp_path, ""), path
        with pytest.raises(FlowError, match="only be a directory"):
            _place_here(path, tmp_path, single=True)
