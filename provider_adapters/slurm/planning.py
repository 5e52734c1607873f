"""The plan of the Slurm provider, made from a task's options, and all refusals that need no submission."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from flowlite import python_request
from flowlite.errors import ConfigError
from flowlite.provider import Plan
from provider_adapters.rented.gang_fit import CONTAINER, why_not_kept
from provider_adapters.slurm.queries import partitions as clusters
from provider_adapters.slurm.queries.partitions import PartitionNodes

if TYPE_CHECKING:
    from flowlite.spec import TaskConfig
    from provider_adapters.slurm.queries.partitions import Cluster
    from provider_adapters.slurm.settings import SlurmSettings

# Nodes count their time from GO, Slurm from the start of the job: the time before GO and for the end.
_AROUND_SECONDS = 180.0
# Options of `sbatch` that choose hosts.
_HOSTS = ("--exclude", "-x", "--nodelist", "-w", "--nodefile", "-F")


def make_plan(config: TaskConfig, settings: SlurmSettings, cluster: Cluster) -> Plan:
    """The plan for one job.

    Raises:
        ConfigError: The cluster cannot provide an option.
        ProviderError: Slurm cannot be asked.
    """
    # sbatch would read them from the environment of the process that submits, which changes with a restart.
    asked = {**cluster.defaults, **settings.options, **config.slurm}
    if config.one_region and "partition" not in config.slurm:
        asked["partition"] = config.one_region
    partition = cluster.choose(str(asked.get("partition", "")))
    notes = _notes(config)
    cpus, cpu_notes = _cpus(config, asked)
    most = config.most_nodes
    if partition is not None:
        most = _size(config, asked, partition, cpus)
    _check_hosts(config, asked)
    minutes, run_seconds, time_notes = _time(config, partition)
    gres, gpu_notes = _gpus(config, asked, partition, cluster)
    name = partition.name if partition else str(asked.get("partition", ""))
    return Plan(
        provider="slurm",
        instance_type=f"node of {name}" if name else "node",
        region=name,
        num_instances=most,
        processes_per_node=config.workers_per_node,
        gpu=config.gpu_request.kind if config.gpu_request else "",
        gpus_per_node=config.gpus_per_node,
        max_run_seconds=run_seconds,
        max_cost=config.max_cost,
        notes=(*notes, *cpu_notes, *gpu_notes, *time_notes),
        options={
            "login": settings.place,
            "directives": [list(each) for each in _directives(config, asked, gres)],
            "extra": list(asked.get("sbatch", ())),
            "requeue": bool(asked.get("requeue", True)),
            "cpus": cpus,
            "minutes": minutes,
            "limit": _limit(config, partition, minutes),
            # Without the time for start and end, where a QOS allows no more than the workers may run.
            "bare": minutes and min(minutes, math.ceil((run_seconds or 0.0) / 60)),
            "grace": config.grace_seconds,
            # Seconds for which nobody may look at nodes that are kept for the next attempt.
            "waits": _waits(config),
            "workdir": config.directory_on_node,
            **_container(config, asked),
            **python_request.plan_options(config),
            "volumes": _volumes(config, settings),
        },
    )


def _waits(config: TaskConfig) -> float:
    pause = config.retries.policy.longest_pause
    if config.fewest_nodes == config.most_nodes:
        return pause
    return max(pause, config.settle_seconds, config.heal_seconds)


# Options of sbatch


def _directives(config: TaskConfig, asked: Mapping[str, Any], gres: str) -> list[tuple[str, str]]:
    """Options of `sbatch` with their values, in a fixed order."""
    found = [
        (option, str(asked[name]))
        for name, option in (
            ("partition", "partition"),
            ("account", "account"),
            ("qos", "qos"),
            ("constraint", "constraint"),
            ("reservation", "reservation"),
            ("gres", "gres"),
        )
        if asked.get(name)
    ]
    found += [("gpus-per-node", gres)] if gres else []
    memory = asked.get("mem") or (f"{math.ceil(config.memory * 1000)}M" if config.memory else "")
    found += [("mem", str(memory))] if memory else []
    if exclusive := asked.get("exclusive"):
        found.append(("exclusive", "" if exclusive is True else str(exclusive)))
    found += [(name, str(asked[name])) for name in ("nodelist", "exclude") if asked.get(name)]
    return found


def _cpus(config: TaskConfig, asked: Mapping[str, Any]) -> tuple[int | None, list[str]]:
    """Cores of each node; None if a whole node is requested."""
    if config.cpu is not None:
        return math.ceil(config.cpu), []
    if asked.get("exclusive"):
        return None, []
    workers = config.workers_per_node
    cores = "1 core" if workers == 1 else f"{workers} cores"
    return workers, [
        f"cpu was not given: Slurm is asked for {cores} per node, one for each worker (cpu=…, or exclusive, gives more)"
    ]


def _gpus(
    config: TaskConfig, asked: Mapping[str, Any], partition: PartitionNodes | None, cluster: Cluster
) -> tuple[str, list[str]]:
    """The value of `--gpus-per-node`. Values that the user writes in Slurm's own syntax are passed unchanged."""
    request = config.gpu_request
    if asked.get("gpus_per_node"):
        return str(asked["gpus_per_node"]), []
    if request is None or asked.get("gres"):
        return "", []
    kinds = [partition] if partition else cluster.partitions()
    if not kinds:
        return f"{request.kind}:{request.count}", [
            f"the cluster does not show its nodes: that it has {request} is not checked"
        ]
    fitting = [
        gres for each in kinds for row in each.rows if (gres := clusters.gres_for(request, row))
    ]
    if fitting:
        typed = next((each for each in fitting if ":" in each), fitting[0])
        untold = f"Slurm does not tell which GPUs nodes have: that they are {request.kind} is not checked"
        return typed, ([] if ":" in typed else [untold])
    where = f"the partition {partition.name}" if partition else "the cluster"
    has = clusters.names_of(kinds)
    raise ConfigError(
        f"gpu: {config.gpu} was asked for, and {where} has {has or 'no GPUs'}"
        "; choose another partition (slurm={'partition': …}), or say it in Slurm's words (slurm={'gres': …})"
    )


