"""Tests that need hosts, containers or an S3 server count as slow: `make test` is for what needs none of them."""

from __future__ import annotations

import pytest

_SLOW = frozenset(
    {
        "cluster_of_the_session",
        "fresh_hosts",
        "one_s3_server",
        "ceph_server",
        "podman_of_the_session",
    }
)
_SLOW_TO_START = {"hosts", "slurm", "podman", "ceph"}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks them, before others are chosen by their marks."""
    for item in items:
        needs = {name for marker in item.iter_markers("needs") for name in marker.args}
        if _SLOW.intersection(getattr(item, "fixturenames", ())) or _SLOW_TO_START & needs:
            item.add_marker(pytest.mark.slow)
