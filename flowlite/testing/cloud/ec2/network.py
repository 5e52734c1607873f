"""Network interfaces of instances, including EFA; placement groups and reservations; addresses of machines."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from moto.ec2.models import ec2_backends, elastic_network_interfaces
from moto.ec2.models.elastic_network_interfaces import NetworkInterface

from flowlite.testing.cloud.ec2.instance import RentedInstance
from flowlite.testing.cloud.ec2.names import ACCOUNT, Refusal
from flowlite.testing.cloud.machines import Machine

if TYPE_CHECKING:
    from flowlite.testing.cloud.ec2.cloud import Cloud, Reserved

EFA = ("efa", "efa-only")


class Attachment(elastic_network_interfaces.Attachment):
    """moto's attachment, with the network card of the interface."""

    def __init__(self, eni: NetworkInterface) -> None:
        super().__init__(eni)
        self.network_card_index = getattr(eni, "card", 0)


def install() -> None:
    """Replaces moto's class."""
    elastic_network_interfaces.Attachment = Attachment  # type: ignore[misc]


def open_default_vpc(region: str) -> None:
    """Gives a region's default VPC its internet gateway, which moto leaves out."""
    backend = ec2_backends[ACCOUNT][region]
    vpc = next((each for each in backend.vpcs.values() if each.is_default), None)
    if vpc is None or backend.internet_gateways:
        return
    gateway = backend.create_internet_gateway()
    backend.attach_internet_gateway(gateway.id, vpc.id)
    table = next(t for t in backend.route_tables.values() if t.vpc_id == vpc.id)
    backend.create_route(table.id, "0.0.0.0/0", gateway_id=gateway.id)


def check(call: Any) -> None:
    """Raises the refusals of EC2 for interfaces and placement."""
    nics = call._get_param("NetworkInterfaces", [])
    if nics and (call._get_param("SecurityGroupIds") or call._get_param("SecurityGroups")):
        raise Refusal(
            "InvalidParameterCombination",
            "Network interfaces and an instance-level security groups may not be specified on the same request",
        )
    if len(nics) > 1 and any(nic.get("AssociatePublicIpAddress") for nic in nics):
        raise Refusal(
            "InvalidParameterCombination",
            "The associatePublicIPAddress parameter cannot be specified when launching with multiple "
            "network interfaces.",
        )
    asked = [
        *call._get_param("SecurityGroupIds", []),
        *(g for nic in nics for g in nic.get("Groups", [])),
    ]
    check_known(call.cloud, asked)
    _check_efa(call, nics)
    _check_group(call)


def check_known(cloud: Cloud, groups: Iterable[str | None]) -> None:
    """Raises EC2's refusal for a security group that is too new."""
    for group in groups:
        if group and cloud.is_unknown(group):
            raise Refusal("InvalidGroup.NotFound", f"The security group '{group}' does not exist")


def _check_efa(call: Any, nics: list[dict[str, Any]]) -> None:
    wanted = [nic for nic in nics if nic.get("InterfaceType") in EFA]
    kind = call._get_param("InstanceType", "m1.small")
    found = call.ec2_backend.describe_instance_types([kind])
    info = found[0]["NetworkInfo"] if found else {}
    most = info.get("EfaInfo", {}).get("MaximumEfaInterfaces", 0)
    if wanted and not most:
        raise Refusal("InvalidParameterCombination", f"EFA interfaces are not supported on {kind}.")
    if len(wanted) > most:
        raise Refusal(
            "AttachmentLimitExceeded", f"{kind} supports {most} EFA interfaces, not {len(wanted)}."
        )
    cards = {int(card["NetworkCardIndex"]): card for card in info.get("NetworkCards", ())}
    for nic in nics:
        index, device = int(nic.get("NetworkCardIndex", 0)), int(nic.get("DeviceIndex", 0))
        kind_of_nic = nic.get("InterfaceType", "interface")
        if index not in cards and (index or cards):
            raise Refusal(
                "InvalidParameterValue", f"Network card index {index} is not supported on {kind}."
            )
        most = int(cards.get(index, {}).get("MaximumNetworkInterfaces", 2))
        if device >= most:
            raise Refusal(
                "InvalidParameterValue",
                f"The specified number '{device}' for the device index exceeds the maximum number of network "
                f"interfaces supported by the network card at network card index {index}. The maximum devices for "
                f"this network card is {most}.",
            )
        takes = cards.get(index, {}).get("InterfaceTypes", ("interface", *EFA))
        if kind_of_nic not in takes:
            raise Refusal(
                "InvalidParameterCombination",
                f"Network card {index} of {kind} does not support interfaces of type {kind_of_nic}.",
            )
        if kind_of_nic == "efa-only" and (index, device) == (0, 0):
            raise Refusal(
                "InvalidParameterCombination", "The primary interface cannot be of type efa-only."
            )
    if len({(nic.get("NetworkCardIndex", 0), nic.get("DeviceIndex", 0)) for nic in nics}) < len(
        nics
    ):
        raise Refusal(
            "InvalidParameterCombination",
            "Each network interface must have a device index of its own on its network card.",
        )


