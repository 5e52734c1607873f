"""What a host keeps of an ended task while it is cut off, and how it lies about it when `flow result` asks."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from flowlite.testing.hosts.root import USER_ID
from tests.attack import striking
from tests.attack.cases import NODES
from tests.attack.stage import NODE_HOME, Stage
from tests.helpers import eventually

IMPATIENT = Path(__file__).parent.parent / "faults" / "impatient"
"""On the PYTHONPATH of a supervisor, it waits 15 s for what is not here."""
_SECONDS = 180.0
_MOST_BYTES = 64 << 20
"""A task's directory stays below: its lines and results are a small part of it."""


def keep(stage: Stage, node: int) -> None:
    """Ends all ranks well, and cuts a node off before anything of it is fetched, until the task has failed so."""
    host = stage.host_of(node)
    host.partition(stage.cluster.laptop)
    stage.finish()
    eventually(stage.paths.ended(1).exists, timeout=_SECONDS)
    host.partition()
    eventually(lambda: stage.record.final, timeout=_SECONDS)
    assert "brings them" in stage.record.reason, stage.record.reason
    host.heal()


def lie(stage: Stage, node: int, way: str) -> Callable[[], None]:
    """Makes the host lie about the result that it keeps; what comes back makes it honest again."""
    if way == "without end":
        return striking.answer_with(stage.host_of(node), "exec cat /dev/zero")
    [result] = (stage.host_of(node).root / NODE_HOME / "tasks").glob(
        f"{stage.id}-*/a1/r{node}.result"
    )
    content, home = result.read_bytes(), result.parent.parent
    if way == "another user's":
        os.chown(home, USER_ID, USER_ID)
        return lambda: os.chown(home, 0, 0)
    if way == "too long":
        os.truncate(result, 1 << 33)
    elif way == "too short":
        os.truncate(result, len(content) // 2)
    else:
        result.unlink()
        if way == "a device":
            result.symlink_to("/dev/zero")
        else:
            os.mkfifo(result)

    def undo() -> None:
        # The host itself removes what is no output when it tidies up.
        result.unlink(missing_ok=True)
        result.write_bytes(content)

    return undo


def believed(stage: Stage, node: int) -> list[str]:
    """What of the lie is here, in words."""
    wrong = []
    if stage.paths.result(1, node).exists():
        wrong.append("a result is here that is not what its rank left")
    size = sum(path.stat().st_blocks * 512 for path in stage.paths.directory.rglob("*"))
    if size > _MOST_BYTES:
        wrong.append(f"{size / 1e6:.0f} MB are in the task's directory")
    return wrong


def not_brought(stage: Stage) -> list[str]:
    """What is not as the ranks left it when the host is honest again, in words."""
    assert stage.task is not None
    lives = {life.rank: life for life in stage.lives()}
    wrong = []
    for rank in range(NODES):
        try:
            value = stage.task.result_of(rank, timeout=_SECONDS)
        except Exception as error:
            wrong.append(f"the result of rank {rank} that was kept is lost: {error}")
            continue
        data = stage.program.payload(rank, 1)
        if value != {"rank": rank, "attempt": 1, "lines": lives[rank].lines, "data": data}:
            wrong.append(f"the result of rank {rank} that was kept is wrong: {str(value)[:80]}")
    return wrong
