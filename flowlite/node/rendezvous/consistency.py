"""Compares the facts that nodes report: which differences keep a gang from starting, and which are worth a warning.

Pure: it takes facts and returns sentences. Each sentence names the node, what was found there, and what to do.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..protocol.messages import GangSettings
from ..system import node_facts
from ..system.library_versions import COMPUTING, TALKING

CLOCK_TOLERANCE = 5.0
"""Seconds a node's clock may differ from the leader's before times in the log look out of order to users."""

DISK_SHARE = 0.05
"""Share of a disk that should be free."""

_NAMED = 8

Facts = Mapping[str, Any]


def disagreements(settings: GangSettings, facts: Sequence[Facts]) -> list[str]:
    """Returns why this gang must not start; empty if it may. `facts` by node rank."""
    found: list[str] = []
    for read, remedy in (
        (
            _gpus,
            "give every node the same GPUs: replace the odd nodes, or ask for what all of them have",
        ),
        (_python, "use one minor version of Python on all nodes"),
        (_code, "the bundle was damaged or exchanged on its way; run the task again"),
        (_agent, "an agent of another version runs there; run the task again"),
    ):
        found += _odd_ones(settings, [read(each) for each in facts], remedy)
    return found


COMPARED = (
    *("packages", "versions", "talks", "gpu_memory", "doubt"),
    *("unit", "speeds", "links", "skipped"),
)
"""Facts that a node reports when it is ready, and which are only compared: see `Readiness.report`."""

_MEMORY_TOLERANCE = 0.02
_SHM_BYTES = 256 * 2**20


def differences(settings: GangSettings, prepared: Sequence[Facts]) -> list[str]:
    """Returns why nodes that are ready must not start together; empty if they may. `prepared` by node rank."""
    found = differing_packages(settings, [each.get("packages") for each in prepared])
    sizes = [_gpu_memory(each) for each in prepared]
    if not _alike(sizes):
        found += _odd_ones(
            settings,
            _with_tolerance(sizes),
            "a batch that fits on the others would run out of memory there. Replace the odd nodes, or ask for one kind "
            "of GPU (and one MIG profile)",
        )
    if any(each.get("talks") for each in prepared):
        found += _differing_versions(settings, prepared, TALKING)
    return found


def oddities(settings: GangSettings, prepared: Sequence[Facts]) -> list[str]:
    """Returns warnings about nodes that are about to start. `prepared` by node rank."""
    talks = any(each.get("talks") for each in prepared)
    found = _differing_versions(settings, prepared, COMPUTING if talks else (*TALKING, *COMPUTING))
    for rank, each in enumerate(prepared):
        cards = each.get("gpu_memory")
        torch = str((each.get("versions") or {}).get("torch", "")) if cards else ""
        if torch.endswith("+cpu"):
            found.append(
                f"{settings.name(rank)} has GPUs, and torch {torch}, which knows none: training would run on its "
                "processors. Install a build of torch with CUDA there"
            )
        if each.get("doubt"):
            found.append(f"{settings.name(rank)}: {each['doubt']}")
        found += _taken(settings, rank, cards or ())
    return found[:_NAMED]


def _alike(values: Sequence[Any]) -> bool:
    """Whether all nodes report the same, as nearly all gangs do. Then no text needs to be made of each report."""
    return values.count(values[0]) == len(values)


def _differing_versions(
    settings: GangSettings, prepared: Sequence[Facts], names: Sequence[str]
) -> list[str]:
    known = [each.get("versions") for each in prepared]
    if _alike(known) or any(each is None for each in known):
        return []
    found = []
    for name in names:
        has = [
            f"{name} {versions[name]}" if name in versions else f"no {name}"
            for versions in known
            if versions is not None
        ]
        found += _odd_ones(
            settings,
            has,
            "install one version on all nodes, or have flowlite do it (dependencies=[…])",
        )
    return found[:_NAMED]


def _taken(settings: GangSettings, rank: int, cards: Sequence[Sequence[int]]) -> list[str]:
    """Returns a warning for each GPU whose memory is in use before the first worker has started."""
    return [
        f"GPU {index} of {settings.name(rank)} is in use: {used / 1e9:.1f} GB of {total / 1e9:.1f} GB are taken before "
        "the workers start, and will be missing. `nvidia-smi` there shows by whom"
        for index, (used, total) in enumerate(cards)
        if node_facts.lacks_memory(used, total)
    ]


def _gpu_memory(prepared: Facts) -> int:
    """The memory of the smallest GPU, in bytes; 0 where it is not known."""
    cards = prepared.get("gpu_memory")
    return min([total for _, total in cards]) if cards else 0


def _with_tolerance(sizes: Sequence[int]) -> list[str]:
    """Returns each size as text. Sizes that differ by no more than drivers cause (2 %) get the same text."""
    words: dict[int, str] = {}
    for size in sorted(set(sizes)):
        near = [other for other in words if other and size - other <= _MEMORY_TOLERANCE * size]
        words[size] = (
            words[near[-1]] if near else f"GPUs of {size / 1e9:.1f} GB" if size else "GPUs"
        )
    # If the size of one node is unknown, nothing is compared.
    return ["GPUs"] * len(sizes) if 0 in words else [words[size] for size in sizes]


def differing_packages(settings: GangSettings, found: Sequence[Sequence[str] | None]) -> list[str]:
    """Returns how the installed packages differ from those of node 0, as they do where an environment is older.

    Args:
        found: The packages of each node ("name==version"), by node rank.
    """
    if _alike(found):
        return []
    ours = set(found[0] or ())
    sentences = []
    for rank, each in enumerate(found):
        odd = sorted(ours ^ set(each or ()))
        if odd:
            names = sorted({package.partition("==")[0] for package in odd})
            first = names[0]
            there, here = (_version(first, packages or ()) for packages in (each, found[0]))
            more = f" (and {len(names) - 1} more packages)" if names[1:] else ""
            sentences.append(
                f"{settings.name(rank)} has {first} {there} where {settings.name(0)} has {here}{more}: "
                "write exact versions into dependencies (`uv pip compile`), so that all nodes get the same"
            )
    return sentences[:_NAMED]


def _version(name: str, packages: Sequence[str]) -> str:
    """The version of a package in a list of them, or "none"."""
    return next(
        (each.partition("==")[2] for each in packages if each.startswith(f"{name}==")), "none"
    )


def warnings(settings: GangSettings, rank: int, facts: Facts, received: float) -> list[str]:
    """Returns warnings about a node that has just joined. `received` is the leader's clock (Unix) at that moment."""
    found = []
    clock = facts.get("clock")
    if isinstance(clock, (int, float)) and abs(clock - received) > CLOCK_TOLERANCE:
        direction = "ahead of" if clock > received else "behind"
        found.append(
            f"the clock of {settings.name(rank)} is {abs(clock - received):.0f} s {direction} the leader's; times in "
            "its log lines are off by that much. Let NTP set it (timedatectl set-ntp true)"
        )
    free, total = facts.get("disk_free_bytes"), facts.get("disk_total_bytes")
    if (
        isinstance(free, (int, float))
        and isinstance(total, (int, float))
        and free < DISK_SHARE * total
    ):
        found.append(
            f"the disk of {settings.name(rank)} is nearly full: {free / 1e9:.1f} GB of {total / 1e9:.1f} GB free; "
            "logs and checkpoints may fail. Free some space there"
        )
    if (facts.get("gpus") or {}).get("count"):
        found += _surroundings(settings.name(rank), facts)
    return found


