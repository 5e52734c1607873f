"""The plan of the SSH provider, made from a task's options, and all reasons for refusing one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from flowlite import python_request
from flowlite.errors import ConfigError, NodeUnreachable, ProviderError
from flowlite.provider import Plan, slots_of_gang
from provider_adapters import pythons
from provider_adapters.ssh import host_requirements, hosts
from provider_adapters.ssh.hosts import FRESH_SECONDS, Facts, Memory
from provider_adapters.ssh.pools import Host, Pool, choose_pool

if TYPE_CHECKING:
    from flowlite.settings.provider_settings import ProviderSettings
    from flowlite.spec import TaskConfig

# A host whose agents are all gone is free again after this time.
LEASE_SECONDS = 120.0


def make_plan(config: TaskConfig, settings: ProviderSettings, memory: Memory) -> Plan:
    """The plan for a pool. Hosts without recent facts are asked for them.

    Raises:
        ConfigError: The pool cannot provide an option.
        ProviderError: Too few of its hosts can be used now.
    """
    pool = choose_pool(settings, config.one_region)
    fewest, most = config.fewest_nodes, min(config.most_nodes, len(pool.hosts))
    if fewest > most:
        raise ConfigError(
            f"num_instances: {fewest} hosts were asked for, and the pool {pool.name} has "
            f"{len(pool.hosts)}: {', '.join(host.name for host in pool.hosts)}. Ask for fewer, or add hosts "
            f"(`flow hosts add NAME --pool {pool.name}`)"
        )
    request = config.gpu_request
    wanted = {
        "gpu": str(request) if request else "",
        "cpu": config.cpu,
        "memory": config.memory,
        "image": config.image is not None,
        "sshfs": bool(config.volumes) and not pool.shared_dir and most > 1,
    }
    notes = _check_hosts(pool, wanted, fewest, memory)
    notes += _without_effect(config)
    return Plan(
        provider="ssh",
        instance_type=f"host of {pool.name}",
        region=pool.name,
        num_instances=most,
        processes_per_node=config.workers_per_node,
        gpu=request.kind if request else "",
        gpus_per_node=config.gpus_per_node,
        max_run_seconds=config.max_run_seconds,
        max_cost=config.max_cost,
        notes=tuple(notes),
        slots=(slots_of_gang([host.key for host in pool.hosts], fewest, most),),
        options={
            "pool": pool.name,
            "hosts": [host.to_json() for host in pool.hosts],
            "wanted": wanted,
            "ttl": LEASE_SECONDS + config.retries.policy.longest_pause,
            "workdir": config.directory_on_node,
            **python_request.plan_options(config),
            "container": {"image": config.image} if config.image else None,
            **_volumes(config, pool),
        },
    )


# Hosts


def _check_hosts(pool: Pool, wanted: dict[str, Any], count: int, memory: Memory) -> list[str]:
    """Notes for the user. Raises unless enough hosts are usable, or may be once they answer."""
    found = survey(pool, memory, wanted)
    wrong, silent, bare = [], [], []
    for host, facts in zip(pool.hosts, found, strict=True):
        if isinstance(facts, Facts):
            problem = host_requirements.misfit(host, facts, wanted)
            wrong += [problem] if problem else []
            bare += [host.name] if host_requirements.can_be_brought(host, facts) else []
        else:
            silent.append(f"{host.name}: {facts}" if host.name not in str(facts) else str(facts))
    total = len(pool.hosts)
    if total - len(wrong) < count:
        raise ConfigError(
            f"{_asked(wanted, count)}, and the pool {pool.name} has {total - len(wrong)} such: "
            f"{'; '.join(wrong)}{_choices(pool, wanted)}"
        )
    if total - len(wrong) - len(silent) < count:
        raise ProviderError(
            f"{_asked(wanted, count)}, and of the pool {pool.name} too few can be used now: "
            f"{'; '.join([*silent, *wrong])}"
        )
    notes = [f"of the pool {pool.name}, {each}" for each in silent]
    if bare:
        notes.append(
            f"no Python {pythons.OLDEST} or newer is on {', '.join(bare)}; uv installs one there when the task gets "
            "such a host"
        )
    return notes


def survey(
    pool: Pool, memory: Memory, wanted: Mapping[str, Any] | None = None
) -> list[Facts | Exception]:
    """The facts of every host of a pool, cached or collected now; an error in place of a host that cannot be asked.

    Args:
        wanted: The requirements (`host_requirements.py`). A host whose cached facts do not meet them is asked again.
    """

    def look(host: Host) -> Facts:
        remembered = memory.facts(host, younger_than=FRESH_SECONDS)
        if remembered is not None and not host_requirements.misfit(host, remembered, wanted or {}):
            return remembered
        try:
            return hosts.ask_now(host, memory)[0]
        except NodeUnreachable as error:
            if remembered is None or error.patience is not None:
                raise
            return remembered

    return hosts.everywhere(pool.hosts, look, *hosts.TROUBLE)


def _choices(pool: Pool, wanted: dict[str, Any]) -> str:
    if not wanted["sshfs"]:
        return ""
    return (
        f". A volume must be the same place on every node: set shared_dir under [ssh.pools.{pool.name}] to a "
        "directory that all its hosts share (NFS, Lustre, CephFS), install sshfs on the hosts, so that the first can "
        "serve the others, or leave `volumes` out"
    )


def _asked(wanted: dict[str, Any], count: int) -> str:
    each = [f"with {wanted['gpu']}" if wanted["gpu"] else ""]
    each += [f"with {wanted['cpu']:g} cores" if wanted["cpu"] else ""]
    each += [f"with {wanted['memory']:g} GB of memory" if wanted["memory"] else ""]
    each += ["with sshfs for its volumes" if wanted["sshfs"] else ""]
    words = " ".join(word for word in each if word)
    return f"{count} {'host' if count == 1 else 'hosts'} {words}".rstrip() + (
        " was asked for" if count == 1 else " were asked for"
    )


# What goes into the options


def _volumes(config: TaskConfig, pool: Pool) -> dict[str, Any]:
    """The volumes in the form that nodes are given, and the directories to create for them."""
    volumes = []
    for path, volume in config.volumes.items():
        if volume.interface == "block":
            raise ConfigError(
                f"volumes: {volume.name!r} has the interface 'block', and hosts of a pool have no block volumes; "
                "use 'file'"
            )
        served = not pool.shared_dir and config.most_nodes > 1
        share = {"share": "sshfs"} if served else {}
        volumes.append({"path": path, **volume.model_dump(), **share})
    return {"volumes": volumes, "shared_dir": pool.shared_dir}


def _without_effect(config: TaskConfig) -> list[str]:
    notes = []
    for name in ("internode_interconnect", "intranode_interconnect"):
        asked = getattr(config, name)
        if asked is not None:
            notes.append(f"{name} {asked} is not checked on hosts of a pool")
    if config.spot is not None:
        notes.append("spot is ignored by the SSH provider")
    if config.gpu is None and (config.cpu is not None or config.memory is not None):
        notes.append("a task gets whole hosts; cpu and memory only choose which")
    if config.max_price_per_hour is not None or config.max_cost is not None:
        notes.append("hosts of a pool cost nothing: price and cost caps have no effect")
    return notes
