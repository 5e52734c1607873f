"""Tests that measure time or memory run alone, though the others run side by side.

Every test holds a shared lock while it runs; one marked `alone` holds it exclusively. The gate keeps the order: who
waits for the exclusive lock holds the gate, so that no new test slips in before it.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

_run = pytest.StashKey[str]()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Puts them first: later, all the others would have to wait for the longest test that runs just then."""
    items.sort(key=lambda item: item.get_closest_marker("alone") is None)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Waits for the lock outside the test, so that waiting does not count against its time-out."""
    run = os.environ.get("PYTEST_XDIST_TESTRUNUID")
    if run is None:
        return (yield)
    path = _path(run)
    mode = fcntl.LOCK_EX if item.get_closest_marker("alone") else fcntl.LOCK_SH
    with open(f"{path}.lock", "w") as lock:
        with open(f"{path}.gate", "w") as gate:
            fcntl.flock(gate, fcntl.LOCK_EX)
            fcntl.flock(lock, mode)
        return (yield)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """In the process that starts the workers: notes which lock is theirs."""
    node.config.stash[_run] = node.workerinput["testrunuid"]


def pytest_unconfigure(config: pytest.Config) -> None:
    """In the same process: removes the lock when the workers have ended."""
    run = config.stash.get(_run, None)
    if run is not None:
        for kind in ("lock", "gate"):
            Path(f"{_path(run)}.{kind}").unlink(missing_ok=True)


def _path(run: str) -> Path:
    return Path(tempfile.gettempdir()) / f"flowlite-tests-{run}"
