"""What is read from a script's source before it runs: its imports, and why a command is not forked."""

from __future__ import annotations

import os
import sys
from importlib.util import spec_from_file_location
from pathlib import Path
from typing import Any

import pytest

from flowlite.bundle.script import script_call
from flowlite.spec import TaskConfig


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def _read(here: Path, source: str, **files: str) -> dict[str, Any]:
    for name, text in {"train": source, **files}.items():
        (here / f"{name}.py").write_text(text)
    return script_call(TaskConfig(command=["python", "train.py"]), Path.cwd())


def test_imports_that_happen_in_any_case_are_taken_in_their_order(here: Path) -> None:
    source = """
from __future__ import annotations
import json, torch
from typing import TYPE_CHECKING
if TYPE_CHECKING:
    import ssl
try:
    import decimal
except ImportError:
    import fractions
if input():
    import uuid
import helper
if __name__ == "__main__":
    import argparse
    main()
"""
    call = _read(here, source, helper="import csv\nfrom . import nothing\n")
    assert call["imports"] == ["json", "torch", "typing", "decimal", "csv", "argparse"]
    # What `input()` runs might have set a variable.
    assert call["late"] == ["csv", "argparse"]


def test_a_relative_import_of_a_script_is_one_of_its_directory(here: Path) -> None:
    """It fails, since a script has no package, and what is tried next has the same name."""
    source = """
try:
    from .helper import f
except ImportError:
    from helper import f
"""
    call = _read(here, source, helper="import csv\n", __init__="import fractions\n")
    assert call["imports"] == ["csv"]


def test_torch_brings_what_it_would_import_on_use(here: Path) -> None:
    call = _read(here, "import torch\ndef main():\n    import csv\n    torch.optim.SGD()\nmain()\n")
    assert call["imports"] == ["torch", "csv", "torch._dynamo"]
    assert call["late"] == ["csv", "torch._dynamo"]


@pytest.mark.parametrize(
    ("source", "imports", "late", "writes"),
    [
        ("import os\nos.environ['A'] = '1'\nimport json", ["os", "json"], ["json"], ["A"]),
        (
            "import os\nos.environ.setdefault('A', '1')\nimport json",
            ["os", "json"],
            ["json"],
            ["A"],
        ),
        (
            "import os\nos.environ.update({'A': '1'}, B='2')\nimport json",
            ["os", "json"],
            ["json"],
            ["A", "B"],
        ),
        ("import os\nfor k in 'ab':\n    os.environ[k] = '1'\nimport json", ["os"], [], ["*"]),
        ("import sys\nsys.path.insert(0, 'x')\nimport json", ["sys"], [], []),
        ("import sys\nprint(sys.argv, sys.path[0])\nimport json", ["sys", "json"], ["json"], []),
        ("import warnings\nwarnings.simplefilter('error')\nimport json", ["warnings"], [], []),
        ("import os\nos.chdir('/')\nimport json", ["os"], [], []),
        ("import csv\ncsv.reader([])\nimport json", ["csv", "json"], [], []),
        ("import helper\nhelper.prepare()\nimport json", ["os"], [], ["A"]),
    ],
)
def test_what_runs_before_an_import_can_change_it(
    here: Path, source: str, imports: list[str], late: list[str], writes: list[str]
) -> None:
    helper = "import os\nimport sys\ndef prepare():\n    os.environ['A'] = '1'\n    sys.path.append('x')\n"
    call = _read(here, source, helper=helper)
    assert [name for name in call["imports"] if name != "sys" or "sys" in source] == imports
    assert (call["late"], call["writes"]) == (late, writes)


@pytest.mark.parametrize(
    ("module", "imports"),
    [
        ("calendar", ["datetime", "locale"]),
        ("json.tool", ["json", "argparse"]),
        # Its `__main__` is run, and imports it.
        ("asyncio", ["asyncio", "ast"]),
        # Of a module in C there is no source, only its package.
        ("_struct", []),
    ],
)
def test_an_installed_module_that_is_run_is_not_imported_itself(
    here: Path, module: str, imports: list[str]
) -> None:
    call = script_call(TaskConfig(command=["python", "-m", module]), here)
    assert module not in set(call["imports"]) - {"asyncio"}
    assert set(imports) <= set(call["imports"])


def test_modules_that_start_threads_are_left_to_the_script(here: Path) -> None:
    call = _read(here, "import jax, lightning, deepspeed, json")
    assert call["imports"] == ["lightning", "json"]


