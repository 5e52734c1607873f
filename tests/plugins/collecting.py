"""The first process of a run collects all tests. The others import only the files whose tests they run.

The first one compiles what has changed, and tells the others which tests run, in which order. To collect all of them
takes seconds of processor time, and there are more processes than cores.
"""

from __future__ import annotations

import contextlib
import fcntl
import gc
import json
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from typing import Any, SupportsIndex

import pytest

from tests.plugins import shared_files

_told: list[str] | None = None
_files: dict[str, pytest.Module] = {}


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """Waits for the first process, or is it. If that fails, the next one is the first."""
    with _without_garbage_collection():
        found = yield from _collect(session)
    # Of a million objects that the tests and the libraries consist of, none is garbage: they are never looked at.
    gc.freeze()
    return found


def _collect(session: pytest.Session) -> Generator[None, object, object]:
    global _told
    path = shared_files.path_of("collected")
    # A run of pytest that a test starts has the environment of this one, and tests of its own.
    if path is None or not hasattr(session.config, "workerinput"):
        return (yield)
    with open(path, "a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        if not (told := file.read()):
            result = yield
            json.dump([item.nodeid for item in session.items], file)
            return result
    _told = json.loads(told)
    # The files of single tests: these are found when they are run.
    session.config.args = [each.partition("::")[0] for each in session.config.args]
    result = yield
    session.testscollected = len(session.items)
    return result


@pytest.hookimpl(tryfirst=True)
def pytest_make_collect_report(collector: pytest.Collector) -> pytest.CollectReport | None:
    """In the other processes: postpones what is in a file."""
    if _told is None or not isinstance(collector, pytest.Module) or collector.nodeid in _files:
        return None
    _files[collector.nodeid] = collector
    return pytest.CollectReport(collector.nodeid, "passed", None, [])


@pytest.hookimpl(tryfirst=True)
def pytest_collection_finish(session: pytest.Session) -> None:
    """In the other processes: has the tests that the first one found."""
    if _told is not None:
        session.items = _Tests(session, map(_Named, _told))


@dataclass
class _Named:
    """A test whose file was not collected yet."""

    nodeid: str


class _Tests(list[Any]):
    """All tests. The file of one is collected when it is asked for."""

    def __init__(self, session: pytest.Session, tests: Iterator[_Named]) -> None:
        super().__init__(tests)
        self._session = session

    def __getitem__(self, index: SupportsIndex | slice) -> Any:
        found = super().__getitem__(index)
        if isinstance(found, _Named):
            self._collect(_file_of(found))
            found = super().__getitem__(index)
        return found

    def _collect(self, name: str) -> None:
        session = self._session
        with _without_garbage_collection():
            tests = list(session.genitems(_files[name]))
            session.config.hook.pytest_collection_modifyitems(
                session=session, config=session.config, items=tests
            )
        by_name = {each.nodeid: each for each in tests}
        for index, each in enumerate(self):
            if isinstance(each, _Named) and _file_of(each) == name:
                self[index] = by_name[each.nodeid]


def _file_of(test: _Named) -> str:
    return test.nodeid.partition("::")[0]


@contextlib.contextmanager
def _without_garbage_collection() -> Iterator[None]:
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
