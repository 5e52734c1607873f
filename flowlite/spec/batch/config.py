"""Turns a batch script into configurations: maps each option, and writes notes on those that have no effect."""

from __future__ import annotations

import os
import re
import secrets
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import field
from pathlib import Path
from typing import Any

from flowlite.errors import SpecError
from flowlite.node.quick_dataclass import dataclass
from flowlite.node.sbatch.getopt import OptionError
from flowlite.node.sbatch.layout import LayoutError, per_node_of
from flowlite.node.sbatch.srun_options import seconds
from flowlite.spec.batch import values
from flowlite.spec.batch.missing_commands import look
from flowlite.spec.batch.resources import Resources, resources_of
from flowlite.spec.batch.script import BatchScript, Directive
from flowlite.spec.batch.table import (
    CLUSTER,
    FILES,
    KEYS,
    OF_THE_QUEUE,
    OF_THE_STEP,
    REFUSED,
)
from flowlite.spec.gpu import GpuRequest
from flowlite.spec.task import TaskConfig

SLURM, LOCAL = "slurm", "local"
_GB_OF_MIB = 1.048576e-3


@dataclass(frozen=True, slots=True)
class Reading:
    """What a script asks for.

    Attributes:
        configs: One configuration; for an array, one for each of its tasks.
        notes: Sentences for the user about options that have no effect, and about what the nodes will not have.
        at_once: How many tasks of an array may run at a time; None for all.
    """

    configs: tuple[TaskConfig, ...]
    notes: tuple[str, ...] = ()
    at_once: int | None = None

    @property
    def is_array(self) -> bool:
        """Whether the script asked for an array, even if it has one task only."""
        batch = self.configs[0].batch or {}
        return "SLURM_ARRAY_TASK_ID" in batch.get("variables", {})


@dataclass(slots=True)
class _Draft:
    """The options that are collected while a script is read. `given` has those of the command line, which win."""

    script: BatchScript
    provider: str
    given: Mapping[str, Any]
    options: dict[str, Any] = field(default_factory=dict)
    variables: dict[str, str] = field(default_factory=dict)
    slurm: dict[str, Any] = field(default_factory=dict)
    batch: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    @property
    def on_slurm(self) -> bool:
        return self.provider == SLURM

    def pass_on(self, name: str, value: str | None) -> None:
        """Passes an option on to the cluster with the value that was written."""
        line = f"--{name}" if value is None else f"--{name}={shlex.quote(value)}"
        self.slurm.setdefault("sbatch", []).append(line)


def read_batch(
    path: str | Path,
    options: Mapping[str, Any] | None = None,
    *,
    provider: str = LOCAL,
    arguments: Sequence[str] = (),
) -> Reading:
    """Reads a batch script.

    Args:
        options: Options of `TaskConfig` that take precedence over those of the script.
        provider: The provider on which it will run.
        arguments: Arguments of the script itself.

    Raises:
        SpecError: The file is not a batch script, or asks for something that the provider does not have. The message
            has file and line.
    """
    script = BatchScript.load(path)
    draft = _Draft(script, provider, dict(options or {}))
    found = script.values()
    for name, directive in found.items():
        with _errors_in(script, directive):
            _one(draft, name, directive)
    _size(draft, found)
    _name(draft, found)
    draft.notes += [
        f"{script.path}:{line}: this #SBATCH line is not read: {why}"
        for line, why in script.passed_over
    ]
    if not draft.on_slurm:
        draft.notes += [f"{script.path}: {sentence}" for sentence in look(script.text)]
    return _reading(draft, found, arguments)


