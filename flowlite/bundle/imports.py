"""Finds the modules that a node's fork server should import before it forks workers, from the code that will run.

Imports take most of the start-up time (torch: seconds), so they are done once per node, during the rendezvous. The fork
server must not import more than the workers would: every module costs time, and some must not be imported before a
fork.

Reachable code is found by name: of the modules that the code imports, those functions and classes count whose names
occur in code that runs. That is more than what really runs, but little more in practice.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import types
from collections.abc import Iterable

from flowlite.bundle import scan
from flowlite.bundle.project import Project

# Modules that start threads, open devices, hold locks or make temporary files when they are imported; a process that is
# forked afterwards can hang or fail. Workers import them, and what these need in turn, themselves.
_UNSAFE_BEFORE_FORK = """
    jax jaxlib flax optax chex equinox haiku orbax numpyro brax tensorflow tensorflow_datasets
    tensorflow_hub tensorflow_text tf_keras keras tensorboard ray grpc grpcio_tools horovod mpi4py deepspeed
    bitsandbytes transformer_engine apex vllm sglang cupy cupyx cudf cuml cugraph rmm dask_cuda pycuda
    tensorrt nvidia paddle mxnet polars pyspark torch_xla habana_frameworks intel_extension_for_pytorch
    tkinter turtle gevent eventlet antigravity this wandb
