"""Environments with training stacks in them, unmodified, as their users install them.

One is made once, kept in a cache directory, and shared by all test processes:

    python = stack("accelerate==1.15.0", name="accelerate")      # Path of the environment's Python
    python = trainers()                                          # the one that most tests share

It holds what the tests' own environment lacks; that one (torch, numpy, flowlite) is seen from it. A test that asks for
a stack which cannot be installed here is skipped, by the stack's name. `python -m tests.stacks.environments` makes
the shared one, so that no test has to wait for it.
"""

from __future__ import annotations

import fcntl
import functools
import hashlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

# What is taken from the tests' own environment, whatever a stack asks for; its wheels with CUDA would be 3 GB.
_OURS = ("torch", "numpy")
# The torchvision that belongs to the torch of pyproject's extra `dev`. Stacks would take the newest.
_TORCHVISION = "torchvision==0.28.0"

TRAINERS = (
    "open_clip_torch[training]==3.3.0",
    "open_flamingo[training]==2.0.1",
    "accelerate==1.15.0",
    "deepspeed==0.19.8",
    "lightning==2.6.6",
    "transformers==5.23.0",
    "ray[train]==2.60.0",
)
AXOLOTL = ("axolotl==0.19.0", "triton==3.7.1")
# open_flamingo wants one that has no wheels for newer Pythons; its tokenizers do without.
TRAINERS_OVERRIDE = ("sentencepiece==0.2.3",)

_SHIM = "torchvision_beside_cpu_torch"


def trainers() -> Path:
    """The Python that has all of TRAINERS. Skips the test where they cannot be installed."""
    return stack(*TRAINERS, name="trainers", override=TRAINERS_OVERRIDE)


def axolotl() -> Path:
    """The Python that has Axolotl: 2.6 GB, and its imports take many seconds. Skips where it cannot be installed."""
    return stack(*AXOLOTL, name="axolotl")


def stack(*requirements: str, name: str, override: Sequence[str] = ()) -> Path:
    """The Python of an environment with these packages. Skips the test where they cannot be installed.

    Args:
        requirements: As for pip, best with exact versions.
        name: What a skipped test says is missing.
        override: Requirements that hold whatever packages ask for.
    """
    try:
        return environment(requirements, tuple(override))
    except CannotInstall as error:
        pytest.skip(f"the stack {name} cannot be installed here: {error}")


class CannotInstall(Exception):
    """An environment cannot be made; says why."""


@functools.cache
def environment(requirements: tuple[str, ...], override: tuple[str, ...] = ()) -> Path:
    """Makes the environment if it is not there yet; other processes wait for the first that comes."""
    if importlib.util.find_spec("torch") is None:
        raise CannotInstall("torch is not installed (extra `dev`)")
    rules = [*(f'{each} ; python_version < "3"' for each in _OURS), _TORCHVISION, *override]
    directory = cache() / _key(requirements, rules)
    ready = directory / "ready"
    with _only_one(directory.with_suffix(".lock")):
        if not ready.exists():
            shutil.rmtree(directory, ignore_errors=True)
            _sweep()
            _make(directory, requirements, rules)
            ready.write_text(json.dumps({"requirements": requirements, "prefix": sys.prefix}))
    return directory / "bin" / "python"


def cache() -> Path:
    """Where environments are kept: FLOW_STACKS, or a directory of this user that outlives a run."""
    return Path(_PLACE or f"/var/tmp/flowlite-stacks-{os.getuid()}")


# Read at once: fixtures take all variables of flowlite away while a test runs.
_PLACE = os.environ.get("FLOW_STACKS")


def _key(requirements: Sequence[str], rules: Sequence[str]) -> str:
    parts = [*requirements, "|", *rules, sys.version, sys.prefix, _SHIM_SOURCE]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


@contextmanager
def _only_one(lock: Path) -> Iterator[None]:
    lock.parent.mkdir(parents=True, exist_ok=True)
    with open(lock, "w") as opened:
        fcntl.flock(opened, fcntl.LOCK_EX)
        yield


def _sweep() -> None:
    """Removes environments that see a Python which is gone: a CI run has one of its own each time."""
    for ready in cache().glob("*/ready"):
        if not Path(json.loads(ready.read_text())["prefix"]).exists():
            shutil.rmtree(ready.parent, ignore_errors=True)


def _make(directory: Path, requirements: Sequence[str], rules: Sequence[str]) -> None:
    _run(sys.executable, "-m", "venv", "--without-pip", str(directory))
    file = directory / "override.txt"
    file.write_text("\n".join(rules) + "\n")
    python = directory / "bin" / "python"
    uv = [str(_uv()), "pip", "install", "--quiet", "--python", str(python)]
    _run(*uv, "--override", str(file), *requirements)
    _link(directory)


def _link(directory: Path) -> None:
    """Lets the environment see the one of the tests, after its own packages."""
    ours = sysconfig.get_path("purelib")
    theirs = Path(sysconfig.get_path("purelib", vars={"base": str(directory)}))
    (theirs / "tests_environment.pth").write_text(f"import site; site.addsitedir({ours!r})\n")
    (theirs / f"{_SHIM}.py").write_text(_SHIM_SOURCE)
    (theirs / f"{_SHIM}.pth").write_text(f"import {_SHIM}\n")
    for command, module in (("torchrun", "torch.distributed.run"), ("flow", "flowlite.cli")):
        script = directory / "bin" / command
        script.write_text(
            f"#!{directory}/bin/python\nfrom {module} import main\nraise SystemExit(main())\n"
        )
        script.chmod(0o755)


# The torchvision of the package index is built for torch with CUDA: beside one without, its library does not load, and
# `import torchvision` fails on operators that it then knows nothing of. Training on tensors needs none of them.
_SHIM_SOURCE = '''\
"""Declares two operators, so that torchvision can be imported where its library cannot be loaded."""
import importlib.abc
import sys
from pathlib import Path


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name == "torchvision":
            sys.meta_path.remove(self)
            import torch

            if not (Path(torch.__file__).parent / "lib" / "libtorch_cuda.so").exists():
                self.library = torch.library.Library("torchvision", "DEF")
                self.library.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
                self.library.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
                torch._torchvision_operators = self.library
        return None


sys.meta_path.insert(0, _Finder())
'''


def _uv() -> Path:
    try:
        from uv import find_uv_bin
    except ImportError:
        raise CannotInstall("uv is not installed (extra `dev`)") from None
    return Path(find_uv_bin())


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        said = (done.stderr or done.stdout).strip()[-600:]
        raise CannotInstall(f"{' '.join(command[:4])} … ended with {done.returncode}: {said}")


def _compile(python: Path) -> None:
    """Imports what tests import, once: hosts see the environment read-only, and could not keep what they compile."""
    code = f"import {', '.join(_IMPORTED)}"
    subprocess.run([python, "-c", code], capture_output=True, check=False)


_IMPORTED = (
    "open_clip_train.main",
    "open_flamingo.train.train_utils",
    "deepspeed",
    "ray.train.torch",
    "lightning",
)

if __name__ == "__main__":
    began = time.monotonic()
    try:
        made = environment(TRAINERS, TRAINERS_OVERRIDE)
    except CannotInstall as error:
        sys.exit(f"the stack trainers cannot be installed here: {error}")
    print(f"{made}: made in {time.monotonic() - began:.1f} s")
    _compile(made)
    print(f"imported once: {time.monotonic() - began:.1f} s")
