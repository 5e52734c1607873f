"""Spare hosts: ready before they are needed, in the place of a lost node, and made good."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.helpers import eventually
from tests.providers.lab import Lab, left_on

if TYPE_CHECKING:
    from collections.abc import Callable

    from flowlite.testing.hosts import Cluster

# The first attempt never ends by itself.
ENDLESS = 'echo up; [ "$FLOW_ATTEMPT" = 2 ] || sleep 600; echo rank $RANK is on $(hostname)'


@pytest.fixture
def lab(fresh_hosts: Callable[..., Cluster], flow_home: Path) -> Lab:
    return Lab(fresh_hosts(4), flow_home)


def roles(task: dict[str, Any]) -> dict[str, str]:
    """What each host is for."""
    return {each["id"].split("-")[2]: each["role"] for each in task["nodes"]}


def told(task: dict[str, Any]) -> list[str]:
    return [event["text"] for event in task["events"] if event["kind"] == "spare"]


@pytest.mark.long
def test_a_spare_takes_the_rank_of_a_lost_node_and_is_made_good(lab: Lab) -> None:
    task = lab.submit("-N", "2", "--spares", "1", "--", "sh", "-c", ENDLESS)
    ready = "is ready to take the rank of a lost node"
    found = eventually(
        lambda: (t := lab.task(task)) and ready in " ".join(told(t)) and t, every=0.3
    )
    assert roles(found) == {"node00": "rank", "node01": "rank", "node02": "spare"}
    lab.wait(task, "running")
    lab.hosts[1].power_cut()
    ended = lab.wait(task, "completed", timeout=150)
    assert ended["attempt"] == 2
    assert any("node02" in text and "takes the rank of node 1" in text for text in told(ended))
    lines = lab.flow("logs", task).stdout
    assert "rank 0 is on node00" in lines
    assert "rank 1 is on node02" in lines
    for host in (lab.hosts[0], *lab.hosts[2:]):
        assert left_on(host) == []


def test_a_spare_that_dies_is_made_good(lab: Lab) -> None:
    task = lab.submit("-N", "1", "--spares", "1", "--", "sleep", "600")
    eventually(lambda: "ready" in " ".join(told(lab.task(task))), every=0.3)
    lab.hosts[1].power_cut()
    eventually(lambda: roles(lab.task(task)).get("node02") == "spare", timeout=120, every=0.5)
    lab.flow("cancel", "--wait", task)
    for host in (lab.hosts[0], *lab.hosts[2:]):
        assert left_on(host) == []


def test_spares_count_among_the_hosts_that_a_task_takes(lab: Lab) -> None:
    refused = lab.flow("run", "-N", "4", "--spares", "1", "--dry-run", "--", "true", code=2)
    assert "5 hosts were asked for" in refused.stderr
    plan = lab.json("run", "-N", "2", "--spares", "1", "--dry-run", "--", "true")["plan"]
    assert (plan["num_instances"], plan["spares"]) == (2, 1)
    assert plan["slots"][0]["count"] == 3
