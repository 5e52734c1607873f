"""A file beside the script that has the name of one of Python's own modules: one line names it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from flowlite.in_worker.hidden_modules import hidden_module
from tests.cli.conftest import Flow

SCRIPT = """\
{first}
from flowlite import FlowApp
app = FlowApp()
@app.function
def f() -> int: return 1
if __name__ == "__main__": print(f.remote())
"""


# Imported with the first name of flowlite's, while a task is submitted, and when its supervisor has been started.
@pytest.mark.parametrize("name", ["random", "logging", "queue", "signal"])
def test_python_says_which_file_is_in_the_way(flow_home: Path, tmp_path: Path, name: str) -> None:
    (tmp_path / f"{name}.py").write_text("X = 1\n")
    (tmp_path / "train.py").write_text(SCRIPT.format(first=""))
    done = subprocess.run(
        [sys.executable, "train.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert f"{tmp_path}/{name}.py has the name of Python's own module {name!r}" in last, done.stderr
    assert last.endswith("rename it")


def test_flow_run_says_so_in_one_line(
    flow: Flow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    name = "this"
    monkeypatch.delitem(sys.modules, name, raising=False)
    (tmp_path / f"{name}.py").write_text("X = 1\n")
    (tmp_path / "train.py").write_text(SCRIPT.format(first=f"from {name} import s"))
    ran = flow("run", "--dry-run", "train.py::f")
    assert ran.code == 2
    assert ran.err == (
        f"error: {tmp_path}/{name}.py has the name of Python's own module {name!r} and is imported in its place, also "
        "by libraries that need the other one; rename it\n"
    )


def test_other_errors_are_none_of_it() -> None:
    assert hidden_module(ImportError("no", name="numpy", path="/x/numpy.py")) == ""
    assert hidden_module(ImportError("no", name="json", path=__import__("json").__file__)) == ""
    assert hidden_module(ImportError("no")) == ""
    assert hidden_module(AttributeError("no", name="x", obj=3)) == ""
    assert hidden_module(ValueError("no")) == ""
