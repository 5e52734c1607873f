"""Volumes on EC2 in the box, by whole tasks: EFS that two nodes share, and a disk that goes from task to task."""

from __future__ import annotations

import dataclasses
import os
import re
import shutil
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from flowlite.api.adapters import adapter
from flowlite.errors import CapacityUnavailable, ProviderError
from flowlite.provider import LaunchPending
from tests.helpers import eventually, kill_processes_of_home
from tests.providers.laptop import Laptop

if TYPE_CHECKING:
    from flowlite.provider import LaunchIntent
    from flowlite.testing.cloud import CloudInABox
    from tests.providers.aws_client import Client

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
RUN = ("run", "--max-run-time-hours", "1")


@pytest.fixture
def laptop(box: CloudInABox, flow_home: Path) -> Laptop:
    return Laptop(box, flow_home, 'provider = "aws"\nsync = false\n[aws]\nregion = "us-east-1"\n')


def test_two_nodes_share_what_flowlite_made(box: CloudInABox, laptop: Laptop) -> None:
    script = (
        "cat /data/old 2>/dev/null; [ $RANK = 0 ] && { echo from 0 > /data/new; mv /data/new /data/it; }; "
        "until [ -e /data/it ]; do sleep 0.05; done; cat /data/it; echo kept by $RANK >> /data/old; "
        "grep ' /data ' /proc/mounts | cut -d' ' -f2,3"
    )
    (laptop_file := Path(os.environ["FLOW_HOME"]) / "task.yaml").write_text(
        f"command: {script!r}\nnum_instances: 2\nmax_run_time_hours: 1\n"
        "volumes: {/data: {name: ckpt, size_gb: 10}}\n"
    )
    shown = laptop.flow("run", str(laptop_file), "--dry-run")
    assert "volume ckpt is not there yet and will be made: EFS, encrypted" in shown
    said = laptop.flow("run", str(laptop_file))
    assert said.count("] from 0") == 2, said
    assert said.count("] /data fuse.sshfs") == 2, "it is a file system of the network"
    again = laptop.flow("run", str(laptop_file))
    assert again.count("kept by") >= 2, again
    listed = laptop.flow("volumes", "list")
    assert "ckpt" in listed
    assert "fs-" in listed
    assert {each["state"] for each in box.aws.instances()} == {"terminated"}
    laptop.flow("volumes", "delete", "ckpt", "--yes")
    assert "ckpt" not in laptop.flow("volumes", "list")


def test_a_disk_goes_from_task_to_task(box: CloudInABox, laptop: Laptop) -> None:
    scratch = "/data=scratch,interface=block,size_gb=1"
    task = (*RUN, "--volume", scratch, "--", "sh", "-c")
    laptop.flow(*task, "echo kept > /data/it; grep ' /data ' /proc/mounts")
    assert "kept" in laptop.flow(*task, "cat /data/it")
    placed: list[dict[str, Any]] = box.aws.instances()
    assert len(placed) == 2
    assert len({each["zone"] for each in placed}) == 1, "the disk ties its tasks to its zone"
    assert {each["state"] for each in placed} == {"terminated"}
    (disk,) = box.aws.leftovers()["volumes"]
    row = rf"scratch +aws +us-east-1\w +block +1 GB +- +\$0.08 +2\S+ +\$\S+ +- +{disk}"
    # A listing that lags has it at a machine that has ended.
    eventually(lambda: re.search(row, laptop.flow("volumes", "list")), timeout=60, every=0.2)
    # The next one may lag once more.
    delete = ("volumes", "delete", "scratch", "--yes")
    eventually(lambda: laptop.code_of(*delete) == 0, timeout=60, every=0.2)
    assert box.aws.leftovers()["volumes"] == []


def test_a_disk_that_another_task_has_is_refused_before_money_is_spent(
    box: CloudInABox, laptop: Laptop
) -> None:
    task = (*RUN, "--volume", "/data=scratch,interface=block,size_gb=1")
    laptop.flow(*task, "--detach", "--name", "first", "--", "sleep", "600")
    (first,) = eventually(box.aws.instances, timeout=120)

    def attached() -> bool:
        return "first" in laptop.flow("volumes", "list") or _holder(box) == first["id"]

    eventually(attached, timeout=120, every=0.2)
    eventually(lambda: _holder(box) == first["id"], timeout=120, every=0.2)
    said = laptop.flow(*task, "--", "true", code=2)
    assert f"volume 'scratch' is used by the task {first['tags']['flowlite:task']}" in said
    assert len(box.aws.instances()) == 1, "nothing was launched for it"
    laptop.flow("volumes", "delete", "scratch", "--yes", code=5)
    laptop.flow("cancel", "--wait", "first")
    laptop.flow(*task, "--", "true")
    assert [each["state"] for each in box.aws.instances()] == ["terminated"] * 2


def test_what_a_killed_client_had_attached_is_detached_and_kept(
    box: CloudInABox, laptop: Laptop, flow_home: Path
) -> None:
    task = (*RUN, "--volume", "/data=scratch,interface=block,size_gb=1")
    script = "echo kept > /data/it; sync; echo written; exec sleep 600"
    laptop.flow(*task, "--detach", "--name", "first", "--", "sh", "-c", script)
    eventually(lambda: "written" in laptop.flow("logs", "first"), timeout=120, every=0.5)
    kill_processes_of_home(flow_home)
    shutil.rmtree(flow_home / "tasks")
    for file in flow_home.glob("*.db*"):
        file.unlink()
    assert _holder(box)
    laptop.flow("gc", "--yes")
    eventually(
        lambda: {each["state"] for each in box.aws.instances()} == {"terminated"}, timeout=90
    )
    eventually(lambda: _holder(box) is None)
    assert len(box.aws.leftovers()["volumes"]) == 1
    assert "kept" in laptop.flow(*task, "--", "cat", "/data/it")


