"""Tests that measure time or memory run alone, and those that compute on all cores one after the other.

Every test holds a shared lock while it runs; those marked `alone` hold it exclusively, from the first of a process's to
the last. They come first: the other processes begin when these have, or else each would wait for the longest test that
runs just then, and all processes with it. The gate keeps the order: who waits for the exclusive lock holds the gate, so
that no new test slips in before it. One marked `heavy` holds another lock besides, which is exclusive; the tests that
mostly wait run beside it.
"""

from __future__ import annotations

import fcntl
import os
import time
import zlib
from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.plugins import shared_files

_LONGEST_WAIT = 60.0


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Puts them into the order in which they begin.

    The first process has those that run alone, and then the heavy ones, so that none waits for another's. The long ones
    are the first of the other processes: begun last, they would run on when there is nothing else to do. The rest comes
    file by file, in an order that has nothing to do with names. The tests of one directory mostly compute or mostly
    wait, and in the order of names all processes would do the same at the same time.
    """
    items.sort(
        key=lambda item: (
            [not _is(item, each) for each in ("alone", "heavy", "long")],
            zlib.crc32(item.nodeid.partition("::")[0].encode()),
        )
    )
    processes = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    long = [item for item in items if _is(item, "long") and not _is(item, "alone")]
    if processes > 1 and long:
        items[:] = _spread(long, [item for item in items if item not in long], processes)


def _spread(
    long: Sequence[pytest.Item], others: Sequence[pytest.Item], processes: int
) -> list[pytest.Item]:
    """All tests, with the long ones at the beginning of each part but the first.

    pytest-xdist begins with parts of one size, in the order of the tests, one for each process.
    """
    left, rest = len(long) + len(others), list(others)
    spread: list[pytest.Item] = []
    for process in range(processes):
        size = left // (processes - process)
        left -= size
        begins = [] if process == 0 else list(long[process - 1 :: processes - 1])
        fill = max(0, size - len(begins))
        spread += begins + rest[:fill]
        del rest[:fill]
    return spread + rest


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(
    item: pytest.Item, nextitem: pytest.Item | None
) -> Generator[None, object, object]:
    """Waits for the lock outside the test, so that waiting does not count against its time-out."""
    begun, heavy, gate, lock = map(shared_files.path_of, ("begun", "heavy", "gate", "lock"))
    if begun is None or heavy is None or gate is None or lock is None:
        return (yield)
    if _is(item, "alone"):
        try:
            if not _exclusively.held:
                _exclusively.take(gate, lock)
                begun.touch()
            return (yield)
        finally:
            if nextitem is None or not _is(nextitem, "alone"):
                _exclusively.give_back()
    if _is(item.session.items[0], "alone"):
        _wait_until_there(begun)
    with ExitStack() as held:
        if _is(item, "heavy"):
            held.enter_context(_locked(heavy, fcntl.LOCK_EX))
        with _locked(gate, fcntl.LOCK_EX):
            held.enter_context(_locked(lock, fcntl.LOCK_SH))
        return (yield)


class _Exclusively:
    """The exclusive lock, which is held over several tests."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self.held = False

    def take(self, gate: Path, lock: Path) -> None:
        with _locked(gate, fcntl.LOCK_EX):
            self._stack.enter_context(_locked(lock, fcntl.LOCK_EX))
        self.held = True

    def give_back(self) -> None:
        self.held = False
        self._stack.close()


_exclusively = _Exclusively()


def _wait_until_there(begun: Path) -> None:
    """Waits until the tests that run alone have begun. The process that has them may have been killed."""
    until = time.monotonic() + _LONGEST_WAIT
    while not begun.exists() and time.monotonic() < until:
        time.sleep(0.05)
    begun.touch()


def _is(item: pytest.Item, marker: str) -> bool:
    return item.get_closest_marker(marker) is not None


@contextmanager
def _locked(path: Path, mode: int) -> Iterator[None]:
    with open(path, "w") as lock:
        fcntl.flock(lock, mode)
        yield
