"""Sets of checkpoint files at the target: names, manifests, and which sets to restore and to keep.

    sets/000002.t0123456789.1/000017/0000of0001.5f1c09aa.json      the manifest of one node, written last
    files/epoch_3.9c56cc51b374c3ba.pt                              a file of the set, named by its content
    files/node0002/…                                               the same with nodes="all"

A set contains the files that one scan found finished. It is complete when the manifests of all its nodes exist, and
every file that they list exists with its size. Files are never overwritten, so a complete set stays complete.

The first number is the generation, incremented by every attempt that begins to copy. A copier that finds a higher
generation than its own has been replaced, and stops.
"""

from __future__ import annotations

import hashlib
import json
import posixpath
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, field
from typing import Any, NamedTuple
from urllib.parse import quote

from ..project_files.links import leads_out
from ..quick_dataclass import dataclass

_NAME = re.compile(
    r"sets/(\d{6,})\.([\w.-]+)/(\d{6,})/(\d{4,})of(\d{4,})\.([0-9a-f]{16})\.json", re.ASCII
)
_CLAIM = re.compile(r"sets/(\d{6,})\.([\w.-]+)/", re.ASCII)
_HEX = re.compile(r"[0-9a-f]{64}", re.ASCII)
# In characters of an object's name, of which a file system takes 255 between two slashes.
_LONGEST_PART, _LONGEST_SUFFIX = 150, 16
_LATEST = 2**63 - 1
"""Nanoseconds of the latest time that a file can have."""


class BadManifest(ValueError):
    """A file in the place of a manifest is not one of ours."""


class SetName(NamedTuple):
    """The parsed name of a manifest. Sets are ordered by `key`; manifests with the same key form a set."""

    generation: int
    writer: str
    number: int
    node: int
    nodes: int
    digest: str

    @property
    def key(self) -> tuple[int, str, int]:
        return (self.generation, self.writer, self.number)

    @property
    def label(self) -> str:
        """The set's name for messages to people."""
        return f"{self.generation}.{self.number}"

    @property
    def path(self) -> str:
        return (
            f"sets/{self.generation:06d}.{self.writer}/{self.number:06d}/"
            f"{self.node:04d}of{self.nodes:04d}.{self.digest}.json"
        )

    @classmethod
    def parse(cls, path: str) -> SetName | None:
        """Parses a path. Returns None if it is not a manifest's."""
        found = _NAME.fullmatch(path)
        if found is None:
            return None
        generation, writer, number, node, nodes, digest = found.groups()
        name = cls(int(generation), writer, int(number), int(node), int(nodes), digest)
        return name if name.path == path and name.node < name.nodes else None

    @classmethod
    def among(cls, paths: Iterable[str]) -> list[SetName]:
        """Returns the names of the manifests among these paths."""
        return [name for name in map(cls.parse, paths) if name is not None]


@dataclass(frozen=True, slots=True)
class File:
    """One file of a set: its path in the directory, and the object that holds its content."""

    path: str
    size: int
    mtime_ns: int
    mode: int
    sha256: str
    object: str


