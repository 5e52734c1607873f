"""The snapshot: what is in it, what is not, and that it is the same for the same source."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable
from importlib.util import spec_from_file_location
from pathlib import Path
from typing import Any

import pytest

from flowlite.bundle import source
from flowlite.bundle.call import Bundle
from flowlite.errors import BundleError
from tests.bundle.conftest import Node, Project

Build = Callable[..., Bundle]
_FIT = "def fit():\n    from renamed.deep import far\n    return far.SIZE\n"


CHECKOUT = ("tests/", "benchmarks/", "rented_cloud.py")
"""This checkout's packages, and its adapter, that tests load into the process: they come along as any loaded module."""


def listings(bundle: Bundle) -> list[list[str]]:
    """What is in each zip, without what is of this checkout."""
    zips = [zipfile.ZipFile(s.path).namelist() for s in bundle.sources]
    kept = [[name for name in names if not name.startswith(CHECKOUT)] for names in zips]
    return [names for names in kept if names]


def names(bundle: Bundle) -> list[str]:
    return sorted(name for names in listings(bundle) for name in names)


def by_value(code: str) -> Any:
    found: dict[str, Any] = {"__name__": "__main__"}
    exec(code, found)
    return found["train"]


def test_a_package_is_taken_whole(build: Build, project: Project) -> None:
    for name in ("__init__.py", "work.py", "other.py", "sub/deep.py", "data/table.csv"):
        project.write(f"pack/{name}", "def train(): return 1\n" if name == "work.py" else "")
    for name in (
        "__pycache__/work.pyc",
        ".git/config",
        ".venv/lib/x.py",
        "node_modules/x.js",
        "env/pyvenv.cfg",
        "env/lib/y.py",
        "old.pyc",
    ):
        project.write(f"pack/{name}", "")
    project.write("outside.py", "")
    bundle = build(importlib.import_module("pack.work").train)
    assert names(bundle) == [
        "pack/__init__.py",
        "pack/data/table.csv",
        "pack/other.py",
        "pack/sub/deep.py",
        "pack/work.py",
    ]


SECRETS = (".env", ".env.local", "sub/.env", "key.pem", "sub/credentials.json", "unused_keys.py")
PLAIN = ("__init__.py", "data/table.csv", "ignored_but_imported.py", "sub/deep.py", "work.py")


@pytest.fixture
def with_secrets(project: Project) -> Project:
    """A package with files beside its code that git ignores, some of which its code needs."""
    for name in (*PLAIN, *SECRETS, ".netrc", "fast.abi3.so"):
        project.write(f"pack/{name}", "")
    project.write(
        "pack/work.py",
        """
        def train():
            from pack import ignored_but_imported
            return ignored_but_imported
        """,
    )
    project.write(".gitignore", "*.pem\ncredentials.json\n*keys.py\nignored*.py\n*.so\n.netrc\n")
    return project


def git(project: Project, *words: str) -> None:
    subprocess.run(["git", "-C", str(project.root), *words], check=True, capture_output=True)


