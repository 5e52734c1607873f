"""Volumes on EC2 against an emulated API: found or made, once, and reachable from the launch's zone."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from flowlite import TaskConfig
from flowlite.errors import ConfigError, NotFound, ProviderError
from flowlite.provider import LaunchPending
from flowlite.state import clock

boto3 = pytest.importorskip("boto3")
moto = pytest.importorskip("moto")

from provider_adapters.aws.storage.common import VOLUMES_TAG, LaunchLocation  # noqa: E402
from provider_adapters.aws.storage.volumes import Volumes, tags_for  # noqa: E402

REGION = "us-east-1"
ZONE, OTHER_ZONE = "us-east-1a", "us-east-1b"
TASK = "t-1"
FILE = {"name": "ckpt", "size_gb": 100}
BLOCK = {"name": "scratch", "size_gb": 10, "interface": "block"}


@pytest.fixture
def account(monkeypatch: pytest.MonkeyPatch) -> Iterator[Account]:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    for name in ("AWS_PROFILE", "AWS_ENDPOINT_URL"):
        monkeypatch.delenv(name, raising=False)
    with moto.mock_aws():
        account = Account()
        yield account
        account.close()


@cache
def client_of(service: str) -> Any:
    """To make one takes half a second."""
    return boto3.client(service, region_name=REGION)


@cache
def image() -> str:
    """Any; to list them takes a second."""
    return str(client_of("ec2").describe_images()["Images"][0]["ImageId"])


class Account:
    """An empty account, and what was called."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self._handlers: list[tuple[Any, str, Any]] = []
        self._known: set[str] = set()
        subnets = self("ec2").describe_subnets()["Subnets"]
        self.subnets = {each["AvailabilityZone"]: each for each in subnets}

    def __call__(self, service: str) -> Any:
        if service not in self._known:
            self._known.add(service)
            self.on(service, "provide-client-params.*.*", self._note)
        return client_of(service)

    def on(self, service: str, event: str, handler: Any) -> None:
        """Has something happen at an event of a client, in this test."""
        events = client_of(service).meta.events
        events.register(event, handler)
        self._handlers.append((events, event, handler))

    def close(self) -> None:
        for events, event, handler in self._handlers:
            events.unregister(event, handler)

    def _note(self, params: dict[str, Any], model: Any, **_: Any) -> None:
        self.calls.append((model.name, params))

    def called(self, operation: str) -> list[dict[str, Any]]:
        """The parameters of every call of that operation."""
        return [params for name, params in self.calls if name == operation]

    def instance(self, zone: str = ZONE, **tags: str) -> str:
        """Launches one; its id."""
        made = self("ec2").run_instances(
            ImageId=image(),
            MinCount=1,
            MaxCount=1,
            SubnetId=self.subnets[zone]["SubnetId"],
            TagSpecifications=[
                {
                    "ResourceType": "instance",
                    "Tags": [{"Key": key, "Value": value} for key, value in tags.items()],
                }
            ]
            if tags
            else [],
        )
        return str(made["Instances"][0]["InstanceId"])

    def place(self, group: str, zone: str = ZONE) -> LaunchLocation:
        subnet = self.subnets[zone]
        return LaunchLocation(zone, subnet["VpcId"], subnet["SubnetId"], group)

    @property
    def vpc(self) -> str:
        return str(self.subnets[ZONE]["VpcId"])


@pytest.fixture
def volumes(account: Account, tmp_path: Path) -> Volumes:
    return Volumes(REGION, account, tmp_path / "notes", {"flowlite:owner": "me@here"})


def config(*volumes: dict[str, Any], nodes: int = 1) -> TaskConfig:
    return TaskConfig(
        command=["true"],
        num_instances=nodes,
        volumes={f"/data/v{number}": volume for number, volume in enumerate(volumes)},
    )


def until_there(volumes: Volumes, entries: Any, place: LaunchLocation, instances: list[str]) -> Any:
    """`attach`, as a launch calls it: again while something is being made."""
    for _ in range(10):
        with suppress(LaunchPending):
            return volumes.attach(entries, place, instances, TASK)
    raise AssertionError("it is never there")