def _one(draft: _Draft, name: str, directive: Directive) -> None:
    """Applies one option that does not depend on others."""
    value = directive.value
    if name in REFUSED:
        if not (draft.on_slurm and name in OF_THE_QUEUE):
            where = " outside Slurm" if name in OF_THE_QUEUE else ""
            why = REFUSED[name][2]
            raise OptionError(f"--{name} cannot be honoured{where}: {why}; take the line out")
        draft.pass_on(name, value)
    elif name in FILES:
        if name == "open-mode":
            # It holds for the files of srun, too.
            draft.variables["SLURM_OPEN_MODE"] = (value or "")[:1]
        written = "" if value is None else f"={value}"
        draft.notes.append(
            f"--{name}{written}: the output is in `flow logs`, by node and rank; no file is written"
        )
    elif name in CLUSTER:
        if not draft.on_slurm or name in OF_THE_STEP:
            _without_meaning(draft, name, value)
        elif name in ("requeue", "no-requeue"):
            draft.slurm["requeue"] = name == "requeue"
        elif name in KEYS:
            draft.slurm[KEYS[name]] = True if value is None else value
        else:
            draft.pass_on(name, value)
    elif name in _SINGLE:
        _SINGLE[name](draft, value or "")


def _without_meaning(draft: _Draft, name: str, value: str | None) -> None:
    variable = {
        "account": "SLURM_JOB_ACCOUNT",
        "partition": "SLURM_JOB_PARTITION",
        "qos": "SLURM_JOB_QOS",
        "reservation": "SLURM_JOB_RESERVATION",
    }.get(name)
    if variable and value:
        draft.variables[variable] = value
    if name == "requeue":
        draft.notes.append(
            "--requeue: a task that is taken away starts again; see retries for failures"
        )
        return
    written = "" if value is None else f"={value}"
    where = "for a gang" if name in OF_THE_STEP else "outside Slurm"
    draft.notes.append(f"--{name}{written} has no effect {where}")


# Options that do not depend on others


def _time(draft: _Draft, value: str) -> None:
    limit = seconds(value)
    if limit is not None:
        draft.options["max_run_time_hours"] = limit / 3600


def _chdir(draft: _Draft, value: str) -> None:
    # A relative one is of the project, of which other machines have a copy.
    draft.options["workdir"] = value


def _export(draft: _Draft, value: str) -> None:
    environment: dict[str, str] = {}
    for word in values_of_export(value):
        name, equals, text = word.partition("=")
        if equals:
            environment[name] = text
        elif name.upper() == "ALL":
            if draft.provider != LOCAL:
                draft.notes.append(
                    "--export=ALL: variables of this machine do not travel; name those that are needed: "
                    "flow run --env NAME"
                )
        elif name.upper() not in ("NONE", "NIL"):
            if name not in os.environ:
                raise OptionError(f"--export={value}: {name} is not set here")
            environment[name] = os.environ[name]
    if environment:
        draft.options["environment"] = environment


def values_of_export(text: str) -> list[str]:
    """Splits `A=1,B,C='x,y'` at its commas, except those in quotes."""
    lexer = shlex.shlex(text, posix=True)
    lexer.whitespace, lexer.whitespace_split, lexer.commenters = ",", True, ""
    try:
        return list(lexer)
    except ValueError as error:
        raise OptionError(f"--export={text}: {error}") from None


def _signal(draft: _Draft, value: str) -> None:
    found = values.notice(value)
    draft.batch["signal"] = {
        "signal": found.signal,
        "seconds": found.seconds,
        "script": found.script,
    }
    if "time" not in draft.script.values() and "max_run_time_hours" not in draft.given:
        draft.notes.append(f"--signal={value} has no effect without --time: nothing ends the task")


def _image(draft: _Draft, value: str) -> None:
    if draft.on_slurm:
        draft.slurm |= {"container": "pyxis", "image": value}
    else:
        # In Enroot's notation, a hash sign follows the registry.
        draft.options["image"] = value.removeprefix("docker://").replace("#", "/", 1)


_SINGLE: dict[str, Callable[[_Draft, str], None]] = {
    "chdir": _chdir,
    "container-image": _image,
    "export": _export,
    "signal": _signal,
    "time": _time,
}


# Options that depend on others


