"""The instance types, their regions, and their first prices.

A type has the same name in every region, but a different id.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from flowlite.testing.cloud.machines import Gpus
from flowlite.testing.cloud.mithril.forms import fixed_fid

REGIONS = ("us-central1-a", "us-central2-a", "us-central5-a", "eu-central1-a", "us-central1-b")
BLOCK_REGIONS = frozenset((*REGIONS[:3], "us-central1-b"))
# The vendor's client 0.1.0 has a default region and the ids of types built in.
VENDORS_REGION = "us-central1-b"
_VENDORS_IDS = {
    "h100-80gb.sxm.8x": "it_5ECSoHQjLBzrp5YM",
    "a100-80gb.sxm.1x": "it_MsIRhxj3ccyVWGfP",
    "a100-80gb.sxm.8x": "it_J7OyNf9idfImLIFo",
}
_DRIVER_NAMES = {"H100": "NVIDIA H100 80GB HBM3", "A100": "NVIDIA A100-SXM4-{memory}GB"}
IMAGE = fixed_fid("imgver", "ubuntu-22.04")


@dataclass(frozen=True)
class InstanceType:
    """One type in one region.

    Attributes:
        spot_cents: The first auction price of an instance-hour.
        least_cents: The lowest accepted limit price.
    """

    name: str
    region: str
    gpu: str
    gpus: int
    gpu_memory_gb: int
    socket: str
    cpus: int
    ram_gb: int
    disk_gb: int
    network: str | None
    spot_cents: int
    least_cents: int

    @property
    def fid(self) -> str:
        """The type's id in this region."""
        if self.region == VENDORS_REGION and self.name in _VENDORS_IDS:
            return _VENDORS_IDS[self.name]
        return fixed_fid("it", self.name, self.region)

    @property
    def cards(self) -> Gpus:
        """The GPUs, as the driver shows them."""
        named = _DRIVER_NAMES.get(self.gpu, "NVIDIA {gpu}")
        name = named.format(gpu=self.gpu, memory=self.gpu_memory_gb)
        return Gpus(name, self.gpus, self.gpu_memory_gb * 1024)

    def model(self) -> dict[str, Any]:
        """The type in the format of `GET /v2/instance-types`."""
        return {
            "fid": self.fid,
            "name": self.name,
            "num_cpus": self.cpus,
            "cpu_type": "Intel",
            "ram_gb": self.ram_gb,
            "num_gpus": self.gpus,
            "gpu_type": self.gpu,
            "gpu_memory_gb": self.gpu_memory_gb,
            "gpu_socket": self.socket,
            "local_storage_gb": self.disk_gb,
            "network_type": self.network,
            "ib_count": 8 if self.network else 0,
            "bridge_count": 4 if self.gpus == 8 else 0,
            "hourly_price": self.spot_cents / 100,
        }


# Name; GPU, count, memory, socket; CPUs, memory, disk; network; first price, minimum price (cents); regions.
_TYPES: tuple[tuple[Any, ...], ...] = (
    ("h100-80gb.sxm.8x", "H100", 8, 80, "SXM5", 192, 1800, 7800, "InfiniBand", 1600, 800, REGIONS),
    ("h100-80gb.sxm.1x", "H100", 1, 80, "SXM5", 24, 225, 900, None, 220, 100, REGIONS[1:3]),
    ("h200-141gb.sxm.8x", "H200", 8, 141, "SXM5", 192, 1800, 7800, "InfiniBand", 2400, 800, REGIONS[:1]),
    ("b200-180gb.sxm.8x", "B200", 8, 180, "SXM6", 224, 3800, 15000, "InfiniBand", 3600, 1600, REGIONS[3:4]),
    ("a100-80gb.sxm.8x", "A100", 8, 80, "SXM4", 96, 1700, 7000, "InfiniBand", 880, 400, (*REGIONS[:2], VENDORS_REGION)),
    ("a100-80gb.sxm.1x", "A100", 1, 80, "SXM4", 12, 200, 800, None, 120, 50, (*REGIONS[:1], VENDORS_REGION)),
)  # fmt: skip


def instance_types() -> Iterator[InstanceType]:
    """All types in all their regions."""
    for *facts, regions in _TYPES:
        for place, region in enumerate(regions):
            name, gpu, gpus, memory, socket, cpus, ram, disk, network, spot, least = facts
            # Prices differ between regions, so that one is the cheapest.
            dearer = spot + spot * 5 * place // 100
            yield InstanceType(
                name, region, gpu, gpus, memory, socket, cpus, ram, disk, network, dearer, least
            )


def region_model(name: str) -> dict[str, Any]:
    """A region in the API's format."""
    return {
        "id": str(uuid.uuid5(uuid.NAMESPACE_DNS, name)),
        "name": name,
        "block_storage_enabled": name in BLOCK_REGIONS,
        "fileshare_storage_enabled": True,
        "k8s_enabled": False,
        "max_volume_size_tb": 32,
        "max_volume_name_length": 64,
    }


def image_model() -> dict[str, Any]:
    """The only image."""
    return {
        "image_version_fid": IMAGE,
        "image_version_name": "ubuntu-22.04-1",
        "os": "Ubuntu 22.04",
        "kernel": "5.15",
        "stable": True,
        "supported_regions": list(REGIONS),
        "deactivated_at": None,
        "nvidia_driver": "570",
        "cuda": "12.8",
        "cuda_toolkit": "12.8",
        "nvidia_container_toolkit": "1.17",
        "packages": None,
    }
