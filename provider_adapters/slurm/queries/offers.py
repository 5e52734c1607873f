"""The offers of a cluster's partitions, without prices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from flowlite.provider import Offer
from flowlite.spec.gpu import GpuRequest
from provider_adapters.slurm.queries import partitions as clusters
from provider_adapters.slurm.queries.partitions import PartitionNodes

if TYPE_CHECKING:
    from provider_adapters.slurm.queries.parse import Partition


def offers_of(partitions: Sequence[PartitionNodes], gpu: str | None, count: int) -> list[Offer]:
    """One offer for each kind of GPU of each partition, those that fit first."""
    request = GpuRequest.parse(gpu) if gpu else None
    found = [
        _offer(each, kind, number, rows, request, count)
        for each in partitions
        for (kind, number), rows in _kinds(each).items()
    ]
    return sorted(found, key=lambda offer: (not offer.fits, not offer.available, offer.region))


def _kinds(partition: PartitionNodes) -> dict[tuple[str, int], list[Partition]]:
    """Rows of `sinfo` grouped by the GPUs of a node."""
    found: dict[tuple[str, int], list[Partition]] = {}
    for row in partition.rows:
        for kind, number in (row.gpus or {"": 0}).items():
            found.setdefault((kind, number), []).append(row)
    return found


def _offer(
    partition: PartitionNodes,
    kind: str,
    number: int,
    rows: Sequence[Partition],
    request: GpuRequest | None,
    count: int,
) -> Offer:
    nodes = sum(row.nodes for row in rows)
    idle = sum(row.nodes for row in rows if row.state == "idle")
    cores = max(row.cores for row in rows)
    fits = request is None or any(clusters.gres_for(request, row) for row in rows)
    notes = [f"{nodes} nodes, {idle} idle"]
    if not fits and request is not None:
        notes.append(f"not {request}")
    elif nodes < count:
        notes.append(f"fewer than {count} nodes")
    if not partition.up:
        notes.append("takes no jobs now")
    return Offer(
        provider="slurm",
        instance_type=f"{cores} cores",
        region=partition.name,
        gpu=kind or ("unnamed" if number else ""),
        gpus_per_node=number,
        price_per_hour=0.0,
        available=partition.up and idle >= count,
        note=", ".join(notes),
        fits=fits and nodes >= count and partition.up,
    )
