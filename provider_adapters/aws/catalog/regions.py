"""The types, zones and prices of a region, cached in FLOW_HOME/aws/catalog."""

from __future__ import annotations

import functools
import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from flowlite.errors import ProviderError
from flowlite.node.system.atomic_files import place
from flowlite.settings.suggest import did_you_mean
from flowlite.state import clock
from provider_adapters.aws.catalog.instance_types import Machine, MachineRequirements
from provider_adapters.aws.service import Service
from provider_adapters.aws.session import Clients
from provider_adapters.aws.settings import PRICED_STORAGE, AwsSettings, currency

DAY = 86400.0
_TYPES_SECONDS, _OFFERED_SECONDS, _PRICE_SECONDS, _SPOT_SECONDS = 7 * DAY, DAY, DAY, 60.0
_HISTORY_SECONDS = 60.0
HOURS_PER_MONTH = 720.0
"""Hours of the month that EBS charges by: 30 days (EBS pricing page)."""
ADDRESS_PRICE = 0.005
"""US dollars per hour for a public IPv4 address, in all regions (VPC pricing page)."""
_DISK_PRICE = 0.08
"""US dollars per GB and month for gp3 in us-east-1 (EBS pricing page), if the price list does not have it."""
DISK, FILES = "disk", "files"
"""The kinds of storage with a price: gp3 disks of EBS, and file systems of EFS."""
# By kind: the service in the price list, and the attributes of its product there.
_STORAGE = {
    DISK: ("AmazonEC2", {"volumeApiName": "gp3"}),
    FILES: ("AmazonEFS", {"storageClass": "General Purpose"}),
}
_OWN_PRICE = dict(zip((DISK, FILES), PRICED_STORAGE, strict=True))
"""The keys of `[aws.prices]` for kinds of storage, in US dollars per GB and month."""
_GPU_FAMILIES = ("p*", "g*")
_CPU_FAMILIES = ("c*", "m*", "r*")
# The price list of a partition covers all its regions, but is served in few of them. GovCloud has none.
_PRICING = {"aws": "us-east-1", "aws-cn": "cn-northwest-1"}


