"""Volumes and checkpoints at paths inside a directory that the task writes to."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from flowlite import Checkpoint, FlowApp

pytestmark = [pytest.mark.usefixtures("flow_home"), pytest.mark.needs("own-mounts")]


def save(directory: str, name: str) -> list[str]:
    """Writes a file into the checkpoint, the volume and beside them. Returns what was in the checkpoint before."""
    here = Path(directory)
    before = sorted(os.listdir(here / "ckpt"))
    for each in (here / "ckpt" / name, here / "data" / name, here / f"log-{name}"):
        each.write_text(name)
    return before


def test_what_is_written_beside_a_volume_is_kept(tmp_path: Path, flow_home: Path) -> None:
    app, work, kept = FlowApp(), tmp_path / "work", tmp_path / "kept"
    work.mkdir()
    checkpoint = Checkpoint(str(work / "ckpt"), str(kept), every=60.0)
    options = {"volumes": {str(work / "data"): "data"}, "checkpoint": checkpoint}
    saved = app.function(**options)(save)
    assert saved.remote(str(work), "one") == []
    # No directory is left there, which the next task would take for the user's own, and use as it is.
    assert os.listdir(work) == ["log-one"]
    assert saved.remote(str(work), "two") == ["one"]
    assert sorted(os.listdir(work)) == ["log-one", "log-two"]
    assert sorted(os.listdir(flow_home / "volumes" / "data")) == ["one", "two"]
