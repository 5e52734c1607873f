"""Fixtures for tests that need a Slurm: `slurm`, a real one of four nodes, and `slurm_site` (docs/testing.md)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.components import need
from tests.plugins.hosts import seen

if TYPE_CHECKING:
    from flowlite.testing.slurm import SlurmCluster
    from tests.slurm.site import SlurmSite

NODES = 4


@pytest.fixture(scope="session")
def slurm_of_the_session() -> Iterator[SlurmCluster]:
    """A head and four nodes, made when the first test asks for them."""
    need("slurm")
    from flowlite.testing.slurm import SlurmCluster

    with SlurmCluster(NODES, keep=seen()) as slurm:
        yield slurm


@pytest.fixture
def slurm(slurm_of_the_session: SlurmCluster) -> Iterator[SlurmCluster]:
    """Four nodes, idle. Whatever the test does to them is undone after it."""
    yield slurm_of_the_session
    slurm_of_the_session.show_nodes()
    slurm_of_the_session.reset()


@pytest.fixture
def slurm_site(slurm: SlurmCluster, flow_home: Path, monkeypatch: pytest.MonkeyPatch) -> SlurmSite:
    """A FLOW_HOME on a laptop, which reaches the head of that Slurm by SSH and none of its nodes."""
    from tests.slurm.site import SlurmSite

    slurm.hide_nodes()
    return SlurmSite(slurm, flow_home, monkeypatch)


@pytest.fixture
def fresh_slurm() -> Iterator[Callable[..., SlurmCluster]]:
    """Makes a Slurm for this test alone: `fresh_slurm(2, shared=False)`."""
    need("slurm")
    from flowlite.testing.slurm import SlurmCluster

    with ExitStack() as stack:

        def make(count: int, **options: Any) -> SlurmCluster:
            return stack.enter_context(SlurmCluster(count, **options))

        yield make