def _size(draft: _Draft, found: Mapping[str, Directive]) -> None:
    """Sets the numbers of nodes and tasks, and the resources of each node."""
    script, given = draft.script, draft.given
    per_node, tasks = _tasks_per_node(script, found), _whole(script, found, "ntasks")
    nodes = _num_nodes(draft, found, tasks, per_node)
    per_gpu, instead = _whole(script, found, "ntasks-per-gpu"), _gpus_instead(given)
    if per_gpu and not tasks and not per_node:
        with _errors_in(script):
            per_node = per_gpu * resources_of(found, nodes, 1, instead).gpus or None
    if "num_instances" in given and per_node is not None:
        # As with sbatch, another number of nodes on the command line means another number of tasks.
        tasks = None
    if isinstance(given.get("processes_per_node"), int):
        tasks, per_node = None, int(given["processes_per_node"])
    try:
        counts = per_node_of(nodes, tasks, per_node)
    except LayoutError as error:
        raise SpecError(f"{script.path}: {error}") from None
    draft.options |= {"num_instances": nodes, "processes_per_node": max(counts)}
    draft.batch["counts"] = counts
    if per_node is not None:
        draft.variables["SLURM_NTASKS_PER_NODE"] = str(per_node)
    with _errors_in(script):
        wanted = resources_of(found, nodes, max(counts), instead)
    _resources(draft, wanted, found)


def _gpus_instead(given: Mapping[str, Any]) -> int | None:
    """The GPUs of each node that the command line asks for; None if it leaves them to the script, or to the plan."""
    asked, counts = given.get("gpu") or (), set()
    kinds = asked.split(",") if isinstance(asked, str) else asked
    # What cannot be read is refused with the other options, which are named there.
    with suppress(SpecError):
        counts = {GpuRequest.parse(each.strip()).count for each in kinds}
    return counts.pop() if len(counts) == 1 else None


