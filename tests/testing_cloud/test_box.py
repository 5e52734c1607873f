"""The box as a whole: it is closed to the world, shared by its clouds, and gone without a trace."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from flowlite.testing.cloud import CloudInABox
from flowlite.testing.hosts import Cluster
from flowlite.testing.hosts.probes import Traces
from tests.helpers import eventually
from tests.testing_cloud.ec2_client import in_state, launch, refused

# These test the box itself, through a client that repeats nothing.
pytestmark = [pytest.mark.needs("hosts"), pytest.mark.no_random_faults]
ROOT = Path(__file__).resolve().parent.parent.parent
OWNER = """
import os, time
from flowlite.testing.cloud import CloudInABox
from tests.testing_cloud.ec2_client import client, launch

box = CloudInABox(2, clouds=["aws"])
with box.enter():
    os.environ.update(box.environment())
    launch(client())
print(box.directory, box.aws.pid, flush=True)
time.sleep(1000)
"""


def test_a_reset_makes_it_new(box: CloudInABox, ec2: Any) -> None:
    launch(ec2, 2)
    ec2.create_placement_group(GroupName="close", Strategy="cluster")
    box.aws.fault("DescribeInstances", code="InternalError", times=-1)
    box.aws.capacity("g5.xlarge", "us-east-1a", 0)
    box.aws.lag(60)
    with subprocess.Popen(["sleep", "1000"]) as on_laptop:
        box.reset()
        assert on_laptop.wait() == -signal.SIGKILL
    assert box.aws.instances() == []
    assert box.aws.calls == []
    assert not any(box.aws.leftovers().values())
    assert box.cluster.ask("free") == len(box.cluster)
    (id,) = launch(ec2)
    in_state(ec2, id, "running")


def test_the_client_sees_nothing_but_the_box(
    box: CloudInABox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_PROFILE", "real")
    monkeypatch.setenv("MITHRIL_TOKEN", "real")
    environment = box.client_environment()
    assert "AWS_PROFILE" not in environment
    assert "MITHRIL_TOKEN" not in environment
    assert environment["AWS_ENDPOINT_URL"] == box.aws.url
    assert environment["MITHRIL_API_URL"] == box.mithril.url
    code = "import socket; socket.create_connection(('192.0.2.1', 80), 1)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "unreachable" in done.stderr


def test_both_clouds_rent_out_the_same_machines(box: CloudInABox, ec2: Any) -> None:
    launch(ec2, len(box.cluster) - 1)
    assert box.mithril.bids() == []
    assert box.cluster.ask("free") == 1
    with refused("InsufficientInstanceCapacity"):
        launch(ec2, 2)


def test_the_machine_of_an_instance_can_be_harmed(box: CloudInABox, ec2: Any) -> None:
    (id,) = launch(ec2)
    in_state(ec2, id, "running")
    host = box.host(box.aws.instances()[0])
    host.partition()
    assert host.exec(["true"]).returncode == 0
    host.heal()


def test_nothing_is_left_when_the_owner_is_killed() -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", OWNER], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    directory, pid = process.stdout.readline().split()
    traces = Traces(Cluster.attach(Path(directory)))
    process.kill()
    process.communicate()
    eventually(lambda: not traces.left(), what="what is left of the box")
    eventually(lambda: not os.path.exists(f"/proc/{pid}"))
    traces.close()
