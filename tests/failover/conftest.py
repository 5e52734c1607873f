"""All places at once, made when the first test asks for them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.components import need
from tests.failover.everywhere import Everywhere, User, user_of


@pytest.fixture(scope="session")
def everywhere() -> Iterator[Everywhere]:
    """AWS, Mithril, two SSH hosts and a Slurm of two nodes."""
    need("hosts", "slurm")
    pytest.importorskip("moto.server", reason="a cloud in a box needs moto (extra `box`)")
    places = Everywhere()
    yield places
    places.close()


@pytest.fixture
def user(everywhere: Everywhere, flow_home: Path) -> Iterator[User]:
    """A user of all of them, who has run nothing yet."""
    yield from user_of(everywhere, flow_home)
