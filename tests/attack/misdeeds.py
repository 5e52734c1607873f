"""Whether a hostile node has done what its case says: by what came here, and by what its worker noted."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable

from tests.attack.stage import Life, Stage

NOTE = "misdeed"
_SECONDS = 120
_BLOCK = 1 << 20
# Loads what a rank left with all that it holds, as somebody does who trusts the nodes.
_LOADS = """
import sys
from flowlite import Flow
Flow().get_task(sys.argv[1]).failures(allow_pickle=True)
"""


def not_done(stage: Stage, host: str) -> list[str]:
    """What is lacking of the misdeed, in words; nothing if it was done."""
    way = stage.case.faults[0].way
    lives = [life for life in stage.lives() if life.host == host and life.attempt == 1]
    if not lives:
        return [f"the misdeed was not done: no worker ran on {host}"]
    try:
        _PROOFS[way](stage, way, lives[0])
    except (AssertionError, OSError, ValueError, KeyError) as error:
        return [f"the misdeed was not done: {type(error).__name__}: {error}"]
    return []


def _printed(stage: Stage, way: str, life: Life) -> None:
    """All that was written after the numbered lines came here, byte for byte."""
    block, count = stage.program.WRITTEN[way]
    if way == "line that is no text":
        # Its bytes are drawn by the node.
        assert _after_lines(stage, life, None) > count * (len(block) - _BLOCK // 100)
    else:
        assert _after_lines(stage, life, block) == count * len(block)


def _titles(stage: Stage, way: str, life: Life) -> None:
    assert _after_lines(stage, life, stage.program.TITLES) == len(stage.program.TITLES)
    said = "SIGKILL" if way == "killed" else "in an exception"
    assert said in _said(stage), _said(stage)


def _poisonous(stage: Stage, way: str, life: Life) -> None:
    assert not stage.poisoned.exists(), "it was executed before anybody allowed it"
    command = [sys.executable, "-c", _LOADS, stage.id]
    subprocess.run(command, check=False, capture_output=True, timeout=_SECONDS)
    assert stage.poisoned.exists(), "the poison does nothing"


def _raised(stage: Stage, way: str, life: Life) -> None:
    said = "ValueError: xxx" if way == "exception of 30 MB" else "ValueError: after 1999"
    assert said in _said(stage), _said(stage)[:300]


def _logged(stage: Stage, way: str, life: Life) -> None:
    block, count = stage.program.AGENT_LOGS[way]
    assert _noted(stage)["bytes"] >= count * len(block)
    kept = stage.paths.agent_log(1, life.rank)
    assert kept.stat().st_size, f"{kept} is empty"


def _nonsense(stage: Stage, way: str, life: Life) -> None:
    assert _noted(stage)["bytes"] == stage.program.NONSENSE
    assert stage.paths.result(1, life.rank).stat().st_size == stage.program.NONSENSE


def _agent_replaced(stage: Stage, way: str, life: Life) -> None:
    assert _noted(stage)["agent"]


def _noted(stage: Stage) -> dict[str, int]:
    noted: dict[str, int] = json.loads((stage.cluster.shared / NOTE).read_text())
    return noted


def _said(stage: Stage) -> str:
    return " ".join([stage.record.reason, *(text for _, text in stage.events)])


def _after_lines(stage: Stage, life: Life, block: bytes | None) -> int:
    """Bytes of a rank's output after its numbered lines; if a block is given, only it may be repeated there."""
    path = stage.paths.stream(1, life.rank, life.rank, "out")
    begin = sum(
        len(stage.program.line("out", life.rank, 1, number + 1)) for number in range(life.lines)
    )
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size - begin
        file.seek(begin)
        while block and (found := file.read(len(block))):
            assert found == block, f"something else is in {path}"
    return size


_PROOFS: dict[str, Callable[[Stage, str, Life], None]] = {
    "control": _titles,
    "killed": _titles,
    "pickle": _poisonous,
    "line": _printed,
    "agent.log": _logged,
    "agent.log of control sequences": _logged,
    "progress bar": _printed,
    "line of control sequences": _printed,
    "line that is no text": _printed,
    "empty lines": _printed,
    "exception of 30 MB": _raised,
    "chain of exceptions": _raised,
    "result of nonsense": _nonsense,
    "report that is a bomb": _agent_replaced,
    "process file without end": _agent_replaced,
    "files of other kinds": _agent_replaced,
}
