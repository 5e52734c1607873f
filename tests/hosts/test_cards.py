"""GPUs that are not there: what looks for a driver on a rented machine finds one, and counts right."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from flowlite.testing.hosts import Cluster, Host
from flowlite.testing.hosts.cluster import ROOT
from tests.components import missing
from tests.helpers import eventually

pytestmark = pytest.mark.needs("hosts")

if not missing("hosts"):
    from flowlite.testing.cloud.machines import Gpus, Machines

LOOK = "import json; from flowlite.node.system.node_facts import gpus; print(json.dumps(gpus()))"
STATS = "import json; from flowlite.node.inspect.metrics import gpus; print(json.dumps(gpus(None)))"


@pytest.fixture(scope="module")
def host() -> Iterator[Host]:
    with Cluster(0, slots=1) as cluster:
        machines = Machines(cluster.directory)
        machines.boot("i-1", gpus=Gpus("NVIDIA H100 80GB HBM3", 3, 81559))
        eventually(lambda: cluster[0].alive)
        yield cluster[0]


def test_a_node_counts_them(host: Host) -> None:
    found = json.loads(
        host.exec(["python3", "-c", LOOK], environment={"PYTHONPATH": str(ROOT)}).stdout
    )
    assert found == {"count": 3, "kind": "NVIDIA H100 80GB HBM3"}


def test_their_figures_can_be_read(host: Host) -> None:
    found = json.loads(
        host.exec(["python3", "-c", STATS], environment={"PYTHONPATH": str(ROOT)}).stdout
    )
    assert [gpu["index"] for gpu in found] == [0, 1, 2]
    assert found[0]["memory_total"] == 81559 * 2**20


def test_the_tool_lists_them(host: Host) -> None:
    lines = host.exec(["nvidia-smi", "-L"]).stdout.splitlines()
    assert len(lines) == 3
    assert lines[0].startswith("GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-")
    asked = ["nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader"]
    assert host.exec(asked).stdout.splitlines()[2] == "NVIDIA H100 80GB HBM3, 81559 MiB"
