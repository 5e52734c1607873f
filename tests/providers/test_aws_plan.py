"""From options to a type, zones, an image and a price on EC2, and every refusal on the way. No network."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from flowlite.api.candidates.capped_plan import with_caps
from flowlite.errors import CapExceeded, ConfigError, ProviderError
from flowlite.provider import Plan
from flowlite.spec import TaskConfig
from flowlite.supervise.money import price_text
from provider_adapters.aws import AwsProvider
from provider_adapters.aws.catalog.instance_types import Machine, MachineRequirements, nearest
from provider_adapters.aws.catalog.offers import offers_of
from provider_adapters.aws.planning import Planner
from provider_adapters.aws.settings import AwsSettings

GPU_CARDS = (("interface", "efa", "efa-only"),) * 4
MACHINES = [
    Machine("p5.48xlarge", 192, 2048, "h100", 8, 80, True, cards=GPU_CARDS * 8, efa=32),
    Machine("p5.4xlarge", 16, 256, "h100", 1, 80, True, cards=GPU_CARDS[:1], efa=1),
    Machine("p5en.48xlarge", 192, 2048, "h200", 8, 141, True, cards=GPU_CARDS * 4, efa=16),
    # Its cards are not known: botocore before 1.43.90 drops what EC2 tells of them.
    Machine("p6-b200.48xlarge", 192, 2048, "b200", 8, 180, True, cards=(), efa=8),
    Machine("p4d.24xlarge", 96, 1152, "a100", 8, 40, True, cards=GPU_CARDS, efa=4),
    Machine("p4de.24xlarge", 96, 1152, "a100", 8, 80, True, cards=GPU_CARDS, efa=4),
    Machine("p3.16xlarge", 64, 488, "v100", 8, 16, True),
    Machine("g6.xlarge", 4, 16, "l4", 1, 24, True),
    Machine("g6.2xlarge", 8, 32, "l4", 1, 24, True),
    Machine("g6.48xlarge", 192, 768, "l4", 8, 24, True),
    Machine("g5g.xlarge", 4, 8, "t4g", 1, 16, True, arch="arm64"),
    Machine("c7i.large", 2, 4),
    Machine("c7i.xlarge", 4, 8),
    Machine("m7i.large", 2, 8),
    Machine("r7i.large", 2, 16),
    Machine("m7i.8xlarge", 32, 128),
    Machine("m7g.large", 2, 8, arch="arm64"),
    Machine("t3.medium", 2, 4, usual=False),
]
PRICES = {
    "p5.48xlarge": 55.04,
    "p5.4xlarge": 6.88,
    "p5en.48xlarge": 63.3,
    "p6-b200.48xlarge": 113.93,
    "p4d.24xlarge": 21.96,
    "p4de.24xlarge": 27.45,
    "p3.16xlarge": 24.48,
    "g6.xlarge": 0.805,
    "g6.2xlarge": 0.978,
    "g5g.xlarge": 0.42,
    "c7i.large": 0.089,
    "c7i.xlarge": 0.179,
    "m7i.large": 0.101,
    "r7i.large": 0.132,
    "m7i.8xlarge": 1.613,
}
# 125 GB of gp3 and a public address.
EXTRAS = 125 * 0.08 / 720 + 0.005
ZONES = ["us-east-1a", "us-east-1b", "us-east-1c"]
SPOT = {"p5.48xlarge": {"us-east-1a": 30.0, "us-east-1b": 22.5}, "g6.xlarge": {"us-east-1c": 0.3}}


class Catalog:
    """A region as it was on some day."""

    def __init__(self, region: str, prices: dict[str, float], quota: float | None = None) -> None:
        self.region = region
        self._prices = prices
        self._quota = quota

    def machines(self, wanted: MachineRequirements) -> list[Machine]:
        return [m for m in MACHINES if bool(m.gpu) == (wanted.gpu is not None)]

    def _zones(self) -> list[str]:
        return [zone.replace("us-east-1", self.region) for zone in ZONES]

    def zones(self, types: Sequence[str]) -> dict[str, list[str]]:
        # The newest are not everywhere.
        found = {name: self._zones() for name in types}
        return {k: v[:2] if k.startswith("p5") else v for k, v in found.items()}

    def prices(self, types: Sequence[str]) -> dict[str, float]:
        return {name: self._prices[name] for name in types if name in self._prices}

    def disk_price(self) -> float:
        return 0.08

    def notes_on_prices(self) -> list[str]:
        return []

    def spot_prices(self, types: Sequence[str]) -> dict[str, dict[str, float]]:
        return {name: SPOT[name] for name in types if name in SPOT}

    def remembered(self, name: str, seconds: float, ask: Callable[[], Any]) -> Any:
        if name.startswith("quota"):
            return self._quota
        if name.startswith("subnets"):
            return [
                {
                    "zone": zone,
                    "subnet": f"subnet-{zone}",
                    "vpc": "vpc-1",
                    "out": "internet",
                }
                for zone in self._zones()
            ]
        arm = "arm64" in name
        return {
            "id": f"ami-{'gpu' if 'nvidia' in name else 'cpu'}",
            "name": name,
            "arch": "arm64" if arm else "x86_64",
            "root_device": "/dev/sda1",
            "least_gb": 75,
        }


class Clients:
    region = "us-east-1"


def planner(settings: AwsSettings | None = None, **catalog: Any) -> Planner:
    given = {"prices": PRICES, **catalog}
    return Planner(
        settings=settings or AwsSettings(),
        clients=Clients(),  # type: ignore[arg-type]
        catalog=lambda region: Catalog(region, **given),  # type: ignore[arg-type,return-value]
        volumes=lambda region, config: pytest.fail("no volumes were asked for"),
    )


def plan(settings: AwsSettings | None = None, **options: Any) -> Plan:
    return planner(settings).plan(TaskConfig(command=["true"], provider="aws", **options))


@pytest.mark.parametrize(
    ("gpu", "machine"),
    [
        ("h100:8", "p5.48xlarge"),
        ("h100", "p5.4xlarge"),
        ("h200:8", "p5en.48xlarge"),
        ("a100:8", "p4d.24xlarge"),
        ("a100-80gb:8", "p4de.24xlarge"),
        ("h100.sxm5.8x", "p5.48xlarge"),
        ("l4", "g6.xlarge"),
        ("t4g", "g5g.xlarge"),
    ],
)
def test_a_gpu_string_becomes_a_type(gpu: str, machine: str) -> None:
    found = plan(gpu=gpu, num_instances=2)
    assert found.instance_type == machine
    assert found.price_per_hour == PRICES[machine]
    assert found.gpus_per_node == found.processes_per_node
    image = found.options["places"][0]["image"]
    assert image["id"] == "ami-gpu"
    assert image["arch"] == ("arm64" if machine.startswith("g5g") else "x86_64")
    assert image["root_gb"] >= 100


@pytest.mark.parametrize(
    ("options", "machine"),
    [
        ({}, "c7i.large"),
        ({"memory": 8}, "m7i.large"),
        ({"memory": "16GB"}, "r7i.large"),
        ({"cpu": 4}, "c7i.xlarge"),
        ({"cpu": 16, "memory": 64}, "m7i.8xlarge"),
    ],
)
def test_without_gpu_the_cheapest_general_machine_is_taken(
    options: dict[str, Any], machine: str
) -> None:
    found = plan(**options)
    assert found.instance_type == machine
    assert found.options["places"][0]["image"]["id"] == "ami-cpu"


def test_the_plan_is_what_is_launched() -> None:
    found = plan(gpu="h100:8", num_instances=4, max_price_per_hour=60.0, max_run_time_hours=2.0)
    assert Plan.from_json(found.to_json()) == found
    (place,) = found.options["places"]
    # Only the zones that have the type.
    assert [zone["zone"] for zone in place["zones"]] == ["us-east-1a", "us-east-1b"]
    assert found.region == "us-east-1"
    assert not found.spot
    assert found.price_cap is None
    # The boot, and the bring-up before the ranks start, are charged like the run.
    seconds = 7200 + found.start_seconds
    assert found.worst_case_cost == pytest.approx((55.04 + EXTRAS) * 4 * seconds / 3600)
    # No program on a machine that hangs can end it, and EC2 has no end that is sent with a launch.
    assert "or more if this machine is lost for good while a node hangs" in price_text.worst_case(
        found
    )


def test_low_priority_is_spot_with_the_cap_as_its_highest_price() -> None:
    found = plan(gpu="h100:8", priority="low", max_price_per_hour=40.0, max_run_time_hours=1.0)
    assert found.spot
    assert found.price_per_hour == 22.5
    assert found.price_cap == 40.0
    # The cheapest zone is tried first, and what it may come to is what it may cost.
    assert [z["zone"] for z in found.options["places"][0]["zones"]] == ["us-east-1b", "us-east-1a"]
    assert found.worst_case_cost == pytest.approx(
        (40.0 + EXTRAS) * (1 + found.start_seconds / 3600)
    )
    assert "priority low means spot" in " ".join(found.notes)


def test_spot_without_a_cap_never_costs_more_than_on_demand() -> None:
    found = plan(gpu="h100:8", spot=True)
    assert found.price_cap == 55.04
    assert found.highest_price == 55.04


def test_what_high_priority_does_is_told_of_the_market_that_is_used() -> None:
    on_demand = " ".join(plan(gpu="h100:8", priority="high").notes)
    assert "priority high is the same as med there" in on_demand
    spot = " ".join(plan(gpu="h100:8", priority="high", spot=True).notes)
    assert "priority high has no effect on spot" in spot
    assert "med" not in spot


def test_spot_false_wins_over_low_priority() -> None:
    assert not plan(gpu="h100:8", spot=False, priority="low").spot


def test_a_dearer_type_is_refused_on_demand() -> None:
    with pytest.raises(CapExceeded, match=r"\$50\.00.*p5\.48xlarge.*\$55\.04.*spot=True"):
        plan(gpu="h100:8", max_price_per_hour=50.0)


def test_a_dearer_spot_price_is_refused() -> None:
    with pytest.raises(CapExceeded, match=r"\$20\.00.*\$22\.50 per hour on spot"):
        plan(gpu="h100:8", spot=True, max_price_per_hour=20.0)


def test_the_cap_on_the_cost_keeps_something_for_ending() -> None:
    config = TaskConfig(
        command=["true"], gpu="h100:8", num_instances=2, max_cost=110.08, grace_seconds=30
    )
    found = with_caps(config, planner().plan(config), AwsProvider.teardown_seconds)
    paid = 3600 * 55.04 / (55.04 + EXTRAS)
    assert found.max_run_seconds == pytest.approx(paid - 30 - 120)
    assert found.worst_case_cost is not None
    assert found.worst_case_cost <= 110.08


def test_where_nothing_fits_the_nearest_are_named_with_the_reason() -> None:
    with pytest.raises(ConfigError) as raised:
        plan(gpu="h100:4")
    said = str(raised.value)
    assert "h100:4" in said
    assert "p5.48xlarge (h100-80gb:8): it has 8 of them" in said
    assert "p5.4xlarge" in said


def test_nearest_without_gpu_are_the_largest() -> None:
    found = nearest(MACHINES, MachineRequirements(cpu=1000))
    assert found[0].name == "m7i.8xlarge"
    assert all(not each.gpu for each in found)


def test_a_gpu_that_the_image_does_not_know_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"driver.*V100.*ami_parameter"):
        plan(gpu="v100:8")


def test_a_type_without_a_price_is_refused() -> None:
    with pytest.raises(ProviderError, match=r"g6\.48xlarge.*\[aws\.prices\]"):
        plan(gpu="l4:8")


@pytest.mark.parametrize(
    ("region", "zones"),
    [("us-east-1b", ["us-east-1b"]), ("eu-west-1", ["eu-west-1a", "eu-west-1b"])],
)
def test_a_region_or_a_zone_is_taken_at_its_word(region: str, zones: list[str]) -> None:
    found = plan(gpu="h100:8", region=region)
    assert [zone["zone"] for zone in found.options["places"][0]["zones"]] == zones


def test_a_local_zone_needs_a_price_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Machines cost more there than the price list says of the region."""
    monkeypatch.setitem(globals(), "ZONES", ["us-east-1a", "us-east-1-bos-1a"])
    assert [zone["zone"] for zone in plan(gpu="l4").options["places"][0]["zones"]] == ["us-east-1a"]
    with pytest.raises(ConfigError, match=r"us-east-1-bos-1a is a Local Zone.*'g6.xlarge' = …"):
        plan(gpu="l4", region="us-east-1-bos-1a")
    found = plan(
        AwsSettings(prices={"g6.xlarge": 1.2, "g6.2xlarge": 1.2}),
        gpu="l4",
        region="us-east-1-bos-1a",
    )
    assert [zone["zone"] for zone in found.options["places"][0]["zones"]] == ["us-east-1-bos-1a"]


