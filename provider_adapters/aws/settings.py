"""The table `[aws]` of the configuration, parsed into checked values. Errors name the file and key."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import field, replace
from typing import Any

from flowlite.errors import ConfigError
from flowlite.node.quick_dataclass import dataclass
from flowlite.settings.parse import at_least, duration_seconds
from flowlite.settings.provider_settings import SSH_CONFIG_VARIABLE, ProviderSettings, read_table

REGION = re.compile(r"[a-z]{2}(?:-[a-z]+)+-\d")
PRICED_STORAGE = ("gp3", "efs")
"""Names in `[aws.prices]` that are no instance types: disks of EBS, and file systems of EFS."""
_TYPE = re.compile(r"[a-z][a-z0-9-]*\.[a-z0-9-]+")
ZONE = re.compile(rf"({REGION.pattern})[a-z]|({REGION.pattern})-[a-z]+-\d[a-z]")


@dataclass(frozen=True, slots=True)
class AwsSettings:
    """The settings of `[aws]`.

    Attributes:
        region: Regions to launch in, in this order; none for boto3's default.
        zones: The only availability zones to use, in this order; none for all.
        profile: Profile of AWS's own files; "" for boto3's default.
        ami: Image to boot instead of the default.
        ami_parameter: SSM parameter that names the image.
        subnet: Subnets to use, at most one for each zone; none for those of the default VPC.
        security_group: A security group of yours instead of one created for each task.
        root_gb: Size of the root disk in GB; None for enough for the image and 100 GB.
        instance_profile: Name or ARN of an instance profile; "" for none.
        placement_group: Name of a cluster placement group of yours; True creates one for each task, None does so if EFA
            is asked for, False never.
        capacity_reservation: Id of an On-Demand Capacity Reservation.
        capacity_block: Id of a Capacity Block.
        public_ip: Whether nodes get public addresses, by which they are reached.
        user: Login user.
        lease: Seconds after which a node without an agent ends itself.
        boot_timeout: Seconds until all nodes of a launch must answer.
        endpoint_url: URL for all services instead of AWS's.
        jump: A jump host on the way to the nodes, as in OpenSSH's ProxyJump.
        ssh_from: Networks that may log in; none for the address of this machine as AWS sees it.
        prices: US dollars per hour by instance type, which replace list prices; of storage, per GB and month.
        cny_per_usd: Yuan for a US dollar, for regions in China, whose prices are in yuan; None if it is not set.
        listing_lag: Seconds for which a new instance may be missing in a listing.
        shared_config_file: AWS's own configuration; "" for ~/.aws/config.
        shared_credentials_file: AWS's own file of credentials; "" for ~/.aws/credentials.
        ssh_config: OpenSSH configuration in which `jump` is looked up; "" for the usual one.
        lacking: Text to add to the error if there are no credentials.
    """

    region: tuple[str, ...] = ()
    zones: tuple[str, ...] = ()
    profile: str = ""
    ami: str = ""
    ami_parameter: str = ""
    subnet: tuple[str, ...] = ()
    security_group: str = ""
    root_gb: int | None = None
    instance_profile: str = ""
    placement_group: str | bool | None = None
    capacity_reservation: str = ""
    capacity_block: str = ""
    public_ip: bool = True
    user: str = "root"
    lease: float = 1800.0
    boot_timeout: float = 1200.0
    endpoint_url: str = ""
    jump: str = ""
    ssh_from: tuple[str, ...] = ()
    prices: Mapping[str, float] = field(default_factory=dict)
    cny_per_usd: float | None = None
    listing_lag: float = 300.0
    shared_config_file: str = ""
    shared_credentials_file: str = ""
    ssh_config: str = ""
    lacking: str = ""

    @classmethod
    def read(cls, settings: ProviderSettings) -> AwsSettings:
        """Parses and checks `[aws]`. Raises ConfigError."""
        values = read_table(settings.values, _READ, "[aws]", settings.origin_of)
        found = cls(**values, lacking=settings.lacking())
        if found.capacity_block and found.capacity_reservation:
            raise ConfigError("[aws] capacity_reservation and capacity_block exclude each other")
        return found

    def per_dollar(self, region: str) -> float:
        """The units of a region's currency for a US dollar. Raises ConfigError."""
        if currency(region) == "USD":
            return 1.0
        if self.cny_per_usd is None:
            raise ConfigError(
                f"the prices of {region} are in yuan, and flowlite's caps and costs in US dollars: set [aws] "
                "cny_per_usd, as in cny_per_usd = 7.1"
            )
        return self.cny_per_usd


def region_of_zone(zone: str) -> str:
    """The region that a zone is in; "" if it is no zone."""
    found = ZONE.fullmatch(zone)
    return (found[1] or found[2]) if found else ""


def is_local_zone(zone: str) -> bool:
    """Whether a zone is a Local Zone, near a city: "us-west-2-lax-1a"."""
    found = ZONE.fullmatch(zone)
    return found is not None and found[2] is not None


def zones_of(region: str, zones: Iterable[str]) -> list[str]:
    """Those of some zones that are in a region."""
    return [zone for zone in zones if region_of_zone(zone) == region]


def currency(region: str) -> str:
    """The currency of a region's prices, as named in price lists."""
    return "CNY" if region.startswith("cn-") else "USD"


