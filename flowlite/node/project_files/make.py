"""Makes the working directory of a task on a node, from the project's manifest and the contents stored on the node.

The supervisor calls `agent.pyz project` for each node, before the agent starts:

    {"home", "blobs", "packs": [path, ...]}  ->  {"made": true} or {"lacking": [[sha256, size], ...]}

`home` is the node's directory, which contains the manifest (`project.json`). Contents that are lacking are then sent,
large ones one by one under their hash and small ones in packs, and the call is repeated.

Each task has a copy of its own, so writing to a file does not change the content that other tasks use. It is made once:
a further attempt on the same node finds it as the previous attempt left it.

A pack is a line of JSON, [[sha256, size], ...], followed by these contents one after the other. It contains no names.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import sys

from ..system import atomic_files
from .manifest import Entry, ManifestError, ProjectManifest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

PROJECT = "project"
"""The name of the working directory in the node's directory (`AttemptPaths.project`)."""
MANIFEST = "project.json"
_BLOCK = 1 << 20


def main(_: list[str]) -> int:
    """The subcommand `project`: reads a request from standard input and prints the answer."""
    request = json.loads(sys.stdin.buffer.read())
    try:
        answer = make(request["home"], request["blobs"], request["packs"])
    except (OSError, ManifestError) as error:
        answer = {"failed": str(error)}
    sys.stdout.write(json.dumps(answer))
    return 0


def make(home: str, blobs: str, packs: list[str]) -> dict[str, Any]:
    """Makes the working directory, or returns which contents are lacking.

    Args:
        home: The node's directory.
        blobs: The directory of contents by hash.
        packs: Packs to unpack first; they are removed.

    Raises:
        ManifestError: The manifest is invalid, or a path in it leads out of the project.
        OSError: The directory cannot be made.
    """
    target = os.path.join(home, PROJECT)
    if os.path.isdir(target):
        return {"made": True}
    for pack in packs:
        unpack(pack, blobs)
        os.unlink(pack)
    manifest = read_manifest(home)
    wanted = {entry.sha256: entry.size for entry in manifest.files}
    if missing := lacking(blobs, wanted):
        return {"lacking": [[name, wanted[name]] for name in missing]}
    # Imported here: a supervisor needs only the names in this module.
    import shutil

    partial = os.path.join(home, f".{PROJECT}-{os.urandom(4).hex()}.part")
    try:
        damaged = _fill(partial, manifest, blobs)
        if damaged:
            return {"lacking": [[name, wanted[name]] for name in sorted(damaged)]}
        # An earlier call, whose connection broke, may have made it.
        atomic_files.name_directory(partial, target)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return {"made": True}


def unpack(pack: str, blobs: str) -> None:
    """Stores each content of a pack under its hash; contents that do not match their hash are skipped."""
    atomic_files.make(blobs)
    with open(pack, "rb") as file:
        for sha256, size in json.loads(file.readline()):
            content = file.read(size)
            if hashlib.sha256(content).hexdigest() == sha256:
                atomic_files.place(content, os.path.join(blobs, sha256), 0o600)


def read_manifest(home: str) -> ProjectManifest:
    """Reads the manifest in a node's directory. Raises OSError, ManifestError."""
    with open(os.path.join(home, MANIFEST), "rb") as file:
        return ProjectManifest.from_json(file.read())


def lacking(blobs: str, sizes: Mapping[str, int]) -> list[str]:
    """Returns those of the contents, given by hash with their sizes, that are not in a directory."""

    def is_there(sha256: str, size: int) -> bool:
        try:
            return os.stat(os.path.join(blobs, sha256)).st_size == size
        except OSError:
            return False

    return [sha256 for sha256, size in sizes.items() if not is_there(sha256, size)]


def _fill(directory: str, manifest: ProjectManifest, blobs: str) -> set[str]:
    """Writes everything in the manifest into a new directory. Returns damaged contents, after removing them.

    Links are made last, so that nothing is written through a link.
    """
    os.mkdir(directory, 0o700)
    for path in manifest.directories:
        atomic_files.make(os.path.join(directory, path))
    damaged: set[str] = set()
    for entry in manifest.files:
        if entry.sha256 not in damaged and not _copy(directory, entry, blobs):
            damaged.add(entry.sha256)
    for path, to in manifest.links.items():
        where = os.path.join(directory, path)
        atomic_files.make(os.path.dirname(where))
        os.symlink(to, where)
    return damaged


def _copy(directory: str, entry: Entry, blobs: str) -> bool:
    """Copies a content to its path. Returns False, and removes the content, if it does not match its hash."""
    blob, target = os.path.join(blobs, entry.sha256), os.path.join(directory, entry.path)
    atomic_files.make(os.path.dirname(target))
    digest = hashlib.sha256()
    with io.FileIO(blob, "r") as source, io.FileIO(atomic_files.begin(target), "w") as copy:
        while block := source.read(_BLOCK):
            digest.update(block)
            atomic_files.write(copy.fileno(), block)
        if entry.executable:
            os.fchmod(copy.fileno(), 0o700)
    if digest.hexdigest() != entry.sha256:
        os.unlink(blob)
        return False
    # Contents are removed by their age since the last use.
    os.utime(blob)
    return True
