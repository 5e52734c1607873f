"""A gang that has lost its machines: where its next attempt runs, and what it finds there."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from flowlite.testing.hosts.network import LAPTOP_PUBLIC_ADDRESS
from tests.failover.everywhere import (
    Everywhere,
    Followed,
    User,
    Watch,
    fill_zones,
    running,
    shell,
    user_of,
)
from tests.s3.servers import RcloneServer, S3Server

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.needs("hosts", "slurm", "rclone"),
]

TYPE = "c7i.large"
TRAINER = """
import os, time
from pathlib import Path
here, rank = Path(os.environ["FLOW_CHECKPOINT_DIR"]), os.environ["RANK"]
done = max((int(p.stem) for p in here.glob("*.pt")), default=0)
print(f"rank {rank} at {os.environ['FLOW_PROVIDER']} from step {done}", flush=True)
for step in range(done + 1, 100_000):
    if rank == "0":
        (here / f"{step}.tmp").write_bytes(b"%d" % (step % 10) * 1000)
        (here / f"{step}.tmp").rename(here / f"{step}.pt")
    if os.environ["FLOW_ATTEMPT"] != "1":
        break
    time.sleep(0.5)
"""


@pytest.fixture
def bucket(everywhere: Everywhere) -> Iterator[S3Server]:
    """A bucket named `kept`, on the laptop, that rented machines and SSH hosts reach."""
    with (
        everywhere.cluster.enter_laptop(),
        RcloneServer(LAPTOP_PUBLIC_ADDRESS, public=True) as server,
    ):
        server.fill("kept", {"beside": b"x"})
        yield server


@pytest.fixture
def user(everywhere: Everywhere, bucket: S3Server, flow_home: Path) -> Iterator[User]:
    """A user whose buckets are on that server."""
    variables = {"AWS_ENDPOINT_URL_S3": bucket.endpoint}
    for user in user_of(everywhere, flow_home, variables):
        for host in everywhere.hosts:
            way = ["ip", "route", "replace", f"{LAPTOP_PUBLIC_ADDRESS}/32", "dev", "eth0"]
            assert host.exec(way).returncode == 0
        yield user


def lose_the_machines(task: Followed) -> None:
    """Cuts the power of all machines of a task at EC2."""
    aws = task.user.places.box.aws
    for each in aws.instances():
        if each["state"] == "running" and each["tags"].get("flowlite:task") == task.id:
            aws.die(each["id"])


def sets_in(bucket: S3Server) -> int:
    """How many manifests of complete sets a bucket has."""
    found = bucket.client().list_objects_v2(Bucket="kept", Prefix="run/sets/")
    return len(found.get("Contents", []))


def test_checkpoints_follow_a_gang_to_another_provider(user: User, bucket: S3Server) -> None:
    places = user.places
    asked = user.write(
        name="moving",
        command=[sys.executable, "-u", "-c", TRAINER],
        provider=["aws", "ssh"],
        region="us-east-1",
        prefer="order",
        num_instances=2,
        processes_per_node=1,
        retries=1,
        max_run_time_hours=1,
        max_wait_hours=1,
        grace_seconds=1,
        checkpoint={"path": "/ckpt", "sync": "s3://kept/run", "every": 1},
    )
    client = user.client("run", "--yes", asked)
    with running(client):
        task = user.task("moving")
        with Watch(places, task.id) as watch:
            task.until(lambda: sets_in(bucket) >= 2, "two sets of checkpoints")
            fill_zones(places, TYPE, 0)
            lose_the_machines(task)
            record = task.end()
        assert (record.attempt, record.provider) == (2, "ssh"), task.story()
        assert task.left_for == [("aws", "full")]
        assert task.output() == ["rank 0 at aws from step 0", "rank 1 at aws from step 0"]
        begun = [re.fullmatch(r"rank (\d) at ssh from step (\d+)", line) for line in task.output(2)]
        assert [each and each[1] for each in begun] == ["0", "1"], task.output(2)
        steps = {int(each[2]) for each in begun if each}
        assert len(steps) == 1, "both ranks go on from the same set"
        assert steps.pop() >= 2
        watch.check()
        task.check_nothing_is_left()


def test_an_attempt_begins_on_spot_again_when_there_is_some(user: User) -> None:
    places, aws = user.places, user.places.box.aws
    no_spot = {"InstanceMarketOptions.MarketType": "spot"}
    aws.fault("RunInstances", code="InsufficientInstanceCapacity", times=-1, match=no_spot)
    asked = user.write(
        name="moving",
        command=shell("echo attempt $FLOW_ATTEMPT; [ $FLOW_ATTEMPT = 2 ] || sleep 100000"),
        provider="aws",
        spot="prefer",
        prefer="order",
        retries=1,
        max_run_time_hours=1,
        max_wait_hours=1,
        grace_seconds=1,
    )
    client = user.client("run", "--yes", asked)
    with running(client):
        task = user.task("moving")
        with Watch(places, task.id) as watch:
            task.until(lambda: task.output() == ["attempt 1"], "the first attempt to run")
            # On demand is not left for spot while the attempt runs.
            aws.clear_faults()
            (first,) = [each for each in aws.instances() if each["state"] == "running"]
            assert first["spot"] is None
            lose_the_machines(task)
            record = task.end()
        assert record.attempt == 2, task.story()
        assert task.output(2) == ["attempt 2"]
        assert task.left_for == [("aws", "full")]
        (second,) = [each for each in aws.instances() if each["id"] == record.roster[0]]
        assert second["spot"]
        watch.check()
        task.check_nothing_is_left()