@dataclass(frozen=True, slots=True)
class CheckpointManifest:
    """One node's part of a set.

    Attributes:
        links: Symbolic links within the directory, with their targets.
        directories: Empty directories.
        unfinished: Files left out because they were being written.
    """

    node: int
    nodes: int
    files: tuple[File, ...] = ()
    links: dict[str, str] = field(default_factory=dict)
    directories: tuple[str, ...] = ()
    unfinished: tuple[str, ...] = ()
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """Total size in bytes."""
        return sum(file.size for file in self.files)

    @property
    def digest(self) -> str:
        """A hash of the content. It does not depend on when or by which task it was copied."""
        content = [
            sorted((file.path, file.sha256) for file in self.files),
            sorted(self.links.items()),
            sorted(self.directories),
        ]
        text = json.dumps(content, ensure_ascii=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @property
    def places(self) -> frozenset[str]:
        """The directories that contain files."""
        return frozenset(file.path.rpartition("/")[0] for file in self.files)

    def to_json(self) -> str:
        return json.dumps({"format": 1, **asdict(self)}, indent=1)

    @classmethod
    def from_json(cls, text: str | bytes) -> CheckpointManifest:
        """Reads a manifest. It is untrusted: no path in it may lead out of the directory.

        Raises:
            BadManifest: It is not a manifest, or of a newer format.
        """
        try:
            data = json.loads(text)
            if data["format"] != 1:
                raise BadManifest(f"it has format {data['format']}, which this version cannot read")
            files = tuple(_file(each) for each in data["files"])
            links = {_inside(path): _link(path, to) for path, to in dict(data["links"]).items()}
            directories = tuple(_inside(path) for path in data["directories"])
            unfinished = tuple(str(path) for path in data["unfinished"])
            facts = dict(data.get("facts") or {})
            return cls(
                int(data["node"]), int(data["nodes"]), files, links, directories, unfinished, facts
            )
        except BadManifest:
            raise
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise BadManifest(
                f"it is no manifest of checkpoints: {type(error).__name__}: {error}"
            ) from None


def _file(data: Mapping[str, Any]) -> File:
    size, mtime, mode = (int(data[name]) for name in ("size", "mtime_ns", "mode"))
    sha256, key = str(data["sha256"]), str(data["object"])
    times_fit = abs(mtime) <= _LATEST
    if size < 0 or not times_fit or not _HEX.fullmatch(sha256) or not key.startswith("files/"):
        raise BadManifest(f"it describes {str(data['path'])[:80]!r} in no way that is ours")
    return File(_inside(data["path"]), size, mtime, mode & 0o777, sha256, _inside(key))


def _inside(path: object) -> str:
    parts = path.split("/") if isinstance(path, str) else [".."]
    if "\0" in str(path) or any(part in ("", ".", "..") for part in parts):
        raise BadManifest(f"the path {str(path)[:80]!r} leads out of the directory")
    return _name(path)


def _link(path: str, text: object) -> str:
    """Returns the target of a link. Earlier sets have some with `..` behind a name, which is left out of them."""
    target, above = _name(text), posixpath.dirname(path)
    if not leads_out(path, target):
        return target
    end = posixpath.normpath(posixpath.join(above, target))
    if not target or "\0" in target or end.startswith("/") or end.split("/")[0] == "..":
        raise BadManifest(f"the link {path!r} leads out of the directory")
    return posixpath.relpath(end, above or ".")


def _name(text: object) -> str:
    """Returns a name as the file system can have it. Raises ValueError for surrogates other than those of bytes."""
    str(text).encode("utf-8", "surrogateescape")
    return str(text)


def object_name(scope: str, path: str, sha256: str) -> str:
    """Returns the name of the object for a file's content, in plain ASCII that every tool and file system preserves."""
    *above, name = path.split("/")
    stem, dot, suffix = name.rpartition(".")
    if not stem or len(_quoted(suffix)) > _LONGEST_SUFFIX:
        stem, dot, suffix = name, "", ""
    parts = [_quoted(part) for part in above]
    parts.append(f"{_quoted(stem)}.{sha256[:16]}{dot}{_quoted(suffix)}")
    return "/".join([scope, *parts])


def _quoted(part: str) -> str:
    # Bytes that are not UTF-8 arrive as lone surrogates.
    plain = quote(part.encode("utf-8", "surrogateescape"), safe=" -_+=@,").replace(" ", "%20")
    if len(plain) > _LONGEST_PART:
        digest = hashlib.sha256(plain.encode()).hexdigest()[:16]
        plain = f"{plain[: _LONGEST_PART - 17]}.{digest}"
    return plain


# Selecting sets


@dataclass(frozen=True, slots=True)
class SetOf:
    """The manifests of all nodes for one set, by node."""

    names: tuple[SetName, ...]

    @property
    def key(self) -> tuple[int, str, int]:
        return self.names[0].key

    @property
    def content(self) -> tuple[str, ...]:
        return tuple(name.digest for name in self.names)


def whole_sets(names: Iterable[SetName]) -> list[SetOf]:
    """Returns the sets for which every node's manifest exists, newest first."""
    by_key: dict[tuple[int, str, int], dict[int, SetName]] = {}
    for name in names:
        by_key.setdefault(name.key, {})[name.node] = name
    found = []
    for members in by_key.values():
        nodes = next(iter(members.values())).nodes
        ordered = tuple(members[node] for node in sorted(members))
        if len(ordered) == nodes and all(name.nodes == nodes for name in ordered):
            found.append(SetOf(ordered))
    return sorted(found, key=lambda each: each.key, reverse=True)


def is_complete(manifests: Sequence[CheckpointManifest], objects: Mapping[str, int]) -> bool:
    """Whether every file of a set exists, with its size.

    Args:
        manifests: Of all nodes of the set.
        objects: The size of every existing object.
    """
    return all(objects.get(file.object) == file.size for each in manifests for file in each.files)


def agree(manifests: Sequence[CheckpointManifest]) -> bool:
    """Whether all nodes have files in the same directories, so that no node is a step ahead of another."""
    return len({each.places for each in manifests}) <= 1


Writer = tuple[int, str]
"""A generation and the name of its writer."""


def writers(paths: Iterable[str]) -> set[Writer]:
    """Returns all writers that have registered, from the names below `sets/`."""
    found = (_CLAIM.match(path) for path in paths)
    return {(int(each[1]), each[2]) for each in found if each}


def claim_name(generation: int, writer: str) -> str:
    """Returns the name of the file by which a writer registers."""
    return f"sets/{generation:06d}.{writer}/claim"


def generation_of(writer: str, known: Iterable[Writer]) -> int:
    """Returns a writer's generation: the one that another node of it has claimed, or the next."""
    known = list(known)
    mine = [generation for generation, who in known if who == writer]
    return mine[0] if mine else max((generation for generation, _ in known), default=0) + 1


def superfluous(names: Iterable[SetName], node: int, keep: int) -> list[SetName]:
    """Returns the manifests of one node that can be deleted.

    The newest `keep` complete sets with different contents are kept, each in its latest copy. As many incomplete sets
    are kept if they are newer.
    """
    names = list(names)
    whole = whole_sets(names)
    kept: set[tuple[int, str, int]] = set()
    contents: set[tuple[str, ...]] = set()
    for each in whole:
        if each.content not in contents and len(contents) < keep:
            contents.add(each.content)
            kept.add(each.key)
    newest = whole[0].key if whole else None
    newer = {name.key for name in names if newest is None or name.key > newest}
    kept |= set(sorted(newer, reverse=True)[:keep])
    return [name for name in names if name.node == node and name.key not in kept]