def _check_group(call: Any) -> None:
    name = call._get_param("Placement.GroupName")
    if not name:
        return
    if (call.region, name) not in call.cloud.groups:
        raise Refusal("InvalidPlacementGroup.Unknown", f"The Placement Group '{name}' is unknown.")
    kind = call._get_param("InstanceType", "m1.small")
    if kind.startswith(("t2.", "t3.", "t3a.", "t4g.")):
        raise Refusal(
            "InvalidParameterCombination",
            f"Cluster placement groups are not supported by the '{kind}' instance type.",
        )


def reserved(call: Any) -> Reserved | None:
    """The capacity reservation that the request names; None if it names none, or one that does not exist."""
    found: Reserved | None = call.cloud.reserved.get(_reserved_id(call))
    return found


def _reserved_id(call: Any) -> str | None:
    target = "CapacityReservationSpecification.CapacityReservationTarget.CapacityReservationId"
    found: str | None = call._get_param(target)
    return found


def reserved_left(call: Any, zone: str) -> int | None:
    """How many instances the request's capacity reservation has left; None if the request names none."""
    id, reservation = _reserved_id(call), reserved(call)
    if id is None:
        if call._get_param("InstanceMarketOptions.MarketType") == "capacity-block":
            raise Refusal(
                "InvalidParameterCombination",
                "A capacity block needs the id of its capacity reservation.",
            )
        return None
    if reservation is None:
        raise Refusal(
            "InvalidCapacityReservationId.NotFound",
            f"The capacity reservation ID '{id}' does not exist",
        )
    kind = call._get_param("InstanceType", "m1.small")
    if (reservation.kind, reservation.zone) != (kind, zone):
        raise Refusal(
            "InvalidParameterCombination",
            f"The capacity reservation '{id}' is for {reservation.kind} in {reservation.zone}.",
        )
    used = sum(
        getattr(life.instance, "capacity_reservation_id", None) == id
        for life in call.cloud.living(call.region)
    )
    left = int(reservation.total - used)
    if left < int(call._get_param("MinCount", 1)):
        raise Refusal(
            "ReservationCapacityExceeded",
            f"The capacity reservation '{id}' has {left} instances left.",
        )
    return left


@contextmanager
def numbered(call: Any) -> Iterator[list[dict[str, Any]]]:
    """Gives each interface of the request a unique device index, by which moto tells them apart."""
    asked = copy.deepcopy(call._get_param("NetworkInterfaces", []))
    if asked:
        asked.sort(key=lambda nic: (nic.get("NetworkCardIndex", 0), nic.get("DeviceIndex", 0)))
        own = [{**nic, "DeviceIndex": number} for number, nic in enumerate(asked)]
        call.params["NetworkInterfaces"] = own
    yield asked


def finish(call: Any, instance: RentedInstance, asked: list[dict[str, Any]]) -> None:
    """Sets what moto ignores about interfaces: type, card, tags and deletion on termination."""
    tags = call._parse_tag_specification().get("network-interface", {})
    for number, nic in instance.nics.items():
        wanted = asked[number] if asked else {}
        nic.device_index = int(wanted.get("DeviceIndex", 0))
        nic.card = int(wanted.get("NetworkCardIndex", 0))  # type: ignore[attr-defined]
        nic.interface_type = wanted.get("InterfaceType", "interface")
        nic.delete_on_termination = wanted.get("DeleteOnTermination", True) is True
        nic.add_tags(tags)
    if len(asked) > 1:
        # Only an instance with one interface gets a public address.
        for nic in instance.nics.values():
            nic.public_ip, nic.public_ip_auto_assign = None, False
    instance.capacity_reservation_id = _reserved_id(call)


def give_addresses(instance: RentedInstance, machine: Machine) -> None:
    """Gives the instance the addresses of its machine."""
    nic = instance.nics[0]
    nic.private_ip_address = machine.address
    nic.private_ip_addresses = [{"Primary": True, "PrivateIpAddress": machine.address}]
    nic.private_dns_name = instance.private_dns_name
    nic.public_ip_auto_assign = False
    if nic.public_ip is not None:
        nic.public_ip = machine.public_address
