"""Decides which files of a directory are finished, from repeated scans. Pure.

A file counts as finished once it did not change between two scans and no process had it open for writing. When its
writers have ended by themselves, all files are finished. When a writer was killed or failed, files that were still
changing may be incomplete. They stay *doubtful* until they change.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Mapping, Set
from typing import NamedTuple

_TEMPORARY_ENDS = (
    *(".tmp", ".temp", ".new", ".part", ".partial", ".incomplete", ".crdownload", ".unfinished"),
    *(".lock", ".swp", "~"),
)
_TEMPORARY_STARTS = (".tmp", "tmp-", ".nfs", ".fuse_hidden", ".flowlite-", ".~lock")
_TEMPORARY_INSIDE = ("-checkpoint-tmp-",)

# Directories that hold one checkpoint: of Transformers, Accelerate, DeepSpeed, Megatron and Lightning. Others, such as
# `run1` or `epoch_3`, may hold several, or a log that is written all the time.
_ONE_CHECKPOINT = re.compile(
    r"(checkpoint|ckpt|(global_?)?step|iter)[-_=]?\d+|epoch=\d+-step=\d+\.ckpt"
)

# Of torch.distributed.checkpoint: what the ranks write, and the metadata, which is written when all of that is.
_SHARD, _METADATA = ".distcp", ".metadata"

# How much longer than a file such a directory must not have changed. Between two files of a checkpoint, a trainer may
# collect what is on its GPUs.
_WHOLE = 5

_LONG_AGO, _NEVER = float("-inf"), float("inf")


class FileState(NamedTuple):
    """A file's state in one scan. While it is the same, so is the content."""

    size: int
    mtime_ns: int
    ctime_ns: int = 0
    inode: int = 0

    @property
    def mark(self) -> tuple[int, int]:
        """The part that is the same on every machine that sees the file."""
        return (self.size, self.mtime_ns)

    @property
    def was_renamed(self) -> bool:
        """Whether its name, mode or time was set after the last write, so that its writer had finished it."""
        return self.ctime_ns > self.mtime_ns


def is_temporary(path: str) -> bool:
    """Whether the name of a file or of a directory above it marks the file as temporary."""
    return any(
        part.endswith(_TEMPORARY_ENDS)
        or part.startswith(_TEMPORARY_STARTS)
        or any(inside in part for inside in _TEMPORARY_INSIDE)
        for part in path.split("/")
    )


def checkpoint_above(path: str) -> str:
    """Returns the directory above a file which is one checkpoint, by its name; "" if there is none.

    Trainers take the last one by its name, and do not look whether it is whole.
    """
    parts = path.split("/")[:-1]
    for count, part in enumerate(parts, start=1):
        if _ONE_CHECKPOINT.fullmatch(part):
            return "/".join(parts[:count])
    return ""


def checkpoints_of(files: Iterable[str]) -> set[str]:
    """Returns the directories above files which are one checkpoint each."""
    return set(map(checkpoint_above, files)) - {""}


def words_for(checkpoints: Iterable[str]) -> dict[str, set[str]]:
    """Returns what a file may say to name one of these directories as the last one, by the directory above them.

    DeepSpeed's `latest` has the name, and Megatron's `latest_checkpointed_iteration.txt` only the number.
    """
    words: dict[str, set[str]] = {}
    for each in checkpoints:
        above, name = os.path.split(each)
        numbers = (str(int(number)) for number in re.findall(r"\d+", name))
        words.setdefault(above, set()).update((name, *numbers))
    return words


def is_of_checkpoint(path: str) -> bool:
    """Returns whether a file belongs to a checkpoint that is a directory, by its name or that of the directory."""
    return bool(checkpoint_above(path)) or path.endswith(_SHARD)


def is_inside(path: str, directories: Collection[str]) -> bool:
    """Returns whether a file is below one of these directories; of "." itself, whether it is a part of a checkpoint."""
    above = os.path.dirname(path)
    if not above:
        return "." in directories and path.endswith((_SHARD, _METADATA))
    while above:
        if above in directories:
            return True
        above = os.path.dirname(above)
    return False


def without_metadata(files: Iterable[str]) -> set[str]:
    """Returns the directories of checkpoints that have shards and no metadata yet; "." for the top one."""
    shards, metadata = set(), set()
    for path in files:
        if path.endswith(_SHARD):
            shards.add(os.path.dirname(path))
        elif path.endswith(_METADATA):
            metadata.add(os.path.dirname(path))
    return set(map(_checkpoint_at, shards - metadata))


def written_again(files: Mapping[str, FileState], known: Mapping[str, tuple[int, int]]) -> set[str]:
    """Returns the directories of checkpoints whose shards have changed, and whose metadata has not yet; "." as above.

    Args:
        files: All files that exist.
        known: (size, mtime) of the files as they were when the checkpoints were whole.
    """
    same = {
        os.path.dirname(path)
        for path, mark in known.items()
        if path.endswith(_METADATA) and path in files and files[path].mark == mark
    }
    changed = {
        os.path.dirname(path)
        for path, seen in files.items()
        if path.endswith(_SHARD) and known.get(path) != seen.mark
    }
    return set(map(_checkpoint_at, same & changed))


