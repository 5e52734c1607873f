"""Awaits tasks in event loops without a thread for each: one thread of the process watches all of them."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import field
from typing import TYPE_CHECKING

from flowlite.display.notebook import running_cell
from flowlite.display.waiting import Pauses
from flowlite.node.quick_dataclass import dataclass

if TYPE_CHECKING:
    from flowlite.display.shown_task import ShownTask
    from flowlite.display.task_display import TaskDisplay

# How often the loop of a notebook's kernel is woken while a cell awaits a task, in seconds.
_WAKE_EVERY = 0.5


@dataclass(slots=True, eq=False)
class _Watch:
    """One task that is awaited.

    Attributes:
        tell: Called once from the watcher's thread: with None when the task is final, or with an error.
        lock: Held while the watcher checks the task, so that nothing is shown after the await has ended.
        over: Whether the watcher is done with it: the task is final, an error occurred, or the await was cancelled.
    """

    task: ShownTask
    display: TaskDisplay | None
    tell: Callable[[Exception | None], None]
    lock: threading.Lock = field(default_factory=threading.Lock)
    over: bool = False


class _Watcher:
    """Owns the thread that checks awaited tasks. The thread runs only while there are any and is a daemon thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._watched: set[_Watch] = set()
        self._running = False

    def add(self, watch: _Watch) -> None:
        with self._lock:
            self._watched.add(watch)
            if not self._running:
                self._running = True
                threading.Thread(target=self._run, name="flowlite-watcher", daemon=True).start()

    def discard(self, watch: _Watch) -> None:
        with watch.lock:
            watch.over = True
        with self._lock:
            self._watched.discard(watch)

    def _run(self) -> None:
        pauses = Pauses()
        while True:
            with self._lock:
                watched = list(self._watched)
                if not watched:
                    self._running = False
                    return
            began = time.monotonic()
            news = [self._look(watch) for watch in watched]
            if any(news):
                pauses.restart()
            time.sleep(pauses.next(time.monotonic() - began))

    def _look(self, watch: _Watch) -> bool:
        """Checks one task. Returns whether there was anything new."""
        with watch.lock:
            if watch.over:
                return False
            try:
                ended, news = show_news(watch.task, watch.display)
            except Exception as error:
                watch.over = True
                watch.tell(error)
            else:
                watch.over = ended
                if not ended:
                    return news
                watch.tell(None)
        with self._lock:
            self._watched.discard(watch)
        return True


def show_news(task: ShownTask, display: TaskDisplay | None) -> tuple[bool, bool]:
    """Shows what is new about a task. Returns whether it is final, and whether there was anything new."""
    ended = task.done
    if display is None:
        return ended, ended
    if not ended:
        return False, display.advance(ended=False)
    display.finish()
    return True, True


_watcher = _Watcher()


def _after_fork() -> None:
    # The child has no watcher thread, and the lock may have been held at the fork.
    global _watcher
    _watcher = _Watcher()


os.register_at_fork(after_in_child=_after_fork)


class _Awake:
    """Wakes a loop now and then.

    An interrupted kernel only cancels the cell's task, in the handler of the signal. A loop that sleeps does not learn
    of that until something else wakes it, which may be the end of the task that the user wants to be rid of.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._wake()

    def _wake(self) -> None:
        self._next = self._loop.call_later(_WAKE_EVERY, self._wake)

    def stop(self) -> None:
        self._next.cancel()


async def until_final(task: ShownTask, display: TaskDisplay | None) -> None:
    """Returns when a task is final. Cancelling the await stops the waiting at once, not the task."""
    loop = asyncio.get_running_loop()
    final: asyncio.Future[None] = loop.create_future()

    def settle(error: Exception | None) -> None:
        if final.done():
            return
        if error is None:
            final.set_result(None)
        else:
            final.set_exception(error)

    def tell(error: Exception | None) -> None:
        # The loop may have been closed meanwhile; then there is no one to tell.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(settle, error)

    watch = _Watch(task, display, tell)
    _watcher.add(watch)
    awake = _Awake(loop) if running_cell() is not None else None
    try:
        await final
    finally:
        if awake is not None:
            awake.stop()
        _watcher.discard(watch)
        if display is not None:
            display.pause()
