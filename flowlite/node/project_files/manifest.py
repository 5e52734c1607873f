"""The manifest of a project: what lies in the working directory of a task when its workers start.

As JSON:

    {"files": [[path, sha256, size, executable], ...], "links": {path: target}, "directories": [path, ...]}

Paths are relative to the project's root, with "/". Nothing in it leads out of the root: it is checked where it is read,
on the node, since it names what is written there.
"""

from __future__ import annotations

import json
import posixpath
from typing import Any, NamedTuple


class ManifestError(ValueError):
    """It is no manifest, or one that leads out of the project."""


class Entry(NamedTuple):
    """One file."""

    path: str
    sha256: str
    size: int
    executable: bool


class Manifest:
    """What a project consists of.

    Attributes:
        files: Its files.
        links: Its symbolic links, with their targets.
        directories: Directories in which nothing lies.
    """

    def __init__(
        self,
        files: tuple[Entry, ...] = (),
        links: dict[str, str] | None = None,
        directories: tuple[str, ...] = (),
    ) -> None:
        self.files = files
        self.links = links or {}
        self.directories = directories

    def to_json(self) -> bytes:
        content = {
            "files": [list(entry) for entry in self.files],
            "links": self.links,
            "directories": list(self.directories),
        }
        return json.dumps(content).encode()

    @classmethod
    def from_json(cls, text: bytes) -> Manifest:
        """Reads a manifest. Raises ManifestError."""
        try:
            found = json.loads(text)
            files = tuple(_entry(each) for each in found["files"])
            links = {_inside(path): _text(to) for path, to in found["links"].items()}
            directories = tuple(_inside(path) for path in found["directories"])
        except ManifestError:
            raise
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ManifestError(f"this is no manifest of a project: {error}") from error
        manifest = cls(files, links, directories)
        _check_ways(manifest)
        return manifest


def _entry(value: Any) -> Entry:
    path, sha256, size, executable = value
    if len(_text(sha256)) != 64 or set(sha256) - set("0123456789abcdef"):
        raise ManifestError(f"{sha256!r} is no hash")
    if not isinstance(size, int) or size < 0:
        raise ManifestError(f"{path!r} has the size {size!r}")
    return Entry(_inside(path), sha256, size, bool(executable))


def _inside(path: Any) -> str:
    """A path, if it names something below the root."""
    text = _text(path)
    steps = text.split("/")
    if not text or any(step in ("", ".", "..") for step in steps) or "\0" in text:
        raise ManifestError(f"{text!r} leads out of the project")
    return text


def _check_ways(manifest: Manifest) -> None:
    """No name stands for two things, nothing lies below a link or a file, and no link leads out."""
    names = [*(entry.path for entry in manifest.files), *manifest.links]
    ends = set(names)
    if len(ends) != len(names):
        raise ManifestError("it names a path twice")
    for path in (*names, *manifest.directories):
        steps = path.split("/")
        for count in range(1, len(steps)):
            above = "/".join(steps[:count])
            if above in ends:
                raise ManifestError(f"{path!r} leads through {above!r}, which is no directory")
    for path, target in manifest.links.items():
        end = posixpath.normpath(posixpath.join(posixpath.dirname(path), target))
        if target.startswith("/") or end == ".." or end.startswith("../"):
            raise ManifestError(f"the link {path!r} leads out of the project")


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ManifestError(f"{value!r} is no text")
    return value
