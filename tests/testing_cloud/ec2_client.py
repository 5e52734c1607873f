"""How tests ask the box's EC2: through boto3, which shares no code with it."""

from __future__ import annotations

import socket
from typing import Any

import boto3
import botocore.config
import pytest
from botocore.exceptions import ClientError

from flowlite.testing.cloud import CloudInABox
from tests.helpers import eventually

DEEP_LEARNING = (
    "/aws/service/deeplearning/ami/x86_64/base-oss-nvidia-driver-gpu-ubuntu-22.04/latest/ami-id"
)
TYPE = "g5.xlarge"
ZONE = "us-east-1a"


def client(service: str = "ec2", **options: Any) -> Any:
    """A client that repeats nothing by itself."""
    retries = {"total_max_attempts": options.pop("attempts", 1)}
    config = botocore.config.Config(retries=retries, **options)
    return boto3.client(service, config=config)


def launch(ec2: Any, count: int = 1, **more: Any) -> list[str]:
    """Runs instances; returns their ids."""
    asked = {
        "ImageId": f"resolve:ssm:{DEEP_LEARNING}",
        "InstanceType": TYPE,
        "MinCount": count,
        "MaxCount": count,
        "InstanceInitiatedShutdownBehavior": "terminate",
    }
    return [i["InstanceId"] for i in ec2.run_instances(**{**asked, **more})["Instances"]]


def open_ssh(ec2: Any) -> None:
    """Lets everybody into the instances that are launched without a group of their own."""
    (group,) = ec2.describe_security_groups(GroupNames=["default"])["SecurityGroups"]
    ec2.authorize_security_group_ingress(
        GroupId=group["GroupId"], IpProtocol="tcp", FromPort=22, ToPort=22, CidrIp="0.0.0.0/0"
    )


def refused(code: str) -> Any:
    """A context in which EC2 refuses with that code."""
    return pytest.raises(ClientError, match=rf"\({code}\)")


def show(ec2: Any, id: str) -> dict[str, Any]:
    """An instance as it is listed."""
    found: dict[str, Any] = ec2.describe_instances(InstanceIds=[id])["Reservations"][0][
        "Instances"
    ][0]
    return found


def state(ec2: Any, id: str) -> str:
    return str(show(ec2, id)["State"]["Name"])


def in_state(ec2: Any, id: str, wanted: str) -> dict[str, Any]:
    """Waits for a state; returns the instance."""
    eventually(lambda: state(ec2, id) == wanted)
    return show(ec2, id)


def truth(box: CloudInABox, id: str) -> dict[str, Any]:
    """The instance as the box knows it."""
    return next(i for i in box.aws.instances() if i["id"] == id)


def on_machine(box: CloudInABox, id: str, command: str) -> str:
    """What a command prints on an instance's machine."""
    return box.host(truth(box, id)).exec(["sh", "-c", command]).stdout.strip()


def metadata(box: CloudInABox, id: str, path: str) -> str:
    """What the metadata service says on an instance, by version 2 of its protocol."""
    base = "http://169.254.169.254/latest"
    ttl = "X-aws-ec2-metadata-token-ttl-seconds: 60"
    token = f'$(curl -s -X PUT {base}/api/token -H "{ttl}")'
    header = f'-H "X-aws-ec2-metadata-token: {token}"'
    return on_machine(box, id, f"curl -s -w '\\n%{{http_code}}' {header} {base}/meta-data/{path}")


def answers_on_22(address: str) -> bool:
    """Whether an SSH server is there."""
    try:
        with socket.create_connection((address, 22), 1) as connection:
            return connection.recv(64).startswith(b"SSH-2.0")
    except OSError:
        return False
