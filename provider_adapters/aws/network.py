"""The network of nodes: subnets, the networks that may log in, and the groups of a task."""

from __future__ import annotations

import ipaddress
import socket
import urllib.parse
import urllib.request
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from flowlite.errors import ConfigError, FlowError, PermissionRefused, ProviderError
from flowlite.state import clock
from provider_adapters.aws import requests
from provider_adapters.aws.context import TASK, Context
from provider_adapters.aws.errors import NoAnswer, NotKnownYet, code_of
from provider_adapters.aws.service import Answered, Service
from provider_adapters.aws.session import Clients
from provider_adapters.aws.settings import AwsSettings

CHECK_IP = "https://checkip.amazonaws.com"
_SECONDS = 5.0
# Never reached: connecting a datagram socket sends nothing.
_FAR_AWAY = ("198.51.100.1", 9)
_EVERYWHERE = "0.0.0.0/0"
_ADDRESS_EVERY_SECONDS = 20.0
_MOST_ADDRESSES = 20
_IN_USE = ("DependencyViolation", "InvalidPlacementGroup.InUse")
_GONE = ("InvalidGroup.NotFound", "InvalidPlacementGroup.Unknown")


def group_name(task: str) -> str:
    """The name of a task's security group, and of its placement group."""
    return f"flowlite-{task}"


# Subnets


def ask_subnets(clients: Clients, settings: AwsSettings, region: str) -> list[dict[str, str]]:
    """{"subnet", "zone", "vpc", "out", "tenancy"} of the subnets for nodes, one for each zone.

    "out" is the target of the default route: "internet" (an internet gateway, so public addresses work), "elsewhere" (a
    NAT gateway, a transit gateway, …), "nowhere", or "" if EC2 does not allow us to see it. "tenancy" is that of
    machines in the VPC, "dedicated" or "default", or "" likewise.

    Raises:
        ConfigError: There are none.
    """
    if settings.subnet:
        asked = requests.describe(subnet_id=settings.subnet)
    else:
        asked = requests.describe(default_for_az="true")
    told = Service.of(clients, "ec2", region).all("DescribeSubnets", "Subnets", **asked)
    if not told:
        what = (
            f"no subnet of [aws] subnet ({', '.join(settings.subnet)}) is in {region}"
            if settings.subnet
            else f"{region} has no default VPC with subnets"
        )
        raise ConfigError(
            f"{what}; set [aws] subnet to subnets of {region}, or make a default VPC: aws ec2 create-default-vpc "
            f"--region {region}"
        )
    usable = [each for each in told if not each.get("Ipv6Native")]
    if not usable:
        names = ", ".join(sorted(str(each["SubnetId"]) for each in told))
        raise ConfigError(
            f"[aws] subnet: {names} has no IPv4 addresses, by which nodes reach each other; take another subnet"
        )
    told = usable
    vpcs = {str(each["VpcId"]) for each in told}
    routes, tenancies = _routes_out(clients, region, vpcs), _tenancies(clients, region, vpcs)
    found: dict[str, dict[str, str]] = {}
    for each in sorted(told, key=lambda each: -int(each.get("AvailableIpAddressCount", 0))):
        zone = str(each["AvailabilityZone"])
        found.setdefault(
            zone,
            {
                "subnet": str(each["SubnetId"]),
                "zone": zone,
                "vpc": str(each["VpcId"]),
                "out": routes.get(str(each["SubnetId"]), routes.get(str(each["VpcId"]), "")),
                "tenancy": tenancies.get(str(each["VpcId"]), ""),
            },
        )
    return [found[zone] for zone in sorted(found)]


def _tenancies(clients: Clients, region: str, vpcs: Collection[str]) -> dict[str, str]:
    """The tenancy of machines by VPC. Dedicated ones cost more than the price list says of others."""
    # The permission to describe networks is not required for a launch.
    with suppress(PermissionRefused):
        told = Service.of(clients, "ec2", region).call("DescribeVpcs", VpcIds=sorted(vpcs))["Vpcs"]
        return {str(each["VpcId"]): str(each.get("InstanceTenancy", "")) for each in told}
    return {}


