"""Which files of a project are sent to its nodes.

The project's root is the nearest directory, from the given one upwards, that has a `pyproject.toml` or a `.git`; if
there is none, it is the given directory itself. The home directory, the directories above it, FLOW_HOME, and
directories that all users may write to are never a project.

In a git repository, the files that git tracks or would track are sent. Elsewhere, all files are sent whose names do not
begin with a dot and that the `.gitignore` and `.flowignore` in the root do not name. Never sent are: the repository
itself, generated files (caches, virtual environments, `node_modules`), FLOW_HOME, files that `.flowignore` names, and
`.env` files that git does not track.
"""

from __future__ import annotations

import errno
import glob
import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import field
from pathlib import Path

from flowlite.bundle import git, ignore_rules
from flowlite.errors import BundleError
from flowlite.node.quick_dataclass import dataclass
from flowlite.node.system.byte_sizes import human_size
from flowlite.settings import flow_home
from flowlite.settings.private_files import directories_above, home_directory

_MARKERS = ("pyproject.toml", ".git")
MOST_FILES = 50_000


@dataclass(slots=True)
class ProjectListing:
    """The parts of a project that are sent, by path below its root, with "/".

    Attributes:
        root: The project's directory.
        files: Each regular file with its size.
        links: Each symbolic link with its target, which is relative and inside the project.
        directories: The empty directories.
        left_out: What is not sent, with the reason; a directory stands for everything in it.
    """

    root: str
    files: dict[str, int] = field(default_factory=dict)
    links: dict[str, str] = field(default_factory=dict)
    directories: set[str] = field(default_factory=set)
    left_out: dict[str, str] = field(default_factory=dict)

    def has(self, path: str) -> bool:
        """Whether a path below the root will exist on a node, as a file, a link or a directory."""
        if path in (".", "") or path in self.files or path in self.links:
            return True
        inside = f"{path}/"
        found = (self.files, self.links, self.directories)
        return path in self.directories or any(
            name.startswith(inside) for names in found for name in names
        )

    def why_not(self, path: str) -> str:
        """The reason why a path below the root is not sent."""
        steps = path.split("/")
        for count in range(1, len(steps) + 1):
            if why := self.left_out.get("/".join(steps[:count])):
                return why
        return "git ignores it" if git.repository_of(self.root) else "it is left out"


def find_root(directory: str) -> str | None:
    """The root of the project that a directory belongs to; None if it belongs to none."""
    here = Path(directory).resolve()
    if not _may_be_project(here):
        return None
    for at in (here, *directories_above(here)):
        if any(os.path.lexists(at / marker) for marker in _MARKERS) and _may_be_project(at):
            return str(at)
    return str(here)


def list_files(root: str) -> ProjectListing:
    """Lists the parts of a project that are sent.

    Raises:
        BundleError: A directory cannot be read, git cannot list it, or there are too many files.
    """
    root = os.path.realpath(root)
    listing = ProjectListing(root)
    ours = os.path.relpath(flow_home.home().resolve(), root)
    patterns = [*ignore_rules.read_patterns(root), f"/{glob.escape(ours)}"]
    for path, why in _candidates(root, patterns):
        if path == ignore_rules.IGNORE_FILE and not why:
            # Nodes do not read flowlite's ignore file. Git's own ignore files are sent like all others.
            continue
        _add(listing, path, "it is FLOW_HOME" if path == ours else why)
        if len(listing.files) > MOST_FILES:
            raise BundleError(_too_many(listing))
    return listing


def _may_be_project(directory: Path) -> bool:
    home, ours = home_directory(), flow_home.home().resolve()
    if home is not None and (directory == home or directory in home.parents):
        return False
    if directory.is_relative_to(ours):
        return False
    try:
        return not directory.stat().st_mode & stat.S_IWOTH
    except OSError:
        return False


