"""The images of the box: plain Ubuntu and AWS's Deep Learning AMI, with the SSM parameters that name them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from moto.ec2.models import ec2_backends
from moto.ec2.models.amis import Ami

from flowlite.testing.cloud.ec2.names import ACCOUNT, new_id

AMAZON, CANONICAL = "898082745236", "099720109477"
_DL = "/aws/service/deeplearning/ami"
_UBUNTU = "/aws/service/canonical/ubuntu/server"
_BORN = datetime(2025, 11, 1, 7, 0, tzinfo=UTC)
USER = "ubuntu"


@dataclass(frozen=True)
class Image:
    """One image, which has a different id in each region."""

    parameter: str
    name: str
    owner: str
    architecture: str
    size: int

    def id_in(self, region: str) -> str:
        """The image's id in a region."""
        return "ami-" + hashlib.sha256(f"{region}/{self.parameter}".encode()).hexdigest()[:17]


class _Ami(Ami):
    """moto's image, with a root disk of the real size, and the other disks of the machine that it was made from."""

    def __init__(
        self, size: int, *arguments: Any, others: Mapping[str, int] | None = None, **named: Any
    ) -> None:
        self.sizes = {named["root_device_name"]: size, **(others or {})}
        self.platform_details = "Linux/UNIX"
        super().__init__(*arguments, **named)

    @property
    def block_device_mappings(self) -> list[dict[str, Any]]:
        return [
            {
                "DeviceName": device,
                "Ebs": {
                    "SnapshotId": self.ebs_snapshot.id,
                    "VolumeSize": size,
                    # Disks that are attached to a machine that runs stay unless that is changed, and so in its image.
                    "DeleteOnTermination": device == self.root_device_name,
                    "VolumeType": "gp3",
                    "Encrypted": False,
                },
            }
            for device, size in self.sizes.items()
        ]


def _images() -> list[Image]:
    found = []
    for machine, short in (("x86_64", "amd64"), ("arm64", "arm64")):
        for release in ("22.04", "24.04"):
            kind = f"base-oss-nvidia-driver-gpu-ubuntu-{release}"
            title = f"Deep Learning Base OSS Nvidia Driver GPU AMI (Ubuntu {release}) 20251101"
            found.append(Image(f"{_DL}/{machine}/{kind}/latest/ami-id", title, AMAZON, machine, 75))
            disk = "ebs-gp2" if release == "22.04" else "ebs-gp3"
            path = f"{_UBUNTU}/{release}/stable/current/{short}/hvm/{disk}/ami-id"
            name = f"ubuntu/images/hvm-ssd/ubuntu-{release}-{short}-server-20251101"
            found.append(Image(path, name, CANONICAL, machine, 8))
        kind = "oss-nvidia-driver-gpu-pytorch-2.7-ubuntu-22.04"
        title = "Deep Learning OSS Nvidia Driver AMI GPU PyTorch 2.7 (Ubuntu 22.04) 20251101"
        found.append(Image(f"{_DL}/{machine}/{kind}/latest/ami-id", title, AMAZON, machine, 100))
    return found


IMAGES = _images()


def parameter(name: str, region: str) -> str | None:
    """The value of a public SSM parameter of AWS, such as an image's id."""
    return next((image.id_in(region) for image in IMAGES if image.parameter == name), None)


def install(region: str) -> None:
    """Replaces moto's images in a region. Idempotent."""
    backend = ec2_backends[ACCOUNT][region]
    if IMAGES[0].id_in(region) in backend.amis:
        return
    backend.amis.clear()
    for image in IMAGES:
        ami = _ami(region, image.id_in(region), image)
        backend.amis[ami.id] = ami


def make(region: str, disks: Mapping[str, int], platform: str) -> str:
    """An image of the account's own, made from a machine with more disks, or with software that is charged for."""
    install(region)
    ubuntu = next(each for each in IMAGES if each.owner == CANONICAL)
    image = replace(ubuntu, name=f"ours {new_id('image')}", owner=ACCOUNT)
    ami = _ami(region, new_id("ami"), image, disks)
    ami.platform_details = platform
    ec2_backends[ACCOUNT][region].amis[ami.id] = ami
    return str(ami.id)


def _ami(region: str, id: str, image: Image, others: Mapping[str, int] | None = None) -> _Ami:
    return _Ami(
        image.size,
        ec2_backends[ACCOUNT][region],
        id,
        others=others,
        name=image.name,
        description=image.name,
        owner_id=image.owner,
        owner_alias="amazon",
        public=True,
        virtualization_type="hvm",
        architecture=image.architecture,
        creation_date=_BORN,
        hypervisor="xen",
        root_device_type="ebs",
        root_device_name="/dev/sda1",
        region_name=region,
    )