def _routes_out(clients: Clients, region: str, vpcs: Collection[str]) -> dict[str, str]:
    """The target of the default route, by subnet, and by VPC for subnets without a route table of their own."""
    found: dict[str, str] = {}
    # The permission to list routes is not required for a launch.
    with suppress(PermissionRefused):
        asked = requests.describe(vpc_id=sorted(vpcs))
        ec2 = Service.of(clients, "ec2", region)
        for table in ec2.all("DescribeRouteTables", "RouteTables", **asked):
            out = _way_out(table.get("Routes", ()))
            for association in table.get("Associations", ()):
                if association.get("Main"):
                    found[str(table["VpcId"])] = out
                elif association.get("SubnetId"):
                    found[str(association["SubnetId"])] = out
    return found


def _way_out(routes: Iterable[Mapping[str, Any]]) -> str:
    for route in routes:
        if route.get("DestinationCidrBlock") == _EVERYWHERE and route.get("State") != "blackhole":
            return "internet" if str(route.get("GatewayId", "")).startswith("igw-") else "elsewhere"
    return "nowhere"


# Access by SSH


def callers(clients: Clients, settings: AwsSettings, region: str, vpc: str) -> list[str]:
    """The networks that SSH is allowed from. Raises ProviderError.

    The setting `ssh_from`; otherwise, if nodes are reached by their private addresses, the network they are in;
    otherwise the address by which AWS sees this machine.
    """
    if settings.ssh_from:
        return list(settings.ssh_from)
    if settings.jump or not settings.public_ip:
        return _networks_of(clients, region, vpc)
    return [f"{own_address(clients.endpoint('ec2', region))}/32"]


def own_address(endpoint: str) -> str:
    """The address of this machine as the nodes will see it. Raises ProviderError."""
    host = urllib.parse.urlsplit(endpoint).hostname or ""
    if _is_near(host):
        # In a rehearsal no address is translated.
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe, suppress(OSError):
            probe.connect(_FAR_AWAY)
            return str(probe.getsockname()[0])
        return "127.0.0.1"
    # SSH connects directly to the nodes, so an HTTP proxy must not be used here either.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(CHECK_IP, timeout=_SECONDS) as answer:
            return str(ipaddress.IPv4Address(answer.read(64).decode().strip()))
    except (OSError, ValueError) as error:
        raise NoAnswer(
            f"the address from which this machine reaches the nodes is not known ({CHECK_IP}: {error}); set [aws] "
            "ssh_from, as in '203.0.113.7/32'",
            type(error).__name__,
        ) from error


def let_in_again(context: Context, tasks: Iterable[str]) -> None:
    """Allows SSH from the present address, too, if it is another one than at the launch. Never raises.

    A group has room for 60 rules, so that the oldest addresses go.
    """
    if context.settings.ssh_from or context.settings.jump or not context.settings.public_ip:
        return
    now = clock.monotonic()
    if now - context.own_address_at < _ADDRESS_EVERY_SECONDS:
        return
    context.own_address_at = now
    with suppress(FlowError):
        launches = [each for task in tasks for each in context.ledger.launches(task)]
        for launch in launches:
            groups = {k: dict(v) for k, v in launch.notes.get("groups", {}).items()}
            for region, here in groups.items():
                if launch.ended or not here.get("group"):
                    continue
                endpoint = context.clients.endpoint("ec2", region)
                address = f"{own_address(endpoint)}/32"
                if address not in here.get("networks", ()):
                    known = [*here.get("networks", ()), address]
                    admit(context.clients, region, here["group"], [address])
                    here["networks"] = known[-_MOST_ADDRESSES:]
                    context.ledger.note(launch.token, groups=groups)
                    if over := known[:-_MOST_ADDRESSES]:
                        shut_out(context.clients, region, here["group"], over)


def _is_near(host: str) -> bool:
    if host == "localhost":
        return True
    with suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return False


def _networks_of(clients: Clients, region: str, vpc: str) -> list[str]:
    told = Service.of(clients, "ec2", region).call("DescribeVpcs", VpcIds=[vpc])["Vpcs"]
    blocks = [
        each["CidrBlock"]
        for one in told
        for each in one.get("CidrBlockAssociationSet") or [{"CidrBlock": one["CidrBlock"]}]
    ]
    return list(dict.fromkeys(str(block) for block in blocks))


# Groups of a task