# Kinds


def test_a_forgotten_interface_is_named_and_nothing_is_made(
    account: Account, volumes: Volumes
) -> None:
    disk = volumes.create("scratch", 10, "block", [ZONE]).location
    system = volumes.create("ckpt", None, "file").location
    for name, interface, right in (
        ("scratch", "file", "block"),
        (disk, "file", "block"),
        ("ckpt", "block", "file"),
        (system, "block", "file"),
    ):
        asked = {"name": name, "size_gb": 10, "interface": interface}
        with pytest.raises(ConfigError) as caught:
            volumes.plan(config(asked))
        assert f"{name!r} has the interface {right!r}" in str(caught.value)
        assert f"`--volume /data/v0={name},interface={right}`" in str(caught.value)
    both = volumes.create("both", None, "file"), volumes.create("both", 10, "block", [ZONE])
    for there in both:
        asked = {"name": "both", "interface": there.interface}
        assert volumes.plan(config(asked)).volumes[0]["id"] == there.location


# File volumes


def test_a_file_volume_is_made_once_and_mounted_by_nfs(account: Account, volumes: Volumes) -> None:
    planned = volumes.plan(config(FILE, nodes=2))
    assert account.called("CreateFileSystem") == [], "a plan makes nothing"
    assert "will be made: EFS, encrypted" in planned.notes[0]
    assert " --provider aws`" in planned.notes[0]
    assert planned.zones == ()

    entries, groups = volumes.ready(json.loads(json.dumps(planned.volumes)), account.vpc)
    made = account.called("CreateFileSystem")
    assert len(made) == 1
    assert made[0]["Encrypted"] is True
    tags = {tag["Key"]: tag["Value"] for tag in made[0]["Tags"]}
    assert tags == {"flowlite:volume": "ckpt", "Name": "ckpt", "flowlite:owner": "me@here"}

    nodes = [account.instance(), account.instance()]
    told = until_there(volumes, entries, account.place(groups[0]), nodes)
    target = account("efs").describe_mount_targets(FileSystemId=entries[0]["id"])["MountTargets"]
    assert told == [
        {
            "name": "ckpt",
            "path": "/data/v0",
            "interface": "file",
            "source": "/mnt/flowlite/ckpt",
            "share": "nfs",
            "address": target[0]["IpAddress"],
            "export": "/",
            "options": "nfsvers=4.1,rsize=1048576,wsize=1048576,hard,timeo=600,retrans=2,noresvport",
        }
    ]
    # The next task finds all of it.
    again = volumes.plan(config("ckpt"))  # type: ignore[arg-type]
    assert again.notes == ()
    entries, same = volumes.ready(again.volumes, account.vpc)
    assert same == groups
    assert volumes.attach(entries, account.place(groups[0]), nodes, TASK) == [
        {**told[0], "path": "/data/v0"}
    ]
    assert len(account.called("CreateFileSystem")) == 1
    assert len(account.called("CreateMountTarget")) == 1


def test_the_mount_target_lets_in_only_instances_with_the_group(
    account: Account, volumes: Volumes
) -> None:
    entries, (group,) = volumes.ready(volumes.plan(config(FILE)).volumes, account.vpc)
    until_there(volumes, entries, account.place(group), [account.instance()])
    found = account("ec2").describe_security_groups(GroupIds=[group])["SecurityGroups"][0]
    (rule,) = found["IpPermissions"]
    assert (rule["IpProtocol"], rule["FromPort"], rule["ToPort"]) == ("tcp", 2049, 2049)
    assert [pair["GroupId"] for pair in rule["UserIdGroupPairs"]] == [group]
    assert rule["IpRanges"] == []
    target = account.called("CreateMountTarget")[0]
    assert target["SecurityGroups"] == [group]


def test_each_zone_gets_a_mount_target_of_its_own(account: Account, volumes: Volumes) -> None:
    entries, (group,) = volumes.ready(volumes.plan(config(FILE)).volumes, account.vpc)
    there = [
        until_there(volumes, entries, account.place(group, zone), [account.instance(zone)])
        for zone in (ZONE, OTHER_ZONE)
    ]
    assert there[0][0]["address"] != there[1][0]["address"]


