"""The snapshot of a project's files that a task keeps, so that an edit after submission does not affect it.

Contents are stored under their hash in `FLOW_HOME/files`, once for all tasks, and each task has a manifest that names
them (`node/project_files/manifest.py`). A file whose times and size have not changed since it was last read is not read
again: `FLOW_HOME/files/index-…` has the hashes of each project's files.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from flowlite.bundle.project_files import ProjectListing
from flowlite.connect.values import hash_of
from flowlite.errors import BundleError, ConfigError, StoreError
from flowlite.node.project_files.manifest import Entry, ManifestError, ProjectManifest
from flowlite.node.system import atomic_files
from flowlite.node.system.atomic_files import write_atomically

_BLOCK = 1 << 20
_TRIES = 3
# A file may change again within the same tick of its file system's clock, so recent changes are not trusted.
_SETTLED_SECONDS = 2.0
MANIFEST = "project.json"
"""Name of the manifest among the files of a task."""
KEPT_SECONDS = 14 * 86400.0
"""Seconds for which a file's content is kept after a task has last used it."""


def take_snapshot(
    home: Path, listing: ProjectListing, others: Mapping[str, Path], target: Path
) -> str:
    """Copies new contents to FLOW_HOME, and writes the manifest. Returns the manifest's hash.

    Args:
        home: FLOW_HOME.
        listing: The parts of the project that are sent.
        others: Files from elsewhere, by their path below the project's root. They replace the project's own files.
        target: Where the manifest is written.

    Raises:
        BundleError: A file cannot be read, or is being written to.
        StoreError: FLOW_HOME cannot be written.
    """
    store = _Store(home / "files", listing.root)
    sources = {path: Path(listing.root, path) for path in listing.files}
    sources |= others
    entries = []
    for path in sorted(sources):
        with contextlib.suppress(_Deleted):
            entries.append(store.add(path, sources[path]))
    manifest = ProjectManifest(
        files=tuple(entries),
        links={path: to for path, to in sorted(listing.links.items()) if path not in sources},
        directories=tuple(sorted(listing.directories - sources.keys())),
    )
    content = manifest.to_json()
    store.close()
    try:
        ProjectManifest.from_json(content)
    except ManifestError as error:
        raise BundleError(f"files: {error}") from error
    with _explained(target):
        write_atomically(target, content)
    return hashlib.sha256(content).hexdigest()


def use_again(home: Path, manifest: Path, sha256: str) -> list[str]:
    """Marks the contents of an earlier task as used now. Returns the paths whose contents are not stored any more.

    Raises:
        OSError: The manifest cannot be read.
        ManifestError: It is invalid.
        ConfigError: The manifest or a content was changed since.
    """
    instead = "add --now to send the project's files as they are now"
    refuse_changed_input(manifest, sha256, "the list of the project's files", instead)
    lost = []
    for entry in ProjectManifest.from_json(manifest.read_bytes()).files:
        place = home / "files" / entry.sha256
        try:
            os.utime(place)
            refuse_changed_input(place, entry.sha256, f"the content of {entry.path}", instead)
        except OSError:
            lost.append(entry.path)
    return lost


def refuse_changed_input(path: Path, sha256: str, what: str, instead: str) -> None:
    """Raises ConfigError if an input of an earlier task was changed since, OSError if it is not there.

    Args:
        path: The file in FLOW_HOME.
        sha256: Its hash when that task was submitted.
        what: What it is, for people.
        instead: What to do, for people.
    """
    if hash_of(path) != sha256:
        raise ConfigError(
            f"{path}, {what}, was changed after that task was submitted (its SHA-256 differs), and nothing was sent; "
            f"{instead}"
        )


def remove_unused(home: Path, manifests: Iterable[Path], *, dry_run: bool = False) -> int:
    """Removes contents that no task has used for `KEPT_SECONDS` and that no given manifest names.

    Args:
        dry_run: Only count them.

    Returns:
        The bytes of the removed contents.
    """
    needed: set[str] = set()
    for path in manifests:
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            needed |= {entry.sha256 for entry in ProjectManifest.from_json(path.read_bytes()).files}
    removed, until = 0, time.time() - KEPT_SECONDS
    with contextlib.suppress(FileNotFoundError):
        for entry in os.scandir(home / "files"):
            with contextlib.suppress(OSError):
                facts = entry.stat(follow_symlinks=False)
                if entry.name not in needed and facts.st_mtime < until:
                    if not dry_run:
                        os.unlink(entry.path)
                    removed += facts.st_size
    return removed