def ensure_group(
    clients: Clients,
    region: str,
    vpc: str,
    task: str,
    tags: Mapping[str, str],
    networks: Sequence[str],
) -> str:
    """The id of the task's security group in a VPC; creates it if missing.

    Raises:
        NotKnownYet: It was just created, and EC2 does not know it everywhere.
        ProviderError: It cannot be created.
    """
    ec2 = Service.of(clients, "ec2", region)
    name = group_name(task)
    made = requests.security_group(name, vpc, tags)
    try:
        told = ec2.call("CreateSecurityGroup", "InvalidGroup.Duplicate", **made)
        group = str(told["GroupId"])
    except Answered:
        group = _group_id(ec2, region, vpc, name)
    try:
        admit(clients, region, group, networks)
        _unless_there(ec2, "AuthorizeSecurityGroupEgress", requests.egress(group))
    except ProviderError as error:
        if error.__cause__ is None or code_of(error.__cause__) != "InvalidGroup.NotFound":
            raise
        raise NotKnownYet(
            f"the security group {name} is not known everywhere in {region}"
        ) from error
    return group


def admit(clients: Clients, region: str, group: str, networks: Sequence[str]) -> None:
    """Allows SSH from some networks, and all traffic between the nodes."""
    ec2, authorize = Service.of(clients, "ec2", region), "AuthorizeSecurityGroupIngress"
    wanted = requests.ingress(group, networks)
    if _unless_there(ec2, authorize, wanted):
        return
    # One of the rules existed, so that none was added.
    for each in wanted["IpPermissions"]:
        _unless_there(ec2, authorize, {"GroupId": group, "IpPermissions": [each]})


def shut_out(clients: Clients, region: str, group: str, networks: Sequence[str]) -> None:
    """Allows SSH from some networks no longer. Rules that are not there are no error."""
    with suppress(Answered):
        Service.of(clients, "ec2", region).call(
            "RevokeSecurityGroupIngress",
            "InvalidPermission.NotFound",
            GroupId=group,
            IpPermissions=requests.ssh(networks),
        )


def _unless_there(ec2: Service, operation: str, request: Mapping[str, Any]) -> bool:
    with suppress(Answered):
        ec2.call(operation, "InvalidPermission.Duplicate", **request)
        return True
    return False


def _group_id(ec2: Service, region: str, vpc: str, name: str) -> str:
    asked = requests.describe(group_name=name, vpc_id=vpc)
    told = ec2.call("DescribeSecurityGroups", **asked)["SecurityGroups"]
    if not told:
        raise NotKnownYet(f"the security group {name} is not listed in {region}")
    return str(told[0]["GroupId"])


def ensure_placement_group(
    clients: Clients, region: str, task: str, tags: Mapping[str, str]
) -> str:
    """The name of the task's cluster placement group; creates it if missing. Raises ProviderError."""
    name = group_name(task)
    ec2, made = Service.of(clients, "ec2", region), requests.placement_group(name, tags)
    with suppress(Answered):
        ec2.call("CreatePlacementGroup", "InvalidPlacementGroup.Duplicate", **made)
    return name


def made_groups(clients: Clients, region: str) -> list[tuple[str | None, dict[str, str]]]:
    """The groups with a task's tag in a region, with their tags: security groups by id, placement groups as None.

    Raises:
        ProviderError: EC2 does not answer or refuses.
    """
    ec2, tagged = Service.of(clients, "ec2", region), requests.describe(tag_key=TASK)
    groups = ec2.all("DescribeSecurityGroups", "SecurityGroups", **tagged)
    placed = ec2.call("DescribePlacementGroups", **tagged)["PlacementGroups"]
    found: list[tuple[str | None, dict[str, str]]] = [
        (str(each["GroupId"]), requests.of_tags(each)) for each in groups
    ]
    return found + [(None, requests.of_tags(each)) for each in placed]


def remove_groups(
    clients: Clients, region: str, group: str | None, placement_group: str | None
) -> bool:
    """Removes a task's groups unless they are still in use; returns whether they are gone."""
    ec2, gone = Service.of(clients, "ec2", region), True
    if group:
        gone = _remove(ec2, "DeleteSecurityGroup", GroupId=group)
    if placement_group:
        gone &= _remove(ec2, "DeletePlacementGroup", GroupName=placement_group)
    return gone


def _remove(ec2: Service, operation: str, **which: str) -> bool:
    try:
        ec2.call(operation, *_IN_USE, *_GONE, **which)
    except Answered as answer:
        return answer.code in _GONE
    return True
