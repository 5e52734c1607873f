"""What the fork server imports: what the code will, and nothing that is dangerous, the project's, or needless."""

from __future__ import annotations

import dis
import importlib
import os
import subprocess
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flowlite.bundle import scan
from flowlite.bundle.call import Bundle
from flowlite.bundle.imports import LATE_IMPORTS, UNSAFE_BEFORE_FORK
from tests.bundle.conftest import Project

Build = Callable[..., Bundle]


def warm(build: Build, body: str) -> set[str]:
    """Imports for a function of a script with this body."""
    names: dict[str, Any] = {"__name__": "__main__"}
    lines = "\n".join(f"    {line}" for line in body.strip().splitlines())
    exec(f"def train():\n{lines}\n", names)
    found = build(names["train"]).imports
    return {name for name in found if not name.startswith("cloudpickle")}


def test_imports_inside_the_function_are_found(build: Build) -> None:
    body = "import torch\nfrom sklearn.datasets import load_digits\nfrom torchvision import models\nimport json"
    found = warm(build, body)
    assert {"torch", "sklearn.datasets", "json"} <= found
    assert "sklearn.datasets.load_digits" not in found


def test_submodules_are_found_without_importing(build: Build) -> None:
    assert warm(build, "from torch.nn import parallel, Module") == {"torch.nn", "torch.nn.parallel"}


@pytest.mark.parametrize(
    "body",
    [
        "import torch\ntorch.optim.SGD([], lr=1)",
        "import torch\nfrom torch.optim import AdamW",
        "from torch import optim",
        "from torch.nn.parallel import DistributedDataParallel as DDP",
        "import torch\ndef inner():\n    torch.nn.parallel.DistributedDataParallel(1)",
        "from torch.distributed.fsdp import fully_shard",
        "import torch\nf = torch.compile(len)",
        "import accelerate",
        "from transformers import Trainer",
    ],
)
def test_code_that_trains_gets_what_torch_imports_late(build: Build, body: str) -> None:
    assert "torch._dynamo" in warm(build, body)


@pytest.mark.parametrize(
    "body",
    [
        "import torch\ntorch.zeros(3)",
        "import torch, re\nre.compile('x')",
        "import torch.distributed as dist\ndist.init_process_group()",
        "import torch\nfrom torch.utils.data import DataLoader",
        "optim = 1",
        "from transformers import pipeline",
    ],
)
def test_other_code_does_not_pay_for_it(build: Build, body: str) -> None:
    assert "torch._dynamo" not in warm(build, body)


def test_distributed_comes_with_torch(build: Build) -> None:
    assert "torch.distributed" in warm(build, "import torch\ntorch.distributed.barrier()")
    assert "torch.distributed" in warm(build, "from torch import distributed as dist")


@pytest.mark.parametrize("name", sorted(UNSAFE_BEFORE_FORK))
def test_what_must_not_be_imported_before_a_fork_is_not(build: Build, name: str) -> None:
    assert warm(build, f"import {name}.sub\nfrom {name} import thing") == set()


def test_a_module_that_reads_the_rank_is_loaded_ahead(build: Build) -> None:
    assert warm(build, "import lightning") == {"lightning", "torch._dynamo"}
    assert warm(build, "from torchmetrics import Accuracy") == {"torchmetrics"}


def test_tensorboard_through_torch_is_unsafe_too(build: Build) -> None:
    assert warm(build, "from torch.utils.tensorboard import SummaryWriter") == set()


