"""Looking at the place of checkpoints as a stranger does: only what complete sets say counts."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

from flowlite.node.checkpoints.manifest import (
    CheckpointManifest,
    SetName,
    SetOf,
    is_complete,
    whole_sets,
)


def names_at(place: Path) -> list[SetName]:
    """The manifests that are there."""
    found = [str(path.relative_to(place)) for path in (place / "sets").rglob("*.json")]
    return [name for path in found if (name := SetName.parse(path)) is not None]


def sets_at(place: Path) -> list[SetOf]:
    """The sets that are there, newest first."""
    return whole_sets(names_at(place))


def manifests(place: Path, found: SetOf) -> Sequence[CheckpointManifest]:
    return [CheckpointManifest.from_json((place / name.path).read_bytes()) for name in found.names]


def newest(place: Path) -> dict[str, bytes]:
    """The content of the newest complete set, after making sure that it is what the manifest says."""
    for found in sets_at(place):
        read = manifests(place, found)
        present = {
            str(path.relative_to(place)): path.stat().st_size
            for path in (place / "files").rglob("*")
            if path.is_file()
        }
        if not is_complete(read, present):
            continue
        content = {}
        for file in read[0].files:
            data = (place / file.object).read_bytes()
            assert len(data) == file.size
            assert hashlib.sha256(data).hexdigest() == file.sha256
            content[file.path] = data
        return content
    return {}
