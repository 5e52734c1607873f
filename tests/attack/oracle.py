"""What must hold of a task that has ended, whatever befell it."""

from __future__ import annotations

import re
from itertools import combinations
from pathlib import Path

from tests.attack.cases import NODES, SURVIVED, Case
from tests.attack.stage import NODE_HOME, Life, Stage

EARLY = ("bring-up", "join", "prepare", "before GO")
# A worker that ends so soon after the word is under way has ended by itself.
_HEARD_SECONDS = 2.0
HEARD_BEHIND_A_CUT_SECONDS = 20.0
"""Within this time after a cut the word reaches the leader: the connection may pause for 8 s before it tries again."""
# What a worker writes between two signs of its life.
_AHEAD = 1


def judge(stage: Stage, touched: set[str]) -> list[str]:
    """What is wrong, in words. `touched` are the names of hosts that something befell."""
    return [
        *_wrong_end(stage),
        *_ranks_twice(stage.lives()),
        *_wrong_lines(stage, touched),
        *_wrong_results(stage),
        *_wrong_names(stage, touched),
    ]


def _wrong_end(stage: Stage) -> list[str]:
    case, record = stage.case, stage.record
    if stage.cancelled_in is not None and record.state != "cancelled":
        state, outcome, at = stage.cancelled_in
        heard = at + _HEARD_SECONDS
        if case.leader_is_out_of_reach:
            # The word goes to the leader, so workers may return before it arrives.
            heard = max(heard, stage.healed_at + HEARD_BEHIND_A_CUT_SECONDS)
        lived = [life for life in stage.lives() if life.last > heard]
        if state != "stopping" and not outcome and record.state == "completed" and lived:
            return [f"cancelled while {state}, and it ended as {record.state}: {lived[0]}"]
        return []
    if stage.cancelled_in is not None:
        return []
    if record.state == "cancelled":
        return ["cancelled, though nobody asked for it"]
    if case.must_survive and (record.state != "completed" or record.attempt != 1):
        how = record.state if record.state != "completed" else f"attempt {record.attempt}"
        return [
            f"a cut of {case.longest:.0f} s, which is no longer than {SURVIVED:.0f} s, "
            f"ended in {how}: {record.reason}"
        ]
    return []


def _ranks_twice(lives: list[Life]) -> list[str]:
    wrong = []
    for one, other in combinations(lives, 2):
        if one.rank == other.rank and one.attempt == other.attempt:
            wrong.append(f"started twice: {one}, {other}")
        elif one.attempt != other.attempt and one.first < other.last and other.first < one.last:
            wrong.append(f"two attempts at the same time: {one}, {other}")
    return wrong


def _wrong_lines(stage: Stage, touched: set[str]) -> list[str]:
    wrong = []
    record = stage.record
    for life in stage.lives():
        last = life.attempt == record.attempt
        whole = last and record.state == "completed"
        for stream in ("out", "err"):
            path = stage.paths.stream(life.attempt, life.rank, life.rank, stream)
            most = b"".join(
                stage.program.line(stream, life.rank, life.attempt, number + 1)
                for number in range(life.lines + _AHEAD)
            )
            least = b"".join(
                stage.program.line(stream, life.rank, life.attempt, number + 1)
                for number in range(life.lines)
            )
            where = f"{stream} of {life}"
            have = _first_bytes(path, len(most) + 1)
            if stage.case.kind in ("hostile", "disk") and life.host in touched:
                # What else it wrote is of its own making: a misdeed, or the error of a full disk.
                have = have[: len(least)]
            if not most.startswith(have):
                wrong.append(f"lines doubled, changed or out of order: {where}")
            elif len(have) >= len(least) or _is_kept(stage, life, stream, least):
                continue
            elif whole or life.host not in touched:
                wrong.append(f"{len(least) - len(have)} bytes of lines lost: {where}")
    return wrong


def _is_kept(stage: Stage, life: Life, stream: str, least: bytes) -> bool:
    """Whether the node still has all of a stream that is not here, and the task says that it has."""
    host = next(each for each in stage.cluster if each.name == life.host)
    name = f"tasks/{stage.id}-*-{life.host}-*/a{life.attempt}/r{life.rank}.{stream}"
    lacking = [text for kind, text in stage.events if kind == "lacking"]
    files = (host.root / NODE_HOME).glob(name)
    return any(
        path.read_bytes().startswith(least) and path.parent.parent.name in text
        for path in files
        for text in lacking
    )


def _first_bytes(path: Path, count: int) -> bytes:
    if not path.exists():
        return b""
    with open(path, "rb") as file:
        return file.read(count)


def _wrong_results(stage: Stage) -> list[str]:
    record = stage.record
    if record.state != "completed":
        return []
    assert stage.task is not None
    lives = {life.rank: life for life in stage.lives() if life.attempt == record.attempt}
    wrong = []
    for rank in range(NODES):
        try:
            value = stage.task.result_of(rank, timeout=90)
        except Exception as error:
            wrong.append(f"completed, and the result of rank {rank} is lost: {error}")
            continue
        if rank not in lives or value != {
            "rank": rank,
            "attempt": record.attempt,
            "lines": lives[rank].lines,
            "data": stage.program.payload(rank, record.attempt),
        }:
            wrong.append(f"the result of rank {rank} is wrong: {str(value)[:80]}")
    return wrong


def _wrong_names(stage: Stage, touched: set[str]) -> list[str]:
    record = stage.record
    if record.state != "failed":
        return []
    may = culprits(stage.case)
    named = {int(number) for number in re.findall(r"\bnode (\d+)\b", record.reason)}
    named |= {
        node for node in range(NODES) if stage.host_of(node).name in record.reason and not named
    }
    if not may:
        return [f"failed by what must end nothing: {record.reason}"]
    if not named:
        return [f"failed, and no node is named: {record.reason}"]
    if not named <= may:
        return [f"the wrong node is named: {record.reason}"]
    return []


def culprits(case: Case) -> set[int]:
    """Nodes that may be given up in a case, by rank."""
    may: set[int] = set()
    for fault in case.faults:
        match fault.kind:
            case "client-all" | "client-disk" | "clock":
                # Nothing is known of the nodes then, or nothing is wrong with them.
                pass
            case "client-node" | "sshd":
                # The others hear it once they run.
                may |= set(fault.nodes) if case.phase in EARLY else set()
            case "pair":
                may |= set(fault.nodes) if case.phase in EARLY else set()
            case "all-pairs":
                may |= set(range(NODES))
            case "leader-member":
                may |= {*fault.nodes, *([0] if case.phase in EARLY else [])}
            case _:
                may |= set(fault.nodes)
    return may