class Catalog:
    """Types, zones and prices of one region."""

    def __init__(self, home: Path, clients: Clients, settings: AwsSettings, region: str) -> None:
        self.region = region
        self._clients = clients
        self._settings = settings
        self._path = home / "aws" / "catalog" / f"{region}-{_whose(settings)}.json"
        # By type and zone: when it was asked (monotonic), its start time, and the answer.
        self._histories: dict[tuple[str, str], tuple[float, float, list[tuple[float, float]]]] = {}

    def machines(self, wanted: MachineRequirements) -> list[Machine]:
        """All types that may meet the requirements: those with GPUs, or those without."""
        gpu = wanted.gpu is not None
        found = self.remembered(
            "gpus" if gpu else "cpus", _TYPES_SECONDS, lambda: self._ask_types(gpu)
        )
        return [Machine.from_json(each) for each in found]

    def zones(self, types: Sequence[str]) -> dict[str, list[str]]:
        """The zones that have each of these types."""
        return {
            k: list(v)
            for k, v in self._each("zones", _OFFERED_SECONDS, types, self._ask_zones).items()
        }

    def prices(self, types: Sequence[str]) -> dict[str, float]:
        """US dollars per hour on demand, of the types that have a price."""
        own = {name: self._settings.prices[name] for name in types if name in self._settings.prices}
        others = [name for name in types if name not in own]
        asked = self._each("prices", _PRICE_SECONDS, others, self._ask_prices) if others else {}
        return {name: float(price) for name, price in {**asked, **own}.items() if price}

    def spot_prices(self, types: Sequence[str]) -> dict[str, dict[str, float]]:
        """Present US dollars per hour on spot, by type and zone."""
        return dict(self._each("spot", _SPOT_SECONDS, types, self._ask_spot))

    def disk_price(self) -> float:
        """US dollars per GB and month for a gp3 disk; the price in us-east-1 if it is not known."""
        return self.storage_price(DISK) or _DISK_PRICE

    def notes_on_prices(self) -> list[str]:
        """What the user should know about the figures of this region."""
        notes = self._notes_on_unknown_types()
        if self.storage_price(DISK) is not None:
            return notes
        return [
            *notes,
            f"no price list has the disks of {self.region}: they are counted at ${_DISK_PRICE:.2f} per GB and month, "
            "as in us-east-1; set 'gp3' = … under [aws.prices]",
        ]

    def _notes_on_unknown_types(self) -> list[str]:
        """Prices of the settings without effect, since there is no such type. Makes no call.

        A family that is not known here may be sold in another region, and bare metal is not asked for.
        """
        parts = [self._parts.get(name, {}).get("value", ()) for name in ("gpus", "cpus")]
        known = [str(each["name"]) for part in parts for each in part]
        families = {name.partition(".")[0] for name in known}
        return [
            f"[aws.prices] has a price for {name!r}, and {self.region} has no such type; it has no effect"
            f"{did_you_mean(name, known)}"
            for name in self._settings.prices
            if name not in known and name.partition(".")[0] in families and ".metal" not in name
        ]

    def storage_price(self, kind: str) -> float | None:
        """US dollars per GB and month for `DISK` or `FILES`; None if neither settings nor the price list have it."""
        if (own := self._settings.prices.get(_OWN_PRICE[kind])) is not None:
            return own
        told = self.remembered(
            f"{kind} storage", _PRICE_SECONDS, lambda: self._ask_storage_price(kind)
        )
        return float(told) or None

    def spot_history(self, kind: str, zone: str, since: float) -> list[tuple[float, float]]:
        """The spot prices of a type in a zone since `since`, as (Unix time, US dollars per hour), in order of time.

        The first entry is the price at `since`. Cached for a minute only, since the price keeps changing.
        """
        known = self._histories.get((kind, zone))
        now = clock.monotonic()
        if known is None or known[1] > since or now - known[0] > _HISTORY_SECONDS:
            known = (now, since, self._ask_spot_history(kind, zone, since))
            self._histories[kind, zone] = known
        before = [price for moment, price in known[2] if moment <= since]
        after = [(moment, price) for moment, price in known[2] if moment > since]
        return [*((since, price) for price in before[-1:]), *after]

    # Caching

    def remembered(self, name: str, seconds: float, ask: Callable[[], Any]) -> Any:
        """A value that was asked at most `seconds` ago, or is asked now."""
        known = self._parts.get(name)
        if known is None or not 0 <= clock.wall() - known["at"] < seconds:
            known = {"at": clock.wall(), "value": ask()}
            self._parts[name] = known
            self._write()
        return known["value"]

    def _each(
        self,
        name: str,
        seconds: float,
        keys: Sequence[str],
        ask: Callable[[Sequence[str]], Mapping[str, Any]],
    ) -> dict[str, Any]:
        """The values of some keys; unknown ones are asked for in one call."""
        part = self._parts.setdefault(name, {})
        now = clock.wall()
        missing = [k for k in keys if k not in part or not 0 <= now - part[k]["at"] < seconds]
        if missing:
            told = ask(missing)
            part.update({key: {"at": now, "value": told.get(key)} for key in missing})
            self._write()
        return {key: part[key]["value"] for key in keys if part[key]["value"]}

    @functools.cached_property
    def _parts(self) -> dict[str, Any]:
        with suppress(OSError, ValueError):
            return dict(json.loads(self._path.read_bytes()))
        return {}

    def _write(self) -> None:
        with suppress(OSError):
            place(json.dumps(self._parts).encode(), str(self._path))

    # Queries

    def _ask_types(self, gpu: bool) -> list[dict[str, Any]]:
        filters = [
            {"Name": "instance-type", "Values": list(_GPU_FAMILIES if gpu else _CPU_FAMILIES)}
        ]
        if not gpu:
            filters += [
                {"Name": "current-generation", "Values": ["true"]},
                {"Name": "bare-metal", "Values": ["false"]},
                {"Name": "processor-info.supported-architecture", "Values": ["x86_64"]},
            ]
        told = self._pages("ec2", "DescribeInstanceTypes", "InstanceTypes", Filters=filters)
        return [Machine.from_api(each).to_json() for each in told]

    def _ask_zones(self, types: Sequence[str]) -> dict[str, list[str]]:
        told = self._pages(
            "ec2",
            "DescribeInstanceTypeOfferings",
            "InstanceTypeOfferings",
            LocationType="availability-zone",
            Filters=[{"Name": "instance-type", "Values": list(types)}],
        )
        found: dict[str, list[str]] = {}
        for each in told:
            found.setdefault(each["InstanceType"], []).append(each["Location"])
        return {name: sorted(zones) for name, zones in found.items()}

    def _ask_prices(self, types: Sequence[str]) -> dict[str, float]:
        fields = {
            "regionCode": self.region,
            "operatingSystem": "Linux",
            "tenancy": "Shared",
            "preInstalledSw": "NA",
            "capacitystatus": "Used",
        }
        any_of = {"Type": "ANY_OF", "Field": "instanceType", "Value": ",".join(types)}
        rate = self._settings.per_dollar(self.region)
        listed = _prices_of(self._products(fields, any_of), currency(self.region))
        return {name: price / rate for name, price in listed.items()}

    def _ask_storage_price(self, kind: str) -> float:
        service, about = _STORAGE[kind]
        fields = {"regionCode": self.region, "productFamily": "Storage", **about}
        rate, name = self._settings.per_dollar(self.region), currency(self.region)
        told = self._products(fields, service=service)
        return max(
            (price / rate for each in told for price in _listed(each, name, "GB-Mo")), default=0.0
        )

    def _products(
        self, fields: Mapping[str, str], *filters: Mapping[str, str], service: str = "AmazonEC2"
    ) -> list[Any]:
        """Entries of the price list; none in a partition that has no price list."""
        pricing = _PRICING.get(self._clients.partition(self.region))
        if pricing is None:
            return []
        exact = [{"Type": "TERM_MATCH", "Field": k, "Value": v} for k, v in fields.items()]
        told = self._pages(
            "pricing",
            "GetProducts",
            "PriceList",
            region=pricing,
            ServiceCode=service,
            Filters=[*exact, *filters],
        )
        return [json.loads(each) if isinstance(each, str) else each for each in told]

    def _ask_spot_history(self, kind: str, zone: str, since: float) -> list[tuple[float, float]]:
        rate = self._settings.per_dollar(self.region)
        told = self._pages(
            "ec2",
            "DescribeSpotPriceHistory",
            "SpotPriceHistory",
            InstanceTypes=[kind],
            AvailabilityZone=zone,
            ProductDescriptions=["Linux/UNIX"],
            StartTime=datetime.fromtimestamp(since, UTC),
        )
        return sorted(
            (each["Timestamp"].timestamp(), float(each["SpotPrice"]) / rate) for each in told
        )

    def _ask_spot(self, types: Sequence[str]) -> dict[str, dict[str, float]]:
        told = self._pages(
            "ec2",
            "DescribeSpotPriceHistory",
            "SpotPriceHistory",
            InstanceTypes=list(types),
            ProductDescriptions=["Linux/UNIX"],
            # Without an end, the answer is the present price of each zone.
            StartTime=clock.wall(),
        )
        rate = self._settings.per_dollar(self.region)
        found: dict[str, dict[str, float]] = {}
        for each in told:
            zones = found.setdefault(each["InstanceType"], {})
            zones.setdefault(each["AvailabilityZone"], float(each["SpotPrice"]) / rate)
        return found

    def _pages(
        self, name: str, operation: str, key: str, *, region: str = "", **parameters: Any
    ) -> list[Any]:
        called = Service.of(self._clients, name, region or self.region)
        return called.all(operation, key, **parameters)