def _surroundings(name: str, facts: Facts) -> list[str]:
    """Returns warnings about limits of a node with GPUs that make NCCL or data loaders fail later."""
    found = []
    shared = facts.get("shm_bytes")
    if isinstance(shared, int) and 0 < shared < _SHM_BYTES:
        found.append(
            f"/dev/shm of {name} has {shared / 1e6:.0f} MB: NCCL stops there with `unhandled system error`, data "
            "loaders with `Bus error`. Enlarge it (docker run --shm-size, or mount -o remount,size=16G /dev/shm)"
        )
    locked = facts.get("memlock_bytes")
    if facts.get("infiniband") and isinstance(locked, int):
        found.append(
            f"{name} has InfiniBand, and a process there may lock no more than {locked / 1e6:.0f} MB of memory: NCCL "
            "stops with `unhandled system error`. Raise the limit (ulimit -l unlimited)"
        )
    return found


def _odd_ones(settings: GangSettings, found: Sequence[str], remedy: str) -> list[str]:
    """Returns a sentence for each finding that differs from what most nodes have (on a tie, from the leader's)."""
    votes = Counter(found)
    if len(votes) < 2:
        return []
    most = max(votes.values())
    usual = found[0] if votes[found[0]] == most else votes.most_common(1)[0][0]
    sentences = []
    for finding in votes:
        if finding != usual:
            odd = [settings.name(rank) for rank, each in enumerate(found) if each == finding]
            names = ", ".join(odd[:_NAMED]) + (
                f" and {len(odd) - _NAMED} more" if odd[_NAMED:] else ""
            )
            verb = "has" if len(odd) == 1 else "have"
            other = (
                "the other node has" if votes[usual] == 1 else f"{votes[usual]} other nodes have"
            )
            sentences.append(f"{names} {verb} {_short(finding)}, {other} {_short(usual)}: {remedy}")
    return sentences


def _short(finding: str) -> str:
    return finding if len(finding) <= 40 else f"{finding[:20]}…"


def _gpus(facts: Facts) -> str:
    gpus = facts.get("gpus") or {}
    count = gpus.get("count") or 0
    return f"{count} × {gpus.get('kind') or 'GPU'}" if count else "no GPU"


def _python(facts: Facts) -> str:
    return f"Python {facts.get('python_minor') or 'unknown'}"


def _digest(name: str, key: str) -> Callable[[Facts], str]:
    return lambda facts: f"{name} {facts.get(key) or 'unknown'}"


_code = _digest("code", "code")
_agent = _digest("agent", "agent")
