"""The manifest of a project: the files in a task's working directory when its workers start.

As JSON:

    {"files": [[path, sha256, size, executable], ...], "links": {path: target}, "directories": [path, ...]}

Paths are relative to the project's root and use "/". No path or link may lead out of the root. The node checks this
when it reads the manifest, because it writes to these paths.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from .links import conflict, leads_out


class ManifestError(ValueError):
    """The manifest is invalid, or a path in it leads out of the project."""


class Entry(NamedTuple):
    """One file of a project."""

    path: str
    sha256: str
    size: int
    executable: bool


class ProjectManifest:
    """The files, links and empty directories of a project.

    Attributes:
        files: The files.
        links: The targets of symbolic links, by the path of the link.
        directories: The empty directories.
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
    def from_json(cls, text: bytes) -> ProjectManifest:
        """Reads and checks a manifest. Raises ManifestError."""
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
    """Returns a path after checking that it is below the root. Raises ManifestError."""
    text = _text(path)
    steps = text.split("/")
    if not text or any(step in ("", ".", "..") for step in steps) or "\0" in text:
        raise ManifestError(f"{text!r} leads out of the project")
    return text


def _check_ways(manifest: ProjectManifest) -> None:
    """Raises ManifestError if a path occurs twice, a parent of a path is a file or link, or a link leads out."""
    ends = [*(entry.path for entry in manifest.files), *manifest.links]
    if wrong := conflict(ends, manifest.directories):
        raise ManifestError(wrong)
    for path, target in manifest.links.items():
        if leads_out(path, _text(target)):
            raise ManifestError(f"the link {path!r} leads out of the project")


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ManifestError(f"{value!r} is no text")
    return value
