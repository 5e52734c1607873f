"""Tests that measure time or memory run alone, and those that compute on all cores one after the other.

Every test holds a shared lock while it runs; one marked `alone` holds it exclusively. The gate keeps the order: who
waits for the exclusive lock holds the gate, so that no new test slips in before it. One marked `heavy` holds another
lock besides, which is exclusive; the tests that mostly wait run beside it.
"""

from __future__ import annotations

import fcntl
import zlib
from collections.abc import Generator, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.plugins import shared_files


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Puts them first: later, all the others would have to wait for the longest test that runs just then.

    The heavy ones follow, so that one process has them all, and none waits for another's; and then the long ones. The
    rest comes file by file, in an order that has nothing to do with names. The tests of one directory mostly compute or
    mostly wait, and in the order of names all processes would do the same at the same time.
    """
    items.sort(
        key=lambda item: (
            [not _is(item, each) for each in ("alone", "heavy", "long")],
            zlib.crc32(item.nodeid.partition("::")[0].encode()),
        )
    )


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Waits for the lock outside the test, so that waiting does not count against its time-out."""
    heavy, gate, lock = map(shared_files.path_of, ("heavy", "gate", "lock"))
    if heavy is None or gate is None or lock is None:
        return (yield)
    with ExitStack() as held:
        if _is(item, "heavy"):
            held.enter_context(_locked(heavy, fcntl.LOCK_EX))
        with _locked(gate, fcntl.LOCK_EX):
            mode = fcntl.LOCK_EX if _is(item, "alone") else fcntl.LOCK_SH
            held.enter_context(_locked(lock, mode))
        return (yield)


def _is(item: pytest.Item, marker: str) -> bool:
    return item.get_closest_marker(marker) is not None


@contextmanager
def _locked(path: Path, mode: int) -> Iterator[None]:
    with open(path, "w") as lock:
        fcntl.flock(lock, mode)
        yield