def _num_nodes(
    draft: _Draft, found: Mapping[str, Directive], tasks: int | None, per_node: int | None
) -> int:
    if "num_instances" in draft.given:
        asked_here = str(draft.given["num_instances"])
        if not asked_here.isdecimal() or not int(asked_here):
            raise SpecError(
                f"num_instances: a batch script is written for one number of nodes, of at least 1, not for {asked_here}"
            )
        return int(asked_here)
    if "nodes" in found:
        with _errors_in(draft.script, found["nodes"]):
            return _nodes(draft, found["nodes"].value or "")
    # Like Slurm, as many nodes as the tasks need.
    return -(-tasks // per_node) if tasks and per_node else 1


def _nodes(draft: _Draft, value: str) -> int:
    least, most = values.most_nodes(value)
    if most > least:
        draft.notes.append(f"--nodes={value}: {least} are taken; for more: flow run -N {most}")
    return least


def _resources(draft: _Draft, wanted: Resources, found: Mapping[str, Directive]) -> None:
    draft.variables |= wanted.variables
    if draft.on_slurm:
        if "gres" in found and "gpu" not in draft.given:
            draft.slurm["gres"] = found["gres"].value
        elif wanted.others and "gres" in found:
            draft.slurm["gres"] = ",".join(wanted.others)
        elif wanted.gpus and "gpu" not in draft.given:
            draft.slurm["gpus_per_node"] = wanted.gpus_of_cluster
        if "mem" in found:
            draft.slurm["mem"] = found["mem"].value
        elif wanted.memory_mib:
            draft.slurm["mem"] = f"{wanted.memory_mib:.0f}M"
    if wanted.others and not draft.on_slurm:
        draft.notes.append(f"--gres={','.join(wanted.others)} has no effect outside Slurm")
    _room(draft, wanted)
    if wanted.gpus and "gpu" not in draft.given:
        if wanted.gpu is not None:
            draft.options["gpu"] = wanted.gpu
        elif draft.provider == LOCAL:
            draft.notes.append(
                f"{wanted.gpus} GPUs for each node are asked for, of no model: the tasks run on the CPU; to give them "
                f"GPUs of this machine, name the model: flow run --gpu h100:{wanted.gpus}"
            )
        elif not draft.on_slurm:
            raise SpecError(
                f"{draft.script.path}: it asks for {wanted.gpus} GPUs on each node and names no model that is known "
                f"outside its cluster; say which: flow run --gpu h100:{wanted.gpus} {draft.script.path}"
            )
    if "gpus-per-task" in found and not draft.on_slurm:
        draft.notes.append(
            "--gpus-per-task: every task sees all GPUs of its node, and LOCAL_RANK is the index of its own"
        )


def _room(draft: _Draft, wanted: Resources) -> None:
    """Sets cores and memory. This machine reserves none, so a script for larger machines can be rehearsed here."""
    if draft.provider != LOCAL:
        if wanted.cores:
            draft.options["cpu"] = wanted.cores
        if wanted.memory_mib and not draft.on_slurm:
            draft.options["memory"] = round(wanted.memory_mib * _GB_OF_MIB, 3)
    elif wanted.cores and wanted.cores > (os.cpu_count() or 1):
        draft.notes.append(
            f"{wanted.cores} cores are asked for on each node, and this machine has {os.cpu_count()} for all"
        )


def _name(draft: _Draft, found: Mapping[str, Directive]) -> None:
    asked = found["job-name"].value if "job-name" in found else None
    draft.variables["SLURM_JOB_NAME"] = asked or draft.script.path.name
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", asked or draft.script.path.stem).strip("-._")
    draft.options["name"] = plain[:63].rstrip("-._") or "batch"


# The configurations


def _reading(draft: _Draft, found: Mapping[str, Directive], arguments: Sequence[str]) -> Reading:
    options = {**draft.options, **draft.given}
    for name in ("environment", "volumes", "mounts"):
        if name in draft.options and name in draft.given:
            options[name] = {**draft.options[name], **draft.given[name]}
    if draft.slurm:
        options["slurm"] = {**draft.slurm, **(draft.given.get("slurm") or {})}
    script = draft.script
    batch = {
        **draft.batch,
        "script": script.text,
        "arguments": list(arguments),
        "variables": dict(draft.variables),
        "cluster": draft.on_slurm,
    }
    command = (script.path.name, *arguments)
    try:
        config = TaskConfig(**{**options, "command": command})
    except SpecError as error:
        lines = str(error).splitlines()
        raise SpecError("\n".join(f"{script.path}: {line}" for line in lines)) from None
    notes = tuple(dict.fromkeys(draft.notes))
    if "array" not in found:
        return Reading((config.with_batch(batch),), notes)
    with _errors_in(script, found["array"]):
        asked = values.array(found["array"].value or "")
    number = str(1_000_000 + secrets.randbelow(9_000_000))
    configs = tuple(
        config.replace(name=f"{str(config.name)[:52]}-{element}").with_batch(
            {**batch, "variables": {**draft.variables, **_of_element(asked, element, number)}}
        )
        for element in asked.ids
    )
    return Reading(configs, notes, asked.at_once)


def _of_element(asked: values.Array, element: int, number: str) -> dict[str, str]:
    """The variables that distinguish a task of an array from the others."""
    return {
        "SLURM_ARRAY_JOB_ID": number,
        "SLURM_ARRAY_TASK_COUNT": str(len(asked.ids)),
        "SLURM_ARRAY_TASK_ID": str(element),
        "SLURM_ARRAY_TASK_MAX": str(asked.ids[-1]),
        "SLURM_ARRAY_TASK_MIN": str(asked.ids[0]),
        "SLURM_ARRAY_TASK_STEP": str(asked.step),
    }


def _whole(script: BatchScript, found: Mapping[str, Directive], name: str) -> int | None:
    if name not in found:
        return None
    with _errors_in(script, found[name]):
        return values.whole(name, found[name].value or "")


def _tasks_per_node(script: BatchScript, found: Mapping[str, Directive]) -> int | None:
    names = ("ntasks-per-node", "tasks-per-node")
    return next((n for name in names if (n := _whole(script, found, name))), None)


@contextmanager
def _errors_in(script: BatchScript, directive: Directive | None = None) -> Iterator[None]:
    """Adds the file, and the line of an option, to errors about options."""
    try:
        yield
    except OptionError as error:
        where = script.path if directive is None else f"{script.path}:{directive.line}"
        raise SpecError(f"{where}: {error}") from None
