"""Asks git about the files of a directory. Nothing runs that a repository names."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path

from flowlite.errors import BundleError
from flowlite.settings.private_files import directories_above, home_directory

_SECONDS = 60.0
_LONGEST_LINK = 8192
# Paths of one call, each of 4 KiB at most. The system limits what a command line may have.
_MOST_PATHS = 250
# Asking about files runs no program that the repository names. A partial clone would fetch the objects that it lacks,
# by a command in its own configuration.
_HARMLESS = {
    "LC_ALL": "C",
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_ALLOW_PROTOCOL": "none",
}
# These would make git use another repository than that of the directory.
_VARIABLES = (
    *("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX", "GIT_COMMON_DIR"),
    *("GIT_OBJECT_DIRECTORY", "GIT_ALTERNATE_OBJECT_DIRECTORIES"),
)


def list_files(directory: str, *how: str) -> list[str]:
    """The names that `git ls-files` prints in a directory, with these options. Raises BundleError."""
    return _ask(directory, ["ls-files", "-z", *how])


def list_untracked(directory: str, below: Sequence[str]) -> list[str]:
    """The files in directories below a directory that git does not track and would track. Raises BundleError."""
    how = ("ls-files", "-z", "--others", "--exclude-standard", "--")
    found: list[str] = []
    for at in range(0, len(below), _MOST_PATHS):
        found += _ask(directory, ["--literal-pathspecs", *how, *below[at : at + _MOST_PATHS]])
    return found


def repository_of(directory: str) -> str | None:
    """The work tree of the git repository that a directory is in; None if it is in none, or git is not installed.

    A repository of the home directory, which is never a project, is none: it often ignores all but a few dotfiles.
    """
    here, home = Path(directory), home_directory()
    found = next(
        (at for at in (here, *directories_above(here)) if os.path.lexists(at / ".git")), None
    )
    if found is None or found == home or shutil.which("git") is None:
        return None
    return str(found)


def is_linked_work_tree(directory: str) -> bool:
    """Whether a directory is a work tree that `git worktree add` has made inside another one of the same repository."""
    repository = _repository_of_linked(directory)
    around = repository and repository_of(os.path.dirname(directory))
    if not around:
        return False
    common = _repository_of_linked(around) or os.path.join(around, ".git")
    return os.path.realpath(common) == repository


def _repository_of_linked(work_tree: str) -> str | None:
    """The `.git` directory of the repository that a linked work tree belongs to; None for any other directory."""
    link = os.path.join(work_tree, ".git")
    try:
        if not os.path.isfile(link):
            return None
        with open(link, encoding="utf-8", errors="surrogateescape") as file:
            named = file.read(_LONGEST_LINK).removeprefix("gitdir:").strip()
    except OSError:
        # git tells what is wrong with it.
        return None
    above, last = os.path.split(os.path.dirname(os.path.join(work_tree, named)))
    return os.path.realpath(above) if last == "worktrees" else None


def ignored_among(repository: str, files: Iterable[str]) -> set[str]:
    """Those of the files of a repository that git ignores: they fit a rule, and it does not track them.

    Args:
        repository: Its work tree, as a real path.
        files: Paths below it. None of them is in another repository inside of it, or behind a link.

    Raises:
        BundleError: git does not tell.
    """
    # It ends with 1 if it ignores none of them.
    return set(_ask(repository, ["check-ignore", "-z", "--stdin"], "\0".join(files), (0, 1)))


def tracked_among(repository: str, files: Iterable[str]) -> set[str]:
    """Those of the files of a repository that git tracks; as `ignored_among`."""
    return set(
        _ask(repository, ["--literal-pathspecs", "ls-files", "-z", "--cached", "--", *files])
    )


def _ask(
    directory: str, words: Sequence[str], given: str = "", fine: tuple[int, ...] = (0,)
) -> list[str]:
    import subprocess

    environment = {k: v for k, v in os.environ.items() if k not in _VARIABLES}
    try:
        done = subprocess.run(
            ["git", "-c", "core.fsmonitor=false", "-C", directory, *words],
            env={**environment, **_HARMLESS},
            input=os.fsencode(given),
            capture_output=True,
            timeout=_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise BundleError(
            f"git did not list the files of {directory} within {_SECONDS:.0f} s"
        ) from None
    if done.returncode not in fine:
        said = done.stderr.decode(errors="replace").strip().splitlines()
        raise BundleError(
            f"git cannot list the files of {directory}: {said[0] if said else done.returncode}; mend that, or run "
            "with --no-sync"
        )
    return [os.fsdecode(name) for name in done.stdout.split(b"\0") if name]
