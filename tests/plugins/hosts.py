"""Fixtures for tests that need machines: `hosts`, `fresh_hosts` and `box` (docs/testing.md)."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.components import need

if TYPE_CHECKING:
    from flowlite.testing.cloud import CloudInABox
    from flowlite.testing.hosts import Cluster

HOSTS = 4
MACHINES = 6


@pytest.fixture(scope="session")
def cluster_of_the_session() -> Iterator[Cluster]:
    """Four hosts, made when the first test asks for them."""
    need("hosts")
    from flowlite.testing.hosts import Cluster

    with Cluster(HOSTS, keep=seen()) as cluster:
        yield cluster


@pytest.fixture
def hosts(cluster_of_the_session: Cluster) -> Iterator[Cluster]:
    """Four hosts as on their first day. Whatever the test does to them is undone after it."""
    yield cluster_of_the_session
    cluster_of_the_session.reset()


@pytest.fixture
def fresh_hosts() -> Iterator[Callable[..., Cluster]]:
    """Makes clusters for this test alone: `fresh_hosts(2, python={1: ...})`."""
    need("hosts")
    from flowlite.testing.hosts import Cluster

    with ExitStack() as stack:

        def make(count: int, **options: Any) -> Cluster:
            return stack.enter_context(Cluster(count, **options))

        yield make


@pytest.fixture(scope="session")
def box_of_the_session() -> Iterator[CloudInABox]:
    """A cloud in a box, made when the first test asks for it."""
    need("hosts")
    pytest.importorskip("moto.server", reason="a cloud in a box needs moto (extra `box`)")
    from flowlite.testing.cloud import CloudInABox

    with CloudInABox(MACHINES, boot_seconds=0.2) as box:
        yield box


@pytest.fixture
def box(box_of_the_session: CloudInABox, monkeypatch: pytest.MonkeyPatch) -> Iterator[CloudInABox]:
    """EC2 and Mithril as on their first day; this test and all it starts is on their client's laptop."""
    for name, value in box_of_the_session.environment().items():
        monkeypatch.setenv(name, value)
    with box_of_the_session.enter():
        yield box_of_the_session
    box_of_the_session.reset()


def seen() -> list[str | Path]:
    """What hosts see of this machine: the Python of the tests, and the environments with training stacks."""
    from flowlite.testing.hosts.cluster import ROOT
    from tests.stacks.environments import cache

    cache().mkdir(parents=True, exist_ok=True)
    return [sys.prefix, sys.base_prefix, ROOT, cache()]