def test_a_crash_after_the_file_system_was_made_makes_no_second_one(
    account: Account, volumes: Volumes, tmp_path: Path
) -> None:
    planned = volumes.plan(config(FILE)).volumes
    volumes.ready(planned, account.vpc)
    # Everything of ours on disk is gone, and the plan still says that there is none.
    other = Volumes(REGION, account, tmp_path / "elsewhere")
    entries, _ = other.ready(planned, account.vpc)
    assert len(account("efs").describe_file_systems()["FileSystems"]) == 1
    assert entries[0]["id"]


def test_two_that_make_it_at_once_share_one(account: Account, volumes: Volumes) -> None:
    """The name is the token: what a listing does not show yet is not made again."""
    volumes.ready(volumes.plan(config(FILE)).volumes, account.vpc)
    blind = iter([[]])
    files = volumes._files
    seen = files._systems
    files._systems = lambda: next(blind, None) or seen()  # type: ignore[method-assign]
    assert files.ensure("ckpt") == seen()[0]["FileSystemId"]
    assert len(account("efs").describe_file_systems()["FileSystems"]) == 1


def test_one_that_is_missing_and_has_no_size_is_refused(volumes: Volumes) -> None:
    for wanted in ({"name": "ckpt"}, {"name": "scratch", "interface": "block"}):
        with pytest.raises(ConfigError, match=r"there is no .*size_gb"):
            volumes.plan(config(wanted))


def test_a_file_system_of_somebody_else_is_found_by_its_name_and_never_deleted(
    account: Account, volumes: Volumes
) -> None:
    made = account("efs").create_file_system(
        CreationToken="theirs", Tags=[{"Key": "Name", "Value": "team-data"}]
    )
    planned = volumes.plan(config("team-data"))  # type: ignore[arg-type]
    assert planned.volumes[0]["id"] == made["FileSystemId"]
    by_id = volumes.plan(config(made["FileSystemId"]))
    assert by_id.volumes[0]["kind"] == "efs"
    assert volumes.list() == []
    with pytest.raises(NotFound, match="that flowlite made"):
        volumes.delete("team-data")


def test_a_mount_target_that_lets_nobody_in_is_named(account: Account, volumes: Volumes) -> None:
    efs = account("efs")
    system = efs.create_file_system(CreationToken="theirs", Tags=[{"Key": "Name", "Value": "team"}])
    own = account("ec2").create_security_group(GroupName="own", Description="-", VpcId=account.vpc)
    efs.create_mount_target(
        FileSystemId=system["FileSystemId"],
        SubnetId=account.subnets[ZONE]["SubnetId"],
        SecurityGroups=[own["GroupId"]],
    )
    entries, (group,) = volumes.ready(volumes.plan(config("team")).volumes, account.vpc)  # type: ignore[arg-type]
    with pytest.raises(ProviderError, match=rf"{own['GroupId']}.*TCP 2049 from {group}"):
        volumes.attach(entries, account.place(group), [account.instance()], TASK)
    account("ec2").authorize_security_group_ingress(
        GroupId=own["GroupId"],
        IpPermissions=[
            {
                "IpProtocol": "tcp",
                "FromPort": 2049,
                "ToPort": 2049,
                "UserIdGroupPairs": [{"GroupId": group}],
            }
        ],
    )
    assert volumes.attach(entries, account.place(group), [account.instance()], TASK)


def test_two_of_one_name_are_refused_with_their_ids(account: Account, volumes: Volumes) -> None:
    for token in ("one", "two"):
        account("efs").create_file_system(
            CreationToken=token, Tags=[{"Key": "Name", "Value": "team"}]
        )
    with pytest.raises(ConfigError, match=r"several file systems.*fs-\w+, fs-\w+"):
        volumes.plan(config("team"))  # type: ignore[arg-type]