"""
UNSAFE_BEFORE_FORK = frozenset(_UNSAFE_BEFORE_FORK.split())
# Parts of torch that import one of the unsafe modules.
_UNSAFE_MODULES = ("torch.utils.tensorboard", "torch.utils.cpp_extension")

# Modules that torch imports only on use, by the name that shows the use. Seconds measured with torch 2.13 (CPU) in a
# process that had imported torch: building any optimizer or DistributedDataParallel imports torch._dynamo, 1.3 to 1.7
# (a constructor takes 0.01 afterwards); importing FSDP takes 0.76, and code that uses it builds optimizers;
# torch.compile takes 1.5 for torch._dynamo, and 0.6 for its compiler at the first call, which is left to the worker
# since it starts processes of its own. torch.distributed has come with torch itself since 2.x.
LATE_IMPORTS: dict[str, tuple[str, ...]] = {
    "optim": ("torch._dynamo",),
    "DistributedDataParallel": ("torch._dynamo",),
    "FullyShardedDataParallel": ("torch._dynamo", "torch.distributed.fsdp"),
    "fully_shard": ("torch._dynamo", "torch.distributed.fsdp"),
}
_COMPILE = ("torch._dynamo",)
# Trainers that build optimizers internally.
_TRAINERS = frozenset({"lightning", "pytorch_lightning", "accelerate"})
# The public names of flowlite are loaded on use.
_FLOWLITE = ("flowlite", "flowlite.api.app")


def warm_imports(
    project: Project,
    modules: Iterable[str],
    codes: Iterable[tuple[types.CodeType, str]],
    bodies: Iterable[tuple[types.CodeType, str]] = (),
) -> tuple[str, ...]:
    """The sorted names of the installed modules to import.

    Args:
        project: Distinguishes the project's modules, which are never included, from installed ones.
        modules: Modules that are imported when the call is loaded.
        codes: Code that will run, each with the package that its relative imports start from.
        bodies: Code of main modules that nodes load.
    """
    reach = _ReachableCode(project)
    for body, package in bodies:
        reach.add_body(body, package, loaded=True)
    for code, package in codes:
        reach.add_code(code, package)
    for name in modules:
        reach.add_module(name)
    reach.settle()
    found = reach.external | _late(reach)
    return tuple(sorted(name for name in found if may_be_loaded_ahead(name)))


class _ReachableCode:
    """The code that will run: code objects, and the modules that they import."""

    def __init__(self, project: Project) -> None:
        self._project = project
        self.external: set[str] = set()
        # Names that running code uses, and names that merely occur in the bodies of modules (definitions included).
        self.names: set[str] = set()
        self.mentioned: set[str] = set()
        self.codes: list[types.CodeType] = []
        self._taken: set[types.CodeType] = set()
        # By name, functions that run only if the name is used.
        self._waiting: dict[str, list[tuple[types.CodeType, str]]] = {}
        self._modules: set[str] = set()
        self._fresh: list[str] = []

    def add_code(self, code: types.CodeType, package: str) -> None:
        """Adds a function that will run, with everything defined in it."""
        if code in self._taken:
            return
        for inner in scan.nested(code):
            self._taken.add(inner)
            self.codes.append(inner)
            self._use(inner.co_names)
            self._imports(inner, package, loaded=False)

    def add_module(self, name: str) -> None:
        """Adds a module that will be imported. For a module of the project, its body is added as running code."""
        if not self._project.owns(name):
            self.external.add(name)
            return
        parts = name.split(".")
        for count in range(1, len(parts) + 1):
            self._add_own(".".join(parts[:count]))

    def settle(self) -> None:
        """Adds the functions of all names in use, until there are no new names."""
        while self._fresh:
            for code, package in self._waiting.pop(self._fresh.pop(), ()):
                self.add_code(code, package)

    def _add_own(self, name: str) -> None:
        if name in self._modules or not self._project.exists(name):
            return
        self._modules.add(name)
        code = self._project.code(name)
        if code is None:
            return
        self.add_body(code, self._project.package_of(name), loaded=name in sys.modules)

    def add_body(self, code: types.CodeType, package: str, *, loaded: bool) -> None:
        """Adds the body of a module as running code. Its functions are added once their names are used."""
        for body in scan.class_bodies(code):
            self.codes.append(body)
            self.mentioned.update(body.co_names)
            self._imports(body, package, loaded=loaded)
        for inner in scan.definitions(code):
            if inner.co_name in self.names:
                self.add_code(inner, package)
            else:
                self._waiting.setdefault(inner.co_name, []).append((inner, package))

    def _use(self, names: Iterable[str]) -> None:
        new = set(names) - self.names
        self.names |= new
        self._fresh += new

    def _imports(self, code: types.CodeType, package: str, *, loaded: bool) -> None:
        """Adds the imports of one code object.

        If its module is loaded in this process, imports that did not happen here (under TYPE_CHECKING, or of modules
        that are not installed) are ignored.
        """
        for statement in scan.imports(code):
            name = statement.absolute(package)
            if not name or (loaded and name not in sys.modules):
                continue
            self._use((*name.split("."), *statement.names))
            self.add_module(name)
            for item in statement.names:
                inner = f"{name}.{item}"
                if self._project.owns(name) or inner in sys.modules or is_submodule(inner):
                    self.add_module(inner)


def _late(reach: _ReachableCode) -> set[str]:
    tops = {name.partition(".")[0] for name in reach.external}
    names = reach.names | reach.mentioned
    found: set[str] = set()
    if "torch" in tops:
        found = {m for name, late in LATE_IMPORTS.items() if name in names for m in late}
        if any(scan.uses_attribute(code, "torch", "compile") for code in reach.codes):
            found.update(_COMPILE)
        if {"dist", "distributed"} & names:
            found.add("torch.distributed")
    if tops & _TRAINERS or ("transformers" in tops and "Trainer" in names):
        found.update(LATE_IMPORTS["optim"])
    if "flowlite" in tops:
        found.update(_FLOWLITE)
    return found


def may_be_loaded_ahead(name: str) -> bool:
    """Whether a fork server may import a module before it forks."""
    top = name.partition(".")[0]
    if top in UNSAFE_BEFORE_FORK or name.startswith(_UNSAFE_MODULES):
        return False
    return top not in ("__main__", "__mp_main__", "__future__", "builtins", "provider_adapters")


def is_submodule(name: str) -> bool:
    """Whether an installed package has a module of this name, found without importing anything."""
    return "." in name and module_source(name) is not None


def module_source(name: str) -> str | None:
    """The source file of a module that this Python would import; a package's is its `__init__.py`. Imports nothing."""
    top, *steps = name.split(".")
    try:
        # Not only on the path: some editable installs have a finder of their own in `sys.meta_path`.
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError, AttributeError):
        return None
    if spec is None:
        return None
    if not steps and spec.origin is not None and spec.origin.endswith(".py"):
        return spec.origin
    for location in spec.submodule_search_locations or ():
        base = os.path.join(location, *steps)
        for path in (os.path.join(base, "__init__.py"), f"{base}.py"):
            if os.path.isfile(path):
                return path
    return None
