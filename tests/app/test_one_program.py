"""One program, however it is started: `python x.py`, `flow run x.py::f` and a notebook give the same."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.components import python_of

ROOT = Path(__file__).parents[2]
PROGRAMS = Path(__file__).parent / "programs"
HERE = f"{sys.version_info.major}.{sys.version_info.minor}"
POOL: Any = [[2, 4, 6], [2]]
# What each row of a program gives, as JSON.
TABLES: dict[str, dict[str, Any]] = {
    "every_way.py": {
        "logging": [10, "INFO of __main__: hello", 1],
        "environment": "1",
        "start_method": "spawn",
        "process_pool": [2, 4],
        "pool_fork": POOL,
        "pool_spawn": POOL,
        "pool_forkserver": POOL,
        "pool_of_decorated": [2],
        "old_checkpoint": True,
        "plain_pickle": True,
        "type_hints": {"x": "<class 'int'>", "y": "typing.Optional[__main__.Point]"},
        "pydantic": [
            {"sides": 3, "corner": {"sides": 4}, "name": "B"},
            ["corner", "name", "sides"],
        ],
        "get_source": "def double(x: int) -> int:\n    return 2 * x\n",
        "another_function": [["ConfigError", True], 2, 3],
        "changed_values": [{"x": 1}, 2],
        "names": ["__main__", "__main__", "__main__", True],
    },
    "newer_syntax.py": {
        "aliases": [
            ["list[float]", "typing.Union[T, list[Tree[T]]]", "Tree[int]", "__main__"],
            True,
        ],
        "function": ["T", True, {"tree": "Tree[T]", "default": "Vector", "return": "T"}, 1],
        "class": ["__main__.Node[int]", True, "(<class 'int'>, <class 'str'>)", 1],
        "other_parameters": ["(P, Ts)", "__main__.Wrapped[[int], str]", 2, True],
        "class_within": [{"low": 1}, {"low": 1}],
        "default": True,
        "point": [True, "Vector | None"],
    },
    "every_way_with_torch.py": {
        "default_dtype": "torch.float64",
        "manual_seed": [7, 0.27938],
        "data_loader": [[0, 2], [4, 6]],
        "save_and_load": [True, "__main__"],
        "old_checkpoint": [True, [1, 1]],
        "script": [1.0],
        "all_gather_object": True,
    },
}
SECONDS = 300


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), "FLOW_SHOW_LOGS": "never"}


def run(*command: object) -> str:
    done = subprocess.run(
        [str(each) for each in command],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def as_script(python: str, script: Path, checkpoint: Path, out: Path) -> None:
    """`python x.py`."""
    said = run(python, script, checkpoint, out)
    assert said.splitlines()[-1].startswith("True Point(x=5")


def by_command(python: str, script: Path, checkpoint: Path, out: Path) -> None:
    """`flow run x.py::f`."""
    said = run(python, "-m", "flowlite.cli", "run", f"{script}::every_row", checkpoint, out)
    assert "Point(x=5" in said


# The kernel is the other Python's own; the client runs where the tests do.
_IN_CELLS = """
import json, sys
import nbclient, nbformat
cells, directory, seconds = json.loads(sys.argv[1]), sys.argv[2], float(sys.argv[3])
notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(each) for each in cells])
nbclient.NotebookClient(notebook, timeout=seconds, resources={"metadata": {"path": directory}}).execute()
print(notebook.cells[-1].outputs[0].text)
"""


def as_notebook(python: str, script: Path, checkpoint: Path, out: Path) -> None:
    """The same in cells."""
    cells = script.read_text().split("# %%\n")[1:-1]
    cells.append(f"point = every_row.remote({str(checkpoint)!r}, {str(out)!r})")
    cells.append("print(type(point) is Point, point)")
    said = run(python, "-c", _IN_CELLS, json.dumps(cells), script.parent, SECONDS)
    assert said.startswith("True Point(x=5")


@pytest.fixture
def python(request: pytest.FixtureRequest) -> str:
    """A Python of the version that is asked for, with what flowlite and the programs import."""
    minor = str(request.param)
    return sys.executable if minor == HERE else _environment(minor, request.config)


def _environment(minor: str, config: pytest.Config) -> str:
    """Makes it once, for all processes of all runs, until a requirement changes. Adapters are found by entry points."""
    found = python_of(minor)
    assert found is not None
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    notebooks = ("nbclient", "nbformat", "ipykernel")
    wanted = [
        each for each in project["optional-dependencies"]["dev"] if each.startswith(notebooks)
    ]
    lock = ROOT / "requirements.lock"
    key = hashlib.sha256(json.dumps([found, project, lock.read_text()]).encode()).hexdigest()[:16]
    assert config.cache is not None
    directory = config.cache.mkdir("pythons") / key
    with open(directory.with_suffix(".lock"), "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        python = directory / "bin" / "python"
        if not (directory / "ready").exists():
            uv = (sys.executable, "-m", "uv")
            run(*uv, "venv", "--quiet", "--clear", "--python", found[0], directory)
            install = (*uv, "pip", "install", "--quiet", "--python", python, "--constraint", lock)
            run(*install, "--editable", ROOT, *wanted)
            (directory / "ready").touch()
    return str(python)


def others() -> list[Any]:
    """Programs on other Pythons; torch is so large that only this one has it."""
    return [
        pytest.param(minor, name, marks=pytest.mark.needs(f"python{minor}"))
        for minor in ("3.12", "3.13")
        for name in ("every_way.py", "newer_syntax.py")
        if minor != HERE
    ]


def here() -> list[tuple[str, str]]:
    """Programs on this Python."""
    return [(HERE, name) for name in TABLES if name != "newer_syntax.py" or HERE != "3.11"]


@pytest.mark.slow
@pytest.mark.timeout(3 * SECONDS)
@pytest.mark.parametrize("way", [as_script, by_command, as_notebook])
@pytest.mark.parametrize(("python", "program"), [*here(), *others()], indirect=["python"])
def test_every_way_gives_the_same(
    python: str,
    program: str,
    way: Callable[[str, Path, Path, Path], None],
    flow_home: Path,
    tmp_path: Path,
) -> None:
    script = tmp_path / "x.py"
    script.write_text((PROGRAMS / program).read_text())
    checkpoint, out = tmp_path / "old.pt", tmp_path / "found.json"
    run(python, script, "save", checkpoint)
    way(python, script, checkpoint, out)
    assert json.loads(out.read_text()) == TABLES[program]