BLOCK = {"/data": {"name": "scratch", "size_gb": 1, "interface": "block"}}


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("AttachmentLimitExceeded", r"ec2:AttachVolume: .*\(AttachmentLimitExceeded\)"),
        ("IncorrectState", r"was not ready within .*'scratch' is being attached"),
    ],
)
def test_machines_whose_disk_does_not_come_are_ended(aws: Client, code: str, said: str) -> None:
    aws.settings('region = "us-east-1"\nboot_timeout = "20s"')
    aws.box.aws.fault("AttachVolume", code=code, times=10_000)
    with pytest.raises(ProviderError, match=said):
        aws.launch(aws.intent(num_instances=1, max_run_time_hours=1, volumes=BLOCK))
    # Nobody else has to come for that: machines without an agent cost money.
    eventually(lambda: aws.alive() == [])
    # Their root disks go with them; the volume stays.
    eventually(lambda: len(aws.box.aws.leftovers()["volumes"]) == 1)


def test_a_later_attempt_is_launched_where_the_first_one_has_made_its_disk(aws: Client) -> None:
    """Both have the plan of the task, in which the disk is not there yet."""
    first = aws.intent(num_instances=1, volumes=BLOCK)
    second = dataclasses.replace(first, token="t1-launch-2")
    (machine,) = aws.launch(first)
    zone = machine.data["zone"]
    aws.end_machines()
    kind = str(first.plan["instance_type"])
    aws.box.aws.capacity(kind, zone, 0)
    with pytest.raises(CapacityUnavailable, match=zone):
        eventually(lambda: _asked(aws, second), timeout=90, every=0.1)
    aws.box.aws.capacity(kind, zone, None)
    (found,) = aws.launch(second)
    assert found.data["zone"] == zone
    aws.end_machines()


def _asked(aws: Client, intent: LaunchIntent) -> None:
    with suppress(LaunchPending):
        adapter("aws").launch(intent)


@pytest.mark.no_random_faults
@pytest.mark.parametrize(
    ("action", "code", "skip"),
    [
        # The first one is for the group of the task.
        ("AuthorizeSecurityGroupIngress", "InvalidGroup.NotFound", 1),
        ("elasticfilesystem:CreateMountTarget", "SecurityGroupNotFound", 0),
    ],
)
def test_a_new_group_of_volumes_that_is_not_known_everywhere_is_waited_for(
    aws: Client, action: str, code: str, skip: int
) -> None:
    aws.box.aws.fault(action, code=code, skip=skip, times=2)
    files = {"/data": {"name": "shared", "size_gb": 1}}
    (found,) = aws.launch(aws.intent(num_instances=1, volumes=files))
    assert [mount["share"] for mount in found.data["mounts"]] == ["nfs"]
    aws.end_machines()


def test_a_disk_and_those_of_an_image_are_different_devices(aws: Client) -> None:
    image = aws.box.aws.image({"/dev/sdf": 10, "/dev/xvdg": 10})
    aws.settings(f'ami = "{image}"')
    disk = {"/data": {"name": "scratch", "interface": "block", "size_gb": 1}}
    (found,) = aws.launch(aws.intent(num_instances=1, volumes=disk))
    (mount,) = found.data["mounts"]
    assert mount["devices"][0] == "/dev/sdh"
    aws.end_machines()
    # Only the volume is left.
    assert len(aws.box.aws.leftovers()["volumes"]) == 1


def test_a_disk_goes_on_to_the_machine_that_replaces_a_lost_one(
    box: CloudInABox, laptop: Laptop
) -> None:
    script = "if [ -e /data/it ]; then cat /data/it; else echo kept > /data/it; sync; echo written; exec sleep 600; fi"
    volume = ("--volume", "/data=scratch,interface=block,size_gb=1")
    laptop.flow(
        *RUN, *volume, "--retries", "1", "--detach", "--name", "it", "--", "sh", "-c", script
    )
    eventually(lambda: "written" in laptop.flow("logs", "it"), timeout=150, every=0.5)
    (first,) = box.aws.instances()
    box.aws.preempt([first["id"]], seconds=1)
    eventually(lambda: "kept" in laptop.flow("logs", "it"), timeout=200, every=0.5)
    zones = {each["zone"] for each in box.aws.instances()}
    assert zones == {first["zone"]}
    assert len(box.aws.instances()) == 2


def _holder(box: CloudInABox) -> str | None:
    """The instance that has the one volume of flowlite; None while it is free, not made, or not listed yet."""
    import boto3

    ours = [{"Name": "tag:flowlite:volume", "Values": ["scratch"]}]
    listed = boto3.client("ec2").describe_volumes(Filters=ours)["Volumes"]
    assert len(listed) <= 1, listed
    attachments = [each for volume in listed for each in volume["Attachments"]]
    held = [each["InstanceId"] for each in attachments if each["State"] == "attached"]
    return held[0] if held else None
