"""Quotas of vCPUs: one for each group of families, separately on demand and on spot."""

from __future__ import annotations

import re

from flowlite.errors import ProviderError, QuotaExceeded
from flowlite.node.quick_dataclass import dataclass
from provider_adapters.aws.service import Service
from provider_adapters.aws.session import Clients

_STANDARD = frozenset("acdhimrtz")


@dataclass(frozen=True, slots=True)
class Quota:
    """One quota of the account in a region, as shown in the Service Quotas console."""

    code: str
    name: str


_ON_DEMAND = {
    "p": Quota("L-417A185B", "Running On-Demand P instances"),
    "g": Quota("L-DB2E81BA", "Running On-Demand G and VT instances"),
    "": Quota("L-1216C47A", "Running On-Demand Standard (A, C, D, H, I, M, R, T, Z) instances"),
}
_SPOT = {
    "p": Quota("L-7212CCBC", "All P4, P3 and P2 Spot Instance Requests"),
    "p5": Quota("L-C4BD4855", "All P5 Spot Instance Requests"),
    "g": Quota("L-3819A6DF", "All G and VT Spot Instance Requests"),
    "": Quota("L-34B43A08", "All Standard (A, C, D, H, I, M, R, T, Z) Spot Instance Requests"),
}


def quota_of(instance_type: str, spot: bool) -> Quota | None:
    """The quota that a type counts against; None if not known."""
    found = re.match(r"([a-z]+)(\d+)", instance_type)
    if found is None:
        return None
    letters, number = found[1], int(found[2])
    if letters == "p" and spot:
        # It is not documented against which quota newer families count on spot.
        return _SPOT["p5" if number == 5 else "p"] if number <= 5 else None
    table = _SPOT if spot else _ON_DEMAND
    if letters in ("p", "g", "vt"):
        return table["p" if letters == "p" else "g"]
    return table[""] if letters[0] in _STANDARD and len(letters) == 1 else None


def allowed(clients: Clients, region: str, quota: Quota) -> float | None:
    """The vCPUs that the account may have; None if AWS does not say."""
    try:
        told = Service.of(clients, "service-quotas", region).call(
            "GetServiceQuota", ServiceCode="ec2", QuotaCode=quota.code
        )
        return float(told["Quota"]["Value"])
    except (ProviderError, KeyError):
        # The launch itself will show whether it suffices.
        return None


def check(
    clients: Clients, region: str, instance_type: str, spot: bool, count: int, vcpus: int
) -> int | None:
    """How many machines of a type the quota allows at most, all others of its group included; None if not known.

    Raises:
        QuotaExceeded: It can never allow `count` of them.
    """
    quota = quota_of(instance_type, spot)
    if quota is None:
        return None
    value = allowed(clients, region, quota)
    if value is None:
        return None
    if value < count * vcpus:
        raise QuotaExceeded(
            f"{count} × {instance_type} are {count * vcpus} vCPUs, and the account may have {value:g} in {region}: "
            f"quota {quota.code} ({quota.name}). Ask for more in the Service Quotas console, or with: aws "
            f"service-quotas request-service-quota-increase --service-code ec2 --quota-code {quota.code} --region "
            f"{region} --desired-value {count * vcpus}"
        )
    return int(value // vcpus)


def advice(instance_type: str, spot: bool, count: int, vcpus: int, region: str) -> str:
    """Which increase to request once EC2 has refused because of its quota."""
    quota = quota_of(instance_type, spot)
    need = f"{count} × {instance_type} are {count * vcpus} vCPUs"
    if quota is None:
        return f"{need}; ask for more in the Service Quotas console, service EC2"
    return (
        f"{need}; they count against quota {quota.code} ({quota.name}) of {region}, with all else that runs there. Ask "
        "for more in the Service Quotas console"
    )