class _Deleted(Exception):
    """The file no longer exists."""


class _Store:
    """The contents in FLOW_HOME, and the hashes of one project's files from the last time that they were read."""

    def __init__(self, directory: Path, root: str) -> None:
        self._directory = directory
        digest = hashlib.sha256(os.fsencode(root)).hexdigest()[:16]
        self._index = directory / f"index-{digest}"
        self._now = time.time()
        self._before: dict[str, Any] = {}
        self._seen: dict[str, list[Any]] = {}
        with contextlib.suppress(OSError, ValueError):
            found = json.loads(self._index.read_bytes())
            self._before = found if isinstance(found, dict) else {}
        with _explained(directory):
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)

    def add(self, path: str, source: Path) -> Entry:
        """Stores the content of a file, unless it is stored already."""
        try:
            return self._add(path, source)
        except FileNotFoundError as error:
            raise _Deleted from error
        except StoreError:
            raise
        except OSError as error:
            raise BundleError(
                f"the file {source} cannot be read: {error.strerror}; name it in .flowignore if no node needs it"
            ) from error

    def close(self) -> None:
        """Saves the hashes for the next task of this project."""
        with contextlib.suppress(OSError):
            write_atomically(self._index, json.dumps(self._seen).encode())

    def _add(self, path: str, source: Path) -> Entry:
        facts = os.stat(source)
        key = _identity(facts)
        known = self._before.get(str(source))
        if isinstance(known, list) and known[:-1] == key and self._use(known[-1], facts.st_size):
            self._seen[str(source)] = known
            return Entry(path, known[-1], facts.st_size, bool(facts.st_mode & 0o100))
        for _ in range(_TRIES):
            sha256, size, facts = self._copy(source)
            settled = _identity(os.stat(source)) == _identity(facts) and size == facts.st_size
            if settled:
                if max(facts.st_mtime, facts.st_ctime) < self._now - _SETTLED_SECONDS:
                    self._seen[str(source)] = [*_identity(facts), sha256]
                return Entry(path, sha256, size, bool(facts.st_mode & 0o100))
        raise BundleError(
            f"the file {source} is being written to, so there is no state of it that could be sent; wait for the end "
            "of that, or name it in .flowignore"
        )

    def _use(self, sha256: str, size: int) -> bool:
        """Whether the content with this hash is stored. If so, it is marked as used now."""
        place = self._directory / sha256
        try:
            if place.stat().st_size != size:
                return False
            os.utime(place)
        except OSError:
            return False
        return True

    def _copy(self, source: Path) -> tuple[str, int, os.stat_result]:
        """Reads a file and stores its content unless it is stored already. Returns hash, size and the stat result."""
        digest, size = hashlib.sha256(), 0
        with atomic_files.open_regular(source) as file:
            facts = os.fstat(file.fileno())
            partial = self._directory / f".{os.getpid()}-{os.urandom(4).hex()}.part"
            try:
                with (
                    _explained(self._directory),
                    open(atomic_files.begin(str(partial)), "wb", buffering=0) as copy,
                ):
                    while block := _read(file, source):
                        digest.update(block)
                        size += len(block)
                        # As a whole: the last write to a disk that fills up takes a part, and tells no error.
                        atomic_files.write(copy.fileno(), block)
                if self._use(digest.hexdigest(), size):
                    partial.unlink()
                else:
                    with _explained(self._directory):
                        os.replace(partial, self._directory / digest.hexdigest())
            except BaseException:
                partial.unlink(missing_ok=True)
                raise
        return digest.hexdigest(), size, facts


def _read(file: io.FileIO, source: Path) -> bytes:
    try:
        return file.read(_BLOCK) or b""
    except OSError as error:
        raise BundleError(f"the file {source} cannot be read: {error.strerror}") from error


def _identity(facts: os.stat_result) -> list[int]:
    return [facts.st_dev, facts.st_ino, facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns]


@contextlib.contextmanager
def _explained(place: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StoreError(
            f"the project's files cannot be kept in {place}: {error.strerror}; free some space there, or let "
            "FLOW_HOME point elsewhere"
        ) from error
