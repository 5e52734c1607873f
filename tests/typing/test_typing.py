"""What type checkers make of the public names: mypy --strict and pyright, on right and on wrong uses."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.components import need

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
Found = dict[str, dict[int, str]]
"""Errors by file and line."""


def mypy(paths: Sequence[Path], directory: Path) -> Found:
    """As `make check` does, whose cache has what both make of flowlite itself."""
    command = [
        *(sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "--hide-error-context"),
        *map(str, paths),
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    found: Found = {path.name: {} for path in paths}
    for line in done.stdout.splitlines():
        match = re.match(r"(.+?):(\d+): error: (.*)", line)
        if match and (path := Path(ROOT, match[1])) in paths:
            found[path.name].setdefault(int(match[2]), match[3])
    return found


def pyright(paths: Sequence[Path], directory: Path) -> Found:
    need("node")
    settings = {
        "include": [path.name for path in paths],
        "extraPaths": [str(ROOT)],
        "typeCheckingMode": "strict",
        "reportUnusedCallResult": False,
        "reportPrivateUsage": False,
        "reportUnusedCoroutine": False,
    }
    for path in paths:
        shutil.copy(path, directory)
    (directory / "pyrightconfig.json").write_text(json.dumps(settings))
    command = [
        *(sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable),
        *("--project", str(directory / "pyrightconfig.json")),
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    try:
        report = json.loads(done.stdout)
    except ValueError:
        pytest.skip(f"pyright cannot run here: {(done.stderr or done.stdout).strip()[-300:]}")
    assert report["summary"]["filesAnalyzed"] == len(paths), report
    found: Found = {path.name: {} for path in paths}
    for each in report["generalDiagnostics"]:
        if each["severity"] == "error":
            name = Path(each["file"]).name
            found[name][each["range"]["start"]["line"] + 1] = each["message"]
    return found


@pytest.mark.slow
@pytest.mark.parametrize("check", [mypy, pyright])
def test_right_uses_are_accepted_and_wrong_ones_refused(
    check: Callable[[Sequence[Path], Path], Found], tmp_path: Path
) -> None:
    right, wrong = HERE / "right.py", HERE / "wrong.py"
    found = check([right, wrong], tmp_path)
    assert found[right.name] == {}
    marked = {
        number
        for number, line in enumerate(wrong.read_text().splitlines(), 1)
        if line.endswith("# wrong")
    }
    assert len(marked) > 30
    assert found[wrong.name].keys() - marked == set(), "errors in lines that are right"
    assert marked - found[wrong.name].keys() == set(), "wrong lines that were accepted"
