"""What goes wrong with the box's EC2 on order."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError, ConnectionClosedError, ReadTimeoutError

from flowlite.testing.cloud import CloudInABox
from tests.helpers import eventually
from tests.testing_cloud.ec2_client import client, in_state, launch, refused, state

# These test the box itself, through a client that repeats nothing.
pytestmark = [pytest.mark.needs("hosts"), pytest.mark.no_random_faults]
KEY = "AKIAFLOWLITEINTHEBOX"
LAUNCHER = """
from tests.testing_cloud.ec2_client import client, launch
print(launch(client(), ClientToken="t", UserData="#!/bin/sh"))
"""


def launcher() -> subprocess.Popen[str]:
    """A process that launches one instance."""
    return subprocess.Popen([sys.executable, "-c", LAUNCHER], stdout=subprocess.PIPE, text=True)


def test_an_error_before_the_effect(box: CloudInABox, ec2: Any) -> None:
    box.aws.fault("RunInstances", code="InternalError")
    with refused("InternalError"):
        launch(ec2)
    assert box.aws.instances() == []
    launch(ec2)


def test_an_error_after_the_effect(box: CloudInABox, ec2: Any) -> None:
    box.aws.fault("RunInstances", code="ServiceUnavailable", when="after")
    with refused("ServiceUnavailable"):
        launch(ec2, ClientToken="t")
    (made,) = box.aws.instances()
    assert launch(ec2, ClientToken="t") == [made["id"]]


def test_no_reply_at_all(box: CloudInABox, ec2: Any) -> None:
    impatient = client(read_timeout=0.3)
    box.aws.fault("TerminateInstances", when="after", hang=10.0)
    ids = launch(ec2)
    with pytest.raises(ReadTimeoutError):
        impatient.terminate_instances(InstanceIds=ids)
    in_state(ec2, ids[0], "terminated")
    box.aws.fault("RunInstances", hang=0.01)
    with pytest.raises(ConnectionClosedError):
        launch(ec2)


def test_throttling_hits_whom_it_is_meant_for(box: CloudInABox, ec2: Any) -> None:
    box.aws.throttle(2, "DescribeInstances")
    ec2.describe_vpcs()
    for _ in range(2):
        with pytest.raises(ClientError, match="RequestLimitExceeded") as raised:
            ec2.describe_instances()
        assert raised.value.response["ResponseMetadata"]["HTTPStatusCode"] == 503
    ec2.describe_instances()


def test_faults_can_be_matched_and_cleared(box: CloudInABox, ec2: Any) -> None:
    in_b = {"AvailabilityZone": "us-east-1b"}
    wanted = {"Placement.AvailabilityZone": "us-east-1b"}
    box.aws.fault("RunInstances", code="InsufficientInstanceCapacity", match=wanted, times=-1)
    launch(ec2)
    for _ in range(2):
        with refused("InsufficientInstanceCapacity"):
            launch(ec2, Placement=in_b)
    box.aws.clear_faults()
    launch(ec2, Placement=in_b)
    with pytest.raises(RuntimeError, match="'before' or 'after'"):
        box.aws.fault("RunInstances", when="later")


def test_a_retry_later_header(box: CloudInABox, ec2: Any) -> None:
    box.aws.fault("DescribeInstances", code="RequestLimitExceeded", retry_after=7)
    with pytest.raises(ClientError) as raised:
        ec2.describe_instances()
    assert raised.value.response["ResponseMetadata"]["HTTPHeaders"]["retry-after"] == "7"


def test_listings_lag_behind(box: CloudInABox, ec2: Any) -> None:
    box.aws.lag(1.0)
    (id,) = launch(ec2, InstanceMarketOptions={"MarketType": "spot"})
    assert ec2.describe_instances()["Reservations"] == []
    assert ec2.describe_spot_instance_requests()["SpotInstanceRequests"] == []
    with refused(r"InvalidInstanceID.NotFound"):
        ec2.describe_instances(InstanceIds=[id])
    eventually(lambda: ec2.describe_instances()["Reservations"])
    in_state(ec2, id, "running")
    ec2.terminate_instances(InstanceIds=[id])
    assert state(ec2, id) == "running"
    in_state(ec2, id, "terminated")


def test_the_caller_is_killed_before_the_effect(box: CloudInABox) -> None:
    box.aws.kill_client("RunInstances")
    with launcher() as process:
        assert process.wait() == -9
    assert box.aws.instances() == []


def test_the_caller_is_killed_after_the_effect(box: CloudInABox, ec2: Any) -> None:
    box.aws.kill_client("RunInstances", "after")
    with launcher() as process:
        assert process.wait() == -9
    (made,) = box.aws.instances()
    assert launch(ec2, ClientToken="t", UserData="#!/bin/sh") == [made["id"]]


def test_somebody_else_is_killed(box: CloudInABox, ec2: Any) -> None:
    with subprocess.Popen(["sleep", "1000"]) as sleeper:
        box.aws.kill_client("DescribeVpcs", "after", sleeper.pid)
        ec2.describe_vpcs()
        assert sleeper.wait() == -9


def test_calls_are_noted(box: CloudInABox, ec2: Any) -> None:
    ids = launch(ec2, ClientToken="t")
    ec2.terminate_instances(InstanceIds=ids)
    actions = [action for action, _ in box.aws.calls]
    assert actions == ["RunInstances", "TerminateInstances"]
    parameters = box.aws.calls[0][1]
    assert (parameters["ClientToken"], parameters["Region"]) == ("t", "us-east-1")
    assert box.aws.calls[1][1]["InstanceId.1"] == ids[0]


def test_strangers_are_refused(box: CloudInABox) -> None:
    stranger = boto3.client("ec2", aws_access_key_id="AKIASTRANGER", aws_secret_access_key="x")
    with refused("AuthFailure"):
        stranger.describe_instances()
    wrong = boto3.client("ec2", aws_secret_access_key="x", aws_access_key_id=KEY)
    with refused("AuthFailure"):
        wrong.describe_instances()
    for service, call in (("sts", "get_caller_identity"), ("pricing", "describe_services")):
        with pytest.raises(ClientError):
            getattr(boto3.client(service, aws_secret_access_key="x", aws_access_key_id=KEY), call)()
    told = client("sts").get_caller_identity()
    assert told["Arn"] == "arn:aws:iam::123456789012:user/box"


def test_a_new_security_group_is_known_to_no_other_call_for_a_while(
    box: CloudInABox, ec2: Any
) -> None:
    vpc = ec2.describe_vpcs()["Vpcs"][0]["VpcId"]
    asked = {"GroupName": "new", "Description": "new", "VpcId": vpc}
    box.aws.timing(unknown=1000.0)
    group = ec2.create_security_group(**asked)["GroupId"]
    rule = {
        "IpProtocol": "tcp",
        "FromPort": 22,
        "ToPort": 22,
        "IpRanges": [{"CidrIp": "0.0.0.0/0"}],
    }
    with refused("InvalidGroup.NotFound"):
        ec2.authorize_security_group_ingress(GroupId=group, IpPermissions=[rule])
    with refused("InvalidGroup.NotFound"):
        ec2.authorize_security_group_egress(GroupId=group, IpPermissions=[rule])
    with refused("InvalidGroup.NotFound"):
        launch(ec2, SecurityGroupIds=[group])
    with refused("InvalidGroup.Duplicate"):
        ec2.create_security_group(**asked)
    filters = [{"Name": "group-name", "Values": ["new"]}]
    assert ec2.describe_security_groups(Filters=filters)["SecurityGroups"] == []
    box.aws.timing(unknown=0.0)
    ec2.authorize_security_group_ingress(GroupId=group, IpPermissions=[rule])
    assert len(ec2.describe_security_groups(Filters=filters)["SecurityGroups"]) == 1