def _size(
    config: TaskConfig, asked: Mapping[str, Any], partition: PartitionNodes, cpus: int | None
) -> int:
    """How many nodes the partition has for a gang, at most. Raises ConfigError if they are too few."""
    fewest, most = config.fewest_nodes, config.most_nodes
    if not partition.up:
        raise ConfigError(f"slurm: the partition {partition.name} takes no jobs now")
    if fewest > partition.nodes:
        raise ConfigError(
            f"num_instances: {fewest} nodes were asked for, and the partition {partition.name} has "
            f"{partition.nodes}"
        )
    words = {"gres", "gpus_per_node"} & asked.keys()
    request = None if words else config.gpu_request
    memory = 0.0 if asked.get("mem") else (config.memory or 0.0) * 1000
    cores = float(cpus or 0)
    fit = partition.fitting(request, cores, memory)
    if request and not partition.fitting(request, 0, 0):
        # `_gpus` says what it has.
        return min(most, partition.nodes)
    if fit >= fewest:
        return min(most, fit)
    biggest = max(partition.rows, key=lambda row: (row.cores, row.memory_mb))
    raise ConfigError(
        f"{fewest} nodes with {cores:g} cores and {memory / 1000:g} GB of memory were asked for, and the "
        f"partition {partition.name} has {fit} such; its biggest have {biggest.cores} cores and "
        f"{biggest.memory_mb / 1000:g} GB"
    )


def _check_hosts(config: TaskConfig, asked: Mapping[str, Any]) -> None:
    """Refuses a choice of hosts that a gang of several sizes cannot have, which may be several jobs."""
    if not config.is_elastic:
        return
    size = f"num_instances: {config.fewest_nodes} to {config.most_nodes} nodes were asked for"
    if named := asked.get("nodelist"):
        raise ConfigError(
            f"{size}, and nodelist is {named}, of which Slurm gives a job all or none; use constraint, exclude or a "
            "reservation, or give one number"
        )
    for option in asked.get("sbatch", ()):
        if str(option).startswith(_HOSTS):
            raise ConfigError(
                f"{size}, and sbatch has {option!r}, which would replace what flowlite excludes; use "
                "slurm={'exclude': …}"
            )


# Time


