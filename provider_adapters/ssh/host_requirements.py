"""Whether a host meets a task's requirements: GPUs, cores, memory, Python."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from flowlite.connect import programs
from flowlite.spec.gpu import KINDS, GpuRequest
from provider_adapters.ssh.hosts import Facts
from provider_adapters.ssh.pools import Host

# The oldest Python that the agent supports.
OLDEST_PYTHON = (3, 11)


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


def kind_of(name: str) -> str:
    """Canonical kind ("h100") of a GPU from the driver's name; "" if no GPU string names it."""
    words = re.sub(r"[^a-z0-9]+", " ", name.lower()).split()
    joined = {"".join(words[i:j]) for i in range(len(words)) for j in range(i + 1, i + 4)}
    return max((kind for kind in KINDS if kind in joined), key=len, default="")


def _is(gpu: Mapping[str, Any], request: GpuRequest) -> bool:
    kind = kind_of(str(gpu["name"]))
    if kind != request.kind:
        return False
    # The driver reserves some of the memory, so the nearest size counts.
    nearest = min(KINDS[kind].memory_gb, key=lambda size: abs(size - float(gpu["memory_gb"])))
    return request.memory_gb in (None, nearest)


# Python


def version_of(text: str) -> tuple[int, ...]:
    """`3.11.7` as numbers; () for a Python that is not CPython."""
    if not text[:1].isdigit():
        return ()
    return tuple(int(part) for part in text.split(".") if part.isdigit())


def choose_python(host: Host, facts: Facts, minor: str | None) -> tuple[str, str] | None:
    """Path and version of the interpreter for agent and workers, preferably of the client's minor version.

    A configured interpreter always takes precedence. None if none is new enough.
    """
    known = [each for each in facts.pythons if version_of(each[1])[:2] >= OLDEST_PYTHON]
    if host.python:
        known = [each for each in known if each == _declared(host, facts)]
    same = [each for each in known if minor and each[1].startswith(f"{minor}.")]
    return next(iter(same or known), None)


def python_problem(host: Host, facts: Facts) -> str:
    """Why no Python of a host is suitable, or ""."""
    if choose_python(host, facts, None) is not None:
        return ""
    oldest = ".".join(map(str, OLDEST_PYTHON))
    declared = _declared(host, facts)
    if host.python and declared is None:
        return (
            f"{host.name} has no Python at {host.python}, or one that prints something of its own when it starts; "
            "correct `python` in its pool"
        )
    if host.python and declared is not None:
        return f"{host.name} has Python {declared[1]} at {host.python}; it needs {oldest} or newer"
    found = ", ".join(f"{version} ({path})" for path, version in facts.pythons) or "none"
    return (
        f"{host.name} has no Python {oldest} or newer (found: {found}); install one there, or name one with "
        "`python` in its pool"
    )


def can_be_brought(host: Host, facts: Facts) -> bool:
    """Whether a Python should be installed on a host that has none that is new enough."""
    return not host.python and bool(facts.root) and choose_python(host, facts, None) is None


def _declared(host: Host, facts: Facts) -> tuple[str, str] | None:
    path = host.python.replace("~", facts.home, 1) if host.python.startswith("~/") else host.python
    return next((each for each in facts.pythons if each[0] == path), None)