def price_problem(name: str, region: str) -> ProviderError:
    """The error for a type without a known price."""
    lists = (
        "GovCloud has no price list" if region.startswith("us-gov-") else "the price list lacks it"
    )
    return ProviderError(
        f"no price for {name} in {region} is known ({lists}), so no cap could be kept; set it: '{name}' = … under "
        "[aws.prices], in US dollars per hour"
    )


def _prices_of(products: Iterable[Mapping[str, Any]], currency: str) -> dict[str, float]:
    found: dict[str, float] = {}
    for product in products:
        name = str(product["product"]["attributes"]["instanceType"])
        for price in _listed(product, currency, "Hr"):
            found[name] = max(price, found.get(name, 0.0))
    return found


def _listed(product: Mapping[str, Any], currency: str, unit: str) -> Iterator[float]:
    """The on-demand prices of a product of the price list whose unit begins with `unit`."""
    for term in product.get("terms", {}).get("OnDemand", {}).values():
        for dimension in term["priceDimensions"].values():
            price = float(dimension["pricePerUnit"].get(currency) or 0.0)
            if price > 0 and str(dimension.get("unit", unit)).startswith(unit):
                yield price


def _whose(settings: AwsSettings) -> str:
    """A key of account, endpoint and rate of exchange.

    Zone names differ between accounts, a rehearsal has other data than AWS, and prices are remembered in dollars.
    """
    names = ("AWS_PROFILE", "AWS_ACCESS_KEY_ID", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_EC2")
    parts = [settings.profile, settings.endpoint_url, *(os.environ.get(name, "") for name in names)]
    parts += [] if settings.cny_per_usd is None else [str(settings.cny_per_usd)]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:12]
