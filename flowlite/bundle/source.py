"""The snapshot of the project's source that is sent with a call, so that an edit after submission does not affect it.

It has, for every module that the call can reach through imports (those inside functions included):

- for a package, the whole tree of its top-level package, data files included;
- for a single file (such as a script), the Python files and the packages beside it (Python files only);
- the program's own file, as it was when the program started, if the node loads it as its main module;
- the files of all other project modules that are loaded now, since modules may be imported by computed names;
- the modules that the call imports from behind a link to a directory.

It never has hidden directories, caches, virtual environments, `node_modules`, or files that the `.flowignore` of the
root or of the project names (as `.gitignore` does). Files that git ignores, `.env` files that it does not track
and, without git, hidden files may be secrets: of them, it has only compiled modules, and Python files that are
imported. There is one zip for each directory of `sys.path` concerned. The same source always gives the same zip.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.machinery
import io
import os
import sys
import types
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from flowlite.bundle import git, scan
from flowlite.bundle.ignore_rules import (
    IGNORE_FILE,
    is_environment_file,
    is_generated,
    is_skipped_directory,
    matches,
    read_patterns,
)
from flowlite.bundle.main_file import MainFile
from flowlite.bundle.project import NEVER_SENT, Project, Top
from flowlite.bundle.project_files import find_root
from flowlite.errors import BundleError
from flowlite.node.quick_dataclass import dataclass
from flowlite.node.system.atomic_files import write_atomically
from flowlite.node.system.byte_sizes import human_size
from flowlite.spec.environment import is_unicode

MOST_FILES = 10_000
MOST_BYTES = 128 * 1024 * 1024
# Below this size in bytes, compressing takes longer than sending.
_PACK_FROM = 4 * 1024 * 1024
Ignored = Callable[[str], bool]
_COMPILED = tuple(importlib.machinery.EXTENSION_SUFFIXES)


@dataclass(frozen=True)
class Source:
    """One snapshot of project source, taken from `root`: a zip to be extracted and put in front of `sys.path`."""

    path: Path
    sha256: str
    root: str


def reachable(
    project: Project, modules: Iterable[str], codes: Iterable[tuple[types.CodeType, str]]
) -> set[str]:
    """The names of the project's modules that the given modules and code can reach through imports.

    Args:
        project: Where modules are looked up.
        modules: Modules to begin with; those that do not belong to the project are ignored.
        codes: Code that is sent by value, each with the package that its relative imports start from.
    """
    left = [name for name in modules if project.owns(name)]
    for code, package in codes:
        left += _imported(project, code, package)
    found: set[str] = set()
    while left:
        name = left.pop()
        if name in found or not project.exists(name):
            continue
        found.add(name)
        if parent := name.rpartition(".")[0]:
            left.append(parent)
        if module_code := project.code(name):
            left += _imported(project, module_code, project.package_of(name))
    return found


def snapshot(
    project: Project, modules: Iterable[str], directory: Path, main: MainFile | None = None
) -> tuple[Source, ...]:
    """Writes a zip for each root into `directory`, in the order of `sys.path`; with the program's file, if given.

    Raises:
        BundleError: The source is too large, or cannot be read.
    """
    roots = _files(project, modules)
    own: dict[str, bytes] = {}
    if main is not None:
        roots.setdefault(main.root, {})[os.path.relpath(main.path, main.root)] = main.path
        own[main.path] = main.data
    order = {
        os.path.abspath(entry or os.getcwd()): at
        for at, entry in reversed(list(enumerate(sys.path)))
    }
    ranked = sorted(roots, key=lambda root: (order.get(root, len(order)), root))
    for root in ranked:
        _check_limits(root, roots[root], own)
    return tuple(_write(root, roots[root], directory, own) for root in ranked)


def _imported(project: Project, code: types.CodeType, package: str) -> Iterator[str]:
    for statement in scan.all_imports(code):
        name = statement.absolute(package)
        if name and project.owns(name):
            yield name
            yield from (f"{name}.{item}" for item in statement.names)


def _files(project: Project, modules: Iterable[str]) -> dict[str, dict[str, str]]:
    """The files to send: root -> name in the zip -> file."""
    roots: dict[str, dict[str, str]] = {}
    modules = list(modules)
    tops = {top for name in modules for top in project.tops(name)}
    if not tops:
        return {}
    ignored = {root: _ignored(root) for root in {top.root for top in tops}}
    for top in tops:
        files = roots.setdefault(top.root, {})
        for path in (
            _tree(top, ignored[top.root]) if top.package else _beside(top, ignored[top.root])
        ):
            files[os.path.relpath(path, top.root)] = path
    imported = {project.file(name) for name in modules}
    for name in modules:
        # Also behind a link to a directory, which is not followed for all that is there.
        for top, path in _place_of(project, name):
            below = os.path.relpath(path, top.root)
            if top.root in ignored and not ignored[top.root](below):
                roots.setdefault(top.root, {}).setdefault(below, path)
    for root, files in roots.items():
        for name in _private(root, [n for n, path in files.items() if path not in imported]):
            del files[name]
    for name, _ in project.loaded():
        for top, path in _place_of(project, name):
            roots.setdefault(top.root, {}).setdefault(os.path.relpath(path, top.root), path)
    for top in tops:
        _name_as_imported(top, roots[top.root])
    return {root: files for root, files in roots.items() if files}


def _name_as_imported(top: Top, files: dict[str, str]) -> None:
    """Gives the files of a package the names by which it is imported, if its directory has another name."""
    if not top.package or os.path.basename(top.path) == top.name:
        return
    for name, path in list(files.items()):
        if path.startswith(top.path + os.sep):
            del files[name]
            files[os.path.join(top.name, os.path.relpath(path, top.path))] = path


def _place_of(project: Project, name: str) -> Iterator[tuple[Top, str]]:
    """The file of a module, with the top-level module of the project that it is in."""
    path = project.file(name)
    if path is not None:
        yield from ((top, path) for top in project.tops(name) if path.startswith(top.root + os.sep))


def _ignored(root: str) -> Ignored:
    """Tells which paths below a root `.flowignore` names: that of the root, and that of the project it is in."""
    own, real = read_patterns(root), os.path.realpath(root)
    project = find_root(real) or real
    above = os.path.relpath(real, project)
    theirs = read_patterns(project) if project != real else []
    if not theirs or matches(os.path.join(above, ""), theirs):
        # Where the project's names the root itself, it is about the working directory: calls need source.
        return lambda below: matches(below, own)
    return lambda below: matches(below, own) or matches(os.path.join(above, below), theirs)


def _tree(top: Top, ignored: Ignored, *, only_python: bool = False) -> Iterator[str]:
    for directory, names, files in os.walk(top.path):
        below = os.path.relpath(directory, top.root)
        names[:] = sorted(
            n
            for n in names
            if not (is_skipped_directory(directory, n) or ignored(os.path.join(below, n, "")))
        )
        for name in files:
            path = os.path.join(directory, name)
            if is_generated(name) or (only_python and not name.endswith(".py")):
                continue
            if not ignored(os.path.join(below, name)) and os.path.isfile(path):
                yield path


def _beside(top: Top, ignored: Ignored) -> Iterator[str]:
    yield top.path
    with os.scandir(top.root) as entries:
        for entry in entries:
            if ignored(os.path.join(entry.name, "") if entry.is_dir() else entry.name):
                continue
            if entry.is_file() and entry.name.endswith(".py"):
                yield entry.path
            elif _is_package(entry) and not is_skipped_directory(top.root, entry.name):
                package = Top(entry.name, top.root, entry.path, package=True)
                yield from _tree(package, ignored, only_python=True)


def _private(root: str, names: Iterable[str]) -> set[str]:
    """Those of the files of a root that may be secrets: what git ignores; without git, what is hidden or ignored."""
    private: set[str] = set()
    known: dict[str, tuple[str | None, str]] = {}
    asked: dict[str | None, dict[str, str]] = {}
    for name in names:
        if name.endswith(_COMPILED):
            continue
        above, last = os.path.split(name)
        if above not in known:
            real = os.path.realpath(os.path.join(root, above))
            known[above] = git.repository_of(real), real
        repository, directory = known[above]
        below = os.path.relpath(os.path.join(directory, last), repository or root)
        asked.setdefault(repository, {})[below] = name
    for repository, files in asked.items():
        try:
            found = _private_to_git(repository, files) if repository else None
        except BundleError:
            # As where a repository belongs to another user. The call may do without git.
            found = None
        if found is None:
            found = _private_without_git(root, files)
        private.update(files[below] for below in found)
    return private


def _private_to_git(repository: str, files: Iterable[str]) -> set[str]:
    private = git.ignored_among(repository, files)
    environments = [each for each in files if is_environment_file(os.path.basename(each))]
    if unknown := set(environments) - private:
        private |= unknown - git.tracked_among(repository, sorted(unknown))
    return private


def _private_without_git(root: str, files: dict[str, str]) -> set[str]:
    project = find_root(root) or root
    patterns = read_patterns(project, ".gitignore")
    return {
        below
        for below, name in files.items()
        if os.path.basename(name).startswith(".")
        or matches(os.path.relpath(os.path.join(root, name), project), patterns)
    }


def _is_package(entry: os.DirEntry[str]) -> bool:
    if entry.name in NEVER_SENT or not entry.is_dir():
        return False
    return os.path.isfile(os.path.join(entry.path, "__init__.py"))


def _check_limits(root: str, files: dict[str, str], own: dict[str, bytes]) -> None:
    sizes = {name: _size(path, own) for name, path in files.items()}
    total = sum(sizes.values())
    if len(files) <= MOST_FILES and total <= MOST_BYTES:
        return
    largest = sorted(sizes, key=lambda name: -sizes[name])[:3]
    raise BundleError(
        f"the source in {root} is too large to send: {len(files)} files, {human_size(total)} "
        f"(at most {MOST_FILES} files and {human_size(MOST_BYTES)}). The largest are "
        + ", ".join(f"{name} ({human_size(sizes[name])})" for name in largest)
        + ". Put data on a volume, or name what the nodes do not need in "
        f"{os.path.join(root, IGNORE_FILE)}, one pattern a line"
    )


def _size(path: str, own: dict[str, bytes]) -> int:
    if path in own:
        return len(own[path])
    with _explained(path):
        return os.path.getsize(path)


@contextlib.contextmanager
def _explained(path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise BundleError(f"the source file {path} cannot be read: {error.strerror}") from error


def _write(root: str, files: dict[str, str], directory: Path, own: dict[str, bytes]) -> Source:
    """Writes the zip of one root. `own` has the contents of files that are not read from the disk."""
    import zipfile

    contents = {}
    for name in sorted(files):
        if not is_unicode(name):
            raise BundleError(
                f"the source file {os.fsencode(name)!r} in {root} has a name that is not UTF-8, which no archive can "
                f"have; rename it, or name it in {os.path.join(root, IGNORE_FILE)}"
            )
        known = own.get(files[name])
        with _explained(files[name]):
            contents[name] = Path(files[name]).read_bytes() if known is None else known
    packed = sum(map(len, contents.values())) >= _PACK_FROM
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in contents.items():
            entry = zipfile.ZipInfo(name.replace(os.sep, "/"), (1980, 1, 1, 0, 0, 0))
            entry.create_system, entry.external_attr = 3, 0o600 << 16
            entry.compress_type = zipfile.ZIP_DEFLATED if packed else zipfile.ZIP_STORED
            archive.writestr(entry, content, compresslevel=1)
    data = buffer.getvalue()
    sha256 = hashlib.sha256(data).hexdigest()
    path = directory / f"source-{sha256}.zip"
    write_atomically(path, data)
    return Source(path, sha256, root)
