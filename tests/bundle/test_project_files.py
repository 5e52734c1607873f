"""Which files of a project travel, and which do not."""

from __future__ import annotations

import errno
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowlite.bundle import files_to_send, ignore_rules, project_files
from flowlite.bundle.project_files import find_root, list_files
from flowlite.errors import BundleError
from flowlite.provider import Plan
from flowlite.spec import TaskConfig


def write(root: Path, *names: str, text: str = "x") -> None:
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def git(root: Path, *words: str) -> None:
    identity = ["-c", "user.name=Ada", "-c", "user.email=ada@example.org"]
    subprocess.run(["git", *identity, "-C", str(root), *words], check=True, capture_output=True)


@pytest.fixture
def repository(tmp_path: Path, flow_home: Path) -> Path:
    """An empty repository."""
    root = tmp_path / "project"
    root.mkdir()
    git(root, "init", "-q")
    return root.resolve()


def test_what_git_tracks_or_would_track(repository: Path) -> None:
    write(repository, ".gitignore", text="*.pt\ndata/\n/.env\n")
    write(repository, "train.py", "lib/deep/x.py", ".github/ci.yaml", "deleted.py")
    git(repository, "add", "-A")
    git(repository, "commit", "-qm", "first")
    (repository / "deleted.py").unlink()
    write(repository, "new.py", "table.csv", "model.pt", "data/big.bin", ".env", "a b/ü\n.txt")
    write(repository, "lib/__pycache__/x.pyc", "venv/pyvenv.cfg", "venv/lib/y.py")
    write(repository, "conda/conda-meta/history", "conda/lib/z.so")
    found = list_files(str(repository))
    wanted = [".gitignore", ".github/ci.yaml", "lib/deep/x.py", "new.py", "table.csv", "train.py"]
    assert sorted(found.files) == sorted([*wanted, "a b/ü\n.txt"])
    ignored = dict.fromkeys((".env", "data", "model.pt"), "git ignores it")
    assert {name: found.left_out[name] for name in ignored} == ignored
    assert found.why_not("data/big.bin") == "git ignores it"
    assert found.why_not("venv/lib/y.py") == "it can be made anew"
    assert found.why_not("conda/lib/z.so") == "it can be made anew"


@pytest.mark.parametrize("tracked", [False, True])
def test_what_is_generated_does_not_travel_from_where_git_tracks_nothing(
    repository: Path, tracked: bool
) -> None:
    write(repository, "train.py", "new/fit.py", "new/deep/a b/x.py")
    if tracked:
        git(repository, "add", "train.py")
    for above in ("new", "new/deep"):
        write(repository / above, "env/pyvenv.cfg", "env/lib/y.py", "node_modules/z/z.js")
        write(repository / above, "flow-outputs/t1/model.pt", "__pycache__/fit.pyc")
    (repository / "new/empty").mkdir()
    found = list_files(str(repository))
    assert sorted(found.files) == ["new/deep/a b/x.py", "new/fit.py", "train.py"]
    assert found.directories == {"new/empty"}
    assert found.why_not("new/deep/env/lib/y.py") == "it can be made anew"