@pytest.mark.parametrize("region", ["us-moon", "US-EAST-1", "mars"])
def test_what_is_no_region_is_refused(region: str) -> None:
    with pytest.raises(ConfigError, match="no region of AWS"):
        plan(region=region)


def test_several_regions_are_tried_in_their_order_and_the_dearest_counts() -> None:
    found = plan(AwsSettings(region=("us-west-2", "us-east-1")), gpu="h100:8")
    assert [place["region"] for place in found.options["places"]] == ["us-west-2", "us-east-1"]
    assert found.price_per_hour == 55.04


def test_only_the_zones_of_the_settings_are_used_in_their_order() -> None:
    found = plan(AwsSettings(zones=("us-east-1c", "us-east-1a")))
    assert [z["zone"] for z in found.options["places"][0]["zones"]] == ["us-east-1c", "us-east-1a"]
    with pytest.raises(ConfigError, match="offered in us-east-1a, us-east-1b, not in us-east-1c"):
        plan(AwsSettings(zones=("us-east-1c",)), gpu="h100:8")
    with pytest.raises(ConfigError, match="have none in common"):
        plan(AwsSettings(zones=("us-east-1c",)), region="us-east-1a")


def test_prices_in_china_need_a_rate_of_exchange() -> None:
    with pytest.raises(ConfigError, match=r"prices of cn-north-1 are in yuan.*cny_per_usd"):
        plan(region="cn-north-1")
    assert plan(AwsSettings(cny_per_usd=7.0), region="cn-north-1").price_per_hour > 0


