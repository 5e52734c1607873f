"""moto's instance, changed so that a terminated one has no address and no interfaces."""

from __future__ import annotations

from typing import Any

from moto.ec2.models import instances
from moto.ec2.models.elastic_network_interfaces import NetworkInterface
from moto.ec2.models.instances import Instance

from flowlite.testing.cloud.timers import utc_now


class RentedInstance(Instance):
    """An instance that runs on a machine.

    Attributes:
        spot_instance_request_id: The id of its spot request, if any.
        capacity_reservation_id: The id of its capacity reservation, if any.
        gone: Whether it is terminated.
    """

    def __init__(self, *arguments: Any, **named: Any) -> None:
        self.spot_instance_request_id: str | None = None
        self.capacity_reservation_id: str | None = None
        self.gone = False
        super().__init__(*arguments, **named)
        self.launch_time = utc_now().replace(tzinfo=None)

    @property
    def network_interfaces(self) -> list[NetworkInterface]:
        return [] if self.gone else super().network_interfaces

    @property
    def private_ip(self) -> str | None:
        return None if self.gone else super().private_ip

    @property
    def private_ip_address(self) -> str | None:
        return self.private_ip

    @property
    def private_dns_name(self) -> str:
        return "" if self.gone else super().private_dns_name

    @property
    def public_ip(self) -> str | None:
        return None if self.gone else super().public_ip

    @property
    def public_ip_address(self) -> str | None:
        return self.public_ip

    @property
    def vpc_id(self) -> str | None:
        return None if self.gone else super().vpc_id

    @property
    def subnet_id(self) -> str | None:
        # moto calls this from the constructor as well.
        return None if self.gone else super().subnet_id


def install() -> None:
    """Replaces moto's class."""
    instances.Instance = RentedInstance  # type: ignore[misc]
