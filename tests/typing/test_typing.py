"""What type checkers make of the public names: mypy --strict and pyright, on right and on wrong uses."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.components import need

HERE = Path(__file__).parent
ROOT = HERE.parents[1]


def mypy(path: Path, cache: Path) -> dict[int, str]:
    """Errors by line."""
    command = [
        *(sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "--hide-error-context"),
        *("--follow-imports", "silent", "--cache-dir", str(cache), str(path)),
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    found: dict[int, str] = {}
    for line in done.stdout.splitlines():
        match = re.match(r"(.+?):(\d+): error: (.*)", line)
        if match and Path(ROOT, match[1]) == path:
            found.setdefault(int(match[2]), match[3])
    return found


def pyright(path: Path, cache: Path) -> dict[int, str]:
    """Errors by line."""
    need("node")
    settings = {
        "include": [path.name],
        "extraPaths": [str(ROOT)],
        "typeCheckingMode": "strict",
        "reportUnusedCallResult": False,
        "reportPrivateUsage": False,
        "reportUnusedCoroutine": False,
    }
    shutil.copy(path, cache)
    (cache / "pyrightconfig.json").write_text(json.dumps(settings))
    command = [
        *(sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable),
        *("--project", str(cache / "pyrightconfig.json")),
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    try:
        report = json.loads(done.stdout)
    except ValueError:
        pytest.skip(f"pyright cannot run here: {(done.stderr or done.stdout).strip()[-300:]}")
    assert report["summary"]["filesAnalyzed"] == 1, report
    return {
        d["range"]["start"]["line"] + 1: d["message"]
        for d in report["generalDiagnostics"]
        if d["severity"] == "error"
    }


checkers = pytest.mark.parametrize("check", [mypy, pyright])


@pytest.mark.slow
@checkers
def test_right_uses_are_accepted(
    check: Callable[[Path, Path], dict[int, str]], tmp_path: Path
) -> None:
    assert check(HERE / "right.py", tmp_path) == {}


@pytest.mark.slow
@checkers
def test_wrong_uses_are_refused(
    check: Callable[[Path, Path], dict[int, str]], tmp_path: Path
) -> None:
    path = HERE / "wrong.py"
    marked = {
        number
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if line.endswith("# wrong")
    }
    found = check(path, tmp_path)
    assert len(marked) > 30
    assert found.keys() - marked == set(), "errors in lines that are right"
    assert marked - found.keys() == set(), "wrong lines that were accepted"