def test_without_a_price_list_prices_must_be_set() -> None:
    """GovCloud has none. No figure is made up, neither for a plan nor for offers."""
    govcloud = planner(prices={})
    words = r"no price for p5\.48xlarge in us-gov-west-1 is known \(GovCloud has no price list\).*'p5\.48xlarge' = …"
    with pytest.raises(ProviderError, match=words):
        govcloud.plan(TaskConfig(command=["true"], gpu="h100:8", region="us-gov-west-1"))
    with pytest.raises(ProviderError, match=words):
        offers_of(govcloud, "h100:8", 1, False, "us-gov-west-1")
    # Spot prices are known: what is sold on demand is shown beside them, and what only comes near without a figure.
    spot, on_demand = offers_of(govcloud, "h100:8", 1, None, "us-east-1")
    assert (spot.spot, spot.price_per_hour) == (True, 22.5)
    assert (on_demand.spot, on_demand.price_per_hour, on_demand.available) == (False, None, False)
    assert "no price is known: set 'p5.48xlarge' = …" in on_demand.note
    near = offers_of(govcloud, "h100:4", 1, None, "us-gov-west-1")
    assert {each.price_per_hour for each in near} == {None}


def test_spot_without_any_limit_is_no_bound() -> None:
    """Spot prices are known without a price list, but not how far they can rise."""
    govcloud = planner(prices={})
    spot = {"command": ["true"], "gpu": "h100:8", "spot": True, "max_cost": 100.0}
    config = TaskConfig(**spot)
    found = with_caps(config, govcloud.plan(config), AwsProvider.teardown_seconds)
    assert ", or more if the spot price rises, or if this machine" in price_text.worst_case(found)
    config = TaskConfig(**spot, max_price_per_hour=40.0)
    found = with_caps(config, govcloud.plan(config), AwsProvider.teardown_seconds)
    assert found.price_cap == 40.0
    assert "spot price rises" not in price_text.worst_case(found)


