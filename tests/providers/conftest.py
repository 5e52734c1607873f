"""Fixtures for tests of providers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.providers.lab import Lab

if TYPE_CHECKING:
    from flowlite.testing.hosts import Cluster


@pytest.fixture
def lab(hosts: Cluster, flow_home: Path) -> Lab:
    """A pool of all four hosts, and a FLOW_HOME on the laptop."""
    return Lab(hosts, flow_home)
