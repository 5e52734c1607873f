"""The image that machines boot: looked up by name, then pinned by its id."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flowlite.errors import ConfigError
from provider_adapters.aws.catalog.instance_types import Machine
from provider_adapters.aws.catalog.regions import Catalog
from provider_adapters.aws.service import Service
from provider_adapters.aws.session import Clients
from provider_adapters.aws.settings import AwsSettings

# Images with the driver, EFA, Docker and the container toolkit; Python 3.12.
_GPU = "/aws/service/deeplearning/ami/{arch}/base-oss-nvidia-driver-gpu-ubuntu-24.04/latest/ami-id"
_CPU = "/aws/service/canonical/ubuntu/server/24.04/stable/current/{arch}/hvm/ebs-gp3/ami-id"
_ROOM_GB = 100
_FREE = "Linux/UNIX"
_SECONDS = 21600.0
# The open driver does not support GPUs before Turing.
_TOO_OLD = frozenset({"v100", "p100", "k80", "m60"})


def parameter_for(machine: Machine, settings: AwsSettings) -> str:
    """The SSM parameter that names the image. Raises ConfigError."""
    if settings.ami_parameter:
        return settings.ami_parameter
    if machine.gpu in _TOO_OLD:
        raise ConfigError(
            f"{machine.name}: the driver of AWS's images does not know a {machine.gpu.upper()}; set [aws] ami or "
            "ami_parameter to an image with an older driver"
        )
    if machine.accelerated:
        return _GPU.format(arch=machine.arch)
    return _CPU.format(arch={"x86_64": "amd64"}.get(machine.arch, machine.arch))


def find_image(
    catalog: Catalog, clients: Clients, settings: AwsSettings, machine: Machine
) -> dict[str, Any]:
    """The image for a machine: {"id", "name", "arch", "root_device", "least_gb", "root_gb", "disks", "software"}.

    "disks" has the sizes in GB of its other disks, by the name of the device. "software" is what is charged for
    beside the machine, "" for nothing.

    Raises:
        ProviderError: It cannot be looked up.
        ConfigError: It does not fit the machine.
    """
    key = settings.ami or parameter_for(machine, settings)
    image = catalog.remembered(
        f"image {key}",
        _SECONDS,
        lambda: _look_up(clients, catalog.region, settings.ami, key),
    )
    if image["arch"] != machine.arch:
        raise ConfigError(
            f"the image {image['id']} is for {image['arch']}, and {machine.name} has {machine.arch}; correct [aws] "
            f"{'ami' if settings.ami else 'ami_parameter'}"
        )
    least = int(image["least_gb"])
    size = (
        settings.root_gb if settings.root_gb is not None else max(_ROOM_GB, least + _ROOM_GB // 2)
    )
    if size < least:
        raise ConfigError(f"[aws] root_gb is {size}, and the image {image['id']} needs {least}")
    return {**image, "root_gb": size}


def _look_up(clients: Clients, region: str, ami: str, parameter: str) -> dict[str, Any]:
    name = ami
    if not name:
        ssm = Service(lambda name: clients(name, region), "ssm", f"{region}, {parameter}")
        told = ssm.call("GetParameter", Name=parameter)
        name = str(told["Parameter"]["Value"])
    images = Service.of(clients, "ec2", region).call("DescribeImages", ImageIds=[name])["Images"]
    if not images:
        raise ConfigError(f"the image {name} does not exist in {region}; correct [aws] ami")
    image = images[0]
    root = str(image.get("RootDeviceName") or "/dev/sda1")
    disks = {
        each.get("DeviceName"): each.get("Ebs", {}) for each in image.get("BlockDeviceMappings", ())
    }
    return {
        "id": name,
        "name": str(image.get("Name", "")),
        "arch": str(image.get("Architecture", "x86_64")),
        "root_device": root,
        "least_gb": int(disks.get(root, {}).get("VolumeSize") or 8),
        "disks": {
            str(name): int(disk.get("VolumeSize") or 0)
            for name, disk in disks.items()
            if disk and name != root
        },
        "software": _software(image),
    }


def _software(image: Mapping[str, Any]) -> str:
    """The software of an image that is charged for by the hour, as far as AWS tells it."""
    sold = [
        str(each["ProductCodeId"])
        for each in image.get("ProductCodes") or ()
        if each.get("ProductCodeType") == "marketplace"
    ]
    platform = str(image.get("PlatformDetails") or _FREE)
    return ", ".join([*([] if platform == _FREE else [platform]), *sold])