def _checkpoint_at(directory: str) -> str:
    return checkpoint_above(f"{directory}/") or directory or "."


def beside_files(directories: Iterable[str], files: Iterable[str]) -> list[str]:
    """Returns those of these empty directories that belong to no checkpoint, or to one of these files'.

    A checkpoint without a file is one that was only begun.
    """
    above = {checkpoint_above(path) for path in files} | {""}
    return [each for each in directories if checkpoint_above(f"{each}/") in above]


def complete_as_others(
    directories: Iterable[str], files: Collection[str], known: Collection[str]
) -> set[str]:
    """Returns those of these checkpoints that have all the files which others beside them have.

    Args:
        directories: Each is one checkpoint.
        files: All files that exist.
        known: Files of whole checkpoints.
    """
    others: dict[str, set[str]] = {}
    for each in checkpoints_of(known):
        others.setdefault(os.path.dirname(each), set()).update(_names_in(each, known))
    return {
        each
        for each in directories
        if (names := others.get(os.path.dirname(each))) and names <= _names_in(each, files)
    }


def _names_in(directory: str, files: Iterable[str]) -> set[str]:
    """Returns the paths below a checkpoint, without its own numbers."""
    numbers = set(map(int, re.findall(r"\d+", os.path.basename(directory))))
    return {
        re.sub(r"\d+", lambda found: "#" if int(found[0]) in numbers else found[0], path)
        for path in (
            file[len(directory) + 1 :] for file in files if file.startswith(f"{directory}/")
        )
    }


class StabilityWatch:
    """Tracks the files of one directory.

    Attributes:
        doubtful: Files that may be incomplete since their writer was killed or failed: (size, mtime) at that time, by
            path.
    """

    def __init__(self, settle: float) -> None:
        """
        Args:
            settle: Seconds a file must not have changed.
        """
        self._settle = settle
        self._files: dict[str, FileState] = {}
        self._since: dict[str, float] = {}
        self._now = _LONG_AGO
        self.doubtful: dict[str, tuple[int, int]] = {}

    def look(self, files: Mapping[str, FileState], writing: Set[str], now: float) -> None:
        """Processes the result of one scan.

        Args:
            files: All files that exist.
            writing: Those that a process has open for writing.
            now: Monotonic seconds.
        """
        since = {}
        for path, seen in files.items():
            before = self._since.get(path, _NEVER)
            at_rest = before != _NEVER and self._files.get(path) == seen
            since[path] = _NEVER if path in writing else before if at_rest else now
        self._files, self._since, self._now = dict(files), since, now
        self.doubtful = {
            path: mark
            for path, mark in self.doubtful.items()
            if path in files and files[path].mark == mark
        }

    @property
    def finished(self) -> dict[str, FileState]:
        """The finished files, as they were at the last scan."""
        return {path: seen for path, seen in self._files.items() if self._is_finished(path)}

    @property
    def unfinished(self) -> list[str]:
        """The unfinished files, sorted, without temporary ones."""
        return sorted(p for p in self._files if not is_temporary(p) and not self._is_finished(p))

    @property
    def busy(self) -> bool:
        """Whether a file is being written now, temporary files included."""
        at_rest = (
            self._now - self._since[p] >= self._settle
            for p in self._files
            if p not in self.doubtful
        )
        return not all(at_rest) or bool(self.begun)

    @property
    def begun(self) -> set[str]:
        """The directories of one checkpoint each in which a file has changed lately: another one may follow."""
        lately = self._settle * _WHOLE
        return checkpoints_of(p for p in self._files if self._now - self._since[p] < lately)

    def cut(
        self,
        renamed: Collection[str] = (),
        brought: Collection[str] = (),
        known: Collection[str] = (),
        half: Collection[str] = (),
    ) -> None:
        """Records that a writer was killed or failed: files still changing at the last scan may be incomplete.

        So may be the directories of one checkpoint each in which a file has changed lately.

        Args:
            renamed: Files that were seen to be renamed into their place and not to be written since.
            brought: Files of directories that are whole, as those that were renamed as a whole.
            known: Files whose present content is in a set.
            half: Directories of checkpoints that are known to be incomplete, however long they have been so.
        """
        begun, unfinished = self.begun, set(self.unfinished)
        for path, seen in self._files.items():
            is_open = self._since[path] == _NEVER
            if is_temporary(path) or (path in known and not is_open):
                continue
            in_place = is_open or not (seen.was_renamed or path in renamed)
            in_part = checkpoint_above(path) in begun and path not in brought
            in_part = in_part or is_inside(path, half)
            if in_part or (in_place and path in unfinished):
                self.doubtful[path] = seen.mark

    def end(self, files: Mapping[str, FileState]) -> None:
        """Records that all writers have ended: all files there now are finished unless doubtful."""
        self.look(files, frozenset(), self._now)
        self._since = dict.fromkeys(files, _LONG_AGO)
        self._now = 0.0

    def _is_finished(self, path: str) -> bool:
        return (
            self._now - self._since[path] >= self._settle
            and path not in self.doubtful
            and not is_temporary(path)
        )
