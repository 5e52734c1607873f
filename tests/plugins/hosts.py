"""Fixtures for tests that need machines: `hosts` and `fresh_hosts` (docs/testing.md)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from flowlite.testing.hosts import Cluster

HOSTS = 4


@pytest.fixture(scope="session")
def cluster_of_the_session() -> Iterator[Cluster]:
    """Four hosts, made when the first test asks for them."""
    _need_hosts()
    from flowlite.testing.hosts import Cluster

    with Cluster(HOSTS) as cluster:
        yield cluster


@pytest.fixture
def hosts(cluster_of_the_session: Cluster) -> Iterator[Cluster]:
    """Four hosts as on their first day. Whatever the test does to them is undone after it."""
    yield cluster_of_the_session
    cluster_of_the_session.reset()


@pytest.fixture
def fresh_hosts() -> Iterator[Callable[..., Cluster]]:
    """Makes clusters for this test alone: `fresh_hosts(2, python={1: ...})`."""
    _need_hosts()
    from flowlite.testing.hosts import Cluster

    with ExitStack() as stack:

        def make(count: int, **options: Any) -> Cluster:
            return stack.enter_context(Cluster(count, **options))

        yield make


def _need_hosts() -> None:
    from flowlite.testing.hosts import why_not

    if reason := why_not():
        pytest.skip(reason)
