"""Diagnoses a hanging gang from its ranks' stacks: groups them, and finds the rank that the others wait for.

Pure: the nodes' reports go in, text comes out.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from flowlite.node.quick_dataclass import dataclass

# Frames of a rank that waits for others: (end of the file name, functions; none means all, what it waits in).
_WAITS: tuple[tuple[str, tuple[str, ...], str], ...] = (
    ("torch/distributed/rendezvous.py", (), "init_process_group"),
    ("torch/distributed/distributed_c10d.py", (), ""),
    ("torch/distributed/nn/functional.py", (), ""),
    ("torch/distributed/_functional_collectives.py", (), ""),
    ("torch/autograd/graph.py", ("_engine_run_backward",), "backward"),
    ("torch/autograd/__init__.py", ("backward",), "backward"),
    ("torch/cuda/__init__.py", ("synchronize",), "cuda.synchronize"),
    ("node/worker/torch_teardown.py", ("leave_together",), "the end of the other ranks"),
)
_WRAPPERS = frozenset({"wrapper", "inner", "decorate_context", "_new_process_group_helper"})
# The directory of a source snapshot on a node.
_SNAPSHOT = re.compile(r".*/source-[0-9a-f]{64}/")
_OURS = ("flowlite_node/", "flowlite/node/")
_COLLECTIVES_END = "torch/distributed/distributed_c10d.py"
_RECEIVES = frozenset({"recv", "irecv", "recv_object_list"})
_SENDS = frozenset({"send", "isend", "send_object_list"})
_POINT_TO_POINT = _RECEIVES | _SENDS | {"batch_isend_irecv"}
_NAMED = 4
_DEADLOCK = "a deadlock of the program, not of the network; compare the order of its calls"


@dataclass(frozen=True, slots=True)
class Rank:
    """The state of one rank. `frames` has the innermost frame first; it is empty if the stack could not be read."""

    rank: int
    node: int
    pid: int
    state: str = "?"
    frames: tuple[tuple[str, int, str], ...] = ()
    how: str = ""
    why: str = ""

    @classmethod
    def of(cls, node: int, found: Mapping[str, Any]) -> Rank:
        """Makes a rank from the node program's report on one worker."""
        frames = tuple(
            (_known_as(f["file"]), int(f["line"]), str(f["function"]).rpartition(".")[2])
            for f in found["frames"]
        )
        frames = frames[: _users_part(frames)]
        return cls(
            int(found["rank"]),
            node,
            int(found["pid"]),
            str(found["state"]),
            frames,
            found["how"],
            found["why"],
        )

    @property
    def waits_in(self) -> str:
        """The collective that it waits in; "" if it is in none."""
        for file, _, function in self.frames:
            for end, functions, name in _WAITS:
                if not file.endswith(end) or function in _WRAPPERS:
                    continue
                if functions and function not in functions:
                    continue
                return name or self._outermost_collective()
        return ""

    @property
    def suspended(self) -> bool:
        """Whether it was stopped, by a signal or by a debugger, wherever it stands."""
        return self.state in ("T", "t")

    @property
    def place(self) -> tuple[str, int, str] | None:
        """The innermost frame of the user's code: not of an installed package, the standard library or flowlite."""
        return next((frame for frame in self.frames if not _is_library(frame[0])), None)

    def _outermost_collective(self) -> str:
        """The collective that the user's code calls, such as `all_reduce`, not the functions that it calls in turn."""
        inside = [
            f
            for file, _, f in self.frames
            if file.endswith(_COLLECTIVES_END) and f not in _WRAPPERS
        ]
        return inside[-1] if inside else self.frames[0][2]