def test_efa_wants_a_private_subnet_and_makes_a_placement_group() -> None:
    with pytest.raises(ConfigError, match=r"33 network interfaces.*public_ip = false"):
        plan(gpu="h100:8", internode_interconnect="EFA")
    found = plan(AwsSettings(public_ip=False), gpu="h100:8", internode_interconnect="EFA")
    assert len(found.options["cards"]) == 32
    assert found.options["placement_group"] is True
    # One card keeps its public address.
    assert plan(gpu="h100", internode_interconnect="EFA").instance_type == "p5.4xlarge"
    # Nobody pays for what was not asked for.
    plain = plan(gpu="h100:8")
    assert plain.options["cards"] == []
    assert plain.options["placement_group"] is False


def test_efa_is_never_left_out_without_a_word() -> None:
    with pytest.raises(ConfigError, match=r"network cards of p6-b200.48xlarge.*install -U boto3"):
        plan(gpu="b200:8", internode_interconnect="EFA")


@pytest.mark.parametrize("name", ["InfiniBand", "RoCE"])
def test_networks_that_ec2_lacks_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=rf"internode_interconnect: EC2 has no {name}.*EFA"):
        plan(gpu="h100:8", internode_interconnect=name)


def test_a_link_between_gpus_is_checked() -> None:
    assert plan(gpu="h100:8", intranode_interconnect="SXM5").instance_type == "p5.48xlarge"
    with pytest.raises(ConfigError, match=r"l4, NVLink.*linked by PCIe"):
        plan(gpu="l4", intranode_interconnect="NVLink")


