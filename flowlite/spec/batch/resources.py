"""GPUs, cores and memory of each node, from the various options of sbatch. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping

from flowlite.errors import SpecError
from flowlite.node.quick_dataclass import dataclass
from flowlite.node.sbatch.getopt import OptionError
from flowlite.spec.batch import values
from flowlite.spec.batch.script import Directive
from flowlite.spec.gpu import GpuRequest


@dataclass(frozen=True, slots=True)
class Resources:
    """The resources of each node.

    Attributes:
        gpus: Number of GPUs.
        gpus_of_cluster: The same in the cluster's notation: `h100:4`, or `4`.
        gpu: The same as a GPU string; None if the script names no known model.
        others: Generic resources that are not GPUs.
        variables: The variables that tell the script about these resources.
    """

    gpus: int
    gpus_of_cluster: str
    gpu: str | None
    cores: int
    memory_mib: float
    others: tuple[str, ...]
    variables: Mapping[str, str]


def resources_of(
    found: Mapping[str, Directive], nodes: int, per_node: int, gpus_instead: int | None = None
) -> Resources:
    """The resources that a script asks for.

    Args:
        found: The script's options by name.
        per_node: Most tasks on one node.
        gpus_instead: GPUs of each node that are asked for in place of the script's.

    Raises:
        OptionError: A value cannot be read, or cannot be divided among the nodes.
    """
    text = {name: directive.value or "" for name, directive in found.items()}
    if gpus_instead is not None:
        text |= _numbers(text, gpus_instead, nodes, per_node)
    gpus, others = _gpus(text, nodes, per_node)
    if gpus_instead is not None:
        gpus = values.Gpus(gpus_instead)
    count = gpus.count if gpus else 0
    cpus = values.whole("cpus-per-task", text["cpus-per-task"]) if "cpus-per-task" in text else 0
    cores = cpus * per_node
    if not cores and "cpus-per-gpu" in text:
        cores = values.whole("cpus-per-gpu", text["cpus-per-gpu"]) * count
    memory = _memory(text, count, cores or per_node)
    return Resources(
        gpus=count,
        gpus_of_cluster=f"{gpus.kind}:{count}" if gpus and gpus.kind else str(count or ""),
        gpu=_model(gpus) if gpus else None,
        cores=cores,
        memory_mib=memory,
        others=tuple(others),
        variables=_variables(text, count, cpus, memory),
    )


def _numbers(text: Mapping[str, str], gpus: int, nodes: int, per_node: int) -> dict[str, str]:
    """The script's own options for GPUs with the values that fit this number of each node."""
    fitting = {
        "gpus": str(gpus * nodes),
        "gpus-per-node": str(gpus),
        "gpus-per-task": str(max(1, gpus // per_node)),
    }
    return {name: value for name, value in fitting.items() if name in text}


def _gpus(
    text: Mapping[str, str], nodes: int, per_node: int
) -> tuple[values.Gpus | None, list[str]]:
    found, others = values.gres(text["gres"]) if "gres" in text else (None, [])
    if "gpus-per-node" in text:
        found = values.gpus("gpus-per-node", text["gpus-per-node"])
    elif "gpus-per-task" in text:
        each = values.gpus("gpus-per-task", text["gpus-per-task"])
        found = values.Gpus(each.count * per_node, each.kind)
    elif "gpus" in text:
        every = values.gpus("gpus", text["gpus"])
        if every.count % nodes:
            raise OptionError(
                f"--gpus={text['gpus']}: {every.count} GPUs cannot be dealt out to {nodes} nodes evenly"
            )
        found = values.Gpus(every.count // nodes, every.kind)
    elif "ntasks-per-gpu" in text and found is None:
        each_gpu = values.whole("ntasks-per-gpu", text["ntasks-per-gpu"])
        found = values.Gpus(-(-per_node // each_gpu))
    return (found if found and found.count else None), others


def _model(gpus: values.Gpus) -> str | None:
    """The GPU string for a cluster's name of a type: `nvidia_h100_80gb_hbm3`, `a100_80gb`, `H100`."""
    words = [word for word in re.split(r"[^a-z0-9]+", gpus.kind.lower()) if word]
    for word in words:
        try:
            found = GpuRequest(word, gpus.count)
        except SpecError:
            continue
        for memory in (w.removesuffix("gb") for w in words if re.fullmatch(r"\d+gb", w)):
            try:
                return str(GpuRequest(word, gpus.count, int(memory)))
            except SpecError:
                continue
        return str(found)
    return None


def _memory(text: Mapping[str, str], gpus: int, cpus: int) -> float:
    """MiB on each node; 0 if the script asks for no amount, or for all of it."""
    if "mem" in text:
        return values.mebibytes("mem", text["mem"])
    if "mem-per-cpu" in text:
        return values.mebibytes("mem-per-cpu", text["mem-per-cpu"]) * cpus
    if "mem-per-gpu" in text:
        return values.mebibytes("mem-per-gpu", text["mem-per-gpu"]) * gpus
    return 0.0


def _variables(text: Mapping[str, str], gpus: int, cpus: int, memory: float) -> dict[str, str]:
    found = {}
    if cpus:
        found["SLURM_CPUS_PER_TASK"] = str(cpus)
    if gpus:
        found["SLURM_GPUS_ON_NODE"] = str(gpus)
    for option in ("cpus-per-gpu", "gpus", "gpus-per-node", "gpus-per-task"):
        if option in text:
            found[f"SLURM_{option.replace('-', '_').upper()}"] = text[option]
    if "mem" in text and memory:
        found["SLURM_MEM_PER_NODE"] = str(int(memory))
    if "mem-per-cpu" in text:
        found["SLURM_MEM_PER_CPU"] = str(int(values.mebibytes("mem-per-cpu", text["mem-per-cpu"])))
    return found
