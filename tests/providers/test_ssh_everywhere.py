"""A call for each of many hosts, in a bounded number of threads."""

from __future__ import annotations

import threading

import pytest

from flowlite.errors import NodeUnreachable
from provider_adapters.ssh import hosts


def test_many_hosts_share_threads() -> None:
    threads: set[int] = set()

    def double(number: int) -> int:
        threads.add(threading.get_ident())
        return 2 * number

    assert hosts.everywhere(range(1000), double) == list(range(0, 2000, 2))
    assert len(threads) <= hosts._THREADS
    assert hosts.everywhere([], double) == []


def test_hosts_are_asked_at_the_same_time() -> None:
    together = threading.Barrier(hosts._THREADS)

    def meet(number: int) -> int:
        together.wait(60)
        return number

    assert hosts.everywhere(range(hosts._THREADS), meet) == list(range(hosts._THREADS))


def test_an_expected_error_is_an_answer() -> None:
    def halve(number: int) -> int:
        if number % 2:
            raise ValueError(str(number))
        return number // 2

    found = hosts.everywhere(range(200), halve, ValueError)
    assert [str(each) for each in found] == [
        str(number if number % 2 else number // 2) for number in range(200)
    ]
    with pytest.raises(ValueError, match="1"):
        hosts.everywhere(range(200), halve, KeyError)


def test_a_host_that_takes_too_long_holds_up_no_other() -> None:
    answer = threading.Event()
    others = threading.Semaphore(0)

    def ask(number: int) -> int:
        if number == 0:
            answer.wait(60)
        others.release()
        return number

    try:
        found = hosts.everywhere(range(3), ask, NodeUnreachable, patience=0.5)
        assert isinstance(found[0], NodeUnreachable)
        # The others have answered, or do so soon on a busy machine.
        assert all(others.acquire(timeout=60) for _ in range(2))
    finally:
        answer.set()


def test_a_host_whose_turn_comes_late_is_not_unreachable(monkeypatch: pytest.MonkeyPatch) -> None:
    """All of them take longer than the patience with one, and each of them a part of it."""
    monkeypatch.setattr(hosts, "_THREADS", 2)
    answer = threading.Event()

    def ask(number: int) -> int:
        # A pause that is the host's.
        answer.wait(60 if number == 0 else 0.15)
        return number

    try:
        found = hosts.everywhere(range(30), ask, NodeUnreachable, patience=3.0)
        assert isinstance(found[0], NodeUnreachable)
        assert found[1:] == list(range(1, 30))
    finally:
        answer.set()


def test_hosts_that_all_hang_take_no_more_threads_and_no_more_time() -> None:
    answer, asked = threading.Event(), []

    def ask(number: int) -> int:
        asked.append(number)
        answer.wait(60)
        return number

    found = hosts.everywhere(range(1000), ask, NodeUnreachable, patience=0.5)
    answer.set()
    assert all(isinstance(each, NodeUnreachable) for each in found)
    assert len(asked) <= hosts._THREADS


def test_what_nobody_catches_in_a_call_is_raised_here() -> None:
    """Whoever waits for the others does not wait for ever."""

    def ask(number: int) -> int:
        if number == 2:
            raise SystemExit(5)
        return number

    with pytest.raises(SystemExit):
        hosts.everywhere(range(4), ask, NodeUnreachable)
