"""Copies one directory of checkpoints to one target, as sets that are complete or absent."""

from __future__ import annotations

import contextlib
import json
import posixpath
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from ..system import processes, retrying
from . import tree
from .manifest import (
    BadManifest,
    CheckpointManifest,
    File,
    SetName,
    agree,
    claim_name,
    generation_of,
    object_name,
    superfluous,
    writers,
)
from .restore import Restore
from .stability import (
    FileState,
    StabilityWatch,
    beside_files,
    checkpoint_above,
    checkpoints_of,
    complete_as_others,
    is_inside,
    is_of_checkpoint,
    is_temporary,
    without_metadata,
    words_for,
    written_again,
)
from .state import CheckpointState
from .targets import Target, TargetError, place_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence
    from typing import Any

SETTLE_SECONDS = 2.0
"""How long a file must not have changed to count as finished; less if copies are made more often."""
PROOF_SECONDS = retrying.NEVER_REACHED
_PARALLEL = 4
# The largest file that is read to see whether it names a checkpoint, in bytes.
_LARGEST_POINTER = 100


class Replaced(TargetError):
    """Another writer copies to the same target now."""


class CopiesRemoved(TargetError):
    """The copies that we made are gone."""


class Copier:
    """Copies one directory to one target."""

    def __init__(self, order: Mapping[str, Any]) -> None:
        """
        Args:
            order: The settings that `Checkpoints` in `agent_side.py` writes.
        """
        self.order = order
        self.node, self.nodes = int(order["node"]), int(order["nodes"])
        self.root, self.shown_at = Path(order["root"]), str(order["shown_at"])
        self.place: Target = place_of(order["sync"], Path(order["storage"]))
        self.memory = CheckpointState(Path(order["memory"]))
        self.watch = StabilityWatch(min(SETTLE_SECONDS, float(order["every"]) / 2))
        # Contact with other nodes is not known here, so a target that never answered counts as closed.
        self._trial = retrying.RetryWindow(lambda: 0.0, float(order["outage"]))
        self.newest: tuple[SetName, CheckpointManifest] | None = None
        self._generation = 0
        self._number = 0
        self._goes_on = False
        # Files that a writer of this attempt may have left incomplete. Later sets do not keep what is deleted for them.
        self._cut_off: set[str] = set()
        self._uploaded: dict[str, int] = {}
        self._orphans: set[str] = set()
        self._manifests: dict[str, CheckpointManifest | None] = {}
        self._look = tree.TreeScan()
        self._lock = threading.Lock()
        # What other nodes have told of the checkpoints that they have, each a directory: "whole", and "half".
        self._told: dict[int, dict[str, list[str]]] = {}

    @property
    def scope(self) -> str:
        """The prefix of this node's files at the target."""
        return "files" if self.nodes == 1 else f"files/node{self.node:04d}"

    @property
    def _stored(self) -> tuple[File, ...]:
        """The files of the newest set; none if there is no set."""
        return self.newest[1].files if self.newest is not None else ()

    # Before workers start

    def check(self) -> None:
        """Checks that the target can be used. Raises TargetError."""
        retrying.through_outages(self.place.check, self._trial)

    def prove(self, token: str, write: bool) -> None:
        """Checks that all nodes see the same target, and tells them what is whole here. Raises TargetError."""
        retrying.through_outages(lambda: self._prove(token, write), self._trial)

    def _prove(self, token: str, write: bool) -> None:
        name = f"proof/{token}"
        mine = json.dumps({"whole": sorted(self._whole()), "half": sorted(self._half())}).encode()
        until = time.monotonic() + PROOF_SECONDS
        if write:
            self.place.delete([old for old in self.place.sizes("proof/") if name not in old])
            self.place.write(name, mine)
        elif (content := self._await_proof(name, until)) is None:
            raise TargetError(
                f"{self.place.name} of checkpoint.sync is not the same place here as on node 0: a file written "
                f"there did not appear within {PROOF_SECONDS:g} s. Give a directory that all nodes share, or a "
                "bucket ('s3://bucket/prefix')"
            )
        else:
            self._told[0] = json.loads(content)
        if self.nodes == 1:
            return
        if not write:
            self.place.write(f"{name}.{self.node:04d}", mine)
        for node in set(range(1, self.nodes)) - {self.node}:
            if (content := self._await_proof(f"{name}.{node:04d}", until)) is not None:
                self._told[node] = json.loads(content)

    def _await_proof(self, name: str, until: float) -> bytes | None:
        """Returns what another node has written; None if it does not come in time."""
        while (content := self._read_proof(name)) is None and time.monotonic() < until:
            time.sleep(0.1)
        return content

    def _read_proof(self, name: str) -> bytes | None:
        """Returns what a node has written; None if it is not there, as while it is written again."""
        with contextlib.suppress(FileNotFoundError):
            if name in self.place.sizes("proof/"):
                return self.place.read(name)
        return None

    def _whole(self) -> set[str]:
        """Returns the directories here that are one whole checkpoint each, if this node has made the copies before."""
        if not (self.order["source"] and self.memory.copied):
            return set()
        files = tree.look_at(self.root, self.shown_at).files
        return checkpoints_of(files) - self._begun(self.memory.doubts(files))

    def _half(self) -> set[str]:
        """Returns the directories here that are one checkpoint each which was only begun."""
        found = tree.look_at(self.root, self.shown_at)
        empty = set(found.directories).difference(beside_files(found.directories, found.files))
        half = {checkpoint_above(f"{each}/") for each in empty}
        if self.order["source"]:
            half |= self._without_metadata(found) - {"."}
        return half | self._begun(self.memory.doubts(found.files))

    def _begun(self, doubtful: Iterable[str]) -> set[str]:
        """Returns the directories of checkpoints with such a file, of which no set had anything."""
        return {each for each in checkpoints_of(doubtful) if not self.memory.knows_below(each)}

    def _without_metadata(self, found: tree.TreeScan) -> set[str]:
        """Returns the checkpoints of which the file is missing that is written last."""
        # With nodes="all", only one node has it.
        return without_metadata(found.files) if self.nodes == 1 else set()

    def _half_written(self, found: tree.TreeScan) -> set[str]:
        """Returns the checkpoints that are being written, or written again, as the file tells that is written last."""
        known = self._stored if self.nodes == 1 else ()
        marks = {file.path: (file.size, file.mtime_ns) for file in known}
        return self._without_metadata(found) | written_again(found.files, marks)

    def restore(self, aside: bool) -> dict[str, Any]:
        """Restores the newest set.

        Args:
            aside: The directory is flowlite's own. Incomplete files are moved aside, so that they are not taken for
                complete ones.
        """
        files = tree.look_at(self.root, self.shown_at).files
        self.watch.doubtful = self.memory.doubts(files)
        source = bool(self.order["source"])
        begun: set[str] = set()
        put: list[str] = []
        if aside:
            begun = {each for each in self._half() if tree.put_aside(self.root, each)}
            put = [path for path in files if is_inside(path, begun)]
            put += [
                path
                for path in sorted(set(self.watch.doubtful).difference(put))
                if not is_temporary(path) and tree.put_aside(self.root, path)
            ]
        # A node that has made the copies has the newest files itself, except for incomplete ones. A node that becomes
        # the leader when the last one is lost has those of the last restore.
        complete = source and self.memory.copied and bool(files)

        def bring(only: set[str] | None, without: Collection[str] = ()) -> Restore:
            restore = Restore(
                self.place,
                self.root,
                self.shown_at,
                self.memory,
                node=self.node,
                nodes=self.nodes,
                only=only,
                without=without,
            )
            retrying.through_outages(restore.run, self._trial)
            return restore

        restore = bring(set(put) if complete else None)
        brought = list(restore.brought)
        self.newest = restore.taken
        if aside and self.nodes == 1:
            self._put_strangers_aside()
        elif aside:
            divided = self._divided(restore.manifests)
            if moved := {each for each in divided if tree.put_aside(self.root, each)}:
                begun |= moved
                # The trainer may have deleted what came before them.
                brought += bring(moved, moved).brought
        if not source:
            self.memory.give_up_copying()
        return {
            "files": len(brought),
            "bytes": sum(file.size for file in brought),
            "set": restore.taken[0].label if restore.taken else "",
            "aside": [
                *sorted(begun),
                *(path for path in put if not is_inside(path, begun)),
            ],
            "aside_at": str(tree.aside_of(self.root)),
        }

    def _put_strangers_aside(self) -> None:
        """Puts checkpoints aside of which the node that copies has nothing: its ranks would continue from others.

        Ranks of other nodes write into the same directories, such as the state of their random numbers, and leave them
        when the checkpoint is not completed.
        """
        if self.order["source"]:
            # One that leads now for the first time. What it had itself was never copied.
            known = None if self.memory.copied or self.newest is None else set[str]()
        else:
            known = set(self._told[0]["whole"]) if 0 in self._told else None
        if known is None:
            return
        known |= checkpoints_of(file.path for file in self._stored)
        for each in self._here() - known:
            tree.put_aside(self.root, each)

    def _divided(self, manifests: Sequence[CheckpointManifest]) -> set[str]:
        """Returns the checkpoints here that another node does not have: the ranks would continue from different ones.

        Only what another node has begun, or all of them, if the nodes have the same directories in the set.

        Args:
            manifests: Of the set that was restored, by node; none if there is no set.
        """
        stored = [checkpoints_of(file.path for file in each.files) for each in manifests]
        same = agree(manifests) and any(stored)
        here = self._here()
        found: set[str] = set()
        for node, told in self._told.items():
            has = set(told["whole"]).union(stored[node] if stored else ())
            half = set(told["half"])
            if manifests:
                half |= checkpoints_of(manifests[node].unfinished)
            found |= here.difference(has) if same else here.intersection(half - has)
        return found

    def _here(self) -> set[str]:
        """Returns the directories here that are one checkpoint each."""
        files = tree.look_at(self.root, self.shown_at).files
        return {each for each in checkpoints_of(files) if not is_temporary(each)}

    def go_on(self, *, cut: bool) -> None:
        """Prepares to go on in the place of a copier of this attempt that was killed, after its sets.

        Args:
            cut: A worker was killed or failed since it began, so that files it was writing may be incomplete.
        """
        self.watch.doubtful = self.memory.doubts(
            tree.look_at(self.root, self.shown_at).files, clean=not cut
        )
        self._cut_off = {path for path in self.watch.doubtful if cut and not is_temporary(path)}
        self._goes_on = True

    def claim(self) -> None:
        """Registers as the one that copies to the target. A copier registered earlier then stops."""
        paths = self.place.sizes("sets/")
        self._generation = generation_of(self.order["writer"], writers(paths))
        self.place.write(claim_name(self._generation, self.order["writer"]), b"")
        # Files may be copied without that, and a bucket's key may lack the right for it.
        with contextlib.suppress(TargetError):
            self.place.discard_interrupted(self.scope)
        names = self._mine(paths)
        if self._goes_on and names:
            last = max(names, key=lambda name: name.key)
            manifest = self._manifest(last)
            self.newest = (last, manifest) if manifest is not None else None
            if last.key[:2] == (self._generation, str(self.order["writer"])):
                self._number = last.number
        self._goes_on = False
        needed = {file.object: file.size for file in self._files_of(names)}
        present = self._present()
        self._uploaded = {name: size for name, size in needed.items() if present.get(name) == size}
        # What a damaged manifest names is not known to be unused.
        damaged = any(self._manifest(name) is None for name in names)
        self._orphans = set() if damaged else set(present) - set(needed)

    # Scanning

    def look(self, reaper: int | None) -> None:
        """Scans the directory once."""
        found = tree.look_at(self.root, self.shown_at)
        pids = processes.descendants([reaper]) if reaper is not None else set()
        writing = tree.open_for_writing(found, pids)
        with self._lock:
            self._look = found
            self.watch.look(found.files, writing, time.monotonic())
            self.memory.note(found.files, self._at_rest(found), self.watch.doubtful)

    def cut(
        self, reaper: int | None, renamed: Collection[str], brought: Collection[str] = ()
    ) -> None:
        """Records that a worker was killed or failed: files still changing before that may be incomplete.

        Args:
            reaper: The process above the workers.
            renamed: Files that were seen to be renamed into their place and not to be written since.
            brought: Those of them that came with their directory.
        """
        found = tree.look_at(self.root, self.shown_at)
        writing = tree.open_for_writing(found, processes.descendants([reaper] if reaper else []))
        with self._lock:
            self.watch.look(found.files, writing, time.monotonic())
            before = set(self.watch.doubtful)
            files = found.files.items()
            known = {path for path, seen in files if self.memory.hash_of(path, seen) is not None}
            stored = {file.path for file in self._stored}
            whole = complete_as_others(self.watch.begun, found.files, stored)
            whole_files = {path for path in found.files if checkpoint_above(path) in whole}
            half = self._half_written(found)
            self.watch.cut(renamed, whole_files.union(brought), known, half)
            gone = self._begun(self.watch.doubtful) | self._without_metadata(found)
            for path in self._pointing_to(gone, found.files):
                self.watch.doubtful[path] = found.files[path].mark
            self._cut_off |= set(self.watch.doubtful) - before
            self.memory.note(found.files, self._at_rest(found), self.watch.doubtful)

    def _at_rest(self, found: tree.TreeScan) -> dict[str, FileState]:
        """Returns the finished files, without those of a checkpoint of which another one may follow."""
        begun, finished = self.watch.begun | self._half_written(found), self.watch.finished
        return self._without(begun, finished, self._pointing_to(begun, finished))

    @staticmethod
    def _without(
        changing: Collection[str], files: Mapping[str, FileState], pointing: Collection[str]
    ) -> dict[str, FileState]:
        """Returns these files without those of these checkpoints, and without those that name one of them."""
        return {
            path: seen
            for path, seen in files.items()
            if path not in pointing and not is_inside(path, changing)
        }

    def _pointing_to(
        self, checkpoints: Collection[str], files: Mapping[str, FileState]
    ) -> set[str]:
        """Returns the files that name one of these checkpoints as the last one, which a trainer will look for."""
        words = words_for(checkpoints)
        found = set()
        for path, seen in files.items():
            meant = words.get(posixpath.dirname(path))
            if meant is None or not 0 < seen.size <= _LARGEST_POINTER:
                continue
            with contextlib.suppress(OSError, UnicodeDecodeError):
                if (self.root / path).read_text("utf-8").strip() in meant:
                    found.add(path)
        return found

    def begin(self) -> None:
        """Records that no writer has begun yet: files there now are finished unless doubtful."""
        self.watch.end(tree.look_at(self.root, self.shown_at).files)

    def end(self) -> None:
        """Records that all writers have ended."""
        found = tree.look_at(self.root, self.shown_at)
        with self._lock:
            self._look = found
            self.watch.end(found.files)
            self.memory.note(found.files, self.watch.finished, self.watch.doubtful, clean=True)

    # Copying

    def copy(self, number: int | None = None) -> bool:
        """Copies the finished files as a new set. Returns False if it would be the same as the newest.

        Args:
            number: Of the set; None takes the next.

        Raises:
            TargetError: The copy failed, or another writer copies to the target now.
        """
        with self._lock:
            finished, found = self.watch.finished, self._look
            unfinished, begun = self.watch.unfinished, self.watch.begun
            incomplete = self._cut_off.intersection(self.watch.doubtful)
        self._paths()
        changing = begun.union(checkpoints_of(unfinished), self._half_written(found))
        pointing = self._pointing_to(self._not_whole(changing), finished)
        settled = self._without(changing, finished, pointing)
        files = self._copy_files(settled, found.modes)
        changed = self._changed(settled, files)
        changing |= checkpoints_of(changed)
        files = [file for file in files if not is_inside(file.path, changing)]
        left_out = [*unfinished, *sorted(pointing), *changed, *sorted(found.skipped)]
        files += self._earlier(left_out, changing)
        begun = self._not_whole(changing)
        links = found.links
        cut_off = bool(incomplete.difference(file.path for file in files))
        if cut_off or self._has_no_checkpoint(files, unfinished, begun):
            # Its writer may have deleted the checkpoint before the one that it did not complete.
            files += self._deleted(found, files)
        if cut_off or begun:
            links = self._links_to(files, found, begun)
        manifest = CheckpointManifest(
            node=self.node,
            nodes=self.nodes,
            files=tuple(sorted(files, key=lambda file: file.path)),
            links=links,
            directories=tuple(beside_files(found.directories, (file.path for file in files))),
            unfinished=tuple(left_out),
            facts={**self.order["facts"], "time": time.time()},
        )
        if self._says_nothing_new(manifest):
            return False
        number = max(self._number + 1, number or 0)
        name = SetName(
            self._generation,
            self.order["writer"],
            number,
            self.node,
            self.nodes,
            manifest.digest,
        )
        self.place.write(name.path, manifest.to_json().encode())
        # Only now: the parts of all nodes have the same number, also if a node needs several tries.
        self._number = number
        self._manifests[name.path] = manifest
        self.newest = (name, manifest)
        self.memory.save()
        return True

    def _changed(self, finished: Iterable[str], copied: Iterable[File]) -> list[str]:
        """Returns the finished files that have changed since the scan, so that they were not copied."""
        left = set(finished) - {file.path for file in copied}
        return sorted(path for path in left if tree.seen_at(self.root / path) is not None)

    def _earlier(self, unfinished: Iterable[str], changing: Collection[str]) -> list[File]:
        """Returns the earlier versions of files that are being written, for use in the new set.

        Args:
            unfinished: These files.
            changing: Directories of checkpoints in which files are. Their files come into the sets together.
        """
        wanted = set(unfinished)
        return [
            file for file in self._stored if file.path in wanted or is_inside(file.path, changing)
        ]

    def _not_whole(self, changing: set[str]) -> set[str]:
        """Returns those of these directories of checkpoints of which the newest set has nothing."""
        return {
            each
            for each in changing
            if not any(is_inside(file.path, {each}) for file in self._stored)
        }

    def _has_no_checkpoint(
        self, files: Iterable[File], unfinished: Iterable[str], begun: set[str]
    ) -> bool:
        """Whether the newest set has a checkpoint, and one with these files none, since the next is being written."""
        paths = {file.path for file in files}
        known = {file.path for file in self._stored}
        if not begun and paths.issuperset(unfinished):
            return False
        if any(map(is_of_checkpoint, known)):
            return not any(map(is_of_checkpoint, paths))
        return bool(known) and not paths

    def _deleted(self, found: tree.TreeScan, files: Iterable[File]) -> list[File]:
        """Returns the files of the newest set that are not in the directory any more, without these."""
        has = {file.path for file in files}.union(found.files)
        return [file for file in self._stored if file.path not in has]

    def _links_to(
        self, files: Iterable[File], found: tree.TreeScan, begun: set[str]
    ) -> dict[str, str]:
        """Returns the links. One to something that is not in the set is as in the newest set, or left out."""
        absent = begun.union(found.files) - {file.path for file in files}
        known = self.newest[1].links if self.newest is not None else {}
        links = {}
        for path, target in found.links.items():
            if tree.end_of(path, target) not in absent:
                links[path] = target
            elif path in known:
                links[path] = known[path]
        return links

    def told(self) -> dict[str, Any]:
        """Summarises the newest set of this node, and the files that are not in it."""
        left_out = {"unfinished": self.watch.unfinished, "skipped": sorted(self._look.skipped)}
        if self.newest is None:
            return {"files": 0, "bytes": 0, "set": "", **left_out}
        name, manifest = self.newest
        return {
            "files": len(manifest.files),
            "bytes": manifest.size,
            "set": name.label,
            **left_out,
        }

    def prune(self) -> None:
        """Deletes the sets beyond `keep`, and the files that are in no set any more. Raises TargetError."""
        paths = self._paths()
        names = SetName.among(paths)
        gone = superfluous(names, self.node, int(self.order["keep"]))
        dropped = {file.object for file in self._files_of(gone)}
        self.place.delete([name.path for name in gone])
        left = [name for name in self._mine(paths) if name not in gone]
        needed = {file.object for file in self._files_of(left)}
        # Only files known to be unused: other nodes may be uploading files that are in no set yet.
        unused = sorted((dropped | self._orphans) - needed)
        self.place.delete(unused)
        self._orphans.clear()
        for each in unused:
            self._uploaded.pop(each, None)
        self._manifests = {name.path: self._manifest(name) for name in left}
        if self.node == 0:
            alive = {(name.generation, name.writer) for name in names if name not in gone}
            mine = (self._generation, str(self.order["writer"]))
            old = writers(paths) - alive - {mine}
            claims = {claim_name(*each) for each in old} & set(paths)
            self.place.delete(sorted(claims))

    def _says_nothing_new(self, manifest: CheckpointManifest) -> bool:
        if self.nodes > 1:
            # A set needs the manifest of each node, even of one where nothing has changed.
            return False
        if self.newest is None:
            return not (manifest.files or manifest.links)
        return manifest.digest == self.newest[1].digest

    def _paths(self) -> dict[str, int]:
        """Lists everything below `sets/`. Raises Replaced, and CopiesRemoved."""
        paths = self.place.sizes("sets/")
        mine = (self._generation, str(self.order["writer"]))
        if claim_name(*mine) not in paths:
            self.newest = None
            raise CopiesRemoved(f"what was copied to {self.place.name} is not there any more")
        later = [who for who in writers(paths) if who > mine]
        if later:
            raise Replaced(
                f"{later[0][1]} has begun to copy to {self.place.name} after this task did, so nothing more is copied "
                "from here. Give each task a place of its own"
            )
        return paths

    def _mine(self, paths: Iterable[str]) -> list[SetName]:
        return [name for name in SetName.among(paths) if name.node == self.node]

    def _present(self) -> dict[str, int]:
        found = self.place.sizes(f"{self.scope}/")
        if self.nodes > 1:
            return found
        return {name: size for name, size in found.items() if not name.startswith("files/node")}

    def _copy_files(
        self, finished: Mapping[str, FileState], modes: Mapping[str, int]
    ) -> list[File]:
        def copy_one(path: str) -> File | None:
            return self._copy_file(path, finished[path], modes.get(path, 0o600))

        with ThreadPoolExecutor(_PARALLEL) as pool:
            copied = list(pool.map(copy_one, sorted(finished)))
        return [file for file in copied if file is not None]

    def _copy_file(self, path: str, seen: FileState, mode: int) -> File | None:
        """Copies one file unless its content is there already. Returns None if it changed meanwhile."""
        source = self.root / path
        try:
            sha256 = self.memory.hash_of(path, seen) or tree.sha256_of(source)
            if tree.seen_at(source) != seen:
                return None
            self.memory.learn(path, seen, sha256)
            name = object_name(self.scope, path, sha256)
            if self._uploaded.get(name) != seen.size:
                self.place.upload(source, name, seen.size)
                if tree.seen_at(source) != seen:
                    self.place.delete([name])
                    return None
                self._uploaded[name] = seen.size
        except FileNotFoundError:
            return None
        except PermissionError as error:
            raise TargetError(f"{source} cannot be read: {error.strerror}") from error
        return File(path, seen.size, seen.mtime_ns, mode, sha256, name)

    def _files_of(self, names: Iterable[SetName]) -> list[File]:
        """Returns the files of these manifests. A damaged one has none, as for `Restore`, which passes it over."""
        found = (self._manifest(name) for name in names)
        return [file for manifest in found if manifest is not None for file in manifest.files]

    def _manifest(self, name: SetName) -> CheckpointManifest | None:
        """Returns a manifest; None if it is damaged, or of a newer version of flowlite."""
        if name.path not in self._manifests:
            try:
                read = CheckpointManifest.from_json(self.place.read(name.path))
            except BadManifest:
                read = None
            self._manifests[name.path] = read
        return self._manifests[name.path]
