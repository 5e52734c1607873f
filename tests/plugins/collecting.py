"""The first process of a run collects the tests before the others do.

It compiles what has changed, once for all, and tells the others which files have no test that will run: those they do
not even import. Collecting takes seconds of processor time in each process, and there are more processes than cores.
"""

from __future__ import annotations

import contextlib
import fcntl
import gc
import json
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from tests.plugins import shared_files

_empty: set[str] = set()
_collected: set[str] = set()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """Waits for the first process, or is it. If that fails, the next one is the first."""
    with _without_garbage_collection():
        return (yield from _collect(session))


def _collect(session: pytest.Session) -> Generator[None, object, object]:
    path = shared_files.path_of("collected")
    if path is None:
        return (yield)
    with open(path, "a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        if not (told := file.read()):
            result = yield
            json.dump(sorted(_collected - {str(item.path) for item in session.items}), file)
            return result
    _empty.update(json.loads(told))
    return (yield)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Notes the files of all tests, before some are left out."""
    _collected.update(str(item.path) for item in items)


@contextlib.contextmanager
def _without_garbage_collection() -> Iterator[None]:
    """Of a million objects that the tests and the libraries consist of, none is garbage: they are never looked at."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Leaves out the files in which the first process found nothing to run."""
    return True if str(collection_path) in _empty else None
