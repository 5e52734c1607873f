"""The plan of the local provider, made from a task's options, and all reasons for refusing one."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from shutil import which
from typing import TYPE_CHECKING, Any

from flowlite.errors import CapExceeded, ConfigError
from flowlite.provider import Plan, slots_of_gang
from flowlite.provider.dollars import exact
from provider_adapters.local.gpus import Gpu, discover
from provider_adapters.local.pythons import choose_python, note_of_one_command

if TYPE_CHECKING:
    from flowlite.settings.provider_settings import ProviderSettings
    from flowlite.spec import TaskConfig


_SETTINGS = ("price_per_hour", "preempted_after")
_IMAGE_SECONDS = 20.0
_LEAST_GB_OF_A_NODE, _LEAST_GB_OF_A_WORKER = 0.010, 0.002
"""Memory of an agent with its reaper, and of a Python that only sleeps; less than any has been seen to take."""


def make_plan(config: TaskConfig, settings: ProviderSettings) -> Plan:
    """The plan for this machine.

    Raises:
        ConfigError: An option is not possible here.
        CapExceeded: The setting `price_per_hour` of `[providers.local]` is above the cap.
    """
    options = settings.values
    price = price_per_hour(options)
    preempted_after = _seconds_until_preemption(options)
    _check_surroundings()
    _check_machine(config)
    if config.max_price_per_hour is not None and price > config.max_price_per_hour:
        raise CapExceeded(
            f"max_price_per_hour is {exact(config.max_price_per_hour)}, and the local provider is set to "
            f"{exact(price)} ([providers.local] price_per_hour); raise the cap or lower that setting"
        )
    gpus, notes = _choose_gpus(config)
    most = min(config.most_nodes, _nodes_in_memory(config))
    most = min(most, len(gpus) // config.gpus_per_node) if gpus else most
    container, why = _choose_container(config)
    notes += why
    python, why = choose_python(config, container is not None)
    notes += why
    notes += note_of_one_command()
    notes += _without_effect(config)
    return Plan(
        provider="local",
        instance_type="this machine",
        num_instances=most,
        processes_per_node=config.workers_per_node,
        gpu=gpus[0].kind if gpus else "",
        gpus_per_node=config.gpus_per_node if gpus else 0,
        price_per_hour=price,
        max_run_seconds=config.max_run_seconds,
        max_cost=config.max_cost,
        notes=tuple(notes),
        slots=tuple(_slots(config, gpus, most, int(options["local_tasks"]))),
        options={
            "workdir": _directory(config),
            # Another one may start the supervisor anew, as that of a `flow` in an environment of its own.
            "python": sys.executable,
            "hide_gpus": not gpus and which("nvidia-smi") is not None,
            "gpus": [gpu.index for gpu in gpus],
            "max_tasks": options["local_tasks"],
            "python_spec": python,
            "container": container,
            "most_warm": options["local_warm"],
            "preempted_after": preempted_after,
            "volumes": [
                {"path": path, **volume.model_dump()} for path, volume in config.volumes.items()
            ],
        },
    )


def _slots(
    config: TaskConfig, gpus: Sequence[Gpu], most: int, most_tasks: int
) -> Iterator[dict[str, Any]]:
    """What the task waits for: one of the places for tasks, and its GPUs."""
    yield {"slots": [f"local place {number}" for number in range(most_tasks)], "count": 1}
    if gpus:
        names = [f"local gpu {gpu.index}" for gpu in gpus]
        yield slots_of_gang(names, config.fewest_nodes, most, config.gpus_per_node)


def _directory(config: TaskConfig) -> str | None:
    """The directory in which the workers start; None for a copy of the project, as on other machines.

    It is the one that the task is submitted from, so that the workers' files stay there.
    """
    if config.sync or config.files:
        return None
    directory = os.path.abspath(config.workdir or ".")
    # A container, and what is mounted for the task, may have directories that this machine has not.
    mounted = any(
        directory == path or directory.startswith(f"{path}/")
        for path in (*config.volumes, *config.mounts)
    )
    inside = config.directory_on_node and (config.image or mounted)
    if not inside and not os.path.isdir(directory):
        raise ConfigError(
            f"workdir: there is no directory {directory}; make it, or name another one"
        )
    return directory


def price_per_hour(options: Mapping[str, Any]) -> float:
    """The price that this machine pretends to have, so that caps and costs can be rehearsed. Raises ConfigError."""
    price = options.get("price_per_hour", 0.0)
    if isinstance(price, bool) or not isinstance(price, int | float) or not 0 <= price < 1e6:
        raise ConfigError(
            f"[providers.local] price_per_hour is {price!r}; give dollars per hour, 0 or more"
        )
    return float(price)


def refuse_unknown(table: Mapping[str, Any]) -> None:
    """Raises ConfigError for an unknown key of `[providers.local]`."""
    unknown = sorted(set(table) - set(_SETTINGS))
    if unknown:
        known = ", ".join(_SETTINGS)
        raise ConfigError(f"[providers.local] has no setting {unknown[0]!r}; known: {known}")


def _seconds_until_preemption(options: Mapping[str, Any]) -> float | None:
    """Seconds after which a node simulates preemption, once per task; None for never."""
    after = options.get("preempted_after")
    number = isinstance(after, int | float) and not isinstance(after, bool)
    if after is not None and not (number and 0 <= after < 1e6):
        raise ConfigError(
            f"[providers.local] preempted_after is {after!r}; give seconds, 0 or more"
        )
    return float(after) if after is not None else None


def _check_surroundings() -> None:
    """Raises ConfigError where nodes on this machine could not find each other, or their own processes."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("127.0.0.1", 1))  # Sends nothing.
        except OSError as error:
            raise ConfigError(
                f"the nodes on this machine talk over 127.0.0.1, which cannot be reached ({error.strerror}); enable "
                "the loopback interface: `ip link set lo up`"
            ) from None
    if sys.platform != "linux":
        return
    try:
        seen = os.readlink("/proc/self")
    except OSError:
        seen = ""
    if seen != str(os.getpid()):
        raise ConfigError(
            "/proc is not mounted, or shows the processes of another PID namespace, so that no process can be watched "
            "or ended; mount it: `mount -t proc proc /proc` (`unshare` does so with --mount-proc)"
        )