def test_a_request_that_no_type_fits_is_repeated() -> None:
    with pytest.raises(ConfigError, match=r"us-east-1 fits the request \(no GPU, 5000 cores\)"):
        plan(cpu=5000)


def test_no_region_at_all_says_how_to_set_one() -> None:
    here = planner()
    nowhere = type("Nowhere", (), {"region": ""})()
    with pytest.raises(ConfigError, match=r"\[aws\] region or AWS_DEFAULT_REGION"):
        dataclasses.replace(here, clients=nowhere).plan(TaskConfig(command=["true"]))


# Offers


def test_offers_are_sorted_by_price_on_demand_and_on_spot() -> None:
    found = offers_of(planner(), "h100:8", 4, None, None)
    assert [(o.instance_type, o.spot, o.price_per_hour) for o in found] == [
        ("p5.48xlarge", True, 22.5),
        ("p5.48xlarge", False, 55.04),
    ]
    assert all(each.fits and each.available for each in found)


def test_offers_say_which_quota_is_too_small() -> None:
    (found,) = offers_of(planner(quota=192.0), "h100:8", 2, False, None)
    assert not found.available
    assert "L-417A185B allows 192 vCPUs, and 384 are needed" in found.note


def test_offers_that_do_not_fit_say_why() -> None:
    found = offers_of(planner(), "h100:4", 1, None, None)
    assert found
    assert not any(each.fits or each.available for each in found)
    assert found[0].note == "it has 8 of them" or found[0].note == "it has 1 of them"


def test_offers_have_no_price_in_a_local_zone_but_ones_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As plans do: the price list has that of the region."""
    local = "us-east-1-bos-1a"
    monkeypatch.setitem(globals(), "ZONES", ["us-east-1a", local])
    assert offers_of(planner(), "l4", 1, False, None)[0].note.endswith("; 1 zones")
    with pytest.raises(ConfigError, match=rf"{local} is a Local Zone.*'g6.xlarge' = …"):
        offers_of(planner(), "l4", 1, False, local)
    own = AwsSettings(prices={"g6.xlarge": 1.2})
    # The other type that fits is named without a price.
    found = offers_of(planner(own, prices={**PRICES, "g6.xlarge": 1.2}), "l4", 1, False, local)
    assert [(o.instance_type, o.price_per_hour) for o in found] == [
        ("g6.xlarge", 1.2),
        ("g6.2xlarge", None),
    ]


def test_offers_of_one_zone() -> None:
    assert [o.instance_type for o in offers_of(planner(), "l4", 1, True, "us-east-1c")] == [
        "g6.xlarge"
    ]
    with pytest.raises(ConfigError, match="offered in us-east-1a, us-east-1b, not in us-east-1c"):
        offers_of(planner(), "h100:8", 1, None, "us-east-1c")