@dataclass(frozen=True, slots=True)
class Group:
    """Ranks with the same stack."""

    ranks: tuple[Rank, ...]

    @property
    def numbers(self) -> list[int]:
        """The sorted numbers of the ranks."""
        return sorted(rank.rank for rank in self.ranks)

    @property
    def frames(self) -> tuple[tuple[str, int, str], ...]:
        """The stack they share."""
        return self.ranks[0].frames

    @property
    def waits_in(self) -> str:
        """The collective that they wait in; "" if they are in none."""
        return self.ranks[0].waits_in


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The diagnosis. `groups` has the outliers first; `verdict` is one sentence, or "" if there is no clear cause.

    `missing` are ranks that do not run; `unknown` are those whose node does not answer.
    """

    groups: tuple[Group, ...]
    verdict: str
    missing: tuple[int, ...] = ()
    waited_for: tuple[int, ...] = ()
    unknown: tuple[int, ...] = ()
    silent_nodes: tuple[int, ...] = ()

    @property
    def nobody_is_late(self) -> bool:
        """Whether all ranks of the gang wait in the same collective."""
        names = {group.waits_in for group in self.groups}
        complete = not (self.missing or self.silent_nodes)
        if any(rank.suspended for group in self.groups for rank in group.ranks):
            return False
        return complete and len(names) == 1 and not names & {"", *_POINT_TO_POINT}


def diagnose(
    ranks: Iterable[Rank], world_size: int, silent: Mapping[int, Sequence[int]] | None = None
) -> Diagnosis:
    """Groups ranks by equal stacks, and finds the rank that the others wait for.

    Args:
        ranks: The running ranks.
        world_size: Number of ranks in the gang.
        silent: The nodes that do not answer, each with its ranks, as far as these are known.
    """
    silent = silent or {}
    found = sorted(ranks, key=lambda rank: rank.rank)
    by_stack: dict[tuple[tuple[str, int, str], ...], list[Rank]] = {}
    for rank in found:
        by_stack.setdefault(rank.frames, []).append(rank)
    groups = sorted(
        (Group(tuple(members)) for members in by_stack.values()),
        key=lambda group: (len(group.ranks), group.numbers),
    )
    unknown = tuple(sorted(rank for numbers in silent.values() for rank in numbers))
    missing = tuple(sorted({*range(world_size)} - {rank.rank for rank in found} - {*unknown}))
    waited_for, verdict = _verdict(found, missing, complete=not silent)
    parts = [part for part in (_unanswered(sorted(silent), unknown), verdict) if part]
    return Diagnosis(
        tuple(groups), "; ".join(parts), missing, waited_for, unknown, tuple(sorted(silent))
    )


def _unanswered(silent: Sequence[int], unknown: Sequence[int]) -> str:
    if not silent:
        return ""
    many = len(silent) > 1
    nodes = f"node{'s' * many} {spans(silent)} {'do' if many else 'does'} not answer"
    return f"{nodes}, so {_ranks(unknown, 'is', 'are')} unknown" if unknown else nodes


def _verdict(
    found: Sequence[Rank], missing: Sequence[int], *, complete: bool
) -> tuple[tuple[int, ...], str]:
    """The ranks that are waited for, and why.

    Args:
        complete: Whether all nodes answered, so that all running ranks are in `found`.
    """
    if suspended := [rank for rank in found if rank.suspended]:
        return tuple(rank.rank for rank in suspended), _why_suspended(suspended)
    known = [rank for rank in found if rank.frames]
    waiting = [rank for rank in known if rank.waits_in]
    busy = [rank for rank in known if not rank.waits_in]
    if waiting and missing:
        names = _names([rank.waits_in for rank in waiting])
        return tuple(missing), (
            f"{_ranks([rank.rank for rank in waiting])} in {names}; {_ranks(missing, 'has', 'have')} ended or never "
            "started"
        )
    complete = complete and len(known) == len(found)
    if waiting and busy:
        names = _names([rank.waits_in for rank in waiting])
        who = "everyone else waits" if complete else "others wait"
        where = "; ".join(
            f"rank {rank.rank} (node {rank.node}) is {_at(rank)}" for rank in busy[:_NAMED]
        )
        return tuple(rank.rank for rank in busy), (
            f"{who} in {names} for {_ranks([rank.rank for rank in busy], '', '')}: {where}"
        )
    if waiting:
        return _all_wait(waiting, complete=complete)
    return (), ""


def _why_suspended(suspended: Sequence[Rank]) -> str:
    remedies = " and ".join(f"`kill -CONT {r.pid}` on node {r.node}" for r in suspended[:_NAMED])
    more = f" (and {len(suspended) - _NAMED} more)" if suspended[_NAMED:] else ""
    return (
        f"{_ranks([rank.rank for rank in suspended], 'is', 'are')} suspended, by SIGSTOP or a debugger, and the "
        f"other ranks wait for {'it' if len(suspended) == 1 else 'them'}: {remedies}{more}"
    )


def _all_wait(waiting: Sequence[Rank], *, complete: bool) -> tuple[tuple[int, ...], str]:
    """The verdict on ranks that all wait.

    Args:
        complete: Whether these are all ranks of the gang.
    """
    different = sorted({rank.waits_in for rank in waiting})
    where = "; ".join(
        f"{_ranks([r.rank for r in waiting if r.waits_in == name])} in {name}" for name in different
    )
    if complete and _RECEIVES.issuperset(different):
        return (), f"all ranks wait in {_names(different)} and none of them sends: {_DEADLOCK}"
    if complete and _SENDS.issuperset(different):
        return (), f"all ranks wait in {_names(different)} and none of them receives: {_DEADLOCK}"
    if _POINT_TO_POINT.issuperset(different):
        return (), f"{where}; compare the peers, the tags and the order: each send needs a recv"
    if len(different) > 1:
        smallest = min(different, key=lambda name: sum(r.waits_in == name for r in waiting))
        odd = tuple(rank.rank for rank in waiting if rank.waits_in == smallest)
        calls = "calls" if _POINT_TO_POINT & {*different} else "collectives"
        return odd, f"ranks wait in different {calls}: {where}"
    if complete:
        return (), f"all ranks wait in {different[0]}: look at the links between the nodes"
    return (), f"{where}; nothing is known of the other ranks"


def _at(rank: Rank) -> str:
    place = rank.place
    innermost = rank.frames[0]
    if place is None:
        return f"in {innermost[2]} ({innermost[0]}:{innermost[1]})"
    inside = "" if place == innermost else f", in {innermost[2]}"
    return f"at {place[0]}:{place[1]} in {place[2]}{inside}"


def _ranks(numbers: Iterable[int], one: str = "waits", many: str = "wait") -> str:
    listed = spans(numbers)
    single = listed.isdigit()
    verb = one if single else many
    return f"{'rank' if single else 'ranks'} {listed}{' ' + verb if verb else ''}"


def _names(names: Iterable[str]) -> str:
    return " and ".join(sorted(set(names)))


def spans(numbers: Iterable[int]) -> str:
    """Numbers as ranges: `0-4, 6`."""
    ordered = sorted(set(numbers))
    parts: list[str] = []
    start = 0
    for index, number in enumerate(ordered):
        if index + 1 == len(ordered) or ordered[index + 1] != number + 1:
            first = ordered[start]
            parts.append(str(number) if first == number else f"{first}-{number}")
            start = index + 1
    return ", ".join(parts)


def _known_as(file: str) -> str:
    """A file's path in the project or below the working directory, instead of its path on the node."""
    return _SNAPSHOT.sub("", file).removeprefix(os.path.join(os.getcwd(), ""))


def _is_library(file: str) -> bool:
    return any(
        part in file for part in ("/site-packages/", "/dist-packages/", "/lib/python3", "<frozen")
    ) or any(part in file for part in _OURS)


def _users_part(frames: Sequence[tuple[str, int, str]]) -> int:
    """How many of the innermost frames remain without flowlite's own frames that call the user's function."""
    for index, (file, _, function) in enumerate(frames):
        if function == "run" and any(file.endswith(f"{part}worker/load_call.py") for part in _OURS):
            return index
    return len(frames)
