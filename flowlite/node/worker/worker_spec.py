"""Makes the orders of a node's workers, from the agent's configuration and the data that came with GO."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..config.agent_config import AgentConfig, AttemptPaths
from ..system import addresses, node_facts
from . import launcher_files
from .environment import OWNERS, WorkerPlace, path_with, worker_environment
from .scontrol_wrapper import path_with_scontrol


def place_before_go(config: AgentConfig, inside: Mapping[str, str] | None) -> WorkerPlace:
    """Returns the place of this node's first worker, without the addresses, which come with GO.

    Args:
        inside: The environment of the container that the workers run in; None without a container.
    """
    return WorkerPlace(
        task=config.task,
        name=config.name,
        attempt=config.attempt,
        mode=config.mode,
        node_rank=config.node_rank,
        local_rank=0,
        processes_per_node=config.processes_per_node,
        addresses=[""] * config.num_nodes,
        master_addr="",
        master_port=0,
        cores=node_facts.cores(),
        visible_gpus=config.visible_gpus,
        path=path_with(config.python, os.environ.get("PATH")) if inside is None else None,
        provider=config.provider,
        size=tuple(config.size) if config.size is not None else None,
    )


def worker_orders(
    config: AgentConfig,
    paths: AttemptPaths,
    call: Mapping[str, Any],
    go: Mapping[str, Any],
    inside: Mapping[str, str] | None = None,
) -> list[dict[str, Any]]:
    """Returns one order for each worker of this node, as `worker.main` takes it.

    In manual mode, this also writes the files that launchers read.

    Args:
        call: `config.call` with absolute paths.
        go: addresses (by node rank), master_addr, master_port.
        inside: The environment of the container that the workers run in; None without a container.
    """
    place = place_before_go(config, inside)
    place = place._replace(
        path=path_with_scontrol(place.path, paths.directory, call, os.environ),
        addresses=list(go["addresses"]),
        master_addr=str(go["master_addr"]),
        master_port=int(go["master_port"]),
        interface=addresses.interface_towards(str(go["master_addr"])),
        checkpoint=(config.checkpoint or {}).get("path"),
        stop_file=str(paths.stop),
        only_cpu=_only_cpu(config),
        launcher_files=str(paths.directory) if config.mode == "manual" else None,
    )
    secrets = read_secrets(paths.secrets)
    if place.launcher_files is not None:
        seen = worker_environment({}, place, config.environment)
        launcher_files.write(paths.directory, place.addresses, place.processes_per_node, seen)
    what: dict[str, Any] = {"call": dict(call)}
    if call["kind"] == "command":
        what = {"argv": call["argv"]}
        if "imports" in call and call["start"] != "spawn" and config.container is None:
            what["ahead"] = {name: call[name] for name in ("imports", "late", "writes")}
    workdir = config.workdir or str(paths.home)
    inherited = _with_directory(os.environ if inside is None else inside, workdir)
    if "batch" in call:
        where = {"addresses": place.addresses, "directory": str(paths.directory)}
        what["batch"] = {**call["batch"], **where}
    return [
        {
            "rank": rank,
            "local_rank": local_rank,
            "node": config.node_rank,
            "name": config.name,
            "environment": worker_environment(
                inherited,
                place._replace(local_rank=local_rank),
                config.environment,
                secrets,
            ),
            "workdir": workdir,
            "out": str(paths.stream(rank, "out")),
            "err": str(paths.stream(rank, "err")),
            "result": str(paths.stream(rank, "result")),
            "failure": str(paths.failure(rank)),
            **_setup_stream(config, paths, rank),
            **what,
        }
        for local_rank, rank in enumerate(config.ranks)
    ]


def _with_directory(inherited: Mapping[str, str], workdir: str) -> Mapping[str, str]:
    """Returns the environment with the directory of the workers in PWD, where it names another one.

    It is that of the shell which the agent was started from, and programs take it for their own (`${oc.env:PWD}` of
    Hydra). A path that leads there through links stays, as in a shell.
    """
    try:
        if "PWD" not in inherited or os.path.samefile(inherited["PWD"], workdir):
            return inherited
    except OSError:
        pass  # one of them is not here, as in a container
    return {**inherited, "PWD": workdir}


def _setup_stream(config: AgentConfig, paths: AttemptPaths, rank: int) -> dict[str, str]:
    """The output of a node's setup is reported with the node's first worker."""
    if not config.setup or rank != config.ranks[0]:
        return {}
    return {"setup": str(paths.stream(rank, "setup"))}


def call_with_paths(call: Mapping[str, Any], paths: AttemptPaths) -> dict[str, Any]:
    """Returns the call with absolute paths."""
    if call["kind"] == "command":
        return dict(call)
    sources = [{**each, "zip": str(paths.home / each["zip"])} for each in call.get("source", ())]
    main = call.get("main_in_project")
    return {
        **call,
        "bundle": str(paths.home / call["bundle"]),
        "source": sources,
        **({"main_in_project": str(paths.project / main)} if main else {}),
    }


def beyond_inherited(environment: Mapping[str, str]) -> dict[str, str]:
    """Returns the variables that `exec` adds to its own environment.

    They are those that differ from the agent's own environment, and those by which the processes of a task are found at
    its end.
    """
    own = os.environ
    marks = {name: own[name] for name in ("FLOW_TASK_ID", *OWNERS) if name in own}
    return {name: value for name, value in environment.items() if own.get(name) != value} | marks


def _only_cpu(config: AgentConfig) -> bool:
    if config.container is not None and not config.gpus:
        return True  # a container sees the GPUs only if the task asked for some
    return node_facts.only_cpu(config.visible_gpus)


def read_secrets(path: Path) -> dict[str, str]:
    """Returns the task's secrets by variable name."""
    try:
        found = json.loads(path.read_bytes())
    except FileNotFoundError:
        return {}
    return {str(name): str(value) for name, value in found.items()}