@pytest.mark.parametrize("how", ["git", "no git", "not asked"])
def test_secrets_beside_the_code_of_a_package_stay_here(
    build: Build, with_secrets: Project, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if how != "no git":
        git(with_secrets, "init", "-q", ".")
    if how == "not asked":
        monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")
    expected = [f"pack/{name}" for name in sorted((*PLAIN, "fast.abi3.so"))]
    assert names(build(importlib.import_module("pack.work").train)) == expected


def test_a_repository_of_the_home_directory_says_nothing_of_a_project(
    build: Build, with_secrets: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It often ignores everything, but for some dotfiles."""
    home = with_secrets.root.parent
    monkeypatch.setenv("HOME", str(home))
    subprocess.run(["git", "init", "-q", str(home)], check=True)
    (home / ".gitignore").write_text("*\n")
    found = names(build(importlib.import_module("pack.work").train))
    assert found == [f"pack/{name}" for name in sorted((*PLAIN, "fast.abi3.so"))]


def test_what_git_tracks_is_no_secret(build: Build, with_secrets: Project) -> None:
    git(with_secrets, "init", "-q", ".")
    git(with_secrets, "add", "--force", "pack/.env", "pack/key.pem")
    found = names(build(importlib.import_module("pack.work").train))
    assert {"pack/.env", "pack/key.pem"} <= set(found)
    assert not {"pack/.env.local", "pack/sub/.env", "pack/.netrc"} & set(found)


def test_secrets_of_a_repository_in_a_package_stay_here(build: Build, project: Project) -> None:
    for name in ("__init__.py", "work.py", "inner/__init__.py", "inner/key.txt", "inner/[1].txt"):
        project.write(f"pack/{name}", "def train(): return 1\n" if name == "work.py" else "")
    project.write("pack/inner/.gitignore", "key.txt\n")
    git(project, "init", "-q", ".")
    git(project, "init", "-q", "pack/inner")
    assert names(build(importlib.import_module("pack.work").train)) == [
        "pack/__init__.py",
        "pack/inner/.gitignore",
        "pack/inner/[1].txt",
        "pack/inner/__init__.py",
        "pack/work.py",
    ]


def test_secrets_beside_a_script_stay_here(build: Build, project: Project) -> None:
    project.write("script.py", "import needed\ndef train(): return needed.x\n")
    for name in ("needed.py", "my_keys.py", "sibling.py"):
        project.write(name, "x = 1\n")
    project.write(".gitignore", "needed.py\nmy_keys.py\n")
    git(project, "init", "-q", ".")
    found = names(build(importlib.import_module("script").train))
    assert found == ["needed.py", "script.py", "sibling.py"]


@pytest.mark.parametrize("pattern", ["private/", "src/*/private", "lib", "src/pack/private/*"])
def test_the_ignore_file_of_the_project_counts_for_source_further_down(
    build: Build, project: Project, monkeypatch: pytest.MonkeyPatch, pattern: str
) -> None:
    monkeypatch.syspath_prepend(str(project.root / "src"))
    for name in ("__init__.py", "work.py", "private/customers.csv", "lib/own.so"):
        project.write(f"src/pack/{name}", "def train(): return 1\n" if name == "work.py" else "")
    project.write("pyproject.toml", "")
    project.write(".flowignore", f"{pattern}\n")
    left = "pack/lib/own.so" if pattern == "lib" else "pack/private/customers.csv"
    found = {"pack/__init__.py", "pack/lib/own.so", "pack/private/customers.csv", "pack/work.py"}
    assert set(names(build(importlib.import_module("pack.work").train))) == found - {left}


def test_an_ignore_file_of_the_project_that_names_all_the_source_is_about_files(
    build: Build, project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(project.root / "src"))
    project.write("src/pack/__init__.py", "def train(): return 1\n")
    project.write("src/pack/other.py", "")
    project.write("pyproject.toml", "")
    project.write(".flowignore", "src/\n")
    found = names(build(importlib.import_module("pack").train))
    assert found == ["pack/__init__.py", "pack/other.py"]


def test_beside_a_script_all_python_is_taken(build: Build, project: Project) -> None:
    project.write("script.py", "def train(): return 1\n")
    project.write("sibling.py", "")
    project.write("notes.txt", "")
    project.write("plugins/__init__.py", "")
    project.write("plugins/one.py", "")
    project.write("plugins/one.bin", "")
    project.write("results/x.py", "")
    assert names(build(importlib.import_module("script").train)) == [
        "plugins/__init__.py",
        "plugins/one.py",
        "script.py",
        "sibling.py",
    ]


def test_namespace_packages_and_chains_of_imports_are_followed(
    build: Build, project: Project
) -> None:
    project.write("space/one.py", "def go():\n    import chain\n")
    project.write("chain/__init__.py", "from chain import sub\n")
    project.write("chain/sub.py", "import last.one\n")
    project.write("last/__init__.py", "")
    project.write("last/one.py", "")
    project.write("unrelated/__init__.py", "")
    assert names(build(by_value("def train():\n    from space import one\n"))) == [
        "chain/__init__.py",
        "chain/sub.py",
        "last/__init__.py",
        "last/one.py",
        "space/one.py",
    ]


def test_relative_imports_are_followed_within_code_by_value(build: Build, project: Project) -> None:
    project.write("pack/__init__.py", "")
    project.write("pack/a.py", "")
    train = by_value("__package__ = 'pack'\ndef train():\n    from . import a\n")
    assert "pack/a.py" in names(build(train))


def test_modules_that_are_loaded_come_along(build: Build, project: Project) -> None:
    project.write("script.py", "def train(): return __import__('pl' + 'ug.two')\n")
    project.write("plug/one.py", "")
    project.write("plug/two.py", "")
    importlib.import_module("plug.two")
    found = names(build(importlib.import_module("script").train))
    assert "plug/two.py" in found
    assert "plug/one.py" not in found


def test_a_package_whose_directory_has_another_name(
    build: Build, project: Project, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As setuptools imports it from an editable install, for `package-dir = {"renamed" = "lib"}`."""
    for name, text in (("__init__.py", ""), ("work.py", _FIT), ("deep/far.py", "SIZE = 7\n")):
        project.write(f"lib/{name}", text)
    project.write("lib/key.pem", "secret")
    project.write(".gitignore", "*.pem\n")
    project.write("beside.py", "")

    class Finder:
        def find_spec(self, name: str, path: object = None, target: object = None) -> Any:
            place = str(project.root / "lib/__init__.py")
            return spec_from_file_location(name, place) if name == "renamed" else None

    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, Finder()])
    bundle = build(importlib.import_module("renamed.work").fit)
    assert names(bundle) == ["renamed/__init__.py", "renamed/deep/far.py", "renamed/work.py"]
    assert node.run(bundle).value == 7