def _check_machine(config: TaskConfig) -> None:
    cores, memory = os.cpu_count() or 1, memory_gb()
    if config.cpu is not None and config.cpu > cores:
        raise ConfigError(f"cpu: {config.cpu:g} cores were asked for, and this machine has {cores}")
    if config.memory is not None and memory and config.memory > memory:
        raise ConfigError(
            f"memory: {config.memory:g} GB were asked for, and this machine has {memory:.0f} GB"
        )
    if config.fewest_nodes > _nodes_in_memory(config):
        raise ConfigError(
            f"num_instances: {config.fewest_nodes} × {config.workers_per_node} workers do not fit into the "
            f"{memory:.0f} GB of this machine, even if they do nothing; ask for fewer, or name another provider"
        )
    if config.mounts:
        from flowlite.node.buckets import fuse_programs

        path = fuse_programs.search_path(os.environ, sys.executable)
        problem = fuse_programs.problem(path, fuse_programs.chosen(config.environment))
        if problem:
            raise ConfigError(f"mounts: {problem}")


def _nodes_in_memory(config: TaskConfig) -> int:
    """Nodes whose processes fit into the memory of this machine even if they do nothing; more would freeze it."""
    each = _LEAST_GB_OF_A_NODE + config.workers_per_node * _LEAST_GB_OF_A_WORKER
    return int(memory_gb() / each) if memory_gb() else config.most_nodes


def _choose_gpus(config: TaskConfig) -> tuple[list[Gpu], list[str]]:
    request = config.gpu_request
    if request is None:
        hidden = "no GPU was asked for (gpu=…), so the task does not see those of this machine"
        return [], [hidden] if which("nvidia-smi") else []
    wanted = config.fewest_nodes * request.count
    found = discover()
    fitting = [gpu for gpu in found if gpu.fits(request)]
    if len(fitting) >= wanted:
        return fitting, []
    have = f"{len(found)} × {found[0].name}" if found else "no GPU"
    workers = "process" if config.total_processes == 1 else "processes"
    return [], [
        f"rehearsal on CPU: {config.most_nodes} × {request} was asked for and this machine has {have}; "
        f"{config.total_processes} {workers} without GPU will run"
    ]


def _choose_container(config: TaskConfig) -> tuple[dict[str, Any] | None, list[str]]:
    """The container the task runs in, None for none, and notes for the user.

    An image is used only if docker or podman already has it: a rehearsal should not download gigabytes.
    """
    if config.image is None:
        return None, []
    programs = [path for name in ("docker", "podman") if (path := which(name))]
    if any(_has_image(program, config.image) for program in programs):
        return {"image": config.image}, []
    if not programs:
        why = "neither docker nor podman is installed here"
    else:
        name = programs[-1].rpartition("/")[2]
        why = f"it is not on this machine (`{name} pull {config.image}` brings it)"
    return None, [
        f"image {config.image} is not used: {why}; the task runs in this Python environment"
    ]


def _has_image(program: str, image: str) -> bool:
    try:
        looked = subprocess.run(
            [program, "image", "inspect", image],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_IMAGE_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return looked.returncode == 0


def _without_effect(config: TaskConfig) -> list[str]:
    notes = []
    if config.one_region is not None and config.one_region != "local":
        notes.append(f"region {config.one_region} is ignored by the local provider")
    if config.internode_interconnect is not None:
        notes.append(
            f"internode_interconnect {config.internode_interconnect} is ignored by the local provider"
        )
    if config.intranode_interconnect is not None:
        notes.append(
            f"intranode_interconnect {config.intranode_interconnect} is not checked on this machine"
        )
    if config.spot is not None:
        notes.append("spot is ignored by the local provider")
    if config.keep_warm and (why := _cannot_be_kept(config)):
        notes.append(f"keep_warm has no effect: {why}")
    if config.cpu is not None or config.memory is not None:
        notes.append("cpu and memory were checked against this machine; they are not reserved")
    return notes


def _cannot_be_kept(config: TaskConfig) -> str:
    if sys.platform != "linux":
        return "what was imported can be kept on Linux only"
    if isinstance(config.command, str):
        return "a command line that a shell runs starts programs that import by themselves"
    if config.start == "spawn":
        return "workers that are spawned import by themselves"
    return ""


def memory_gb() -> float:
    """Memory of this machine in GB of 10⁹ bytes; 0 if unknown."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
    except (ValueError, OSError):
        return 0.0
