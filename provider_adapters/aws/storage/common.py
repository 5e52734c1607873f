"""What the kinds of volumes on EC2 have in common: their words, their tags, who uses them, what they cost."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from provider_adapters.aws.errors import code_of, explained

VOLUME_TAG = "flowlite:volume"
"""On what flowlite made: the name of the volume."""
VOLUMES_TAG = "flowlite:volumes"
"""On instances: the names of the volumes their task has mounted, with blanks between."""

GROUP_NAME = "flowlite-volumes"
"""The security group of mount targets, and of the instances that use them; one in each VPC, which stays."""

Clients = Callable[[str], Any]
"""Gives the boto3 client of a service ("ec2", "efs", "fsx", "pricing") in the region."""

_ALIVE = ("pending", "running", "shutting-down", "stopping", "stopped")
# What a service is called in policies, where boto3 calls it otherwise.
_PREFIXES = {"efs": "elasticfilesystem"}
_PRICE_FILTERS = {
    "AmazonEC2": {"productFamily": "Storage", "volumeApiName": "gp3"},
    "AmazonEFS": {"productFamily": "Storage", "storageClass": "General Purpose"},
}


@dataclass(frozen=True, slots=True)
class Place:
    """Where the instances of a launch are.

    Attributes:
        zone: Name of the availability zone.
        subnet: The one of the instances.
        group: Id of the security group that `Volumes.ready` gave, and that they have.
    """

    zone: str
    vpc: str
    subnet: str
    group: str


@dataclass(frozen=True, slots=True)
class Found:
    """What there is of one volume.

    Attributes:
        entry: {"kind", "id", ...}: more of what goes into the plan.
        note: A sentence for the user, or "".
        zone: The zone it is tied to, or "".
    """

    entry: dict[str, Any]
    note: str = ""
    zone: str = ""


class Answered(Exception):
    """AWS answered with an error that the caller reckoned with."""

    def __init__(self, code: str, response: Mapping[str, Any]) -> None:
        super().__init__(code)
        self.code = code
        self.response = response


class Service:
    """One service in the region, whose errors are ours.

    Args:
        name: As boto3 calls it.
    """

    def __init__(self, clients: Clients, name: str) -> None:
        self._clients = clients
        self._name = name

    def call(self, operation: str, *expected: str, **parameters: Any) -> Any:
        """Makes a call.

        Args:
            expected: Codes of errors that the caller reckons with.

        Raises:
            Answered: It is one of those.
            ProviderError: It is another.
        """
        from botocore import xform_name

        method = getattr(self._clients(self._name), xform_name(operation))
        with self._explained(operation, expected):
            return method(**parameters)

    def all(self, operation: str, key: str, **parameters: Any) -> list[dict[str, Any]]:
        """What a listing has under a key, over all its pages."""
        from botocore import xform_name

        pages = self._clients(self._name).get_paginator(xform_name(operation))
        with self._explained(operation, ()):
            return [each for page in pages.paginate(**parameters) for each in page[key]]

    @contextmanager
    def _explained(self, operation: str, expected: Sequence[str]) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            code = code_of(error)
            if code in expected:
                raise Answered(code, getattr(error, "response", {})) from error
            with explained(f"{_PREFIXES.get(self._name, self._name)}:{operation}"):
                raise


def tags_of(listed: Mapping[str, Any]) -> dict[str, str]:
    """The tags of something as AWS lists it."""
    return {tag["Key"]: tag["Value"] for tag in listed.get("Tags") or ()}


def as_tags(tags: Mapping[str, str]) -> list[dict[str, str]]:
    """Tags as AWS wants them."""
    return [{"Key": key, "Value": value} for key, value in tags.items()]


def named(listed: Iterable[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    """Those that are the volume of that name: made as such by flowlite or, if there is none, called so by somebody."""
    both = [(tags_of(each), each) for each in listed]
    ours = [each for tags, each in both if tags.get(VOLUME_TAG) == name]
    return ours or [each for tags, each in both if tags.get("Name") == name]


def users_of(ec2: Service) -> dict[str, list[str]]:
    """By the name of a volume: the tasks that have it mounted, and on which instances."""
    reservations = ec2.all(
        "DescribeInstances",
        "Reservations",
        Filters=[
            {"Name": "tag-key", "Values": [VOLUMES_TAG]},
            {"Name": "instance-state-name", "Values": list(_ALIVE)},
        ],
    )
    found: dict[str, list[str]] = {}
    for instance in (each for reservation in reservations for each in reservation["Instances"]):
        tags = tags_of(instance)
        who = f"{tags.get('flowlite:task', 'an instance')} ({instance['InstanceId']})"
        for name in tags.get(VOLUMES_TAG, "").split():
            found.setdefault(name, []).append(who)
    return found


def price_per_gb_month(pricing: Service, service: str, region: str) -> float | None:
    """US dollars for one GB in one month, as the price list says; None if it does not say."""
    fields = {**_PRICE_FILTERS[service], "regionCode": region}
    with suppress(Exception):  # A price that is not known keeps nobody from a listing.
        answer = pricing.call(
            "GetProducts",
            ServiceCode=service,
            Filters=[
                {"Type": "TERM_MATCH", "Field": key, "Value": value}
                for key, value in fields.items()
            ],
        )
        prices = [price for text in answer["PriceList"] for price in _monthly(json.loads(text))]
        return max(prices) if prices else None
    return None


def _monthly(product: Mapping[str, Any]) -> list[float]:
    """What a product of the price list costs per GB and month."""
    dimensions = [
        dimension
        for term in product.get("terms", {}).get("OnDemand", {}).values()
        for dimension in term.get("priceDimensions", {}).values()
        if dimension.get("unit") == "GB-Mo"
    ]
    return [price for each in dimensions if (price := float(each["pricePerUnit"].get("USD", 0)))]
