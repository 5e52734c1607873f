"""Finds anomalies among the nodes of a running gang, apart from its stacks; each is one sentence.

Pure: the nodes' reports and the measured links go in, sentences come out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Any

from flowlite.diagnosis import advice
from flowlite.diagnosis.hang import spans

Seen = Mapping[str, Any]
"""The report of one node (the node program's command `look`)."""

_SLOW = 1 / 3
_IDLE_PERCENT, _BUSY_PERCENT = 5, 50
_MUST_AGREE = (
    "NCCL_SOCKET_IFNAME",
    "NCCL_IB_HCA",
    "NCCL_IB_DISABLE",
    "NCCL_P2P_DISABLE",
    "NCCL_PROTO",
    "NCCL_ALGO",
)


def findings(
    nodes: Sequence[Seen],
    links: Sequence[Mapping[str, Any]],
    lines: Iterable[str] = (),
    *,
    all_wait: bool = False,
) -> list[str]:
    """All anomalies; those that stop a gang come first.

    Args:
        nodes: The nodes' reports, by node rank.
        links: The links between nodes; empty if none was to be measured. One with "error" does not work; one with
            "not_measured" is unknown.
        lines: The last lines of the ranks' output.
        all_wait: Whether all ranks wait in the same collective.
    """
    found = [*_links(links), *_alone(nodes), *_stuck(nodes), *_gpus(nodes), *_seeds(nodes)]
    told = advice.recognised(lines)
    found += [f"the output says so: {advice}" for _, advice in told[:2]]
    if all_wait:
        found += _next_step(nodes, links)
    return found


def _links(links: Sequence[Mapping[str, Any]]) -> list[str]:
    found = [
        f"node {link['from']} cannot talk to node {link['to']}: {link['error']}; allow TCP between them on all ports"
        for link in links
        if "error" in link
    ]
    measured = [link for link in links if "bytes_per_second" in link]
    if len(measured) >= 3:
        usual = median(link["bytes_per_second"] for link in measured)
        for link in measured:
            if link["bytes_per_second"] < _SLOW * usual:
                here, there = (s * 8 / 1e9 for s in (link["bytes_per_second"], usual))
                found.append(
                    f"node {link['from']} -> node {link['to']} is slow: {here:.1f} Gbit/s where links have "
                    f"{there:.1f}; every collective waits for it"
                )
    return found


def _alone(nodes: Sequence[Seen]) -> list[str]:
    """Ranks without a process group, which would train alone without any error."""
    workers = [worker for seen in nodes for worker in seen.get("workers", ())]
    alone = [w["rank"] for w in workers if w.get("torch") and w.get("group") is False]
    if not alone:
        return []
    many = len(alone) > 1
    return [
        f"rank{'s' * many} {spans(alone)} {'have' if many else 'has'} torch loaded and no connection to MASTER_PORT: "
        "no process group is open there (yet). A rank that trains now trains alone, with a loss of its own: call "
        "init_process_group; under Accelerate on processors, ACCELERATE_USE_CPU=true"
    ]


def _stuck(nodes: Sequence[Seen]) -> list[str]:
    found = []
    for node, seen in enumerate(nodes):
        stuck = [w["rank"] for w in seen.get("workers", ()) if w.get("state") == "D"]
        if stuck:
            found.append(
                f"node {node}: rank {spans(stuck)} waits for a disk, a network file system or a device, in the kernel; "
                "look at its mounts and `dmesg`"
            )
    return found


def _gpus(nodes: Sequence[Seen]) -> list[str]:
    """GPUs that are idle while others are busy."""
    cards = [
        (node, card["index"], card["utilisation"])
        for node, seen in enumerate(nodes)
        for card in seen.get("gpus") or ()
        if card.get("utilisation") is not None
    ]
    busy = [each for each in cards if each[2] >= _BUSY_PERCENT]
    if len(busy) * 2 < len(cards):
        return []
    return [
        f"GPU {index} of node {node} is idle ({used} %) while {len(busy)} others work: its rank waits for data, "
        "or does something else; `flow top` shows it live"
        for node, index, used in cards
        if used <= _IDLE_PERCENT
    ]


def variables_of_ranks(seen: Seen) -> list[Mapping[str, str]]:
    """The variables of each rank of a node that affect how ranks communicate and compute."""
    return [worker["variables"] for worker in seen.get("workers", ()) if "variables" in worker]


def _seeds(nodes: Sequence[Seen]) -> list[str]:
    """Variables that must be equal on all ranks: seeds, and those for which a difference makes NCCL hang or fail."""
    known = [variables for seen in nodes if (variables := variables_of_ranks(seen))]
    names = {name for of_node in known for variables in of_node for name in variables}
    found = []
    for name in sorted(names):
        values = [{variables.get(name) for variables in of_node} for of_node in known]
        if len(set.union(*values)) > 1 and ("SEED" in name or name in _MUST_AGREE):
            where = "ranks" if any(len(of_node) > 1 for of_node in values) else "nodes"
            why = "ranks draw other numbers" if "SEED" in name else "NCCL may hang or fail"
            found.append(
                f"{name} is not the same on all {where}: {why}; set it once, in environment= or with --env"
            )
    return found


def _next_step(nodes: Sequence[Seen], links: Sequence[Mapping[str, Any]]) -> list[str]:
    """What to try next if no rank is late and plain connections between the nodes work."""
    if any("error" in link for link in links):
        return []
    variables: Mapping[str, str] = next(
        (variables for seen in nodes for variables in variables_of_ranks(seen)), {}
    )
    if not _use_nccl(nodes):
        if variables.get("TORCH_DISTRIBUTED_DEBUG") == "DETAIL":
            return []
        return [
            "nobody is late. Run again with -e TORCH_DISTRIBUTED_DEBUG=DETAIL: torch then fails where ranks call "
            "collectives of other kinds or shapes"
        ]
    if variables.get("NCCL_DEBUG") in ("INFO", "TRACE"):
        return []
    interface = variables.get("NCCL_SOCKET_IFNAME")
    used = f" NCCL uses the interface {interface}." if interface else ""
    return [
        f"nobody is late, so it is the transport below.{used} Run again with -e NCCL_DEBUG=INFO -e "
        "NCCL_DEBUG_SUBSYS=INIT,NET, which says what it waits for; -e NCCL_IB_DISABLE=1 shows whether it is InfiniBand"
    ]


def _use_nccl(nodes: Sequence[Seen]) -> bool:
    """Whether the ranks communicate by NCCL: by the backends that were recognised, else if there are GPUs."""
    backends = {
        backend
        for seen in nodes
        for worker in seen.get("workers", ())
        for backend in worker.get("backends", ())
    }
    return "nccl" in backends if backends else any(seen.get("gpus") for seen in nodes)