def test_lustre_is_named_by_its_id(account: Account, volumes: Volumes) -> None:
    made = account("fsx").create_file_system(
        FileSystemType="LUSTRE",
        StorageCapacity=1200,
        SubnetIds=[account.subnets[ZONE]["SubnetId"]],
        LustreConfiguration={"DeploymentType": "SCRATCH_2"},
    )["FileSystem"]
    planned = volumes.plan(config(made["FileSystemId"], nodes=2))
    assert planned.zones == (ZONE,)
    assert "TCP 988 and 1018 to 1023" in planned.notes[0]
    entries, groups = volumes.ready(planned.volumes, account.vpc)

    def name_it(parsed: dict[str, Any], **_: Any) -> None:
        parsed["FileSystems"][0]["LustreConfiguration"]["MountName"] = "abcdev"

    account.on("fsx", "after-call.fsx.DescribeFileSystems", name_it)
    (told,) = volumes.attach(entries, account.place(groups[0]), [], TASK)
    assert (told["share"], told["export"]) == ("lustre", "/abcdev")
    assert told["address"] == f"{made['DNSName']}@tcp"
    assert told["options"] == "relatime,flock"


# Block volumes


def test_a_disk_that_is_there_keeps_its_size_and_that_is_said(
    account: Account, volumes: Volumes
) -> None:
    volumes.create("scratch", 10, "block", [ZONE])
    (note,) = volumes.plan(config({**BLOCK, "size_gb": 300})).notes
    assert note.endswith("scratch existed already, and keeps its size of 10 GB")
    (note,) = volumes.plan(config(BLOCK)).notes
    assert "keeps its size" not in note


def test_a_disk_is_made_in_the_zone_of_the_launch_and_attached(
    account: Account, volumes: Volumes
) -> None:
    planned = volumes.plan(config(BLOCK))
    assert "a disk of 10 GB (gp3, encrypted)" in planned.notes[0]
    entries, groups = volumes.ready(planned.volumes, account.vpc)
    assert groups == []
    assert account.called("CreateVolume") == [], "in which zone is not known yet"

    node = account.instance(OTHER_ZONE)
    (told,) = until_there(volumes, entries, account.place("", OTHER_ZONE), [node])
    (made,) = account.called("CreateVolume")
    assert made["AvailabilityZone"] == OTHER_ZONE
    assert (made["VolumeType"], made["Encrypted"], made["Size"]) == ("gp3", True, 10)
    (attached,) = account.called("AttachVolume")
    disk = attached["VolumeId"]
    assert told == {
        "name": "scratch",
        "path": "/data/v0",
        "interface": "block",
        "source": "/mnt/flowlite/scratch",
        "share": "disk",
        "serial": disk.replace("-", ""),
        "devices": ["/dev/sdf", "/dev/xvdf"],
        "size_bytes": 10 * 2**30,
        "filesystem": "ext4",
    }
    # It pins the next launch to its zone.
    account("ec2").terminate_instances(InstanceIds=[node])
    again = volumes.plan(config(BLOCK))
    assert again.zones == (OTHER_ZONE,)
    assert again.volumes[0]["id"] == disk


def test_a_disk_that_nobody_placed_is_where_instances_can_be(
    account: Account, volumes: Volumes
) -> None:
    assert volumes.create("scratch", 10, "block").region in account.subnets
    with pytest.raises(ConfigError, match="needs a size"):
        volumes.create("more", None, "block")


def test_a_disk_outlives_its_instance(account: Account, volumes: Volumes) -> None:
    entries, _ = volumes.ready(volumes.plan(config(BLOCK)).volumes, account.vpc)
    node = account.instance()
    until_there(volumes, entries, account.place(""), [node])
    mapping = account("ec2").describe_instances(InstanceIds=[node])["Reservations"][0]
    disk = next(
        each["Ebs"]
        for each in mapping["Instances"][0]["BlockDeviceMappings"]
        if each["DeviceName"] == "/dev/sdf"
    )
    assert disk["DeleteOnTermination"] is False


