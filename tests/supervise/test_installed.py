"""Processes that flowlite starts import what the process that started them has imported, wherever it is installed."""

from __future__ import annotations

import json
import os
import shutil
import site
import subprocess
import venv
from pathlib import Path

import pytest

from flowlite.supervise.background import importing

ROOT = Path(__file__).parents[2]
# Prints the commands by which a supervisor and the command of a timer are started, as this flowlite makes them.
_COMMANDS = """
import json
from flowlite.cli import system_timers
from flowlite.supervise.process import supervisor_process
print(json.dumps([supervisor_process.command(["ahead", "local"]), system_timers._flow(["--version"])]))
"""


@pytest.fixture
def environment(tmp_path: Path) -> Path:
    """A virtual environment with a package `asyncio` from an index, which Python itself never imports."""
    made = tmp_path / "env"
    venv.create(made, symlinks=True)
    packages = _packages(made)
    (packages / "others.pth").write_text("\n".join(site.getsitepackages()))
    (packages / "asyncio").mkdir()
    (packages / "asyncio/__init__.py").write_text("raise SyntaxError('of Python 3.4')\n")
    return made


def _packages(environment: Path) -> Path:
    (found,) = environment.glob("lib/python3*/site-packages")
    return found


def _run(*argv: str, home: Path) -> str:
    done = subprocess.run(
        argv,
        cwd="/",
        env={**os.environ, "FLOW_HOME": str(home)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_an_installed_package_hides_no_module_of_the_standard_library(
    environment: Path, tmp_path: Path
) -> None:
    for name in ("flowlite", "provider_adapters"):
        without = shutil.ignore_patterns("__pycache__", "testing")
        shutil.copytree(ROOT / name, _packages(environment) / name, ignore=without)
    python, home = str(environment / "bin/python"), tmp_path / "home"
    home.mkdir()
    for command in json.loads(_run(python, "-P", "-c", _COMMANDS, home=home)):
        assert command[0] == python
        _run(*command, home=home)


@pytest.mark.parametrize("installed", [False, True])
def test_a_checkout_comes_before_what_is_installed(
    environment: Path, tmp_path: Path, installed: bool
) -> None:
    if installed:
        (_packages(environment) / "flowlite").mkdir()
        (_packages(environment) / "flowlite/__init__.py").write_text("")
    (tmp_path / "checkout/flowlite").mkdir(parents=True)
    own = tmp_path / "checkout/flowlite/__init__.py"
    own.write_text("")
    program = f"{importing('sys.argv.pop()')}import flowlite; print(flowlite.__file__, sys.argv)"
    python = str(environment / "bin/python")
    said = _run(python, "-P", "-c", program, "x", str(tmp_path / "checkout"), home=tmp_path)
    assert said == f"{own} ['-c', 'x']\n"
