"""Hosts that are measured before the ranks start, over real networks."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.providers.lab import Lab

if TYPE_CHECKING:
    from collections.abc import Callable

    from flowlite.testing.hosts import Cluster


@pytest.fixture
def lab(fresh_hosts: Callable[..., Cluster], flow_home: Path) -> Lab:
    return Lab(fresh_hosts(4), flow_home)


@pytest.mark.timeout(660)
def test_a_host_with_a_slow_network_is_replaced_before_go(lab: Lab) -> None:
    # Packets that take long are few per second on one stream: far fewer than between hosts of a busy machine.
    lab.hosts[1].delay(100)
    command = ("sh", "-c", "echo rank $RANK is on $(hostname)")
    words = ("-N", "3", "--preflight", "full", "--name", "measured", "--", *command)
    done = lab.flow("run", *words, seconds=600)
    assert "rank 1 is on node03" in done.stdout
    task = lab.task("measured")
    told = [event["text"] for event in task["events"]]
    assert any("node 1 (" in text and "MB/s with the other nodes" in text for text in told), told
    assert any(text.startswith("preflight: matrix products at ") for text in told), told
    assert lab.held() == {"node01": "avoided"}