def test_modules_behind_a_link_come_along(build: Build, project: Project, tmp_path: Path) -> None:
    """A monorepo may have shared code as a link; data behind a link may be any size."""
    project.write("pack/__init__.py", "def train():\n    from pack.shared import core\n")
    shared = tmp_path / "libs/shared"
    for name in ("__init__.py", "core.py", "aside.py", "data/big.bin"):
        (shared / name).parent.mkdir(parents=True, exist_ok=True)
        (shared / name).write_text("from . import deep\n" if name == "core.py" else "")
    (shared / "deep").mkdir()
    (shared / "deep/__init__.py").write_text("")
    (project.root / "pack/shared").symlink_to(shared)
    train = importlib.import_module("pack").train
    assert names(build(train)) == [
        "pack/__init__.py",
        "pack/shared/__init__.py",
        "pack/shared/core.py",
        "pack/shared/deep/__init__.py",
    ]
    project.write(".flowignore", "/pack/shared\n")
    assert names(build(train)) == ["pack/__init__.py"]


def test_roots_come_in_the_order_of_the_path(
    build: Build, project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "second.py").write_text("")
    monkeypatch.setattr(sys, "path", [str(project.root), str(other), *sys.path])
    project.write("first.py", "import second\ndef train(): return 1\n")
    bundle = build(importlib.import_module("first").train)
    assert listings(bundle) == [["first.py"], ["second.py"]]


def test_nothing_is_taken_for_a_call_that_needs_nothing(build: Build) -> None:
    assert build(by_value("def train():\n    import json, numpy\n")).sources == ()


def test_the_same_source_gives_the_same_zip(build: Build, project: Project) -> None:
    project.write("script.py", "def train(): return 1\n")
    train = importlib.import_module("script").train
    one = build(train).sources[0]
    data = one.path.read_bytes()
    for path in project.root.glob("*.py"):
        os.utime(path, (1, 1))
    one.path.unlink()
    two = build(train).sources[0]
    assert two == one
    assert two.path.read_bytes() == data
    project.write("script.py", "def train(): return 2\n")
    assert build(train).sources[0].sha256 != one.sha256


def test_what_is_too_large_is_refused_with_the_way_out(
    build: Build, project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source.Project, "loaded", lambda self: iter(()))
    monkeypatch.setattr(source, "MOST_BYTES", 10_000)
    project.write("pack/__init__.py", "def train(): return 1\n")
    project.write("pack/weights/a.bin", "x" * 20_000)
    train = importlib.import_module("pack").train
    with pytest.raises(BundleError) as caught:
        build(train)
    for part in ("too large", "pack/weights/a.bin (20 kB)", ".flowignore", str(project.root)):
        assert part in str(caught.value)
    project.write(".flowignore", "# data\n\npack/weights/\n")
    assert names(build(train)) == ["pack/__init__.py"]
    project.write(".flowignore", "*.bin\n")
    assert names(build(train)) == ["pack/__init__.py"]
    monkeypatch.setattr(source, "MOST_FILES", 1)
    project.write("pack/more.py", "")
    with pytest.raises(BundleError, match="2 files"):
        build(train)


def test_a_name_that_no_archive_can_have_is_refused(
    build: Build, project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source.Project, "loaded", lambda self: iter(()))
    project.write("pack/__init__.py", "def train(): return 1\n")
    odd = os.fsdecode(os.fsencode(project.root / "pack") + b"/caf\xe9.txt")
    Path(odd).write_text("")
    train = importlib.import_module("pack").train
    with pytest.raises(BundleError, match=r"b'pack/caf\\xe9.txt' .* is not UTF-8"):
        build(train)


def test_large_snapshots_are_packed(build: Build, project: Project) -> None:
    project.write("pack/__init__.py", "def train(): return 1\n")
    project.write("pack/text.txt", "word " * 1_000_000)
    packed = build(importlib.import_module("pack").train).sources[0]
    assert packed.path.stat().st_size < 100_000


def test_a_broken_module_does_not_stop_the_snapshot(build: Build, project: Project) -> None:
    project.write("script.py", "def train(): return 1\n")
    project.write("broken.py", "def (\n")
    train = by_value("def train():\n    import script, broken\n")
    assert "broken.py" in names(build(train))
