"""The processes of a run share the work of collecting its tests."""

from __future__ import annotations

import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
# The other plugins take half of the processor time of these runs, Hypothesis above all.
ONLY_XDIST = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_PLUGINS": "xdist.plugin"}
FILES, TESTS = 4, 3
# Notes which process imports a file, and which one runs its tests. The first two wait until both processes run one.
MODULE = """
import os, time
from pathlib import Path
import pytest

def note(what):
    with open(what, "a") as file:
        file.write(f"{os.environ['PYTEST_XDIST_WORKER']} {Path(__file__).name}\\n")

note("imported")

@pytest.mark.parametrize("number", range(TESTS))
def test_it(number):
    note("ran")
    until = time.monotonic() + 60
    while len({line.split()[0] for line in open("ran")}) < PROCESSES and time.monotonic() < until:
        time.sleep(0.01)
"""


def run(directory: Path, processes: int, *names: str) -> dict[str, dict[str, set[str]]]:
    """Runs tests, of which all pass; gives the files that each process has imported, and of which it ran tests."""
    (directory / "pytest.ini").write_text("[pytest]\n")
    plugins = ["tests.plugins.shared_files", "tests.plugins.collecting"]
    (directory / "conftest.py").write_text(f"pytest_plugins = {plugins}\n")
    for number in range(FILES):
        module = MODULE.replace("PROCESSES", str(processes)).replace("TESTS", str(TESTS))
        (directory / f"test_{number}.py").write_text(module)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-n", "2", "--dist", "worksteal", *names],
        cwd=directory,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT), **ONLY_XDIST},
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert f"{len(names) or FILES * TESTS} passed" in done.stdout, done.stdout + done.stderr
    found: dict[str, dict[str, set[str]]] = {}
    for what in ("imported", "ran"):
        found[what] = defaultdict(set)
        for line in (directory / what).read_text().splitlines():
            process, file = line.split()
            found[what][process].add(file)
    return found


@pytest.mark.slow
def test_all_but_the_first_import_only_the_files_whose_tests_they_run(tmp_path: Path) -> None:
    found = run(tmp_path, 2)
    first, other = sorted(found["imported"], key=lambda each: -len(found["imported"][each]))
    assert len(found["imported"][first]) == FILES
    assert found["imported"][other] == found["ran"][other] != set()


@pytest.mark.slow
def test_single_tests_of_files_are_found(tmp_path: Path) -> None:
    found = run(tmp_path, 1, "test_3.py::test_it[1]", "test_0.py::test_it[2]")
    assert set.union(*found["ran"].values()) == {"test_0.py", "test_3.py"}
