"""EBS and EFS of the box: disks that machines really have, one at a time, and file systems that all of them have."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.helpers import eventually
from tests.testing_cloud.ec2_client import in_state, launch, refused

# These test the box itself, through a client that repeats nothing.
pytestmark = pytest.mark.no_random_faults

if TYPE_CHECKING:
    from flowlite.testing.cloud import CloudInABox
    from flowlite.testing.hosts import Host


def disk(ec2: Any, zone: str, token: str = "", **more: Any) -> str:
    """A volume of 1 GB that is there."""
    named = {"ClientToken": token} if token else {}
    made = ec2.create_volume(AvailabilityZone=zone, Size=1, VolumeType="gp3", **named, **more)
    eventually(lambda: state(ec2, made["VolumeId"])[0] == "available")
    return str(made["VolumeId"])


def state(ec2: Any, volume: str) -> tuple[str, list[str]]:
    """Of the volume, and of its attachments."""
    (found,) = ec2.describe_volumes(VolumeIds=[volume])["Volumes"]
    return found["State"], [each["State"] for each in found["Attachments"]]


def running(ec2: Any, box: CloudInABox, **options: Any) -> tuple[str, Host, str]:
    """An instance that runs, its machine and its zone."""
    (id,) = launch(ec2, **options)
    in_state(ec2, id, "running")
    shown = next(each for each in box.aws.instances() if each["id"] == id)
    return id, box.host(shown), shown["zone"]


def sh(host: Host, script: str) -> str:
    done = host.exec(["sh", "-c", script])
    assert done.returncode == 0, f"{script}\n{done.stdout}\n{done.stderr}"
    return str(done.stdout)


def attach(ec2: Any, volume: str, instance: str, device: str = "/dev/sdf") -> None:
    told = ec2.attach_volume(VolumeId=volume, InstanceId=instance, Device=device)
    assert told["State"] == "attaching"
    eventually(lambda: state(ec2, volume) == ("in-use", ["attached"]))


def test_a_volume_goes_from_machine_to_machine(box: CloudInABox, ec2: Any) -> None:
    first, host, zone = running(ec2, box, InstanceType="m5.large")
    volume = disk(ec2, zone)
    attach(ec2, volume, first)
    serial = volume.replace("-", "")
    link = f"/dev/disk/by-id/nvme-Amazon_Elastic_Block_Store_{serial}"
    assert sh(host, f"readlink -f {link}; cat /sys/class/block/nvme1n1/device/serial").split() == [
        "/dev/nvme1n1",
        serial,
    ]
    sh(host, "mkfs.ext4 -q /dev/nvme1n1 && mount /dev/nvme1n1 /mnt && echo 1 > /mnt/it")
    with refused("VolumeInUse"):
        ec2.delete_volume(VolumeId=volume)
    assert ec2.detach_volume(VolumeId=volume)["State"] == "detaching"
    eventually(lambda: state(ec2, volume) == ("in-use", ["busy"]), what="it is mounted")
    sh(host, "umount /mnt")
    eventually(lambda: state(ec2, volume) == ("available", []))
    assert host.exec(["test", "-e", "/dev/nvme1n1"]).returncode != 0

    second, host, _ = running(
        ec2, box, InstanceType="m5.large", Placement={"AvailabilityZone": zone}
    )
    attach(ec2, volume, second)
    assert sh(host, "mount /dev/nvme1n1 /mnt && cat /mnt/it") == "1\n"
    with refused("VolumeInUse"):
        ec2.attach_volume(VolumeId=volume, InstanceId=first, Device="/dev/sdf")
    # An instance that ends lets go of what it has mounted, and what is on it stays.
    ec2.terminate_instances(InstanceIds=[second])
    eventually(lambda: state(ec2, volume) == ("available", []))
    attach(ec2, volume, first)
    host = box.host(next(each for each in box.aws.instances() if each["id"] == first))
    assert sh(host, "mount /dev/nvme1n1 /mnt && cat /mnt/it") == "1\n"
    sh(host, "umount /mnt")
    ec2.detach_volume(VolumeId=volume, InstanceId=first)
    eventually(lambda: state(ec2, volume) == ("available", []))
    ec2.delete_volume(VolumeId=volume)
    with refused("InvalidVolume.NotFound"):
        ec2.describe_volumes(VolumeIds=[volume])


def test_what_ec2_refuses_about_volumes(box: CloudInABox, ec2: Any) -> None:
    box.aws.timing(boot=5.0)
    (pending,) = launch(ec2, InstanceType="m5.large")
    zone = box.aws.instances()[0]["zone"]
    other = next(
        each["ZoneName"]
        for each in ec2.describe_availability_zones()["AvailabilityZones"]
        if each["ZoneName"] != zone
    )
    told = ec2.create_volume(AvailabilityZone=zone, Size=1, ClientToken="one")
    made = told["VolumeId"]
    assert told["State"] == "creating"
    with refused("IncorrectState"):
        ec2.attach_volume(VolumeId=made, InstanceId=pending, Device="/dev/sdf")
    in_state(ec2, pending, "running")
    again = ec2.create_volume(AvailabilityZone=zone, Size=1, ClientToken="one")["VolumeId"]
    assert again == made
    with refused("IdempotentParameterMismatch"):
        ec2.create_volume(AvailabilityZone=zone, Size=2, ClientToken="one")
    elsewhere = disk(ec2, other)
    with refused("InvalidVolume.ZoneMismatch"):
        ec2.attach_volume(VolumeId=elsewhere, InstanceId=pending, Device="/dev/sdf")
    attach(ec2, made, pending)
    twin = disk(ec2, zone)
    with refused("InvalidParameterValue"):
        ec2.attach_volume(VolumeId=twin, InstanceId=pending, Device="/dev/sdf")
    attach(ec2, twin, pending, "/dev/sdg")
    host = box.host(box.aws.instances()[0])
    assert sorted(sh(host, "lsblk -n -o NAME").split()) == ["nvme1n1", "nvme2n1"]
    with refused("IncorrectState"):
        ec2.detach_volume(VolumeId=elsewhere)


def test_a_file_system_is_reached_by_whom_its_group_lets_in(box: CloudInABox, ec2: Any) -> None:
    import boto3

    efs = boto3.client("efs")
    subnet = ec2.describe_subnets()["Subnets"][0]
    own = {"VpcId": subnet["VpcId"], "Description": "-"}
    group = ec2.create_security_group(GroupName="files", **own)["GroupId"]
    rule = {"IpProtocol": "tcp", "FromPort": 2049, "ToPort": 2049}
    pair = [{"GroupId": group}]

    def authorized() -> bool:
        try:
            ec2.authorize_security_group_ingress(
                GroupId=group, IpPermissions=[{**rule, "UserIdGroupPairs": pair}]
            )
        except ec2.exceptions.ClientError:
            return False
        return True

    eventually(authorized)
    box.aws.timing(volume=5.0)
    system = efs.create_file_system(CreationToken="t")["FileSystemId"]
    where = {"SubnetId": subnet["SubnetId"], "SecurityGroups": [group]}
    with refused("IncorrectFileSystemLifeCycleState"):
        efs.create_mount_target(FileSystemId=system, **where)

    def there(kind: str, listed: Any) -> bool:
        return [each["LifeCycleState"] for each in listed()[kind]] == ["available"]

    box.aws.timing(volume=0.3)
    eventually(lambda: there("FileSystems", efs.describe_file_systems))
    target = efs.create_mount_target(FileSystemId=system, **where)["MountTargetId"]
    eventually(
        lambda: there("MountTargets", lambda: efs.describe_mount_targets(FileSystemId=system))
    )
    address = efs.describe_mount_targets(FileSystemId=system)["MountTargets"][0]["IpAddress"]
    _, outside, _ = running(ec2, box)
    (_, first, _), (_, second, _) = (running(ec2, box, SecurityGroupIds=[group]) for _ in range(2))
    mount = f"mkdir /data; mount.nfs4 {address}:/ /data -o nfsvers=4.1"
    assert outside.exec(["sh", "-c", f"timeout 2 sh -c '{mount}'"]).returncode == 124
    sh(first, f"{mount} && echo 1 > /data/it")
    assert sh(second, f"{mount} && cat /data/it && echo more >> /data/it") == "1\n"
    assert sh(first, "cat /data/it") == "1\nmore\n"
    (listed,) = efs.describe_file_systems()["FileSystems"]
    assert listed["SizeInBytes"]["Value"] == len("1\nmore\n")
    with refused("FileSystemInUse"):
        efs.delete_file_system(FileSystemId=system)
    efs.delete_mount_target(MountTargetId=target)
    efs.delete_file_system(FileSystemId=system)
    assert efs.describe_file_systems()["FileSystems"] == []