def _time(
    config: TaskConfig, partition: PartitionNodes | None
) -> tuple[int | None, float | None, list[str]]:
    """Minutes of `--time`, seconds for which workers may run, notes."""
    most = partition.limit if partition else None
    wanted = config.max_run_seconds
    if wanted is None:
        default = partition.default_limit if partition else None
        if default is None:
            return None, None, []
        return (
            None,
            None,
            [f"max_run_time_hours was not given: the partition ends a job after {_clock(default)}"],
        )
    around = _AROUND_SECONDS + config.grace_seconds
    if config.checkpoint is not None:
        around += config.checkpoint.final_seconds
    whole = wanted + around
    if most is None or whole <= most:
        return math.ceil(whole / 60), wanted, []
    if wanted > most:
        raise ConfigError(
            f"max_run_time_hours: {config.max_run_time_hours:g} hours were asked for, and the partition "
            f"{partition.name if partition else ''} ends a job after {_clock(most)}"
        )
    # Start and end have to fit into the limit, so the workers stop earlier.
    left = max(most / 2, most - around)
    told = (
        f"the partition ends a job after {_clock(most)}: workers are stopped after {_clock(left)}, so that what they "
        "leave can be brought home"
    )
    return math.floor(most / 60), min(wanted, left), [told] if left < wanted else []


def _limit(config: TaskConfig, partition: PartitionNodes | None, minutes: int | None) -> int | None:
    """Minutes of `--time` for a job that may be kept: as long again, so that other tasks can take it over."""
    if minutes is None or not config.keep_warm or _cannot_be_kept(config):
        return minutes
    wanted = 2 * minutes + math.ceil(config.keep_warm / 60)
    most = partition.limit if partition else None
    return wanted if most is None else max(minutes, min(wanted, math.floor(most / 60)))


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    clock = f"{hours}:{minutes:02d}:{rest:02d}"
    return f"{days}-{clock}" if days else clock


# Other options


def _container(config: TaskConfig, asked: Mapping[str, Any]) -> dict[str, Any]:
    kind = str(asked.get("container", "none"))
    image = config.image or asked.get("image")
    if image and kind == "none":
        raise ConfigError(
            f"image: {image} was asked for, and how this cluster runs containers is not set: container = "
            '"pyxis" or "apptainer" under [slurm], or slurm={"container": …}'
        )
    if kind != "none" and not image:
        # A setting of the cluster, for tasks that have an image.
        kind = "none"
    return {"step_container": None if kind == "none" else {"kind": kind, "image": str(image)}}


def _volumes(config: TaskConfig, settings: SlurmSettings) -> list[dict[str, Any]]:
    found = []
    for path, volume in config.volumes.items():
        if volume.interface == "block":
            raise ConfigError(
                f"volumes: {volume.name!r} has the interface 'block', and Slurm has no block volumes; use 'file'"
            )
        if not settings.shared_dir:
            raise ConfigError(
                f"volumes: {volume.name!r} needs a directory that all nodes see, and shared_dir under [slurm] is "
                '"none"; set it to one, or use a path of the cluster itself'
            )
        found.append({"path": path, **volume.model_dump()})
    return found


def _cannot_be_kept(config: TaskConfig) -> str:
    """Why the job of a task is not kept for the next one, in words; "" if it is."""
    return CONTAINER if config.slurm.get("image") else why_not_kept(config)


def _notes(config: TaskConfig) -> list[str]:
    """What the user should know about options that have no effect, or not the one that they have elsewhere."""
    notes = []
    for name in ("internode_interconnect", "intranode_interconnect"):
        asked = getattr(config, name)
        if asked is not None:
            notes.append(
                f"{name} {asked} is not checked on Slurm; a constraint of the cluster can ask for it"
            )
    if "priority" in config.model_fields_set and config.priority != "med":
        notes.append(
            f"priority {config.priority} is ignored by the Slurm provider; use qos or partition"
        )
    if config.spot is not None:
        notes.append(
            "spot is ignored by the Slurm provider; partitions and QOS say what may be preempted"
        )
    if config.keep_warm and (why := _cannot_be_kept(config)):
        notes.append(f"keep_warm has no effect: {why}; the job ends with its task")
    if config.max_price_per_hour is not None or config.max_cost is not None:
        notes.append(
            "nothing is charged that flowlite knows of: price and cost caps have no effect"
        )
    return notes
