"""Scripted markets of EC2 and Mithril: the choice is the cheapest, and every other place has its reason."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from flowlite.api.candidates.ranking import Candidates, reasons
from flowlite.api.client import Flow
from flowlite.errors import CapExceeded
from flowlite.spec import TaskConfig

pytest.importorskip("moto")
pytest.importorskip("httpx")

from flowlite.testing.cloud.ec2 import market as ec2
from flowlite.testing.cloud.mithril.box import PaperMithril
from flowlite.testing.cloud.mithril.catalog import InstanceType, instance_types
from provider_adapters.aws.provider import AwsProvider
from provider_adapters.aws.settings import AwsSettings
from provider_adapters.mithril.provider import MithrilProvider
from provider_adapters.mithril.settings import AROUND_SECONDS, MithrilSettings
from tests.crash.paper import Paper

if TYPE_CHECKING:
    from flowlite.testing.cloud.ec2.box import AwsBox

# The only type of EC2 for each kind of GPU.
TYPES = {
    "h100:8": "p5.48xlarge",
    "a100-80gb:8": "p4de.24xlarge",
    "h100": "p5.4xlarge",
    "t4": "g4dn.xlarge",
}
NAMES = {
    "h100:8": "h100-80gb.sxm.8x",
    "a100-80gb:8": "a100-80gb.sxm.8x",
    "h100": "h100-80gb.sxm.1x",
}
DISK = 125 * 0.08 / 720 + 0.005
KINDS = {name: gpu for gpu, name in NAMES.items()}
SOLD = sorted((KINDS[each.name], each.region) for each in instance_types() if each.name in KINDS)
ZONES = {
    "us-east-1": [f"us-east-1{letter}" for letter in "abcdef"],
    "us-west-1": [f"us-west-1{letter}" for letter in "abc"],
    "us-west-2": [f"us-west-2{letter}" for letter in "abcd"],
}
# The grace period of the workers.
GRACE = TaskConfig().grace_seconds
# From the launch to GO, and from the end of the run to that of the machines, at most.
BESIDE_HOURS = {
    "aws": (AwsSettings().boot_timeout + 3600 + GRACE + AwsProvider.teardown_seconds) / 3600,
    "mithril": (
        MithrilSettings().boot_timeout + AROUND_SECONDS + GRACE + MithrilProvider.teardown_seconds
    )
    / 3600,
}


@dataclass
class Market:
    """What a market costs, beside the clouds' usual prices, and the task that is to run there.

    Attributes:
        spot: Spot prices of EC2 by GPU and zone.
        auctions: Prices of Mithril by GPU and region.
        aws, mithril: The regions that are asked.
    """

    options: dict[str, Any]
    spot: dict[tuple[str, str], float] = field(default_factory=dict)
    auctions: dict[tuple[str, str], float] = field(default_factory=dict)
    aws: tuple[str, ...] = ("us-east-1", "us-west-2")
    mithril: tuple[str, ...] = ("us-central1-a", "us-central2-a", "eu-central1-a")


MARKETS = {
    "as it is": Market({"gpu": ["h100:8"]}),
    "spot is cheapest": Market(
        {"gpu": ["h100:8"], "spot": "prefer", "max_price_per_hour": 20.0},
        spot={("h100:8", zone): 9.0 for zone in ZONES["us-west-2"]},
        auctions={("h100:8", region): 19.0 for gpu, region in SOLD if gpu == "h100:8"},
    ),
    "the second region of two at one price on demand": Market(
        {"gpu": ["a100-80gb:8"], "spot": True, "provider": ["aws"]},
        spot={
            **{("a100-80gb:8", zone): 4.0 for zone in ZONES["us-east-1"]},
            **{("a100-80gb:8", zone): 1.0 for zone in ZONES["us-west-2"]},
        },
    ),
    "spot is cheap now where on demand is dear": Market(
        {"gpu": ["h100:8"], "spot": True, "provider": ["aws"], "max_run_time_hours": 2},
        spot={
            **{("h100:8", zone): 40.0 for zone in ZONES["us-east-1"]},
            **{("h100:8", zone): 10.0 for zone in ZONES["us-west-1"]},
        },
        aws=("us-east-1", "us-west-1"),
    ),
    "a spike of spot above what another region costs on demand": Market(
        {"gpu": ["h100:8"], "spot": "prefer", "provider": ["aws"]},
        spot={("h100:8", zone): 60.0 for zone in ZONES["us-west-1"]},
        aws=("us-east-1", "us-west-1"),
    ),
    "a dear auction beside cheap ones": Market(
        {"gpu": ["h100:8"], "provider": ["mithril"], "max_price_per_hour": 18.0},
        auctions={
            ("h100:8", "us-central1-a"): 30.0,
            ("h100:8", "us-central2-a"): 16.0,
            ("h100:8", "eu-central1-a"): 17.0,
        },
    ),
    "another kind of GPU": Market(
        {"gpu": ["h100:8", "a100-80gb:8"], "num_instances": 4},
        auctions={(gpu, region): 45.0 for gpu, region in SOLD if gpu != "h100"},
    ),
    "one GPU or eight": Market({"gpu": ["h100:8", "h100"], "max_run_time_hours": 3}),
    "a cap on money": Market(
        {"gpu": ["h100:8", "a100-80gb:8"], "max_cost": 900, "num_instances": 2}
    ),
    "on demand only": Market(
        {"gpu": ["t4"], "spot": False}, aws=("eu-west-1", "us-east-1", "us-west-1")
    ),
    "a spike everywhere but in one region": Market(
        {"gpu": ["h100:8"], "spot": "prefer", "max_price_per_hour": 60.0},
        spot={
            ("h100:8", zone): 54.0
            for region in ("us-east-1", "us-west-2")
            for zone in ZONES[region]
        },
        auctions={
            (gpu, region): 70.0
            for gpu, region in SOLD
            if gpu == "h100:8" and region != "eu-central1-a"
        },
    ),
    "under nobody's price": Market({"gpu": ["h100:8", "a100-80gb:8"], "max_price_per_hour": 0.5}),
}


@pytest.fixture(scope="module")
def aws() -> Iterator[AwsBox]:
    with Paper() as paper:
        yield paper.aws


@pytest.fixture
def mithril() -> Iterator[PaperMithril]:
    with PaperMithril(auction_seconds=3600) as cloud:
        yield cloud


@pytest.fixture
def plan(
    aws: AwsBox, mithril: PaperMithril, flow_home: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[Market], Candidates]:
    for name, value in {**aws.environment(), **mithril.environment()}.items():
        monkeypatch.setenv(name, value)
    # A busy machine answers late.
    for bound in ("ANSWER_SECONDS", "REGION_SECONDS"):
        monkeypatch.setattr(f"flowlite.api.candidates.planning.{bound}", 120.0)

    def plan(market: Market) -> Candidates:
        aws.reset()
        for (gpu, zone), price in market.spot.items():
            aws.spot_price(TYPES[gpu], zone, price)
        for (gpu, region), price in market.auctions.items():
            mithril.price(NAMES[gpu], price, region)
        options = {"provider": ["aws", "mithril"], **market.options}
        places = {"aws": market.aws, "mithril": market.mithril}
        region = [each for name in options["provider"] for each in places[name]]
        return Flow().candidates(TaskConfig(command="true", region=region, **options))[1]

    return plan


def of_aws(market: Market, gpu: str, region: str, spot: bool) -> tuple[float, float] | None:
    """The price of EC2 now, and the highest."""
    listed = ec2.Market().price(TYPES[gpu], region)
    assert listed is not None
    cap = market.options.get("max_price_per_hour")
    usual = ec2.Market()
    zones = {f"{region}{letter}": 0.0 for letter in "abc"}
    now = listed
    if spot:
        prices = [
            market.spot.get((gpu, zone)) or usual.usual_spot_price(TYPES[gpu], zone) or 0.0
            for zone in zones
        ]
        now = min(prices)
    if cap is not None and now > cap:
        return None
    # Spot may not rise above what the machine costs on demand in another region.
    elsewhere = [ec2.Market().price(TYPES[gpu], each) or math.inf for each in market.aws]
    highest = min((each for each in elsewhere if each >= now), default=listed)
    top = max(now, min(highest, cap or highest)) if spot else listed
    return now + DISK, top + DISK


def of_mithril(market: Market, gpu: str, region: str) -> tuple[float, float] | None:
    """The price of Mithril now, and the bid."""
    kinds = [
        each for each in instance_types() if (each.name, each.region) == (NAMES.get(gpu), region)
    ]
    if not kinds:
        return None
    kind: InstanceType = kinds[0]
    now = market.auctions.get((gpu, region), kind.spot_cents / 100)
    ceiling = market.options.get("max_price_per_hour") or 2 * now
    if now > ceiling:
        return None
    return now, (now + ceiling) / 2


def brute_force(market: Market) -> list[tuple[float, float, float, str]]:
    """Every place: what the gang costs at most, per hour at most and now, and where; the cheapest first."""
    spot = market.options.get("spot")
    nodes = market.options.get("num_instances", 1)
    found = []
    for gpu in market.options["gpu"]:
        for region in market.aws:
            for on_spot in (True, False) if spot == "prefer" else (bool(spot),):
                if prices := of_aws(market, gpu, region, on_spot):
                    found.append((*prices, f"aws {region} {gpu} {on_spot}"))
        for region in market.mithril if spot is not False else ():
            if prices := of_mithril(market, gpu, region):
                found.append((*prices, f"mithril {region} {gpu} True"))
    asked = market.options.get("provider", ["aws", "mithril"])
    ours = [each for each in found if each[2].split()[0] in asked]
    hours, money = (market.options.get(name) for name in ("max_run_time_hours", "max_cost"))
    costs = []
    for now, top, where in ours:
        worst = math.inf if money is None else float(money)
        if hours is not None:
            worst = min(worst, top * nodes * (hours + BESIDE_HOURS[where.split()[0]]))
        costs.append((round(worst, 4), round(top * nodes, 4), round(now * nodes, 4), where))
    return sorted(costs)


@pytest.mark.parametrize("name", MARKETS)
def test_the_choice_is_the_cheapest(name: str, plan: Callable[[Market], Candidates]) -> None:
    market = MARKETS[name]
    expected = brute_force(market)
    if not expected:
        with pytest.raises(CapExceeded) as caught:
            plan(market)
        assert all(place in str(caught.value) for place in (*market.aws, *market.mithril))
        return
    found = plan(market)
    costs = []
    for each in found.ranked:
        made, nodes = each.plan, each.plan.num_instances
        worst = math.inf if made.worst_case_cost is None else made.worst_case_cost
        now = made.price_per_hour + made.extras_per_hour
        where = " ".join(str(each.options[name]) for name in ("provider", "region", "gpu"))
        costs.append(
            (
                round(worst, 4),
                round(made.highest_rate * nodes, 4),
                round(now * nodes, 4),
                f"{where} {made.spot}",
            )
        )
    assert costs[0][:3] == expected[0][:3]
    assert sorted(costs) == expected
    assert [each[:3] for each in costs] == [each[:3] for each in expected]
    # Whatever was asked for and is no place has its reason.
    asked = market.options.get("provider", ["aws", "mithril"])
    spots = {"aws": 2 if market.options.get("spot") == "prefer" else 1, "mithril": 1}
    regions = sum(len({"aws": market.aws, "mithril": market.mithril}[each]) for each in asked)
    count = sum(len(market.options["gpu"]) * regions * spots[each] for each in asked)
    assert len(found.ranked) + len(found.left_out) == count
    assert all(why for _, why in reasons(found.left_out))
