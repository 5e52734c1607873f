"""Whether a host meets a task's requirements: GPUs, cores, memory, Python."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flowlite.connect import programs
from flowlite.spec.gpu import KINDS, GpuRequest, kind_named
from provider_adapters import pythons
from provider_adapters.ssh.hosts import Facts
from provider_adapters.ssh.pools import Host


def misfit(host: Host, facts: Facts | None, wanted: Mapping[str, Any]) -> str:
    """Why a task cannot use a host; "" if it can, or if that is not known.

    Args:
        host: As configured; declared values take precedence over the host's facts.
        facts: The host's facts, if known.
        wanted: {"gpu": GPU string or "", "cpu", "memory", "image", "sshfs"}.
    """
    request = GpuRequest.parse(wanted["gpu"]) if wanted.get("gpu") else None
    # A host without any Python cannot report its facts; it is asked again once it has one.
    told = facts is not None and bool(facts.cores)
    if request is not None and (host.gpus or told):
        found = usable_gpus(host, facts, request)
        if len(found) < request.count:
            return f"{host.name} has {gpus_in_words(host, facts)}"
    if facts is not None and facts.unsafe:
        return f"{host.name}: {programs.unsafe(facts.unsafe)}"
    if facts is None or not facts.cores:
        return ""
    if wanted.get("image") and not {"docker", "podman"} & set(facts.tools):
        return f"{host.name} has neither docker nor podman, which image= needs"
    if wanted.get("sshfs") and "sshfs" not in facts.tools:
        return f"{host.name} has no sshfs"
    if wanted.get("cpu") and facts.cores < wanted["cpu"]:
        return f"{host.name} has {facts.cores} cores"
    if wanted.get("memory") and facts.memory_gb and facts.memory_gb < wanted["memory"]:
        return f"{host.name} has {facts.memory_gb:.0f} GB of memory"
    return "" if can_be_brought(host, facts) else python_problem(host, facts)


def usable_gpus(host: Host, facts: Facts | None, request: GpuRequest) -> list[int]:
    """Indices of the GPUs that match the request."""
    if host.gpus:
        declared = GpuRequest.parse(host.gpus)
        sizes = (None, declared.memory_gb) if declared.memory_gb else (None, request.memory_gb)
        fits = declared.kind == request.kind and request.memory_gb in sizes
        return list(range(declared.count)) if fits else []
    listed = facts.gpus if facts is not None else ()
    return [int(gpu["index"]) for gpu in listed if _is(gpu, request)]


def gpus_in_words(host: Host, facts: Facts | None) -> str:
    """`8 × NVIDIA H100 80GB HBM3`, `8 × h100`, `no GPU`."""
    if host.gpus:
        declared = GpuRequest.parse(host.gpus)
        return f"{declared.count} × {declared.kind}"
    names = [str(gpu["name"]) for gpu in facts.gpus] if facts is not None else []
    counted = [f"{names.count(name)} × {name}" for name in dict.fromkeys(names)]
    return ", ".join(counted) or "no GPU"


def _is(gpu: Mapping[str, Any], request: GpuRequest) -> bool:
    kind = kind_named(str(gpu["name"]))
    if kind != request.kind:
        return False
    return request.memory_gb in (None, KINDS[kind].nearest_size(float(gpu["memory_gb"])))


# Python


def choose_python(host: Host, facts: Facts, minor: str | None) -> tuple[str, str] | None:
    """Path and version of the interpreter for agent and workers, preferably of the client's minor version.

    A configured interpreter always takes precedence. None if none is new enough.
    """
    if host.python:
        declared = _declared(host, facts)
        return pythons.choose([declared] if declared else [], minor)
    return pythons.choose(facts.pythons, minor)


def python_problem(host: Host, facts: Facts) -> str:
    """Why no Python of a host is suitable, or ""."""
    if choose_python(host, facts, None) is not None:
        return ""
    declared = _declared(host, facts)
    if host.python and declared is None:
        return (
            f"{host.name} has no Python at {host.python}, or one that prints something of its own when it starts; "
            "correct `python` in its pool"
        )
    if host.python and declared is not None:
        return f"{host.name} has Python {declared[1]} at {host.python}; it needs {pythons.OLDEST} or newer"
    found = ", ".join(f"{version} ({path})" for path, version in facts.pythons) or "none"
    return (
        f"{host.name} has no Python {pythons.OLDEST} or newer (found: {found}); install one there, or name one with "
        "`python` in its pool"
    )


def can_be_brought(host: Host, facts: Facts) -> bool:
    """Whether a Python should be installed on a host that has none that is new enough."""
    return not host.python and bool(facts.root) and choose_python(host, facts, None) is None


def _declared(host: Host, facts: Facts) -> tuple[str, str] | None:
    path = host.python.replace("~", facts.home, 1) if host.python.startswith("~/") else host.python
    return next((each for each in facts.pythons if each[0] == path), None)
