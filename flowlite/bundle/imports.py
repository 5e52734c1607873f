"""What a node's fork server should import before it forks the ranks, read from the code that will run.

Importing is most of what starting costs (torch: seconds), so it is done once a node, while the gang
gathers. It must not be more than what the workers would import themselves: every module costs time, and
some must not be imported before a fork.

What the code reaches is taken from names: of the modules it imports, the functions and classes whose names
occur in code that runs. That is more than what really runs, and little more in practice.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import types
from collections.abc import Iterable

from flowlite.bundle import scan
from flowlite.bundle.project import Project

# They start threads, open devices or hold locks while they are imported; a process forked afterwards can hang or fail.
# Whoever imports one of these pulls in the rest of what it needs itself, in the worker.
_UNSAFE_BEFORE_FORK = """
    jax jaxlib flax optax chex equinox haiku orbax numpyro brax tensorflow tensorflow_datasets
    tensorflow_hub tensorflow_text tf_keras keras tensorboard ray grpc grpcio_tools horovod mpi4py deepspeed
    bitsandbytes transformer_engine apex vllm sglang cupy cupyx cudf cuml cugraph rmm dask_cuda pycuda
    tensorrt nvidia paddle mxnet polars pyspark torch_xla habana_frameworks intel_extension_for_pytorch
    tkinter turtle gevent eventlet antigravity this
"""
UNSAFE_BEFORE_FORK = frozenset(_UNSAFE_BEFORE_FORK.split())
# Part of torch that imports one of the above.
_UNSAFE_MODULES = ("torch.utils.tensorboard", "torch.utils.cpp_extension")

# What torch imports only when it is used, by the name that shows the use. Seconds seen with torch 2.13 (CPU)
# in a process that had imported torch: building any optimizer or DistributedDataParallel imports
# torch._dynamo, 1.3 to 1.7 (with it imported, a constructor takes 0.01); importing FSDP takes 0.76, and who
# uses it builds optimizers; torch.compile takes 1.5 for torch._dynamo, and 0.6 for its compiler at the first
# call, which is left to the worker since it starts processes of its own. torch.distributed has come with
# torch itself since 2.x.
LATE_IMPORTS: dict[str, tuple[str, ...]] = {
    "optim": ("torch._dynamo",),
    "DistributedDataParallel": ("torch._dynamo",),
    "FullyShardedDataParallel": ("torch._dynamo", "torch.distributed.fsdp"),
    "fully_shard": ("torch._dynamo", "torch.distributed.fsdp"),
}
_COMPILE = ("torch._dynamo",)
# Trainers that build optimizers out of sight.
_TRAINERS = frozenset({"lightning", "pytorch_lightning", "accelerate"})
# The public names of flowlite are loaded on use.
_FLOWLITE = ("flowlite", "flowlite.api.app")


def warm_imports(
    project: Project,
    modules: Iterable[str],
    codes: Iterable[tuple[types.CodeType, str]],
    bodies: Iterable[tuple[types.CodeType, str]] = (),
) -> tuple[str, ...]:
    """Names of installed modules to import, sorted.

    Args:
        project: Tells the project's modules, which are never among them, from installed ones.
        modules: Modules that loading the call imports.
        codes: Code that will run, each with the package that its relative imports count from.
        bodies: Code of main modules that nodes load.
    """
    reach = _Reach(project)
    for body, package in bodies:
        reach.add_body(body, package, loaded=True)
    for code, package in codes:
        reach.add_code(code, package)
    for name in modules:
        reach.add_module(name)
    reach.settle()
    found = reach.external | _late(reach)
    return tuple(sorted(name for name in found if _is_wanted(name)))


class _Reach:
    """What runs: code objects, and the modules of the project that are imported on the way."""

    def __init__(self, project: Project) -> None:
        self._project = project
        self.external: set[str] = set()
        # Names that running code uses, and names that merely occur where a module's body runs (its own
        # definitions, too).
        self.names: set[str] = set()
        self.mentioned: set[str] = set()
        self.codes: list[types.CodeType] = []
        self._taken: set[types.CodeType] = set()
        # By name, code that is there to be called once somebody uses the name.
        self._waiting: dict[str, list[tuple[types.CodeType, str]]] = {}
        self._modules: set[str] = set()
        self._fresh: list[str] = []

    def add_code(self, code: types.CodeType, package: str) -> None:
        """A function that will run, with everything defined in it."""
        if code in self._taken:
            return
        for inner in scan.nested(code):
            self._taken.add(inner)
            self.codes.append(inner)
            self._use(inner.co_names)
            self._imports(inner, package, loaded=False)

    def add_module(self, name: str) -> None:
        """A module that will be imported; of the project's its body runs, and its functions wait to be used."""
        if not self._project.owns(name):
            self.external.add(name)
            return
        parts = name.split(".")
        for count in range(1, len(parts) + 1):
            self._add_own(".".join(parts[:count]))

    def settle(self) -> None:
        """Follow names to the code they stand for, until there are no new ones."""
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
        """The code of a module: its body runs, and its functions wait to be used."""
        for body in scan.class_bodies(code):
            self.codes.append(body)
            self.mentioned.update(body.co_names)
            self._imports(body, package, loaded=loaded)
        for constant in code.co_consts:
            if isinstance(constant, types.CodeType):
                if constant.co_name in self.names:
                    self.add_code(constant, package)
                else:
                    self._waiting.setdefault(constant.co_name, []).append((constant, package))

    def _use(self, names: Iterable[str]) -> None:
        new = set(names) - self.names
        self.names |= new
        self._fresh += new

    def _imports(self, code: types.CodeType, package: str, *, loaded: bool) -> None:
        """Take in the imports of one code object.

        Of a module that is loaded here, imports that did not happen (under TYPE_CHECKING, or of what is
        missing) are passed over.
        """
        for statement in scan.imports(code):
            name = statement.absolute(package)
            if not name or (loaded and name not in sys.modules):
                continue
            self._use((*name.split("."), *statement.names))
            self.add_module(name)
            for item in statement.names:
                inner = f"{name}.{item}"
                if self._project.owns(name) or inner in sys.modules or _is_submodule(inner):
                    self.add_module(inner)


def _late(reach: _Reach) -> set[str]:
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


def _is_wanted(name: str) -> bool:
    top = name.partition(".")[0]
    if top in UNSAFE_BEFORE_FORK or name.startswith(_UNSAFE_MODULES):
        return False
    return top not in ("__main__", "__mp_main__", "__future__", "builtins", "provider_adapters")


def _is_submodule(name: str) -> bool:
    """Whether an installed package holds a module of this name, found without importing anything."""
    top, *steps = name.split(".")
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError, AttributeError):
        return False
    for location in (spec.submodule_search_locations or ()) if spec is not None else ():
        base = os.path.join(location, *steps)
        if os.path.isfile(os.path.join(base, "__init__.py")) or os.path.isfile(f"{base}.py"):
            return True
    return False
