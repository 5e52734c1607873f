"""A project somebody else made, in whose directory one stands: to list what travels runs nothing and ends."""

from __future__ import annotations

import os
import shutil
import subprocess
from contextlib import suppress
from pathlib import Path

import pytest

from flowlite.bundle.project_files import list_files
from flowlite.errors import BundleError, ConfigError
from flowlite.settings.settings import load_settings
from tests.bundle.test_project_files import git, write

pytestmark = pytest.mark.usefixtures("flow_home")


def test_git_runs_no_command_that_a_repository_names(tmp_path: Path) -> None:
    """A partial clone fetches what it lacks, by a command that its own configuration names."""
    root, ran = tmp_path / "project", tmp_path / "ran"
    write(root, "a/x", "b/y", "top")
    git(root, "init", "-q")
    git(root, "add", "-A")
    git(root, "commit", "-qm", "first")
    git(root, "sparse-checkout", "init", "--cone", "--sparse-index")
    git(root, "sparse-checkout", "set", "b")
    asked = ["git", "-C", str(root), "rev-parse", "HEAD:a"]
    tree = subprocess.run(asked, check=True, capture_output=True, text=True).stdout.strip()
    (root / ".git" / "objects" / tree[:2] / tree[2:]).unlink()
    for name, value in {
        "core.repositoryformatversion": "1",
        "extensions.partialClone": "origin",
        "remote.origin.promisor": "true",
        "remote.origin.url": f"ext::sh -c touch% {ran}",
        "protocol.ext.allow": "always",
        "core.fsmonitor": f"touch {ran}",
    }.items():
        git(root, "config", name, value)
    # Some versions of git list what is there all the same.
    with suppress(BundleError):
        list_files(str(root))
    assert not ran.exists()
    # And git would have run it.
    subprocess.run(["git", "-C", str(root), "ls-files"], check=False, capture_output=True)
    assert ran.exists()


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", [".flowignore", ".gitignore"])
def test_an_ignore_file_without_end_is_named(name: str, tmp_path: Path) -> None:
    root = tmp_path / "project"
    write(root, "train.py")
    for make in (
        lambda path: path.symlink_to("/dev/zero"),
        os.mkfifo,
        lambda path: path.mkdir(),
        lambda path: path.write_bytes(bytes(2_000_000)),
    ):
        path = root / name
        make(path)
        with pytest.raises(BundleError, match=name):
            list_files(str(root))
        shutil.rmtree(path) if path.is_dir() else path.unlink()


@pytest.mark.parametrize(
    "text",
    [
        "\ufeffsecrets.txt\n",
        "**/secrets.txt\r\n",
        "secrets.*\n",
        "/secrets.txt \n",
        "sub/**/../x\nsecrets.txt",
    ],
)
def test_what_an_ignore_file_names_stays_here_however_it_was_written(
    text: str, tmp_path: Path
) -> None:
    root = tmp_path / "project"
    write(root, "train.py", "secrets.txt")
    (root / ".flowignore").write_text(text, encoding="utf-8")
    assert sorted(list_files(str(root)).files) == ["train.py"]


def test_two_stars_match_no_directory_too(tmp_path: Path) -> None:
    root = tmp_path / "project"
    write(root, "a/key", "a/b/key", "b/key")
    (root / ".flowignore").write_text("a/**/key\n")
    assert sorted(list_files(str(root)).files) == ["b/key"]


@pytest.mark.timeout(60)
def test_a_settings_file_without_end_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every command reads the `flow.toml` of the directory that one stands in."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "flow.toml"
    for make in (
        lambda path: path.symlink_to("/dev/zero"),
        os.mkfifo,
        lambda path: path.mkdir(),
        lambda path: (path.touch(), os.truncate(path, 1 << 33)),
        lambda path: path.write_text("a = " + "[" * 100_000),
        lambda path: path.write_text(".".join("a" * 20_000) + " = 1"),
        lambda path: path.write_text("[local." + ".".join(["'a'"] * 20_000) + "]"),
    ):
        make(path)
        with pytest.raises(ConfigError, match=r"flow\.toml"):
            load_settings()
        shutil.rmtree(path) if path.is_dir() else path.unlink()
