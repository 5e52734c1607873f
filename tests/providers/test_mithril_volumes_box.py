"""Volumes of Mithril in the box, by whole tasks: a disk that goes from task to task, and files that two nodes share."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.helpers import eventually
from tests.providers.laptop import Laptop

if TYPE_CHECKING:
    from flowlite.testing.cloud import CloudInABox

pytest.importorskip("httpx")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]
RUN = ("run", "--gpu", "h100:8", "--max-run-time-hours", "1", "--processes-per-node", "1")


@pytest.fixture
def laptop(box: CloudInABox, flow_home: Path) -> Laptop:
    return Laptop(box, flow_home, 'provider = "mithril"\nsync = false\n')


def test_a_disk_goes_from_task_to_task(box: CloudInABox, laptop: Laptop) -> None:
    task = (*RUN, "--volume", "/data=scratch,interface=block,size_gb=1")
    laptop.flow(*task, "--", "sh", "-c", "echo kept > /data/it")
    (volume,) = box.mithril.volumes()
    assert (volume["interface"], volume["bids"], volume["attachments"]) == ("Block", [], {})
    laptop.flow(*task, "--detach", "--name", "second", "--", "sh", "-c", "cat /data/it; sleep 600")
    eventually(lambda: "kept" in laptop.flow("logs", "second"), timeout=150, every=0.5)
    assert "task second" in laptop.flow("volumes", "list") or box.mithril.volumes()[0]["bids"]
    bids = len(box.mithril.bids())
    said = laptop.flow(*task, "--", "true", code=2)
    assert "the block volume 'scratch' is in use" in said
    assert len(box.mithril.bids()) == bids, "nothing was bid for it"
    laptop.flow("volumes", "delete", "scratch", "--yes", code=5)
    laptop.flow("cancel", "--wait", "second")
    said = laptop.flow(*RUN, "--volume", "/data=scratch", "--", "true", code=2)
    assert "say so: `--volume /data=scratch,interface=block`" in said
    laptop.flow("volumes", "delete", "scratch", "--yes")
    assert box.mithril.volumes() == []


def test_two_nodes_share_files(box: CloudInABox, laptop: Laptop) -> None:
    script = (
        "[ $RANK = 0 ] && { echo from 0 > /data/new; mv /data/new /data/it; }; "
        "until [ -e /data/it ]; do sleep 0.05; done; cat /data/it"
    )
    task = (*RUN, "-N", "2", "--volume", "/data=ckpt,size_gb=10")
    said = laptop.flow(*task, "--", "sh", "-c", script)
    assert said.count("] from 0") == 2, said
    assert laptop.flow(*task, "--", "cat", "/data/it").count("] from 0") == 2
