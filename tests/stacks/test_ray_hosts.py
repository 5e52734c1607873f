"""`distributed_mode="ray"` on hosts reached by SSH, which have addresses of their own."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.faults.on_hosts import Site
from tests.stacks.environments import trainers

if TYPE_CHECKING:
    from flowlite.testing.hosts import Cluster

SECONDS = 300.0
pytestmark = [pytest.mark.alone, pytest.mark.hours, pytest.mark.timeout(900)]

SPREAD = """
import os, ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy as On
ray.init(log_to_driver=False)

@ray.remote
def where():
    return os.environ["FLOW_NODE_RANK"]

nodes = sorted(ray.nodes(), key=lambda node: node["NodeManagerAddress"])
ran = [where.options(scheduling_strategy=On(node["NodeID"], soft=False)).remote() for node in nodes]
addresses = [node["NodeManagerAddress"] for node in nodes]
print(os.environ["RAY_ADDRESS"].split(":")[0], *addresses, *sorted(ray.get(ran)))
"""
STRANGER = """
import os, ray, sys
os.environ["RAY_AUTH_TOKEN_PATH"] = "/root/wrong"
open("/root/wrong", "w").write("0" * 64)
try:
    ray.init(log_to_driver=False)
except Exception as error:
    sys.stdout.write("turned away\\n")
"""


def test_a_cluster_spans_hosts_and_lets_in_only_its_task(
    hosts: Cluster, flow_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = trainers()
    site = Site(hosts, flow_home, monkeypatch, hosts[:2], settings=f'python = "{python}"')
    root = site.hosts[0].root / "root"
    (root / "spread.py").write_text(SPREAD)
    (root / "stranger.py").write_text(STRANGER)
    gang = site.submit(
        ["sh", "-c", f"{python} /root/spread.py && timeout 60 {python} /root/stranger.py; true"],
        distributed_mode="ray",
        processes_per_node=2,
    )
    gang.end(timeout=SECONDS)
    first, *rest = gang.output(0).splitlines()
    addresses = sorted(host.address for host in site.hosts)
    assert first.split() == [site.hosts[0].address, *addresses, "0", "1"]
    assert rest == ["turned away"]
    for host in site.hosts:
        assert not list((host.root / "tmp").glob("flowlite-*/ray-*"))