def test_a_disk_belongs_to_one_instance(account: Account, volumes: Volumes) -> None:
    entries, _ = volumes.ready(volumes.plan(config(BLOCK)).volumes, account.vpc)
    first = account.instance(**{"flowlite:task": "t-first"})
    until_there(volumes, entries, account.place(""), [first])
    second = account.instance()
    with pytest.raises(ProviderError, match=rf"the task t-first on {first}") as caught:
        volumes.attach(entries, account.place(""), [second], TASK)
    assert not isinstance(caught.value, LaunchPending)
    with pytest.raises(ConfigError, match="one node alone"):
        volumes.attach(entries, account.place(""), [first, second], TASK)
    # Before anything is launched, and so before money is spent: by the plan, and once more right before the launch.
    with pytest.raises(ConfigError, match=rf"volumes: .*the task t-first on {first}"):
        volumes.plan(config(BLOCK))
    with pytest.raises(ProviderError, match=rf"the task t-first on {first}"):
        volumes.check_free(entries, TASK)
    # EC2 may go on to call it running when the task itself has ended it, and launches anew.
    volumes.check_free(entries, "t-first")
    with pytest.raises(LaunchPending, match="which is ending"):
        volumes.attach(entries, account.place(""), [second], "t-first")
    # One that is ending will let go.
    account("ec2").terminate_instances(InstanceIds=[first])
    told = until_there(volumes, entries, account.place(""), [second])
    assert told[0]["devices"][0] == "/dev/sdf"


def test_disks_of_different_zones_do_not_go_together(account: Account, volumes: Volumes) -> None:
    volumes.create("scratch", 10, "block", [ZONE])
    volumes.create("more", 10, "block", [OTHER_ZONE])
    with pytest.raises(ConfigError, match=r"'scratch' is in us-east-1a, 'more' is in us-east-1b"):
        volumes.plan(
            config(
                {"name": "scratch", "interface": "block"}, {"name": "more", "interface": "block"}
            )
        )


def test_what_was_lost_on_the_way_is_asked_for_again_with_the_same_token(
    account: Account, volumes: Volumes, tmp_path: Path
) -> None:
    """A request for a disk is on this machine's disk before it is sent."""
    seen: list[str] = []

    def lose(**_: Any) -> None:
        (note,) = (tmp_path / "notes").glob("*.json")
        seen.append(json.loads(note.read_bytes())["token"])
        raise ConnectionResetError

    events = account("ec2").meta.events
    events.register("before-call.ec2.CreateVolume", lose, "loser")
    for _ in range(2):
        with pytest.raises(ConnectionResetError):
            volumes.create("scratch", 10, "block", [ZONE])
    events.unregister("before-call.ec2.CreateVolume", lose, "loser")
    volumes.create("scratch", 10, "block", [ZONE])
    tokens = {call["ClientToken"] for call in account.called("CreateVolume")}
    assert tokens == set(seen)
    assert len(tokens) == 1
    assert not list((tmp_path / "notes").glob("*.json"))


def test_a_file_system_that_is_being_deleted_is_not_taken_for_the_new_one(
    account: Account, volumes: Volumes
) -> None:
    """Its name is the token of the next one, which EFS refuses until it is gone."""
    made = volumes.create("data", None, "file")

    def going(parsed: dict[str, Any], **_: Any) -> None:
        for each in parsed["FileSystems"]:
            each["LifeCycleState"] = "deleting"

    def named(parsed: dict[str, Any], **_: Any) -> None:
        # EFS names the file system that has the token; moto does not.
        assert parsed["Error"]["Code"] == "FileSystemAlreadyExists"
        parsed["FileSystemId"] = made.location

    hooks = {"DescribeFileSystems": going, "CreateFileSystem": named}
    events = account("efs").meta.events
    for action, hook in hooks.items():
        events.register(f"after-call.efs.{action}", hook, action)
    try:
        with pytest.raises(LaunchPending, match="'data' of before is still being deleted"):
            volumes.create("data", None, "file")
        plan = volumes.plan(config({"name": "data", "size_gb": 10}))
        with pytest.raises(LaunchPending, match="'data' of before is still being deleted"):
            volumes.ready(plan.volumes, account.vpc)
    finally:
        for action, hook in hooks.items():
            events.unregister(f"after-call.efs.{action}", hook, action)
    volumes.delete("data")
    assert volumes.create("data", None, "file").location != made.location


