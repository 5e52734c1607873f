"""One program, however it is started: `python x.py`, `flow run x.py::f` and a notebook give the same."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PROGRAM = Path(__file__).parent / "programs" / "every_way.py"
POOL: Any = [[2, 4, 6], [2]]
# What each row of the program gives, as JSON.
TABLE: dict[str, Any] = {
    "default_dtype": "torch.float64",
    "manual_seed": [7, 0.27938],
    "logging": [10, "INFO of __main__: hello", 1],
    "pool_fork": POOL,
    "pool_spawn": POOL,
    "pool_forkserver": POOL,
    "pool_of_decorated": [2],
    "data_loader": [[0, 2], [4, 6]],
    "save_and_load": [True, "__main__"],
    "old_checkpoint": [True, [1, 1]],
    "plain_pickle": True,
    "type_hints": {"x": "<class 'int'>", "y": "typing.Optional[__main__.Point]"},
    "pydantic": [
        {"sides": 3, "corner": {"sides": 4}, "name": "B"},
        ["corner", "name", "sides"],
    ],
    "get_source": "def double(x: int) -> int:\n    return 2 * x\n",
    "script": [1.0],
    "another_function": [["ConfigError", True], 2, 3],
    "changed_values": [{"x": 1}, 2],
    "names": ["__main__", "__main__", "__main__", True],
    "all_gather_object": True,
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


def as_script(script: Path, checkpoint: Path, out: Path) -> None:
    """`python x.py`."""
    said = run(sys.executable, script, checkpoint, out)
    assert said.splitlines()[-1] == "True Point(x=5, y=None)"


def by_command(script: Path, checkpoint: Path, out: Path) -> None:
    """`flow run x.py::f`."""
    flow = (sys.executable, "-m", "flowlite.cli", "run")
    said = run(*flow, f"{script}::every_row", checkpoint, out)
    assert "Point(x=5, y=None)" in said


def as_notebook(script: Path, checkpoint: Path, out: Path) -> None:
    """The same in cells."""
    nbclient = pytest.importorskip("nbclient")
    nbformat = pytest.importorskip("nbformat")
    pytest.importorskip("ipykernel")
    cells = script.read_text().split("# %%\n")[1:-1]
    cells.append(f"point = every_row.remote({str(checkpoint)!r}, {str(out)!r})")
    cells.append("print(type(point) is Point, point)")
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(each) for each in cells])
    client = nbclient.NotebookClient(
        notebook, timeout=SECONDS, resources={"metadata": {"path": str(script.parent)}}
    )
    client.execute(env=environment())
    assert notebook.cells[-1].outputs[0].text == "True Point(x=5, y=None)\n"


@pytest.mark.slow
@pytest.mark.timeout(2 * SECONDS)
@pytest.mark.parametrize("way", [as_script, by_command, as_notebook])
def test_every_way_gives_the_same(
    way: Callable[[Path, Path, Path], None], flow_home: Path, tmp_path: Path
) -> None:
    script = tmp_path / "x.py"
    script.write_text(PROGRAM.read_text())
    checkpoint, out = tmp_path / "old.pt", tmp_path / "found.json"
    run(sys.executable, script, "save", checkpoint)
    way(script, checkpoint, out)
    assert json.loads(out.read_text()) == TABLE
