"""`make test-again` runs what failed, and refuses what is no chance."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.second_look import MOST, NoChance, failed_in

ROOT = Path(__file__).resolve().parent.parent
# The other plugins take half of the processor time of these runs, Hypothesis above all.
ONLY_XDIST = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_PLUGINS": "xdist.plugin"}


def record(directory: Path, failed: list[str]) -> Path:
    cache = directory / ".pytest_cache"
    (cache / "v/flowlite").mkdir(parents=True)
    (cache / "v/flowlite/failed").write_text(json.dumps(failed))
    return cache


def test_a_few_are_run_again(tmp_path: Path) -> None:
    failed = [f"tests/test_x.py::test_{number}" for number in range(MOST)]
    assert failed_in(record(tmp_path, failed)) == failed


@pytest.mark.parametrize("count", [0, MOST + 1])
def test_none_and_many_are_not(tmp_path: Path, count: int) -> None:
    with pytest.raises(NoChance):
        failed_in(record(tmp_path, [f"test_{number}" for number in range(count)]))


def test_a_run_that_never_was_is_not(tmp_path: Path) -> None:
    with pytest.raises(NoChance):
        failed_in(tmp_path)


def run(directory: Path, *argv: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", *argv],
        cwd=directory,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT), **ONLY_XDIST},
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )


@pytest.mark.slow
@pytest.mark.parametrize(("broken", "code"), [("chance", 0), ("always", 1)])
def test_what_failed_is_on_record_after_a_run(tmp_path: Path, broken: str, code: int) -> None:
    """With two processes, as in CI: the first run notes its failure, and the second look runs only that."""
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "conftest.py").write_text('pytest_plugins = ["tests.plugins.passed"]\n')
    (tmp_path / "test_it.py").write_text(
        "from pathlib import Path\n"
        "def test_well():\n    pass\n"
        "def test_chance():\n"
        "    first = not Path('was-here').exists()\n"
        "    Path('was-here').touch()\n"
        f"    assert not first and {broken!r} == 'chance'\n"
    )
    assert run(tmp_path, "pytest", "-q", "-n", "2").returncode == 1
    again = run(tmp_path, "tests.second_look")
    assert again.returncode == code
    assert "  test_it.py::test_chance\n" in again.stdout
    assert "test_well" not in again.stdout
    assert ("1 passed" in again.stdout) is (code == 0)
