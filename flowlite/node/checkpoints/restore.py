"""Restores the newest complete set, before workers start."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from ..system.byte_sizes import human_size
from . import tree
from .manifest import (
    BadManifest,
    CheckpointManifest,
    File,
    SetName,
    SetOf,
    agree,
    is_complete,
    whole_sets,
)
from .stability import beside_files, checkpoint_above
from .state import CheckpointState
from .targets import Target, TargetError

_PARALLEL = 4


class RestoreError(TargetError):
    """There are sets, but none of them can be restored."""


class Restore:
    """Restores the newest complete set into a directory.

    Attributes:
        taken: The set that was restored: name and manifest of this node; None if there was none.
        manifests: Those of all nodes in that set, by node.
        brought: The files that were restored.
    """

    def __init__(
        self,
        place: Target,
        root: Path,
        shown_at: str,
        memory: CheckpointState,
        *,
        node: int,
        nodes: int,
        only: set[str] | None = None,
        without: Collection[str] = (),
    ) -> None:
        """
        Args:
            shown_at: The path at which the workers see the directory.
            node: The node whose files to restore.
            nodes: How many nodes copy.
            only: The files that were put aside on a node that has all others; what is missing there then is restored,
                too, and nothing else. None restores all files that are missing here or known to be older.
            without: Directories of checkpoints that are not restored.
        """
        self._place = place
        self._root, self._shown_at = root, shown_at
        self._memory = memory
        self._node = node
        self._nodes = nodes
        self._only = only
        self._without = without
        self.manifests: Sequence[CheckpointManifest] = ()
        self.taken: tuple[SetName, CheckpointManifest] | None = None
        self._kept: list[str] = []
        self.brought: list[File] = []
        self._problems: list[str] = []

    def run(self) -> None:
        """Raises RestoreError, TargetError, and OSError if the directory cannot be written."""
        sets = whole_sets(SetName.among(self._place.sizes("sets/")))
        if not sets:
            return
        if len(sets[0].names) != self._nodes:
            raise RestoreError(self._other_number(len(sets[0].names)))
        loaded: list[tuple[SetOf, list[CheckpointManifest]]] = []
        for candidate in sets:
            manifests = self._load(candidate)
            if manifests is None:
                continue
            if agree(manifests) and self._take(candidate, manifests):
                return
            loaded.append((candidate, manifests))
        # In no set do all nodes have the same directories; each node may use its own names.
        for candidate, manifests in loaded:
            if not agree(manifests) and self._take(candidate, manifests):
                return
        raise RestoreError(
            f"{len(sets)} sets of checkpoints are at {self._place.name}, and none is whole: "
            f"{'; '.join(self._problems[:3])}. To begin anew, give checkpoint.sync another place, or empty this one"
        )

    def _other_number(self, found: int) -> str:
        how = {True: "nodes='leader'", False: "nodes='all'"}
        return (
            f"the checkpoints at {self._place.name} were copied by {found} "
            f"{'node' if found == 1 else 'nodes'} ({how[found == 1]}), and this task would copy from {self._nodes} "
            f"({how[self._nodes == 1]}); give it the same nodes, or another place in checkpoint.sync"
        )

    def _load(self, candidate: SetOf) -> list[CheckpointManifest] | None:
        """Returns the manifests of a set, if all its files exist."""
        label = f"set {candidate.names[0].label}"
        try:
            manifests = [
                CheckpointManifest.from_json(self._place.read(name.path))
                for name in candidate.names
            ]
        except FileNotFoundError:
            return None
        except BadManifest as error:
            self._problems.append(f"{label}: {error}")
            return None
        if not is_complete(manifests, self._place.sizes("files/")):
            self._problems.append(f"{label}: files are missing or have another size")
            return None
        return manifests

    def _take(self, candidate: SetOf, manifests: Sequence[CheckpointManifest]) -> bool:
        """Restores a set. Returns False if it turns out to be incomplete."""
        mine = manifests[self._node]
        wanted = [file for file in mine.files if self._wants(file)]
        try:
            with ThreadPoolExecutor(_PARALLEL) as pool:
                list(pool.map(self._fetch, wanted))
            for file in wanted:
                partial = tree.partial_of(self._root, file.path)
                seen = tree.put_in_place(self._root, file, partial)
                self._memory.learn(file.path, seen, file.sha256)
        except (FileNotFoundError, _Damaged) as error:
            self._problems.append(f"set {candidate.names[0].label}: {error}")
            return False
        finally:
            for file in wanted:
                with contextlib.suppress(OSError):
                    tree.partial_of(self._root, file.path).unlink(missing_ok=True)
        if self._only is None or self._only:
            self._put_links(mine)
            for path in beside_files(mine.directories, (file.path for file in mine.files)):
                tree.make_parents(self._root, f"{path}/.")
        self.taken, self.manifests = (candidate.names[self._node], mine), manifests
        self.brought = wanted
        self._memory.save()
        return True

    def _put_links(self, manifest: CheckpointManifest) -> None:
        """Creates the links of a set. One here that leads to a file which is in no set is newer, and stays."""
        here = tree.look_at(self._root, self._shown_at)
        stored = {file.path for file in manifest.files}.difference(self._kept)
        newer = [
            path
            for path, seen in here.files.items()
            if path not in stored and self._memory.hash_of(path, seen) is None
        ]
        for path, target in manifest.links.items():
            if checkpoint_above(f"{tree.end_of(path, target)}/") in self._without:
                continue
            if (known := here.links.get(path)) is not None and known != target:
                at = tree.end_of(path, known)
                if any(each == at or each.startswith(f"{at}/") for each in newer):
                    continue
            tree.put_link(self._root, path, target)

    def _wants(self, file: File) -> bool:
        if checkpoint_above(file.path) in self._without:
            return False
        here = tree.seen_at(self._root / file.path)
        if self._only is not None:
            # Their writer may have deleted what came before them.
            return file.path in self._only or (here is None and bool(self._only))
        if here is None:
            return True
        if here.mark == (file.size, file.mtime_ns):
            self._memory.learn(file.path, here, file.sha256)
            return False
        # A file that we copied or restored is in some set already, so this set's version is newer.
        if self._memory.hash_of(file.path, here) is not None:
            return True
        if here.size == file.size and tree.sha256_of(self._root / file.path) == file.sha256:
            self._memory.learn(file.path, here, file.sha256)
            return False
        # No set has its content, so it is newer.
        self._kept.append(file.path)
        return False

    def _fetch(self, file: File) -> None:
        tree.make_parents(self._root, file.path)
        partial = tree.partial_of(self._root, file.path)
        try:
            self._place.download(file.object, partial, file.size)
        except OSError as error:
            if error.errno is None or error.filename is not None:
                raise
            # A disk that is full does not say which file and disk it was.
            raise TargetError(
                f"{file.path} ({human_size(file.size)}) cannot be brought to {self._root}: {error.strerror}"
            ) from error
        if partial.stat().st_size != file.size or tree.sha256_of(partial) != file.sha256:
            raise _Damaged(f"{file.object} is not what was copied there")


class _Damaged(OSError):
    """The content of an object differs from its manifest."""