def test_git_is_not_asked_for_each_new_directory(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(repository, "runs/.gitkeep")
    git(repository, "add", "-A")
    write(repository, *(f"runs/{number}/log" for number in range(300)))
    asked: list[Any] = []
    run = subprocess.run
    monkeypatch.setattr(subprocess, "run", lambda *a, **k: asked.append(a) or run(*a, **k))
    assert len(list_files(str(repository)).files) == 301
    assert len(asked) == 5


@pytest.mark.parametrize("inside", [False, True])
def test_what_git_tracks_behind_a_link_is_not_read(
    repository: Path, tmp_path: Path, inside: bool
) -> None:
    write(repository, "train.py", "keys/deep/id", "keys/id")
    git(repository, "add", "-A")
    (repository / "keys").rename(tmp_path / "first")
    elsewhere = (repository if inside else tmp_path) / "elsewhere"
    write(elsewhere, "id", "deep/id", text="secret")
    (repository / "keys").symlink_to(elsewhere)
    found = list_files(str(repository))
    assert [name for name in found.files if name.startswith("keys")] == []
    if inside:
        assert found.links == {"keys": "elsewhere"}
    else:
        assert found.left_out["keys"] == "it is a link that leads out of the project"


def test_flowignore_holds_for_tracked_files_too(repository: Path) -> None:
    write(repository, ".flowignore", text="# not needed there\nnotes\n*.csv\n")
    write(repository, "train.py", "notes/today.md", "sub/table.csv")
    git(repository, "add", "-A")
    found = list_files(str(repository))
    assert list(found.files) == ["train.py"]
    assert found.why_not("sub/table.csv") == ".flowignore names it"


def test_an_env_file_travels_only_if_git_tracks_it(repository: Path) -> None:
    write(repository, ".env.example", "train.py")
    git(repository, "add", "-A")
    write(repository, ".env", ".env.local", "service/.env")
    found = list_files(str(repository))
    assert sorted(found.files) == [".env.example", "train.py"]
    assert found.left_out[".env"] == "it may hold secrets, and git does not track it"


def test_empty_directories_of_a_repository(repository: Path) -> None:
    write(repository, "train.py", "new/here.py")
    (repository / "runs").mkdir()
    (repository / "new/empty").mkdir()
    assert list_files(str(repository)).directories == {"runs", "new/empty"}


def test_repositories_inside_of_a_repository(repository: Path, tmp_path: Path) -> None:
    library = tmp_path / "library"
    write(library, "lib.py", ".gitignore", text="*.bin\n")
    git(library, "init", "-q")
    git(library, "add", "-A")
    git(library, "commit", "-qm", "first")
    git(repository, "-c", "protocol.file.allow=always", "submodule", "add", "-q", str(library), "s")
    write(repository, "s/weights.bin", "s/new.py")
    git(repository, "commit", "-qm", "first")
    subprocess.run(["git", "clone", "-q", str(library), str(repository / "clone")], check=True)
    found = list_files(str(repository))
    assert sorted(found.files) == sorted(
        [".gitmodules", "s/.gitignore", "s/lib.py", "s/new.py", "clone/.gitignore", "clone/lib.py"]
    )


def test_other_work_trees_of_a_repository_stay_here(repository: Path) -> None:
    """Programs that work on several branches at a time make them inside of the repository."""
    write(repository, "train.py")
    git(repository, "add", "-A")
    git(repository, "commit", "-qm", "first")
    for place in (".agents/trees/one", "two"):
        git(repository, "worktree", "add", "-q", place)
        write(repository / place, "new.py")
        (repository / place / "empty").mkdir()
    found = list_files(str(repository))
    assert sorted(found.files) == ["train.py"]
    assert not found.directories
    assert found.why_not("two/train.py") == "it is another work tree of the repository"
    # One of them is a project as any other, also with one of its own inside.
    inner = repository / "two"
    git(inner, "worktree", "add", "-q", "three")
    assert sorted(list_files(str(inner)).files) == ["new.py", "train.py"]


@pytest.mark.parametrize("within", ["", "sub"])
def test_a_directory_called_as_a_repository_is_none_to_git(repository: Path, within: str) -> None:
    write(repository, "train.py", "sub/new.py", "sub/deep/more.py")
    (repository / "sub" / ".git").mkdir()
    git(repository, "add", "train.py")
    found = list_files(str(repository / within))
    whole = {"train.py", "sub/new.py", "sub/deep/more.py"}
    assert set(found.files) == ({"new.py", "deep/more.py"} if within else whole)


def test_what_does_not_travel_of_a_directory_from_elsewhere_is_told(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(repository)
    write(tmp_path, "data/a", "data/deep/b", "large/c")
    (tmp_path / "data" / "more").symlink_to(tmp_path / "large")
    (tmp_path / "data" / "deep" / "same").symlink_to("b")
    os.mkfifo(tmp_path / "data" / "pipe")
    config = TaskConfig(command=["cat", "d/a"], files={"d": str(tmp_path / "data")})
    plan = Plan("ssh", "host", num_instances=1, processes_per_node=1)
    found = files_to_send.find(config, plan, most=1000)
    assert found is not None
    assert set(found.others) == {"d/a", "d/deep/b", "d/deep/same"}
    assert found.why_not("d/more/c") == "it is a link to a directory, which files= does not follow"
    assert found.why_not("d/pipe") == "it is neither a file nor a directory"
    scandir = os.scandir

    def refused(path: Any) -> Any:
        # Root may read all directories.
        if str(path).endswith("/deep"):
            raise PermissionError(errno.EACCES, "Permission denied", path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refused)
    with pytest.raises(BundleError, match=r"files: .*/data/deep cannot be read: Permission denied"):
        files_to_send.find(config, plan, most=1000)


def test_a_project_that_is_a_little_too_large_is_told_to_the_byte(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(repository)
    (repository / "big.bin").write_bytes(bytes(2_000_001))
    config = TaskConfig(command=["true"])
    plan = Plan("ssh", "host", num_instances=1, processes_per_node=1)
    with pytest.raises(BundleError, match=r" 2,000,\d+ bytes, .* is 2,000,000 bytes\. The"):
        files_to_send.find(config, plan, most=2_000_000)


# Each with files that git would not and would ignore by it.
PATTERNS = [
    (["/*", "!/src/"], ["src/a.py", "src/pkg/b.py"], ["notes.txt", "data/x"]),
    (["data/*", "!data/small/"], ["data/small/x", "lib/data/x"], ["data/x", "data/big/x"]),
    (["conf/*.yaml"], ["conf/sub/a.yaml", "sub/conf/a.yaml"], ["conf/a.yaml"]),
    (["**/runs"], ["runs.txt"], ["runs/x", "a/runs/x", "a/b/runs/x"]),
    (["a/**/b"], ["c/a/b"], ["a/b", "a/x/b", "a/x/y/b"]),
    (["a/**", "!a/b"], ["a/b", "c/a/x"], ["a/x", "a/c/b"]),
    (["x[0-9].pt", "[!a]b", "[]-]"], ["xa.pt", "ab", "x"], ["d/x1.pt", "cb", "]", "-"]),
    (["m?.pt", "[z-a]", "a[b", "c\\*d"], ["m.pt", "m/.pt", "y", "cxd"], ["mx.pt", "c*d"]),
    (["\\#x", "\\!y", "/b", "c/"], ["x", "y", "d/b"], ["#x", "!y", "b/x", "d/c/x"]),
]


@pytest.mark.parametrize(("patterns", "kept", "ignored"), PATTERNS)
def test_ignore_patterns_are_those_of_git(
    tmp_path: Path, patterns: list[str], kept: list[str], ignored: list[str]
) -> None:
    git(tmp_path, "init", "-q")
    write(tmp_path, ".gitignore", text="\n".join(patterns))
    assert ignored_by_git(tmp_path, [*kept, *ignored]) == set(ignored)
    read = ignore_rules.read_patterns(str(tmp_path), ".gitignore")
    assert {each for each in (*kept, *ignored) if ignore_rules.matches(each, read)} == set(ignored)


def ignored_by_git(root: Path, paths: list[str]) -> set[str]:
    words = ("git", "-C", str(root), "check-ignore", "--no-index", "-z", "--stdin")
    given = "\0".join(paths).encode()
    done = subprocess.run(words, input=given, capture_output=True, check=False, timeout=60)
    assert done.returncode in (0, 1), done.stderr
    return set(done.stdout.decode().split("\0")) - {""}


@settings(max_examples=40, deadline=None)
@given(
    patterns=st.lists(
        # One that ends with a slash leaves out directories only in git, and here links and files, too.
        st.text(alphabet="ab*?!/", min_size=1, max_size=7).filter(
            lambda word: word[-1] not in "/!"
        ),
        max_size=5,
    ),
    paths=st.lists(
        st.lists(st.text(alphabet="ab", min_size=1, max_size=2), min_size=1, max_size=4).map(
            "/".join
        ),
        min_size=1,
        max_size=20,
    ),
)
def test_any_patterns_are_those_of_git(
    tmp_path_factory: pytest.TempPathFactory, patterns: list[str], paths: list[str]
) -> None:
    root = tmp_path_factory.getbasetemp() / "any_patterns"
    if not root.exists():
        root.mkdir()
        git(root, "init", "-q")
    write(root, ".gitignore", text="\n".join(patterns))
    found = {each for each in paths if ignore_rules.matches(each, patterns)}
    assert found == ignored_by_git(root, paths)


def test_the_patterns_are_read_once_for_all_files() -> None:
    ignore_rules._expressions.cache_clear()
    assert sum(ignore_rules.matches(f"data/{n}.bin", ["*.pt", "*7.bin"]) for n in range(100)) == 10
    # Once for files, and once for directories.
    assert ignore_rules._expressions.cache_info().misses == 2


def test_patterns_for_the_root_and_patterns_that_keep(tmp_path: Path, flow_home: Path) -> None:
    """In both ignore files, with git and without."""
    text = "/data/\n*.pt\n!keep.pt\n/code/*\n!/code/*/\n!*.py\n"
    files = ("pkg/data/rows.csv", "keep.pt", "code/deep/x.py", "code/x.py")
    wanted = sorted(files)
    for name, root in ((".flowignore", tmp_path / "git"), (".gitignore", tmp_path / "plain")):
        write(root, *files, "data/big.bin", "other.pt", "code/y.txt", "pkg/data/model.pt")
        write(root, name, text=text)
        if name == ".flowignore":
            git(root, "init", "-q")
        found = list_files(str(root))
        assert sorted(found.files) == wanted
        assert {"data", "other.pt", "code/y.txt"} <= set(found.left_out)


def test_git_is_not_led_elsewhere_by_its_variables(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(repository, "train.py")
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "nowhere"))
    monkeypatch.setenv("GIT_INDEX_FILE", str(tmp_path / "index"))
    assert list(list_files(str(repository)).files) == ["train.py"]


def test_a_repository_that_git_cannot_read_is_named(repository: Path) -> None:
    (repository / ".git/HEAD").write_text("nonsense")
    with pytest.raises(BundleError, match=r"git cannot list the files of .*--no-sync"):
        list_files(str(repository))


def test_without_git_all_but_what_is_hidden_or_ignored(tmp_path: Path, flow_home: Path) -> None:
    write(tmp_path, ".gitignore", text="*.pt\n!keep.pt\n/out/\n")
    write(tmp_path, ".flowignore", text="raw\n")
    write(tmp_path, "train.py", "a/b.txt", ".env", ".cache/x", "m.pt", "out/x", "raw/y", "p.pyc")
    (tmp_path / "empty").mkdir()
    found = list_files(str(tmp_path))
    assert sorted(found.files) == ["a/b.txt", "train.py"]
    assert found.directories == {"empty"}
    assert found.why_not(".env") == "its name begins with a dot"
    assert found.why_not("raw/y") == ".flowignore or .gitignore names it"


def test_a_repository_of_the_home_directory_says_nothing_of_a_project(
    tmp_path: Path, flow_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It often ignores everything, but for some dotfiles."""
    monkeypatch.setenv("HOME", str(tmp_path))
    git(tmp_path, "init", "-q")
    write(tmp_path, ".gitignore", text="*\n")
    write(tmp_path / "project", "train.py", "lib/x.py")
    root = find_root(str(tmp_path / "project"))
    assert root == str(tmp_path / "project")
    assert sorted(list_files(root).files) == ["lib/x.py", "train.py"]


def test_links(tmp_path: Path, flow_home: Path) -> None:
    root, outside = tmp_path / "project", tmp_path / "outside"
    write(root, "data/table.csv")
    write(outside, "secret")
    links = {
        "inside": "data/table.csv",
        "absolute": str(root / "data"),
        "sub/up": "../data",
        "dangling": "data/later.csv",
        "out": str(outside / "secret"),
        "way": "../outside",
        "through": "way/../outside/secret",
    }
    (root / "sub").mkdir()
    for name, target in links.items():
        (root / name).symlink_to(target)
    found = list_files(str(root))
    assert found.links == {
        "inside": "data/table.csv",
        "absolute": "data",
        "sub/up": "../data",
        "dangling": "data/later.csv",
    }
    assert list(found.files) == ["data/table.csv"]
    assert set(found.left_out) == {"out", "way", "through"}
    assert found.left_out["out"] == "it is a link that leads out of the project"


def test_links_that_name_the_project_in_another_way(tmp_path: Path, flow_home: Path) -> None:
    """Where the home directory is a link, `ln -s $PWD/data/v2 data/now` makes a link through it."""
    root = tmp_path / "disk" / "project"
    write(root, "data/v2/table.csv")
    (tmp_path / "home").symlink_to("disk")
    (tmp_path / "aside").symlink_to("disk/project/data")
    links = {
        "now": str(tmp_path / "home/project/data/v2"),
        "data/again": str(tmp_path / "home/project/now/table.csv"),
        "later": str(tmp_path / "home/project/data/v3"),
        "around": str(tmp_path / "aside/v2"),
        "out": str(tmp_path / "home/secret"),
    }
    for name, target in links.items():
        (root / name).symlink_to(target)
    found = list_files(str(root))
    assert found.links == {
        "now": "data/v2",
        "data/again": "../now/table.csv",
        "later": "data/v3",
        "around": "data/v2",
    }
    assert found.left_out == {"out": "it is a link that leads out of the project"}


def test_what_is_no_file_is_left_out(tmp_path: Path, flow_home: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    write(tmp_path, "train.py")
    found = list_files(str(tmp_path))
    assert (list(found.files), set(found.left_out)) == (["train.py"], {"pipe"})


def test_flow_home_never_travels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flow_home: Path
) -> None:
    write(tmp_path, "train.py", "state [1]/keys/id_ed25519")
    monkeypatch.setenv("FLOW_HOME", str(tmp_path / "state [1]"))
    found = list_files(str(tmp_path))
    assert (list(found.files), found.left_out) == (["train.py"], {"state [1]": "it is FLOW_HOME"})
    assert find_root(str(tmp_path / "state [1]/keys")) is None


def test_the_root_is_the_nearest_directory_with_a_marker(tmp_path: Path, flow_home: Path) -> None:
    write(tmp_path, "repo/.git/HEAD", "repo/sub/pyproject.toml", "repo/sub/deep/x.py", "plain/y.py")
    (tmp_path / "repo/other").mkdir()
    assert find_root(str(tmp_path / "repo/sub/deep")) == str(tmp_path / "repo/sub")
    assert find_root(str(tmp_path / "repo/other")) == str(tmp_path / "repo")
    assert find_root(str(tmp_path / "plain")) == str(tmp_path / "plain")


def test_a_home_directory_is_no_project(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flow_home: Path
) -> None:
    write(tmp_path, "ada/pyproject.toml", "ada/work/train.py")
    monkeypatch.setenv("HOME", str(tmp_path / "ada"))
    assert find_root(str(tmp_path / "ada")) is None
    assert find_root(str(tmp_path)) is None
    assert find_root(str(tmp_path / "ada/work")) == str(tmp_path / "ada/work")


def test_a_directory_that_all_may_write_to_is_no_project(tmp_path: Path, flow_home: Path) -> None:
    shared = tmp_path / "shared"
    write(shared, ".git/HEAD", "mine/train.py")
    shared.chmod(0o1777)
    assert find_root(str(shared)) is None
    assert find_root(str(shared / "mine")) == str(shared / "mine")


def test_too_many_files_are_refused_with_where_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flow_home: Path
) -> None:
    monkeypatch.setattr(project_files, "MOST_FILES", 5)
    write(tmp_path, "train.py", *(f"frames/{number}.png" for number in range(9)))
    with pytest.raises(BundleError, match=r"more than 5 files: frames/ \(5 so far\)"):
        list_files(str(tmp_path))