def test_modules_of_the_project_are_read_and_not_named(build: Build, project: Project) -> None:
    project.write("pack/__init__.py", "import decimal\n")
    project.write(
        "pack/work.py",
        """
        from __future__ import annotations
        import wave
        from typing import TYPE_CHECKING
        from . import tools
        if TYPE_CHECKING:
            import turtle, xmlrpc.client
        def train():
            from pack.lazy import Loader
            tools.used()
            return Loader().load()
        def elsewhere():
            import sndhdr_not_imported
        """,
    )
    project.write(
        "pack/tools.py",
        """
        import csv
        class C:
            import mailbox
        def used():
            import plistlib
            return helper()
        def helper():
            import zoneinfo
        def unused():
            import pydoc
        """,
    )
    project.write(
        "pack/lazy.py",
        """
        class Loader:
            def load(self):
                import fractions
        """,
    )
    work = importlib.import_module("pack.work")
    found = set(build(work.train).imports)
    wanted = {"decimal", "wave", "csv", "mailbox", "plistlib", "zoneinfo", "fractions", "typing"}
    assert wanted <= found
    assert not {n for n in found if n.startswith("pack")}
    assert not {"xmlrpc.client", "sndhdr_not_imported", "pydoc", "turtle"} & found


def test_what_arguments_and_globals_need_is_named(build: Build) -> None:
    np = pytest.importorskip("numpy")
    torch = pytest.importorskip("torch")

    def look(*values: Any) -> None: ...

    assert "numpy" in {n.partition(".")[0] for n in build(look, np.zeros(3)).imports}
    assert "torch" in build(look, [torch.zeros(3)]).imports
    names: dict[str, Any] = {"__name__": "__main__"}
    exec("import torch as t\ndef train(): return t.zeros(3)", names)
    assert "torch" in build(names["train"]).imports


def test_a_script_that_uses_flowlite_has_it_imported_once(build: Build, project: Project) -> None:
    project.write("job.py", "from flowlite import errors\ndef train(): return 1\n")
    assert {"flowlite", "flowlite.api.app"} <= set(
        build(importlib.import_module("job").train).imports
    )


@pytest.mark.needs("syntax-3.12")
def test_what_has_type_parameters_is_read(build: Build, project: Project) -> None:
    project.write(
        "generic.py",
        """
        class Reader[T]:
            import mailbox

            def read[U](self):
                import plistlib

        def read[T](x: T):
            import zoneinfo
            return Reader().read()

        def train():
            return read(1)
        """,
    )
    train = importlib.import_module("generic").train
    assert {"mailbox", "plistlib", "zoneinfo"} <= set(build(train).imports)


@pytest.mark.needs("syntax-3.12")
def test_what_aliases_and_parameters_in_classes_use_is_found() -> None:
    text = "def f():\n  class A:\n    type B = one\n    def g[T: two](self): pass"
    assert {"one", "two"} <= scan.global_names(compile(text, "x", "exec"))


def test_the_bytecode_reader_agrees_with_the_disassembler() -> None:
    directory = Path(os.__file__).parent
    checked = 0
    for path in sorted(directory.glob("*.py"))[:40]:
        code = compile(path.read_bytes(), str(path), "exec")
        assert [tuple(i) for i in scan.all_imports(code)] == list(_disassembled(code)), path
        checked += 1
    assert checked == 40


def _disassembled(code: types.CodeType) -> Any:
    for inner in scan.nested(code):
        steps = [i for i in dis.get_instructions(inner) if i.opname != "EXTENDED_ARG"]
        for at, step in enumerate(steps):
            if step.opname == "IMPORT_NAME":
                yield steps[at - 2].argval, step.argval, tuple(steps[at - 1].argval or ())


@pytest.mark.slow
def test_the_table_of_late_imports_is_what_torch_does() -> None:
    """With the modules of the table imported, building optimizers and DDP imports nothing more."""
    pytest.importorskip("torch")
    program = """
import sys, torch, torch.distributed as dist, tempfile
for name in sys.argv[1:]: __import__(name)
dist.init_process_group("gloo", init_method="file://" + tempfile.mktemp(), rank=0, world_size=1)
before = set(sys.modules)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))
for make in (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW):
    step = make(model.parameters(), lr=0.1)
    model(torch.zeros(2)).sum().backward()
    step.step()
# A small part of the profiler comes with the first step, in 4 ms.
print(sorted(name for name in set(sys.modules) - before if not name.startswith("torch.profiler.")))
"""
    names = {*LATE_IMPORTS["optim"], *LATE_IMPORTS["DistributedDataParallel"]}
    done = subprocess.run(
        [sys.executable, "-c", program, *names], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
