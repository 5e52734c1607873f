"""Fixtures for tests that need machines: `hosts`, `fresh_hosts` and `box` (docs/testing.md)."""

from __future__ import annotations

import os
import random
import secrets
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
# A look at all regions of an account takes a call to each.
REGIONS = ("us-east-1", "us-east-2", "us-west-1", "us-west-2", "eu-west-1", "eu-north-1")


def _drawn_seed() -> int:
    """Another one in each run, and the same in all of its processes."""
    run = os.environ.get("PYTEST_XDIST_TESTRUNUID")
    return random.Random(run).randrange(10**6) if run else secrets.randbelow(10**6)


BOX_SEED = int(os.environ.get("FLOW_BOX_SEED") or _drawn_seed())


@pytest.fixture(autouse=True)
def _outages_end_with_their_test() -> Iterator[None]:
    """The thread that repeats the ends of SSH connections stays in the network in which it was started."""
    yield
    half_open: Any = sys.modules.get("flowlite.connect.ssh.half_open")
    if half_open is None or (telling := half_open._telling) is None:
        return
    with half_open._lock:
        for ends in list(half_open._all):
            half_open._forget(ends)
    # Other threads of the test may still leave connections to it.
    telling.join(10)


@pytest.fixture(scope="session")
def cluster_of_the_session() -> Iterator[Cluster]:
    """Four hosts, made when the first test asks for them."""
    need("hosts")
    from flowlite.testing.hosts import Cluster

    with Cluster(HOSTS, keep=seen()) as cluster:
        yield cluster


@pytest.fixture
def hosts(cluster_of_the_session: Cluster) -> Iterator[Cluster]:
    """Four hosts as on their first day. Whatever the test does to them is undone after it, but for their addresses."""
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
def box(
    box_of_the_session: CloudInABox,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> Iterator[CloudInABox]:
    """EC2 and Mithril as on their first day; this test and all it starts is on their client's laptop.

    Both go wrong by chance now and then, as clouds do; not for a test marked `no_random_faults`.
    """
    for name, value in box_of_the_session.environment().items():
        monkeypatch.setenv(name, value)
    if request.node.get_closest_marker("all_regions") is None:
        box_of_the_session.aws.regions(*REGIONS)
    if request.node.get_closest_marker("no_random_faults") is None:
        request.node.add_report_section(
            "setup", "clouds", f"Their faults are drawn anew in each run: FLOW_BOX_SEED={BOX_SEED}"
        )
        # Another sequence for each test, and the same one wherever it runs.
        chance = random.Random(f"{BOX_SEED} {request.node.nodeid}")
        box_of_the_session.unkind(chance.randrange(2**32))
    with box_of_the_session.enter():
        yield box_of_the_session
    box_of_the_session.reset()


def seen() -> list[str | Path]:
    """What hosts see of this machine: the Python of the tests, and the environments with training stacks."""
    from flowlite.testing.hosts.cluster import ROOT
    from tests.stacks.environments import cache

    cache().mkdir(parents=True, exist_ok=True)
    return [sys.prefix, sys.base_prefix, ROOT, cache()]
