"""Versions of the libraries that ranks communicate and compute with, read from file names without any import."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from typing import Any

from .atomic_files import names_in

TALKING = ("torch", "nvidia-nccl", "nvidia-cuda-runtime", "horovod", "deepspeed")
"""Ranks that differ in the versions of these may hang or fail in a collective."""
COMPUTING = (
    "numpy", "transformers", "accelerate", "open-clip-torch", "open-flamingo", "axolotl", "webdataset",
    "torchvision", "peft", "bitsandbytes", "flash-attn", "ray", "tokenizers", "datasets", "triton",
)  # fmt: skip
"""Ranks that differ in the versions of these may compute different results."""

FRAMEWORKS = frozenset(
    {"torch", "transformers", "accelerate", "deepspeed", "horovod", "lightning", "pytorch_lightning", "axolotl"}
    | {"open_clip", "open_clip_train", "open_flamingo"}
)  # fmt: skip
"""Modules whose import shows that ranks will communicate."""

_PROGRAMS = re.compile(
    r"(^|[\s/])(python[\d.]*|torchrun|accelerate|deepspeed|axolotl|horovodrun|\S+\.py)(\s|$)"
)
_CUDA = re.compile(r"-cu\d+$")
_DISTRIBUTION = re.compile(r"(?P<name>[\w.]+)-(?P<version>[^-/]+)(?:-[^/]*)?\.(?:dist|egg)-info")


def versions_of(python: str, environment: Mapping[str, str], minor: str) -> dict[str, str]:
    """Returns names and versions of the known libraries that are installed. The first one on the path counts.

    Args:
        python: The workers' interpreter.
        environment: The workers' environment, for its PYTHONPATH.
        minor: The version of that Python, such as "3.11".
    """
    known = {*TALKING, *COMPUTING}
    found: dict[str, str] = {}
    for directory in directories(python, environment, minor):
        for each in sorted(names_in(directory)):
            match = _DISTRIBUTION.fullmatch(each)
            if match is not None:
                name = re.sub(r"[-_.]+", "-", match["name"]).lower()
                # One name for all versions of CUDA: nvidia-nccl-cu12.
                name = _CUDA.sub("", name)
                if name in known:
                    found.setdefault(name, match["version"])
    return found


def relevant(call: Mapping[str, Any]) -> tuple[set[str], bool]:
    """Returns the packages that matter for a call, and whether its ranks certainly communicate.

    Args:
        call: `AgentConfig.call`. For a function its imports are known; for a command only its words.
    """
    everything = {*TALKING, *COMPUTING}
    if call.get("kind") == "command":
        words = " ".join(map(str, call.get("argv", ())))
        return (everything if _PROGRAMS.search(words) else set()), False
    modules = {str(module).partition(".")[0] for module in call.get("imports", ())}
    if modules & FRAMEWORKS:
        return everything, True
    return {name for name in everything if name.replace("-", "_") in modules}, False


def directories(python: str, environment: Mapping[str, str], minor: str) -> Iterator[str]:
    """Yields the directories in which that interpreter looks for packages, as far as paths tell."""
    yield from (each for each in environment.get("PYTHONPATH", "").split(os.pathsep) if each)
    prefix = os.path.dirname(os.path.dirname(python))
    settings = _settings(os.path.join(prefix, "pyvenv.cfg"))
    yield from _below(prefix, minor)
    if settings is None or settings.get("include-system-site-packages") == "true":
        yield from _below(os.path.join(environment.get("HOME", ""), ".local"), minor)
        home = (settings or {}).get("home")
        if home:
            yield from _below(os.path.dirname(home), minor)


def _below(prefix: str, minor: str) -> Iterator[str]:
    if not os.path.isabs(prefix):
        return
    for library in ("lib", "lib64", "local/lib"):
        directory = os.path.join(prefix, library)
        names = sorted(names_in(directory))
        own = f"python{minor}" in names
        for name in names:
            if name == "python3" or (
                name == f"python{minor}" if own else name.startswith("python3.")
            ):
                yield os.path.join(directory, name, "site-packages")
                yield os.path.join(directory, name, "dist-packages")


def _settings(path: str) -> dict[str, str] | None:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            pairs = (line.partition("=") for line in file)
            return {name.strip().lower(): value.strip() for name, _, value in pairs}
    except OSError:
        return None
