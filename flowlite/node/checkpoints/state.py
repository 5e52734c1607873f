"""State of a checkpoint directory that is kept from one attempt to the next, in a small file on the node."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from ..system.atomic_files import write_atomically
from .stability import FileState, checkpoint_above

Mark = tuple[int, int]


class CheckpointState:
    """The finished files, the doubtful ones, and the hashes of those that were copied or restored.

    Attributes:
        copied: Whether this node made the copies in the last attempt that it was in, and so has the newest files.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._finished: dict[str, Mark] = {}
        self._doubtful: dict[str, Mark] = {}
        self._hashes: dict[str, tuple[int, int, str]] = {}
        self._clean = True
        self._saved = ""
        self.copied = self._load()

    def doubts(
        self, files: Mapping[str, FileState], *, clean: bool | None = None
    ) -> dict[str, Mark]:
        """Returns the files that may be incomplete, since their writer was killed or failed.

        Args:
            clean: Whether no writer was since the state was saved; None if that is what it says.
        """
        clean = self._clean if clean is None else clean
        doubtful = {
            path: mark
            for path, mark in self._doubtful.items()
            if path in files and files[path].mark == mark
        }
        if not clean:
            doubtful |= {
                path: seen.mark
                for path, seen in files.items()
                if self._finished.get(path) != seen.mark
                and self.hash_of(path, seen) is None
                and not (seen.was_renamed and not checkpoint_above(path))
            }
        return doubtful

    def note(
        self,
        files: Collection[str],
        finished: Mapping[str, FileState],
        doubtful: Mapping[str, Mark],
        *,
        clean: bool = False,
    ) -> None:
        """Saves the current state, on the node that makes the copies.

        Args:
            files: All files that exist. What is known of others is forgotten.
            clean: All writers have ended; files that are not doubtful are finished.
        """
        for path in set(self._hashes).difference(files):
            del self._hashes[path]
        self._finished = {path: seen.mark for path, seen in finished.items()}
        self._doubtful = dict(doubtful)
        self._clean = clean
        self.copied = True
        self.save()

    def give_up_copying(self) -> None:
        """Records that another node makes the copies in this attempt."""
        self.copied = False
        self.save()

    def hash_of(self, path: str, seen: FileState) -> str | None:
        """Returns the hash of a file, if it is known for the file's present state."""
        size, mtime_ns, sha256 = self._hashes.get(path, (0, 0, None))
        return sha256 if (size, mtime_ns) == seen.mark else None

    def knows_below(self, directory: str) -> bool:
        """Returns whether a file of a directory was copied or restored."""
        return any(path.startswith(f"{directory}/") for path in self._hashes)

    def learn(self, path: str, seen: FileState, sha256: str) -> None:
        """Records the hash of a file whose content is in a set or about to be."""
        self._hashes[path] = (*seen.mark, sha256)

    def save(self) -> None:
        """Writes the file, if its content changes."""
        text = json.dumps(
            {
                "copied": self.copied,
                "clean": self._clean,
                "finished": self._finished,
                "doubtful": self._doubtful,
                "hashes": self._hashes,
            }
        )
        if text == self._saved:
            return
        # If the disk is full, only this state is lost; the next attempt treats more files as doubtful.
        with contextlib.suppress(OSError):
            write_atomically(self._path, text)
            self._saved = text

    def _load(self) -> bool:
        """Reads the file. Returns `copied`."""
        try:
            found = json.loads(self._path.read_bytes())
            self._clean = bool(found["clean"])
            self._finished = {path: _mark(mark) for path, mark in found["finished"].items()}
            self._doubtful = {path: _mark(mark) for path, mark in found["doubtful"].items()}
            self._hashes = {
                path: (int(size), int(mtime), str(sha256))
                for path, (size, mtime, sha256) in found["hashes"].items()
            }
            return bool(found["copied"])
        except FileNotFoundError:
            return False
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            # The state file is damaged: nothing is known of the existing files.
            self._clean = False
        return True


def _mark(value: Sequence[int]) -> Mark:
    size, mtime_ns = value
    return (int(size), int(mtime_ns))
