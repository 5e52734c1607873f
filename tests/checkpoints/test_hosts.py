"""Checkpoints between hosts: one that loses its power is replaced by one that has never seen the files."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.checkpoints.remote import newest
from tests.helpers import eventually
from tests.providers.lab import Lab

if TYPE_CHECKING:
    from flowlite.testing.hosts import Cluster

pytestmark = pytest.mark.timeout(300)

TRAINER = """
import os, time
from pathlib import Path
here, rank = Path(os.environ["FLOW_CHECKPOINT_DIR"]), os.environ["RANK"]
done = sorted(int(p.stem) for p in here.glob("*.pt"))
print(f"attempt {os.environ['FLOW_ATTEMPT']}, rank {rank} on {os.uname().nodename}: from {done[-1:] or 0}", flush=True)
for step in range((done[-1] if done else 0) + 1, 1000):
    if rank == "0":
        (here / f"{step}.tmp").write_bytes(b"%d" % (step % 10) * 100_000)
        (here / f"{step}.tmp").rename(here / f"{step}.pt")
    if os.environ["FLOW_ATTEMPT"] != "1" and step > done[-1]:
        break
    time.sleep(0.5)
"""


@pytest.mark.long
@pytest.mark.slow
def test_a_host_that_lost_its_power_is_replaced_and_goes_on(
    hosts: Cluster, flow_home: Path, tmp_path: Path
) -> None:
    lab = Lab(hosts, flow_home, hosts[:3])
    asked = {
        "name": "resume",
        "command": [sys.executable, "-u", "-c", TRAINER],
        "num_instances": 2,
        "retries": 1,
        "checkpoint": {"path": "/ckpt", "sync": "/mnt/shared/kept", "every": 1.0},
    }
    # JSON is YAML.
    (tmp_path / "task.yaml").write_text(json.dumps(asked))
    kept = hosts.shared / "kept"
    task = lab.submit(str(tmp_path / "task.yaml"))
    lab.wait(task, "running")
    eventually(lambda: len(newest(kept)) >= 2, every=0.2)
    leader = lab.task(task)["nodes"][0]
    before = len(newest(kept))
    host = next(each for each in hosts if each.name in str(leader) or each.address in str(leader))
    host.power_cut()
    lab.wait(task, "completed", timeout=200)
    logs = lab.flow("logs", task).stdout
    begun = [int(step) for step in re.findall(r"attempt 2, rank \d on \w+: from \[(\d+)\]", logs)]
    assert len(begun) == 2, logs
    assert len(set(begun)) == 1, "both ranks go on from the same set"
    assert begun[0] >= before
    assert len(newest(kept)) == begun[0] + 1
