"""Fixtures for tests that hurt."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.faults.on_hosts import Site

if TYPE_CHECKING:
    from flowlite.testing.hosts import Cluster


@pytest.fixture
def site(hosts: Cluster, flow_home: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    """Four hosts in a pool, and a FLOW_HOME on the laptop."""
    return Site(hosts, flow_home, monkeypatch)
