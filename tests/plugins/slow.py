"""Tests that need hosts, containers or an S3 server count as slow: `make test-quick` is for what needs none of them."""

from __future__ import annotations

import pytest

_SLOW = frozenset(
    {
        "cluster_of_the_session",
        "fresh_hosts",
        "scene",
        "one_s3_server",
        "ceph_server",
        "podman_of_the_session",
    }
)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks them, before others are chosen by their marks."""
    for item in items:
        if _SLOW.intersection(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.slow)
