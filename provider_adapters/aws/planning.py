"""The plan for EC2, made from a task's options: type, zones, image and price; and all reasons for refusing one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from flowlite import python_request
from flowlite.errors import CapExceeded, ConfigError, ProviderError
from flowlite.node.quick_dataclass import dataclass
from flowlite.provider import Plan
from flowlite.provider.dollars import exact
from flowlite.state import clock
from provider_adapters.aws import network, requests
from provider_adapters.aws.catalog import market, reservations
from provider_adapters.aws.catalog.instance_types import Machine, MachineRequirements, nearest
from provider_adapters.aws.catalog.market import Choice
from provider_adapters.aws.catalog.regions import (
    ADDRESS_PRICE,
    HOURS_PER_MONTH,
    Catalog,
    price_problem,
)
from provider_adapters.aws.catalog.reservations import Reservation
from provider_adapters.aws.images import find_image
from provider_adapters.aws.instances import LEAST_SECONDS
from provider_adapters.aws.session import Clients
from provider_adapters.aws.settings import REGION, AwsSettings, is_local_zone, region_of_zone
from provider_adapters.rented.gang_fit import why_not_kept
from provider_adapters.rented.node import lease_seconds

if TYPE_CHECKING:
    from flowlite.spec import TaskConfig
    from provider_adapters.aws.storage.volumes import Planned

_SUBNET_SECONDS = 600.0
# From first boot until the workers start, besides booting itself: environments are created, volumes mounted.
_PREPARE_SECONDS = 3600.0
MAY_EXCEED = "if this machine is lost for good while a node hangs or never boots, so that it cannot end itself"
"""When caps are no bound: a machine ends itself by a program on it, and EC2 has no end that is sent with a launch."""


@dataclass(frozen=True, slots=True)
class Planner:
    """Makes plans.

    Attributes:
        catalog: Returns the catalog of a region.
        volumes: Looks up the volumes of a task in a region.
    """

    settings: AwsSettings
    clients: Clients
    catalog: Callable[[str], Catalog]
    volumes: Callable[[str, TaskConfig], Planned]

    def plan(self, config: TaskConfig) -> Plan:
        """The plan of a task.

        Raises:
            ConfigError: An option is not possible on EC2.
            CapExceeded: Nothing suitable is below the caps.
            ProviderError: AWS does not return what is needed.
        """
        regions, zone = self.regions(config.one_region)
        spot = wants_spot(config, self.settings)
        wanted = wanted_of(config, spot)
        volumes = self.volumes(regions[0], config) if config.volumes else None
        if config.volumes:
            # Volumes are in one region.
            regions = regions[:1]
        tied = volumes.zones if volumes else ()
        reserved = None
        if name := self.settings.capacity_block or self.settings.capacity_reservation:
            reserved = reservations.find(self.clients, regions[0], name, clock.wall())
            tied = (*tied, reserved.zone)
            regions = regions[:1]
        only = self._only_zones(zone, tied)
        found = self._choose(config, wanted, spot, regions, only)
        first = found[0]
        _check_interfaces(first.machine, wanted, self.settings)
        places = [self._place(choice) for choice in found]
        price = 0.0 if self.settings.capacity_block else max(choice.price for choice in found)
        cap = _price_cap(config, found) if spot else None
        zones = [each["zone"] for place in places for each in place["zones"]]
        return Plan(
            provider="aws",
            instance_type=first.machine.name,
            region=zones[0] if len(zones) == 1 else ", ".join(place["region"] for place in places),
            num_instances=config.most_nodes,
            processes_per_node=config.workers_per_node,
            gpu=first.machine.gpu,
            gpus_per_node=first.machine.gpus,
            price_per_hour=price,
            extras_per_hour=max(self._extras(place) for place in places),
            least_seconds=LEAST_SECONDS,
            start_seconds=self.settings.boot_timeout + _PREPARE_SECONDS,
            spot=spot,
            price_cap=cap,
            max_run_seconds=_longest_run(config, reserved),
            max_cost=config.max_cost,
            may_exceed=MAY_EXCEED,
            not_included=(
                "traffic out of AWS",
                *_software_of(places),
                *(volumes.costs if volumes else ()),
            ),
            notes=(
                *(volumes.notes if volumes else ()),
                *(reserved.notes() if reserved else ()),
                *self._notes(config, first, spot),
                *self._notes_on_ways_out(places),
                *_notes_on_disks(places),
                *(n for p in places for n in self.catalog(p["region"]).notes_on_prices()),
            ),
            options={
                "places": places,
                "vcpus": first.machine.vcpus,
                "cards": [list(card) for card in first.machine.cards] if wanted.efa else [],
                "beside": wanted.efa or bool(self.settings.placement_group),
                "placement_group": _placement_group(self.settings, wanted),
                "volumes": [dict(each) for each in volumes.volumes] if volumes else [],
                "workdir": config.directory_on_node,
                "lease": lease_seconds(config.retries.policy.longest_pause, self.settings.lease),
                "name": config.name or "",
                "reservation_ends": reserved.ends if reserved else None,
                **python_request.plan_options(config),
                "container": {"image": config.image} if config.image else None,
            },
        )

    # Regions and zones

    def regions(self, asked: str | None) -> tuple[list[str], str]:
        """The regions to launch in, and the zone if one was asked for. Raises ConfigError."""
        regions, zone = self._named_regions(asked)
        for region in regions:
            self.settings.per_dollar(region)
        return regions, zone

    def _named_regions(self, asked: str | None) -> tuple[list[str], str]:
        if asked:
            if region := region_of_zone(asked):
                return [region], asked
            if not REGION.fullmatch(asked):
                raise ConfigError(
                    f"region: {asked!r} is no region of AWS; give one as in 'us-east-1', or a zone as in 'us-east-1a'"
                )
            return [asked], ""
        regions = list(self.settings.region) or [each for each in [self.clients.region] if each]
        if not regions:
            raise ConfigError(
                "no region of AWS is set: give region=, set [aws] region or AWS_DEFAULT_REGION, or run `aws configure`"
            )
        return regions, ""

    def _only_zones(self, asked: str, tied: Sequence[str]) -> set[str] | None:
        """The zones to consider; None for all. Raises ConfigError."""
        bounds = [{asked}] if asked else []
        bounds += [set(self.settings.zones)] if self.settings.zones else []
        bounds += [{each} for each in tied]
        if not bounds:
            return None
        common = set.intersection(*bounds)
        if not common:
            said = [f"region {asked}"] if asked else []
            said += (
                [f"[aws] zones ({', '.join(self.settings.zones)})"] if self.settings.zones else []
            )
            said += [f"volumes and reservations (in {', '.join(tied)})"] if tied else []
            raise ConfigError(f"no zone is left: {' and '.join(said)} have none in common")
        return common

    def subnets(self, region: str) -> list[dict[str, str]]:
        """The subnets of a region that nodes may be in. Raises ConfigError, ProviderError."""
        subnets = self._remembered_subnets(region, _SUBNET_SECONDS)
        if not (found := self._reachable(subnets)):
            # Somebody may have added the route since.
            subnets = self._remembered_subnets(region, 0.0)
            found = self._reachable(subnets)
        if not found:
            names = ", ".join(each["subnet"] for each in subnets)
            raise ConfigError(
                f"no machine in {names} ({region}) can be reached: its route table leads to no internet gateway. "
                "Add a route (aws ec2 create-route --destination-cidr-block 0.0.0.0/0 --gateway-id igw-…), set [aws] "
                "subnet to a public subnet, or set public_ip = false and jump = a host in that network"
            )
        return found

    def _remembered_subnets(self, region: str, seconds: float) -> list[dict[str, str]]:
        """The subnets of the settings, as EC2 described them at most `seconds` ago."""
        asked = " ".join(self.settings.subnet) or "default"
        found: list[dict[str, str]] = self.catalog(region).remembered(
            f"subnets and ways out {asked}",
            seconds,
            lambda: network.ask_subnets(self.clients, self.settings, region),
        )
        return found

    def _reachable(self, subnets: list[dict[str, str]]) -> list[dict[str, str]]:
        """The subnets in which a machine can be reached by its public address."""
        if not self.settings.public_ip or self.settings.jump:
            return subnets
        return [each for each in subnets if each.get("out", "") in ("", "internet")]

    def _with_price(self, found: Sequence[Choice]) -> list[Choice]:
        """The choices without those whose machines would be dedicated ones, unless their price is in the settings.

        No price list that is read here has the price of dedicated machines. Raises ConfigError if none is left.
        """
        dedicated = {
            each["zone"]: each
            for region in {choice.region for choice in found}
            for each in self.subnets(region)
            if each.get("tenancy") == "dedicated"
        }
        left = [
            choice
            for choice in found
            if choice.machine.name in self.settings.prices or not dedicated.keys() & choice.zones
        ]
        if left or not found or self.settings.capacity_block:
            return left or list(found)
        name, where = found[0].machine.name, next(iter(dedicated.values()))
        raise ConfigError(
            f"[aws] subnet: {where['vpc']}, the network of {where['subnet']}, makes all its machines dedicated ones, "
            f"which cost more than the price list says of {name}: set '{name}' = … under [aws.prices], in US dollars "
            "per hour, or take a subnet of another network"
        )

    def choices(
        self, region: str, machines: Sequence[Machine], *, spot: bool, zones: set[str] | None
    ) -> list[Choice]:
        """As `market.choices`, without Local Zones whose price is not in the settings: the list of the region lacks it.

        On spot, each zone has a price of its own.
        """
        found = market.choices(self.catalog(region), machines, spot=spot, zones=zones)
        if spot or self.settings.capacity_block:
            return found
        left = []
        for each in found:
            known = each.machine.name in self.settings.prices
            there = {z: price for z, price in each.zones.items() if known or not is_local_zone(z)}
            left += [replace(each, zones=there)] if there else []
        return left

    def _extras(self, place: dict[str, Any]) -> float:
        """US dollars per hour for the disks and the public address of a machine."""
        image = place["image"]
        size = float(image["root_gb"]) + sum(map(float, image.get("disks", {}).values()))
        disk = self.catalog(place["region"]).disk_price() * size
        return disk / HOURS_PER_MONTH + (ADDRESS_PRICE if self.settings.public_ip else 0.0)

    def _notes_on_ways_out(self, places: Sequence[dict[str, Any]]) -> list[str]:
        used = {zone["subnet"] for place in places for zone in place["zones"]}
        closed = [
            each["subnet"]
            for place in places
            for each in self.subnets(place["region"])
            if each["subnet"] in used and each.get("out") == "nowhere"
        ]
        if not closed:
            return []
        return [
            f"{', '.join(closed)} has no way out to the internet: packages, images and data must come from within the "
            "network"
        ]

    def _place(self, choice: Choice) -> dict[str, Any]:
        """A region of the plan: its zones in the order in which they are tried, and its image."""
        by_zone = {each["zone"]: each for each in self.subnets(choice.region)}
        zones = list(self.settings.zones) or list(choice.zones)
        image = find_image(self.catalog(choice.region), self.clients, self.settings, choice.machine)
        return {
            "region": choice.region,
            "image": image,
            "zones": [
                {
                    "zone": zone,
                    "subnet": by_zone[zone]["subnet"],
                    "vpc": by_zone[zone]["vpc"],
                    # The hours of a block are paid in advance.
                    "price": 0.0 if self.settings.capacity_block else choice.zones[zone],
                }
                for zone in zones
                if zone in choice.zones
            ],
        }

    # Instance type

    def _choose(
        self,
        config: TaskConfig,
        wanted: MachineRequirements,
        spot: bool,
        regions: Sequence[str],
        only: set[str] | None,
    ) -> list[Choice]:
        """One type, in each region that has it below the cap. Raises ConfigError, CapExceeded, ProviderError."""
        fitting = {region: market.fitting(self.catalog(region), wanted) for region in regions}
        if not any(fitting.values()):
            raise ConfigError(self._nothing_fits(wanted, regions[0]))
        found: list[Choice] = []
        for region, machines in fitting.items():
            usable = {each["zone"] for each in self.subnets(region)} if machines else set()
            zones = usable if only is None else usable & only
            found += self.choices(region, machines, spot=spot, zones=zones)
        if not found:
            raise self.nowhere(fitting, spot, only)
        found = self._with_price(found)
        below = [each for each in found if _below(each, config.max_price_per_hour)]
        if not below and not self.settings.capacity_block:
            raise CapExceeded(_too_dear(config.max_price_per_hour or 0.0, found, spot))
        first = (below or found)[0]
        same = [each for each in below or found if each.machine.name == first.machine.name]
        # Regions keep the user's order rather than the order of prices.
        return sorted(same, key=lambda each: regions.index(each.region))

    def _nothing_fits(self, wanted: MachineRequirements, region: str) -> str:
        machines = self.catalog(region).machines(wanted)
        near = "; ".join(
            f"{m.name} ({m.gpu_text or f'{m.vcpus} vCPUs, {m.memory_gb:g} GB'}): {wanted.misfit(m)}"
            for m in nearest(machines, wanted)
        )
        return (
            f"no type of EC2 in {region} fits the request ({wanted.words()})"
            f"{f'. The nearest: {near}' if near else ''}. `flow offers` shows what there is"
        )

    def nowhere(
        self, fitting: dict[str, list[Machine]], spot: bool, only: set[str] | None
    ) -> ConfigError | ProviderError:
        """Why none of the types that fit can be had: they are in no zone, or have no known price."""
        region, machines = next((r, m) for r, m in fitting.items() if m)
        names = [machine.name for machine in machines]
        catalog = self.catalog(region)
        there = catalog.zones(names)
        where = sorted({zone for zones in there.values() for zone in zones})
        if not where:
            return ConfigError(f"{names[0]} is offered in no zone of {region}; try another region")
        if only is not None and not only & set(where):
            return ConfigError(
                f"{names[0]} is offered in {', '.join(where)}, not in {', '.join(sorted(only))}"
            )
        usable = {each["zone"] for each in self.subnets(region)} & set(where)
        if not usable:
            return ConfigError(
                f"{names[0]} is offered in {', '.join(where)}, and no subnet that may be used is there; "
                "set [aws] subnet"
            )
        if spot:
            return ConfigError(
                f"{names[0]} has no spot price in {region} now; ask for it on demand (spot=False)"
            )
        local = sorted(filter(is_local_zone, usable if only is None else usable & only))
        if local and names[0] in catalog.prices(names):
            return ConfigError(
                f"{local[0]} is a Local Zone, in which {names[0]} costs more than the price list says of the region: "
                f"set '{names[0]}' = … under [aws.prices], in US dollars per hour, or take another zone"
            )
        return price_problem(names[0], region)

    def _notes(self, config: TaskConfig, choice: Choice, spot: bool) -> list[str]:
        notes = []
        if spot and config.spot is None:
            notes.append(
                "priority low means spot: the machines may be taken away with two minutes' notice"
            )
        if config.priority == "high":
            notes.append(
                "priority high has no effect on spot, which was asked for"
                if spot
                else "EC2 has no tier above on demand; priority high is the same as med there"
            )
        if config.keep_warm and (why := _cannot_be_kept(config, self.settings)):
            notes.append(f"keep_warm has no effect: {why}; the machines are given back at the end")
        if (
            config.gpu is None
            and choice.machine.vcpus > (config.cpu or 0)
            and config.cpu is not None
        ):
            notes.append(f"{choice.machine.name} has {choice.machine.vcpus} vCPUs")
        return notes


# Derived from the options


def wants_spot(config: TaskConfig, settings: AwsSettings) -> bool:
    """Whether the machines are on spot. Raises ConfigError."""
    reserved = settings.capacity_reservation or settings.capacity_block
    if reserved and config.spot:
        raise ConfigError(
            f"spot: {reserved} is a reservation, which is not used on spot; leave one of them out"
        )
    if reserved:
        return False
    return config.spot is True or (config.spot is None and config.priority == "low")


def wanted_of(config: TaskConfig, spot: bool) -> MachineRequirements:
    """The requirements for each machine. Raises ConfigError."""
    between = config.internode_interconnect
    if between in ("InfiniBand", "RoCE"):
        raise ConfigError(
            f"internode_interconnect: EC2 has no {between}; its fast network is 'EFA'"
        )
    return MachineRequirements(
        gpu=config.gpu_request,
        cpu=config.cpu,
        memory=config.memory,
        efa=between == "EFA",
        link=config.intranode_interconnect or "",
        spot=spot,
    )


def _longest_run(config: TaskConfig, reserved: Reservation | None) -> float | None:
    """The longest run: up to the cap on time, and in a capacity block until its machines are taken away."""
    ends = None if reserved is None else reserved.ends
    bounds = [] if ends is None else [ends - reservations.CLOSED_SECONDS - clock.wall()]
    bounds += [] if config.max_run_seconds is None else [config.max_run_seconds]
    return min(bounds, default=None)


def _software_of(places: Sequence[dict[str, Any]]) -> list[str]:
    """What the images of a plan have that is charged for by the hour, and for which no price is known."""
    images = {place["image"]["id"]: place["image"].get("software") for place in places}
    return [f"the software of {name} ({what})" for name, what in images.items() if what]


def _notes_on_disks(places: Sequence[dict[str, Any]]) -> list[str]:
    """The disks that machines get from their image, beside the root disk."""
    images = {place["image"]["id"]: place["image"].get("disks") for place in places}
    return [
        f"the image {name} has more disks ({', '.join(f'{k}: {size} GB' for k, size in disks.items())}): each machine "
        "gets them, counted at the price of gp3, and they are deleted with it"
        for name, disks in images.items()
        if disks
    ]


def _check_interfaces(machine: Machine, wanted: MachineRequirements, settings: AwsSettings) -> None:
    """Raises ConfigError if the machine would not get the EFA interfaces that were asked for."""
    if not wanted.efa:
        return
    layout = requests.efa_layout(machine.cards)
    if all(kind == "interface" for _, _, kind in layout):
        raise ConfigError(
            f"internode_interconnect: it is not known which network cards of {machine.name} take EFA, so it would be "
            "left out. botocore before 1.43.90 drops what EC2 tells: pip install -U boto3 (`pip check` names what "
            "holds botocore back), then remove the catalog that was remembered, FLOW_HOME/aws/catalog"
        )
    if len(layout) > 1 and settings.public_ip:
        raise ConfigError(
            f"internode_interconnect: EFA on {machine.name} takes {len(layout)} network interfaces, and EC2 gives no "
            "public address to such a machine. Set [aws] public_ip = false, subnet = a private subnet with a way out "
            "(NAT), and jump = a host in that network that you can log in to (leave jump out if you are in the network)"
        )


def _cannot_be_kept(config: TaskConfig, settings: AwsSettings) -> str:
    """Why the machines of a task are not kept for the next one, in words; "" if they are."""
    block = "a capacity block is for one task" if settings.capacity_block else ""
    return why_not_kept(config) or block


def _placement_group(settings: AwsSettings, wanted: MachineRequirements) -> str | bool:
    """The user's placement group, or whether to create one."""
    if settings.placement_group is None:
        # Reservations are placed already.
        return wanted.efa and not (settings.capacity_block or settings.capacity_reservation)
    return settings.placement_group


def _below(choice: Choice, cap: float | None) -> bool:
    return cap is None or choice.price <= cap


def _price_cap(config: TaskConfig, found: Sequence[Choice]) -> float | None:
    """The maximum spot price to send: the cap, or the price on demand, which spot never exceeds."""
    listed = [each.on_demand for each in found if each.on_demand is not None]
    bounds = [b for b in (config.max_price_per_hour, max(listed, default=None)) if b is not None]
    return min(bounds, default=None)


def _too_dear(cap: float, found: Sequence[Choice], spot: bool) -> str:
    cheapest = min(found, key=lambda each: each.price)
    how = "on spot just now" if spot else "on demand"
    return (
        f"max_price_per_hour is {exact(cap)}, and the cheapest that fits, "
        f"{cheapest.machine.name} in {cheapest.region}, costs {exact(cheapest.price)} per hour {how}; raise the cap"
        + ("" if spot else ", or try spot=True (`flow offers --spot` shows the prices)")
    )