def _candidates(root: str, patterns: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yields (path below the root, the reason why it is left out or "") for everything that might be sent."""
    if git.repository_of(root) is not None:
        yield from _of_git(root, "", patterns)
    else:
        ignored = ignore_rules.read_patterns(root, ".gitignore")
        yield from _of_directory(root, "", patterns, ignored)


# Files of a git repository


def _of_git(root: str, below: str, patterns: Sequence[str]) -> Iterator[tuple[str, str]]:
    """The files of a repository below a directory of the project, including those of nested repositories."""
    directory = os.path.join(root, below)
    tracked = set(git.list_files(directory, "--cached"))
    others = (
        set(git.list_files(directory, "--others", "--exclude-standard", "--directory")) - tracked
    )
    ignored = git.list_files(
        directory, "--others", "--ignored", "--exclude-standard", "--directory"
    )
    never = {_join(below, name.rstrip("/")) for name in ignored}
    for path in sorted(never):
        full, name = os.path.join(root, path), os.path.basename(path)
        if not ignore_rules.is_generated(name) and not ignore_rules.is_environment(full):
            yield path, "git ignores it"
    behind: dict[str, bool] = {}
    for name in sorted(tracked):
        path = _join(below, name)
        if _is_behind_link(root, path, behind):
            continue
        if ignore_rules.matches(path, patterns):
            yield path, f"{ignore_rules.IGNORE_FILE} names it"
        elif _is_directory(root, path):
            yield from _of_inner(root, path, patterns)
        else:
            yield path, ""
    unknown: list[str] = []
    for name in sorted(others):
        # Where git tracks nothing, it lists the directory itself, whose `.git` is no repository to it, if it has one.
        itself = name == "./"
        path = (below or ".") if itself else _join(below, name.rstrip("/"))
        if not name.endswith("/"):
            yield path, _why_not_untracked(path, patterns)
        elif why := _why_not_directory(root, path, patterns):
            yield path, why
        elif not itself and os.path.lexists(os.path.join(root, path, ".git")):
            yield from _of_git(root, path, patterns)
        else:
            unknown.append(name)
    if unknown:
        yield from _of_untracked(root, below, unknown, patterns, never)


def _of_inner(root: str, path: str, patterns: Sequence[str]) -> Iterator[tuple[str, str]]:
    """The files of a submodule, or of another nested repository."""
    if os.path.lexists(os.path.join(root, path, ".git")):
        yield from _of_git(root, path, patterns)
    else:
        yield from _of_directory(root, path, patterns)


def _of_untracked(
    root: str, below: str, directories: Sequence[str], patterns: Sequence[str], never: set[str]
) -> Iterator[tuple[str, str]]:
    """The files and empty directories of directories in which git tracks nothing, except ignored ones.

    Args:
        root: The project.
        below: The directory of the project that git is asked in.
        directories: Their paths below that one, as git lists them.
        patterns: Those of `.flowignore`.
        never: The paths that git ignores.
    """
    left_out: set[str] = set()
    for name in directories:
        for directory, names, files in os.walk(os.path.join(root, below, name)):
            where = os.path.relpath(directory, root)
            if not names and not files:
                yield where, ""
            kept = []
            for inner in (_join(where, each) for each in sorted(names)):
                if inner in never or _is_link(root, inner):
                    continue
                if why := _why_not_directory(root, inner, patterns):
                    left_out.add(inner)
                    yield inner, why
                else:
                    kept.append(os.path.basename(inner))
            names[:] = kept
    for name in sorted(git.list_untracked(os.path.join(root, below), directories)):
        path = _join(below, name.rstrip("/"))
        if not left_out.isdisjoint(_directories_of(path)):
            continue
        if name.endswith("/"):
            yield from _of_inner(root, path, patterns)
        else:
            yield path, _why_not_untracked(path, patterns)


def _directories_of(path: str) -> Iterator[str]:
    """The path itself, and the directories above it below the root."""
    while path:
        yield path
        path = os.path.dirname(path)


def _is_link(root: str, path: str) -> bool:
    return os.path.islink(os.path.join(root, path))


def _is_behind_link(root: str, path: str, known: dict[str, bool]) -> bool:
    """Whether a directory above a path is a link, which may lead out of the project.

    To git, what it tracks there is deleted. `known` has the answer for each directory.
    """
    above = os.path.dirname(path)
    if above not in known:
        full = os.path.normpath(os.path.join(root, above))
        known[above] = os.path.realpath(full) != full
    return known[above]


def _is_directory(root: str, path: str) -> bool:
    return os.path.isdir(os.path.join(root, path)) and not _is_link(root, path)


def _why_not_untracked(path: str, patterns: Sequence[str]) -> str:
    name = os.path.basename(path)
    if ignore_rules.matches(path, patterns):
        return f"{ignore_rules.IGNORE_FILE} names it"
    if ignore_rules.is_environment_file(name):
        return "it may hold secrets, and git does not track it"
    return "it can be made anew" if ignore_rules.is_generated(name) else ""


def _why_not_directory(root: str, path: str, patterns: Sequence[str]) -> str:
    if ignore_rules.matches(os.path.join(path, ""), patterns):
        return f"{ignore_rules.IGNORE_FILE} names it"
    if os.path.basename(path) == ".git":
        return "it is the repository itself"
    generated = ignore_rules.is_generated(os.path.basename(path))
    if generated or ignore_rules.is_environment(os.path.join(root, path)):
        return "it can be made anew"
    if path != "." and git.is_linked_work_tree(os.path.join(root, path)):
        return "it is another work tree of the repository"
    return ""


# Files of a directory without git


def _of_directory(
    root: str, below: str, patterns: Sequence[str], ignored: Sequence[str] = ()
) -> Iterator[tuple[str, str]]:
    def refuse(error: OSError) -> None:
        raise BundleError(f"{error.filename} cannot be read: {error.strerror}") from error

    for directory, names, files in os.walk(os.path.join(root, below), onerror=refuse):
        where = os.path.relpath(directory, root)
        here = "" if where == "." else where
        links = [n for n in names if os.path.islink(os.path.join(directory, n))]
        kept = []
        for name in sorted(set(names) - set(links)):
            if why := _why_not_plain(root, _join(here, name) + os.sep, patterns, ignored):
                yield _join(here, name), why
            else:
                kept.append(name)
        names[:] = kept
        for name in sorted([*files, *links]):
            yield _join(here, name), _why_not_plain(root, _join(here, name), patterns, ignored)
        if here and not kept and not files and not links:
            yield here, ""


def _why_not_plain(root: str, path: str, patterns: Sequence[str], ignored: Sequence[str]) -> str:
    """The reason why a file is left out, or a directory, whose path ends with a slash; "" if it is not.

    Args:
        root: The project.
        path: Its path.
        patterns: Those of `.flowignore`.
        ignored: Those of `.gitignore`.
    """
    name = os.path.basename(path.rstrip(os.sep))
    if name.startswith("."):
        return "its name begins with a dot"
    if ignore_rules.matches(path, patterns) or ignore_rules.matches(path, ignored):
        return f"{ignore_rules.IGNORE_FILE} or .gitignore names it"
    if ignore_rules.is_generated(name) or ignore_rules.is_environment(os.path.join(root, path)):
        return "it can be made anew"
    return ""


# Files, links and directories


def _add(listing: ProjectListing, path: str, why: str) -> None:
    if why:
        listing.left_out[path] = why
        return
    full = os.path.join(listing.root, path)
    try:
        found = os.lstat(full)
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ENOTDIR):
            raise BundleError(f"{full} cannot be read: {error.strerror}") from error
        # The file is tracked by git but was deleted here.
        return
    if stat.S_ISREG(found.st_mode):
        listing.files[path] = found.st_size
    elif stat.S_ISDIR(found.st_mode):
        listing.directories.add(path)
    elif stat.S_ISLNK(found.st_mode):
        target = _target_inside(listing.root, path)
        if target is None:
            listing.left_out[path] = "it is a link that leads out of the project"
        else:
            listing.links[path] = target
    else:
        listing.left_out[path] = "it is neither a file nor a directory"


def _target_inside(root: str, path: str) -> str | None:
    """The target of a link, relative to the link's directory; None if it is outside of the project."""
    where = os.path.dirname(os.path.join(root, path))
    target = os.path.join(where, os.readlink(os.path.join(root, path)))
    found, target = os.path.realpath(target), os.path.normpath(target)
    # A link in the target's path may lead out of the project, too.
    if os.path.commonpath([root, found]) != root:
        return None
    if os.path.commonpath([root, target]) != root:
        # It is absolute, and names the project by another way, as where the home directory is a link.
        target = _below_root(root, target) or found
    return os.path.relpath(target, where)


def _below_root(root: str, target: str) -> str | None:
    """A path of the project whose beginning names the root in another way, by the root's own name."""
    for above in Path(target).parents:
        if os.path.realpath(above) == root:
            return os.path.join(root, os.path.relpath(target, above))
    return None


def _join(directory: str, name: str) -> str:
    return name if directory in ("", ".") else f"{directory}/{name}"


# Limits


def largest(files: Iterable[tuple[str, int]], most: int = 3) -> str:
    """The largest of these files with their sizes, as text."""
    ranked = sorted(files, key=lambda each: (-each[1], each[0]))[:most]
    return ", ".join(f"{path} ({human_size(size)})" for path, size in ranked)


def _too_many(listing: ProjectListing) -> str:
    counts: dict[str, int] = {}
    for path in listing.files:
        first = path.partition("/")[0] + "/" if "/" in path else "."
        counts[first] = counts.get(first, 0) + 1
    most = sorted(counts, key=lambda name: -counts[name])[:3]
    named = ", ".join(f"{name} ({counts[name]:,} so far)" for name in most)
    return (
        f"the project {listing.root} has more than {MOST_FILES:,} files: {named}. Name what the nodes do not need in "
        f".gitignore or {ignore_rules.IGNORE_FILE}, put data on a volume or in a bucket, or run with --no-sync"
    )
