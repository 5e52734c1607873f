"""The offers of pools: whole hosts, free of charge."""

from __future__ import annotations

from flowlite.provider import Offer
from flowlite.spec.gpu import GpuRequest, kind_named
from provider_adapters.ssh import host_requirements, hosts
from provider_adapters.ssh.hosts import Facts, Memory
from provider_adapters.ssh.leases import in_words
from provider_adapters.ssh.planning import survey
from provider_adapters.ssh.pools import Host, Pool


def offers_of(pool: Pool, gpu: str | None, memory: Memory) -> list[Offer]:
    """One offer for each kind of host in a pool that meets the request."""
    request = GpuRequest.parse(gpu) if gpu else None
    kinds: dict[tuple[str, int], list[Host]] = {}
    for host, facts in zip(pool.hosts, survey(pool, memory), strict=True):
        known = facts if isinstance(facts, Facts) else None
        kind = _gpus_of(host, known)
        if (
            request is None
            or len(host_requirements.usable_gpus(host, known, request)) >= request.count
        ):
            kinds.setdefault(kind, []).append(host)
    return [_offer(pool, kind, count, members) for (kind, count), members in kinds.items()]


def _offer(pool: Pool, kind: str, count: int, members: list[Host]) -> Offer:
    def ask(host: Host) -> str:
        with hosts.connect(host) as connection:
            held = hosts.held_by(host, connection)
        return in_words(host.name, held) if held else ""

    answers = hosts.everywhere(members, ask, *hosts.TROUBLE)
    free = sum(answer == "" for answer in answers)
    busy = [str(answer) for answer in answers if answer != ""]
    return Offer(
        provider="ssh",
        instance_type=f"host of {pool.name}",
        region=pool.name,
        gpu=kind,
        gpus_per_node=count,
        price_per_hour=0.0,
        available=free > 0,
        note="; ".join([f"{free} of {len(members)} free", *busy]),
    )


def _gpus_of(host: Host, facts: Facts | None) -> tuple[str, int]:
    if host.gpus:
        declared = GpuRequest.parse(host.gpus)
        return declared.kind, declared.count
    listed = facts.gpus if facts is not None else ()
    names = [kind_named(str(gpu["name"])) or str(gpu["name"]) for gpu in listed]
    return (names[0], len(names)) if names else ("", 0)
