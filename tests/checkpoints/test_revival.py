"""The copier of checkpoints is started again whenever it was killed, as by the kernel for lack of memory."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

from flowlite.node.checkpoints import agent_side
from flowlite.node.checkpoints.agent_side import CheckpointError, Checkpoints
from flowlite.node.config.agent_config import AgentConfig, AttemptPaths
from flowlite.node.system import processes

# It ends right behind the report of its start as often as the file has lines. The one after that works.
COPIER = """\
while read -r request; do
    if grep -q . "$0.deaths"; then
        sed -i 1d "$0.deaths"
        exec echo '{"event": "started"}'
    fi
    case $request in
    *finish*) echo '{"event": "finished", "files": 1}' ;;
    *) echo '{"event": "started"}' ;;
    esac
done
"""


@pytest.mark.parametrize("deaths", [1, 2, 3])
def test_one_that_is_killed_right_after_its_start(
    deaths: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "copier"
    program.write_text(COPIER)
    (tmp_path / "copier.deaths").write_text("x\n" * deaths)
    monkeypatch.setattr(processes, "own_command", lambda *words, **flags: ["/bin/sh", str(program)])
    monkeypatch.setattr(agent_side, "_FIRST_PAUSE", 0.01)
    told: list[str] = []

    async def copy() -> dict[str, Any]:
        copies = _checkpoints(tmp_path, told)
        await copies._start_process()
        await copies.start(None)
        try:
            return await copies._copy_last()
        finally:
            await copies.end()

    assert asyncio.run(asyncio.wait_for(copy(), 30.0))["files"] == 1
    assert len(told) == 1
    assert "It is started again" in told[0]


def test_one_that_nobody_starts_again_fails_the_last_copy(tmp_path: Path) -> None:
    copies = _checkpoints(tmp_path, [])
    with pytest.raises(CheckpointError, match="copies checkpoints"):
        asyncio.run(copies._copy_last())


@pytest.mark.needs("root")
def test_a_directory_that_another_user_has_made_in_tmp_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o1777)
    theirs = tmp_path / "ckpt"
    theirs.mkdir(mode=0o777)
    os.chown(theirs, 4321, 4321)
    with pytest.raises(CheckpointError, match="ckpt belongs to uid 4321"):
        _checkpoints(tmp_path, [], str(theirs)).make_room()
    os.chown(theirs, 0, 0)
    _checkpoints(tmp_path / "again", [], str(theirs)).make_room()


def _checkpoints(directory: Path, told: list[str], path: str = "/checkpoints") -> Checkpoints:
    config = AgentConfig(
        task="t",
        name="n",
        attempt=1,
        instance="a",
        roster=["a"],
        processes_per_node=1,
        call={"kind": "command", "argv": ["true"]},
        checkpoint={
            "path": path,
            "sync": "s3://b/p",
            "every": 60,
            "keep": 2,
            "nodes": "0",
        },
    )
    attempt = directory / "node" / "1"
    attempt.mkdir(parents=True)
    return Checkpoints(config, AttemptPaths(attempt), lambda kind, text: told.append(text))
