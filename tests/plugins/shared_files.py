"""Files by which the processes of one run agree with each other. They are removed when the processes have ended."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest

_run = pytest.StashKey[str]()


def path_of(name: str) -> Path | None:
    """The file of that name of this run; None if the tests run in one process."""
    run = os.environ.get("PYTEST_XDIST_TESTRUNUID")
    return None if run is None else _directory() / f"{_prefix(run)}{name}"


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """In the process that starts the workers: notes which files are theirs."""
    node.config.stash[_run] = node.workerinput["testrunuid"]


def pytest_unconfigure(config: pytest.Config) -> None:
    """In the same process: removes the files when the workers have ended."""
    run = config.stash.get(_run, None)
    if run is not None:
        for path in _directory().glob(f"{_prefix(run)}*"):
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)


def _directory() -> Path:
    return Path(tempfile.gettempdir())


def _prefix(run: str) -> str:
    return f"flowlite-tests-{run}."