def test_a_disk_that_is_not_listed_yet_is_not_made_again(
    account: Account, volumes: Volumes, tmp_path: Path
) -> None:
    """EC2 makes one disk for one token, and its listings lag."""
    entries, _ = volumes.ready(volumes.plan(config(BLOCK)).volumes, account.vpc)
    node = account.instance()

    def hide(parsed: dict[str, Any], **_: Any) -> None:
        parsed["Volumes"].clear()

    events = account("ec2").meta.events
    events.register("after-call.ec2.DescribeVolumes", hide, "hider")
    for _ in range(2):
        with pytest.raises(LaunchPending, match="is being made"):
            volumes.attach(entries, account.place(""), [node], TASK)
    events.unregister("after-call.ec2.DescribeVolumes", hide, "hider")
    first, second = account.called("CreateVolume")
    assert first == second
    # Once it is listed, the next one of that name is another disk.
    volumes.list()
    assert not list((tmp_path / "notes").glob("*.json"))


def test_a_disk_that_was_deleted_elsewhere_is_made_anew(
    account: Account, volumes: Volumes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """EC2 takes the token of a disk that is gone for no other one."""

    def hide(parsed: dict[str, Any], **_: Any) -> None:
        parsed["Volumes"].clear()

    events = account("ec2").meta.events
    events.register("after-call.ec2.DescribeVolumes", hide, "hider")
    first = volumes.create("scratch", 10, "block", [ZONE])
    events.unregister("after-call.ec2.DescribeVolumes", hide, "hider")
    account("ec2").delete_volume(VolumeId=first.location)
    began = clock.now()
    monkeypatch.setattr(clock, "now", lambda: began + 600.0)
    assert volumes.create("scratch", 10, "block", [ZONE]).location != first.location
    tokens = [call["ClientToken"] for call in account.called("CreateVolume")]
    assert len({*tokens}) == 2


# The shell's


def test_listing_says_size_users_and_place(account: Account, volumes: Volumes) -> None:
    disk = volumes.create("scratch", 10, "block", [ZONE])
    assert (disk.size_gb, disk.interface, disk.region) == (10, "block", ZONE)
    volumes.create("ckpt", 100, "file")
    names = tags_for(volumes.plan(config(FILE, BLOCK)).volumes)
    assert names == {VOLUMES_TAG: "ckpt scratch"}
    node = account.instance(**{"flowlite:task": "t-7"}, **names)
    listed = {each.name: each for each in volumes.list()}
    assert listed["ckpt"].used_by == (f"t-7 ({node})",)
    assert listed["ckpt"].used_bytes is not None
    assert listed["scratch"].used_by == (f"t-7 ({node})",)
    for name in ("ckpt", "scratch"):
        with pytest.raises(ProviderError, match=rf"used by t-7 \({node}\)"):
            volumes.delete(name)
    account("ec2").terminate_instances(InstanceIds=[node])
    for name in ("ckpt", "scratch"):
        volumes.delete(name)
    assert volumes.list() == []
    assert account("efs").describe_file_systems()["FileSystems"] == []
    with pytest.raises(NotFound):
        volumes.delete("ckpt")


def test_a_volume_that_a_task_names_by_its_id_is_in_use(account: Account, volumes: Volumes) -> None:
    made = volumes.create("ckpt", 100, "file")
    names = tags_for(volumes.plan(config({"name": made.location})).volumes)
    node = account.instance(**{"flowlite:task": "t-7"}, **names)
    assert volumes.list()[0].used_by == (f"t-7 ({node})",)
    for name in ("ckpt", made.location):
        with pytest.raises(ProviderError, match=rf"used by t-7 \({node}\)"):
            volumes.delete(name)


def test_a_file_system_has_cost_what_it_stored(
    account: Account, volumes: Volumes, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """36 GB for ten hours, then 72 GB for half an hour: 396 GB-hours, whatever is stored now."""
    volumes = Volumes(REGION, account, tmp_path / "notes", {}, prices=lambda kind: 0.3)
    volumes.create("ckpt", 100, "file")
    (made,) = volumes.list()
    assert (made.by_use, made.cost_so_far) == (True, None), "nothing was measured yet"
    hour = made.created_at // 3600 * 3600 + 3600
    for number in range(11):
        account("cloudwatch").put_metric_data(
            Namespace="AWS/EFS",
            MetricData=[
                {
                    "MetricName": "StorageBytes",
                    "Dimensions": [
                        {"Name": "FileSystemId", "Value": made.location},
                        {"Name": "StorageClass", "Value": "Total"},
                    ],
                    "Timestamp": datetime.fromtimestamp(hour + number * 3600 + minutes * 60, UTC),
                    "Value": float((36 if number < 10 else 72) << 30),
                }
                for minutes in (0, 15, 30, 45)
            ],
        )
    monkeypatch.setattr("flowlite.state.clock.wall", lambda: hour + 10.5 * 3600)
    (found,) = volumes.list()
    assert found.cost_so_far == pytest.approx(0.3 * 396 / 720)
    # Older than what CloudWatch keeps: no figure rather than one that is too small.
    monkeypatch.setattr("flowlite.state.clock.wall", lambda: hour + 456 * 86400.0)
    assert volumes.list()[0].cost_so_far is None


def test_without_the_right_to_measurements_there_is_no_past_bill(
    account: Account, tmp_path: Path
) -> None:
    from botocore.exceptions import ClientError

    def refuse(**_: Any) -> None:
        said = {"Code": "AccessDenied", "Message": "no"}
        raise ClientError({"Error": said}, "GetMetricStatistics")

    volumes = Volumes(REGION, account, tmp_path / "notes", {}, prices=lambda kind: 0.3)
    volumes.create("ckpt", 100, "file")
    account.on("cloudwatch", "before-call.cloudwatch.GetMetricStatistics", refuse)
    assert [each.cost_so_far for each in volumes.list()] == [None]


def test_an_attached_disk_is_not_deleted(account: Account, volumes: Volumes) -> None:
    entries, _ = volumes.ready(volumes.plan(config(BLOCK)).volumes, account.vpc)
    node = account.instance()
    until_there(volumes, entries, account.place(""), [node])
    with pytest.raises(ProviderError, match=f"used by {node}"):
        volumes.delete("scratch")


def test_mount_targets_go_before_their_file_system(account: Account, volumes: Volumes) -> None:
    entries, (group,) = volumes.ready(volumes.plan(config(FILE)).volumes, account.vpc)
    until_there(volumes, entries, account.place(group), [account.instance()])
    volumes.delete("ckpt")
    assert account("efs").describe_file_systems()["FileSystems"] == []


def test_a_mount_target_that_is_gone_is_not_missed(account: Account, volumes: Volumes) -> None:
    """As when the answer of its deletion is lost, and boto3 repeats the call."""
    entries, (group,) = volumes.ready(volumes.plan(config(FILE)).volumes, account.vpc)
    until_there(volumes, entries, account.place(group), [account.instance()])
    obeyed: list[str] = []

    def lose(params: dict[str, Any], **_: Any) -> None:
        (target,) = account("efs").describe_mount_targets(
            FileSystemId=account("efs").describe_file_systems()["FileSystems"][0]["FileSystemId"]
        )["MountTargets"]
        if not obeyed:
            obeyed.append(target["MountTargetId"])
            account("efs").delete_mount_target(MountTargetId=target["MountTargetId"])

    account.on("efs", "before-call.efs.DeleteMountTarget", lose)
    volumes.delete("ckpt")
    assert obeyed
    assert account("efs").describe_file_systems()["FileSystems"] == []


def test_a_missing_right_is_named(account: Account, volumes: Volumes) -> None:
    from botocore.exceptions import ClientError

    def refuse(**_: Any) -> None:
        said = {"Code": "AccessDeniedException", "Message": "no"}
        raise ClientError({"Error": said}, "CreateFileSystem")

    account.on("efs", "before-call.efs.CreateFileSystem", refuse)
    with pytest.raises(ProviderError, match="elasticfilesystem:CreateFileSystem"):
        volumes.create("ckpt", 1, "file")
