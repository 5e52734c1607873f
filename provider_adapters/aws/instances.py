"""Converts EC2's entries of instances to `Instance`."""

from __future__ import annotations

import calendar
import dataclasses
import re
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

from flowlite.provider import Instance
from provider_adapters.aws import requests
from provider_adapters.aws.context import DEADLINE, EXTRAS, HOME, OWNER, PRICE, TASK, TOKEN
from provider_adapters.aws.pages import MOST_INSTANCES, endless
from provider_adapters.rented.ledger import Call

_STATES = {
    "pending": "starting",
    "running": "running",
    "terminated": "ended",
}
LEAST_SECONDS = 60.0
"""Minimum seconds: EC2 charges each instance, its disk and its address by the second, and for a minute at least (EC2
pricing pages).
"""
_TAKEN_AWAY = frozenset({"Server.SpotInstanceTermination", "Server.SpotInstanceShutdown"})
_WHEN = re.compile(r"\((\d{4}-\d\d-\d\d \d\d:\d\d:\d\d) (?:GMT|UTC)\)")


def read(told: Mapping[str, Any], region: str, account: str = "") -> Instance:
    """Reads one entry of DescribeInstances or RunInstances.

    Args:
        account: The account that has the instance.
    """
    tags = requests.of_tags(told)
    ec2_state = str(told.get("State", {}).get("Name", "pending"))
    reason = told.get("StateReason") or {}
    transition = str(told.get("StateTransitionReason") or "")
    going = ec2_state not in ("pending", "running")
    launched = told.get("LaunchTime")
    price = 0.0
    with suppress(ValueError):
        price = float(tags.get(PRICE, 0.0))
    return Instance(
        id=str(told["InstanceId"]),
        task_id=tags.get(TASK, ""),
        state=_STATES.get(ec2_state, "ending"),
        address=str(told.get("PrivateIpAddress") or ""),
        price_per_hour=price,
        extras_per_hour=_number(tags.get(EXTRAS, "")) or 0.0,
        least_seconds=LEAST_SECONDS,
        ends_by=_number(tags.get(DEADLINE, "")) or 0.0,
        launched_at=launched.timestamp() if launched is not None else 0.0,
        data={
            "region": region,
            "zone": str(told.get("Placement", {}).get("AvailabilityZone", "")),
            "type": str(told.get("InstanceType", "")),
            "public": str(told.get("PublicIpAddress") or ""),
            "spot_request": str(told.get("SpotInstanceRequestId") or ""),
            "token": tags.get(TOKEN, ""),
            "home": tags.get(HOME, ""),
            "account": account,
            "owner": tags.get(OWNER, ""),
            "deadline": _number(tags.get(DEADLINE, "")),
            "ec2_state": ec2_state,
            "code": str(reason.get("Code", "")) if going else "",
        },
        ended_at=_time_in(transition) if going else 0.0,
        why=str(reason.get("Message") or transition) if going else "",
        preempted=going and str(reason.get("Code", "")) in _TAKEN_AWAY,
        launch=tags.get(TOKEN, ""),
    )


def of_reservations(pages: Iterable[Mapping[str, Any]], region: str) -> list[Instance]:
    """All instances in the pages of DescribeInstances. Raises NoAnswer if they are more than any account has."""
    found: list[Instance] = []
    for page in pages:
        listed = ((each, one) for each in page["Reservations"] for one in each["Instances"])
        for reservation, told in listed:
            if len(found) == MOST_INSTANCES:
                raise endless(
                    "describe_instances", f"after {MOST_INSTANCES:,} instances there are more"
                )
            found.append(read(told, region, str(reservation.get("OwnerId", ""))))
    return found


def charged(instance: Instance, call: Call) -> Instance:
    """An instance with the figures of its cost, and its end if it has ended by itself."""
    return dataclasses.replace(
        instance,
        extras_per_hour=float(call.parameters["extras"]),
        least_seconds=LEAST_SECONDS,
        ends_by=ends_by(call),
    )


def ends_by(call: Call) -> float:
    """The Unix time by which the machines of a call have ended by themselves; 0 for no limit."""
    return _number(str(call.parameters["deadline"])) or 0.0


def _time_in(text: str) -> float:
    """The Unix time in `User initiated (2026-11-21 18:52:08 GMT)`; 0 if there is none."""
    found = _WHEN.search(text)
    if found is None:
        return 0.0
    return float(calendar.timegm(time.strptime(found[1], "%Y-%m-%d %H:%M:%S")))


def _number(text: str) -> float | None:
    with suppress(ValueError):
        return float(text)
    return None