def from_environment(found: ProviderSettings, environment: Mapping[str, str]) -> ProviderSettings:
    """The settings, completed from AWS's own environment variables where the files set nothing."""
    for key, names in _VARIABLES.items():
        # With keys in the environment, boto3 takes only the region from a profile.
        if key == "profile" and environment.get(KEY_VARIABLE):
            continue
        name = next((each for each in names if environment.get(each)), None)
        if name is not None and key not in found.values:
            found = found.with_value(key, environment[name], name)
    if environment.get(KEY_VARIABLE) and "profile" not in found.values:
        found = replace(found, credentials=f"{KEY_VARIABLE}, {SECRET_VARIABLE}")
    return found


def _text(what: str, pattern: str = r"[^\s]+") -> Callable[[object], str]:
    def read(value: object) -> str:
        if not isinstance(value, str) or not re.fullmatch(pattern, value):
            raise ValueError(what)
        return value

    return read


def _texts(what: str, pattern: str) -> Callable[[object], tuple[str, ...]]:
    one = _text(f"{what}, or a list of such", pattern)

    def read(value: object) -> tuple[str, ...]:
        listed = value if isinstance(value, list) else [value]
        return tuple(dict.fromkeys(one(each) for each in listed))

    return read


def _whole(value: object) -> int:
    if type(value) is not int or not 8 <= value <= 64_000:
        raise ValueError("a whole number of GB, 8 to 64000")
    return value


def _yes(value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError("true or false")
    return value


def _group(value: object) -> str | bool:
    return value if isinstance(value, bool) else _text("true, false, or a group's name")(value)


def _networks(value: object) -> tuple[str, ...]:
    try:
        listed = value if isinstance(value, list) else [value]
        return tuple(str(ipaddress.ip_network(str(each))) for each in listed)
    except ValueError:
        raise ValueError("networks, as in '203.0.113.7/32'") from None


def _prices(value: object) -> dict[str, float]:
    wrong = "dollars per hour by type, as in [aws.prices] with 'p5.48xlarge' = 55.04"
    if not isinstance(value, dict):
        raise ValueError(wrong)
    for price in value.values():
        if isinstance(price, bool) or not isinstance(price, int | float) or not 0 < price < 1e5:
            raise ValueError(wrong)
    for name in map(str, value):
        if name not in PRICED_STORAGE and not _TYPE.fullmatch(name):
            raise ValueError(
                f"{wrong}, and those of storage as {' and '.join(map(repr, PRICED_STORAGE))}; {name!r} is neither"
            )
    return {str(name): float(price) for name, price in value.items()}


def _rate(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0.01 < value < 1000:
        raise ValueError("a rate of exchange, as in 7.1")
    return float(value)


_READ: dict[str, Callable[[object], Any]] = {
    "region": _texts("a region, as in 'us-east-1'", REGION.pattern),
    "zones": _texts("a zone, as in 'us-east-1a'", r"[a-z0-9-]+[a-z]"),
    "profile": _text("the name of a profile", r"[^\n]+"),
    "ami": _text("the id of an image, as in 'ami-0123456789abcdef0'", r"ami-[0-9a-z]+"),
    "ami_parameter": _text("the name of an SSM parameter", r"/?[A-Za-z0-9_./-]+"),
    "subnet": _texts("the id of a subnet, as in 'subnet-0123abcd'", r"subnet-[0-9a-z]+"),
    "security_group": _text("the id of a security group, as in 'sg-0123abcd'", r"sg-[0-9a-z]+"),
    "root_gb": _whole,
    "instance_profile": _text("the name or ARN of an instance profile"),
    "placement_group": _group,
    "capacity_reservation": _text("an id, as in 'cr-0123abcd'", r"cr-[0-9a-z]+"),
    "capacity_block": _text("the id of its reservation, as in 'cr-0123abcd'", r"cr-[0-9a-z]+"),
    "public_ip": _yes,
    "user": _text("the name of a user", r"[a-z_][a-z0-9_-]*"),
    "lease": at_least(60),
    "boot_timeout": at_least(1),
    "endpoint_url": _text("an address, as in 'http://127.0.0.1:5000'", r"https?://[^\s]+"),
    "jump": _text("a host, as in 'ubuntu@bastion.example.com'"),
    "ssh_from": _networks,
    "prices": _prices,
    "cny_per_usd": _rate,
    "listing_lag": duration_seconds,
    "shared_config_file": _text("a path", r"[^\n]+"),
    "shared_credentials_file": _text("a path", r"[^\n]+"),
    "ssh_config": _text("a path", r"[^\n]+"),
}
# In the order in which boto3 reads them.
_VARIABLES = {
    "profile": ("AWS_DEFAULT_PROFILE", "AWS_PROFILE"),
    "region": ("AWS_DEFAULT_REGION",),
    "endpoint_url": ("AWS_ENDPOINT_URL",),
    "shared_config_file": ("AWS_CONFIG_FILE",),
    "shared_credentials_file": ("AWS_SHARED_CREDENTIALS_FILE",),
    "ssh_config": (SSH_CONFIG_VARIABLE,),
}
KEY_VARIABLE, SECRET_VARIABLE = "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"
