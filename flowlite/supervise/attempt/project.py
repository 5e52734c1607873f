"""Sends the files of a project to a node, which creates the task's working directory from them."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from flowlite.connect.values import File, refuse_changed
from flowlite.errors import ProviderError
from flowlite.node.project_files.make import MANIFEST, PROJECT
from flowlite.node.project_files.manifest import ProjectManifest
from flowlite.node.system.byte_sizes import human_size
from flowlite.supervise.attempt.node_handle import Node, ask_program
from flowlite.supervise.record.lifecycle import SENDING
from flowlite.supervise.record.log import say
from flowlite.supervise.record.paths import TaskPaths

# Contents of this size and more are sent one by one. For smaller ones a request each would take longer than sending.
_PACKED_BELOW = 1 << 20
_MAKE_SECONDS = 1800.0
_NOT_MADE = "the working directory cannot be made"
_ROUNDS = 3
_BLOCK = 1 << 20
_MOST_TOLD = 3
_packing = threading.Lock()


class ProjectProgress:
    """How much of a project has been sent to each node. Nodes are sent to in threads of their own."""

    def __init__(self) -> None:
        # By node rank: files and bytes in all, and bytes that have been sent.
        self._nodes: dict[int, tuple[int, int, int]] = {}
        self._among_nodes = ""

    def among_nodes(self, text: str) -> None:
        """Notes, in words, how nodes get the files from one another (`distribution.py`); "" if they do not."""
        self._among_nodes = text

    def begin(self, rank: int, files: int, size: int) -> None:
        """Notes that files are being sent to a node."""
        self._nodes[rank] = (files, size, 0)

    def moved(self, rank: int, number: int) -> None:
        """Notes that some more bytes were sent to a node."""
        files, size, sent = self._nodes[rank]
        self._nodes[rank] = (files, size, sent + number)

    def end(self, rank: int) -> None:
        """Notes that the files were sent to a node, or could not be."""
        self._nodes.pop(rank, None)

    def __str__(self) -> str:
        """The nodes that are being sent to, those that lack most first; "" if there are none."""
        nodes = sorted(self._nodes.copy().items(), key=lambda item: item[1][2] - item[1][1])
        told = [
            f"{files:,} {'file' if files == 1 else 'files'} to node {rank}, {human_size(min(sent, size))} of "
            f"{human_size(size)}"
            for rank, (files, size, sent) in nodes[:_MOST_TOLD]
        ]
        more = [f"and {len(nodes) - _MOST_TOLD} more nodes"] if nodes[_MOST_TOLD:] else []
        among = [self._among_nodes] if self._among_nodes else []
        return f"{SENDING}: {'; '.join(told + more + among)}" if told or among else ""


def working_directory(home: str, call: Mapping[str, Any]) -> str:
    """Returns the workers' default working directory on a node, which is in its copy of the project.

    Args:
        call: What the workers run. Without a project, the directory is empty.
    """
    below = str(call.get("project", {}).get("start", "."))
    root = f"{home}/{PROJECT}"
    return root if below == "." else f"{root}/{below}"


def bring(
    node: Node,
    project: Mapping[str, Any],
    agent: tuple[Path, str],
    paths: TaskPaths,
    progress: ProjectProgress,
    elsewhere: Callable[[int], bool] = lambda _: False,
) -> bool:
    """Creates the working directory of a task on a node, unless it exists.

    Returns False, and sends nothing, if the node lacks so much that it should get it from other nodes first.

    Args:
        node: A node that can be reached.
        project: The project as in the call: {"manifest", "sha256", "start"}.
        agent: The agent's zipapp on this machine, and its hash.
        elsewhere: Whether a node that lacks so many bytes should get them from other nodes.

    Raises:
        NodeUnreachable: The node cannot be reached.
        ProviderError: The node cannot create the directory.
        OSError: A file cannot be read here or written there.
    """
    to, settings = node.connection, node.settings
    blobs = settings.cache or f"{settings.home}/blobs"
    manifest = Path(project["manifest"])
    put = [
        File(node.agent, agent[0], 0o700, agent[1], settings.cache),
        File(f"{settings.home}/{MANIFEST}", manifest, 0o600, project["sha256"], settings.cache),
    ]
    to.put_many(put)
    packs: list[str] = []
    for _ in range(_ROUNDS):
        found = _ask(node, blobs, packs)
        if "lacking" not in found:
            return True
        # Read only for a node that lacks something: for 20,000 files that takes as long as all else for a node.
        contents = {
            entry.sha256: entry.size
            for entry in ProjectManifest.from_json(manifest.read_bytes()).files
        }
        lacking = _chosen(found["lacking"], contents)
        if elsewhere(sum(lacking.values())):
            return False
        progress.begin(node.rank, len(lacking), sum(lacking.values()))
        try:
            packs = _send(node, lacking, blobs, paths, functools.partial(progress.moved, node.rank))
        finally:
            progress.end(node.rank)
    raise ProviderError("files of the project are damaged on the way there, or on its disk")


def forget_packs(paths: TaskPaths) -> None:
    """Deletes the packs once all nodes have them."""
    for pack in paths.bundle.glob("pack-*"):
        pack.unlink(missing_ok=True)


def _ask(node: Node, blobs: str, packs: Sequence[str]) -> dict[str, Any]:
    asked = {"home": node.settings.home, "blobs": blobs, "packs": list(packs)}
    found = ask_program(node, "project", asked, _MAKE_SECONDS, _NOT_MADE)
    if "failed" in found:
        raise ProviderError(f"{_NOT_MADE}: {found['failed']}")
    return found


def _chosen(lacking: Any, contents: Mapping[str, int]) -> dict[str, int]:
    """Returns the contents that a node lacks. Only contents of this project are ever sent to it."""
    names = [each[0] for each in lacking if isinstance(each, list) and each]
    if not names or len(names) != len(lacking) or not contents.keys() >= set(names):
        raise ProviderError("it asks for what is no content of the project")
    return {name: contents[name] for name in names}


def _send(
    node: Node,
    lacking: Mapping[str, int],
    blobs: str,
    paths: TaskPaths,
    moved: Callable[[int], None],
) -> list[str]:
    """Sends contents to a node. Returns the paths of the packs there."""
    here = paths.home / "files"
    large = [name for name, size in lacking.items() if size >= _PACKED_BELOW]
    small = sorted((name, size) for name, size in lacking.items() if size < _PACKED_BELOW)
    files = [File(f"{blobs}/{name}", here / name, 0o600, name, moved=moved) for name in large]
    packs = []
    if small:
        pack = _pack(small, here, paths)
        packs = [f"{node.settings.home}/{pack.name}"]
        files.append(File(packs[0], pack, moved=moved))
    node.connection.put_many(files)
    size = sum(lacking.values())
    say(f"{node.name}: sent {len(lacking)} files of the project, {size} bytes")
    return packs


def _pack(wanted: Sequence[tuple[str, int]], contents: Path, paths: TaskPaths) -> Path:
    """Returns the pack of these contents, made once for all nodes that lack the same ones."""
    head = json.dumps(wanted).encode() + b"\n"
    pack = paths.bundle / f"pack-{hashlib.sha256(head).hexdigest()}"
    with _packing:
        if not pack.exists():
            partial = pack.with_suffix(".part")
            descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with open(descriptor, "wb") as file:
                file.write(head)
                for sha256, _ in wanted:
                    refuse_changed(contents / sha256, sha256)
                    file.writelines(_blocks(contents / sha256))
            partial.replace(pack)
    return pack


def _blocks(path: Path) -> Iterator[bytes]:
    with open(path, "rb", buffering=0) as file:
        while block := file.read(_BLOCK):
            yield block
