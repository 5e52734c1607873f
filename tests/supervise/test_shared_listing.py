"""One list for all who ask at the same time, and never one that is older than the question."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from flowlite.errors import ProviderError
from flowlite.provider import Instance
from flowlite.supervise.attempt.shared_listing import SharedListing


@pytest.mark.parametrize("fails", [False, True], ids=["it answers", "it fails"])
def test_those_who_ask_while_a_list_is_made_share_the_next_one(fails: bool) -> None:
    begun, go_on = threading.Event(), threading.Event()
    made: list[int] = []

    def list_instances() -> list[Instance]:
        made.append(len(made))
        begun.set()
        go_on.wait(60)
        if fails:
            raise ProviderError(f"list {made[-1]}")
        return [Instance(f"i{made[-1]}", "t1")]

    listing = SharedListing(list_instances)

    def ask() -> str:
        try:
            return listing.get()[0].id[1:]
        except ProviderError as error:
            return str(error).removeprefix("list ")

    asking = threading.Semaphore(0)

    def ask_later() -> str:
        asking.release()
        return ask()

    with ThreadPoolExecutor(40) as pool:
        first = pool.submit(ask)
        assert begun.wait(60)
        others = [pool.submit(ask_later) for _ in range(30)]
        for _ in others:
            assert asking.acquire(timeout=60)
        go_on.set()
        assert first.result() == "0"
        found = [other.result() for other in others]
    # None has one that was begun before it asked. A thread may be late on a busy machine.
    assert "0" not in found
    assert len(made) < len(others)
    assert ask() == str(len(made) - 1)