@pytest.mark.parametrize(
    ("command", "why"),
    [
        (["python", "-c", "pass"], "-c"),
        (["python", "-i", "train.py"], "-i"),
        (["python", "-I", "train.py"], "-I"),
        (["python", "-X", "importtime", "train.py"], "importtime"),
        (["python", "-m", "cProfile", "train.py"], "cProfile"),
        (["python", "-"], "python -"),
        (["python"], "standard input"),
        (["python", "missing.py"], "source of missing.py"),
        (["python", "-m", "torch.distributed.run", "train.py"], "torchrun"),
        ("cd x && python train.py", "a shell"),
    ],
)
def test_a_command_that_is_started_as_it_is_has_a_reason(
    here: Path, command: list[str] | str, why: str
) -> None:
    (here / "train.py").write_text("")
    manual = "manual" if "torch.distributed.run" in command else "auto"
    call = script_call(TaskConfig(command=command, distributed_mode=manual), Path.cwd())
    assert call["start"] == "spawn"
    assert why in call["why"]


@pytest.mark.parametrize("module", ["coverage.cmdline", "viztracer.main", "kernprof", "pytest"])
def test_the_console_script_of_a_profiler_is_started_as_it_is(
    here: Path, monkeypatch: pytest.MonkeyPatch, module: str
) -> None:
    monkeypatch.setenv("PATH", str(here), prepend=os.pathsep)
    tool = here / "flow-profiles"
    tool.write_text(
        f"#!{sys.executable}\nimport sys\nfrom {module} import main\nsys.exit(main())\n"
    )
    tool.chmod(0o755)
    call = script_call(TaskConfig(command=["flow-profiles", "run", "train.py"]), Path.cwd())
    assert (call["start"], module in call["why"]) == ("spawn", True), call


def test_a_console_script_may_use_the_profilers_of_the_standard_library(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(here), prepend=os.pathsep)
    tool = here / "flow-measures"
    tool.write_text(f"#!{sys.executable}\nimport timeit, unittest\n")
    tool.chmod(0o755)
    call = script_call(TaskConfig(command=["flow-measures"]), Path.cwd())
    assert call["imports"] == ["timeit", "unittest"]


@pytest.mark.parametrize(
    "command",
    [
        ["env", "A=1", "python", "train.py"],
        ["py-spy", "record", "-o", "x", "--", "python3", "train.py"],
        ["nothing-of-that-name", "/usr/bin/python3.11", "train.py"],
    ],
)
def test_a_program_that_starts_the_python_is_named(here: Path, command: list[str]) -> None:
    (here / "train.py").write_text("")
    call = script_call(TaskConfig(command=command), Path.cwd())
    assert call == {"start": "spawn", "why": f"{command[0]} starts its Python"}


@pytest.mark.parametrize("command", [["true"], ["nothing-of-that-name"], "echo $RANK"])
def test_of_other_commands_nothing_is_said(here: Path, command: list[str] | str) -> None:
    assert script_call(TaskConfig(command=command), Path.cwd()) == {}


def test_who_wants_a_python_for_each_rank_gets_it(here: Path) -> None:
    (here / "train.py").write_text("")
    call = script_call(TaskConfig(command=["python", "train.py"], start="spawn"), Path.cwd())
    assert call == {"start": "spawn", "why": "start='spawn'"}


def test_an_executable_script_may_import_a_debugger(here: Path) -> None:
    script = here / "train.py"
    script.write_text(f"#!{sys.executable}\nimport debugpy, numpy\n")
    script.chmod(0o755)
    call = script_call(TaskConfig(command=["./train.py"]), here)
    assert call["start"] == "auto"
    assert {"debugpy", "numpy"} <= set(call["imports"])


def test_an_editable_install_is_read_however_it_is_found(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some have a finder of their own. What their modules set, a later import may read."""
    package = here / "elsewhere" / "mine_for_flow"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("import csv\n")
    (package / "prepare.py").write_text("import os\nos.environ['A'] = '1'\n")

    class Finder:
        @staticmethod
        def find_spec(name: str, path: object = None, target: object = None) -> Any:
            if name != package.name:
                return None
            return spec_from_file_location(name, package / "__init__.py")

    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, Finder])
    call = _read(here, "import mine_for_flow.prepare\nimport json\n")
    assert call["imports"] == ["csv", "os", "json"]
    assert call["late"] == ["json"]
    assert call["writes"] == ["A"]
