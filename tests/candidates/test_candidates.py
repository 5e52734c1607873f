"""Which places a task may run at, in which order, and what is said of those that are left out."""

from __future__ import annotations

import dataclasses
import itertools
import math
import threading
import time
from typing import Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowlite.api.candidates import planning
from flowlite.api.candidates.planning import plan_candidates
from flowlite.api.candidates.ranking import Candidates
from flowlite.errors import CapExceeded, ConfigError, FlowError, SpecError
from flowlite.spec import TaskConfig
from tests.candidates.shops import Shop, Ware, by_name

# From the end of the run to that of the machines, at most: the grace period, and the provider's own time.
END_HOURS = (TaskConfig().grace_seconds + Shop.teardown_seconds) / 3600

H100, A100 = "h100:8", "a100-80gb:8"


def choose(config: TaskConfig, *shops: Shop, every: bool = False) -> Candidates:
    names = [shop.name for shop in shops]
    return plan_candidates(config, names, by_name(*shops), only_configured=every)


def task(**options: Any) -> TaskConfig:
    return TaskConfig(command=("true",), **options)


def shown(found: Candidates) -> list[str]:
    return [
        f"{each.plan.provider} {each.plan.region} {each.options['gpu']}" for each in found.ranked
    ]


@pytest.fixture
def cloud() -> Shop:
    wares = [
        Ware(H100, "us-east", 40.0),
        Ware(A100, "us-east", 20.0),
        Ware(H100, "us-west", 35.0),
        Ware(A100, "us-west", 25.0),
        Ware(H100, "eu-north", 30.0),
    ]
    return Shop("cloud", wares, own=["us-east"])


def test_one_value_each_is_one_place_and_asks_once(cloud: Shop) -> None:
    found = choose(task(gpu=H100), cloud)
    assert shown(found) == ["cloud us-east h100:8"]
    assert not found.several
    assert cloud.asked == [(H100, None, None)]


def test_several_kinds_are_ranked_by_price(cloud: Shop) -> None:
    found = choose(task(gpu=[H100, A100], region="us-*"), cloud)
    assert shown(found) == [
        "cloud us-east a100-80gb:8",
        "cloud us-west a100-80gb:8",
        "cloud us-west h100:8",
        "cloud us-east h100:8",
    ]
    assert found.dearest.price_per_hour == 40.0


def test_in_order_the_kinds_come_first_and_then_providers_and_regions(cloud: Shop) -> None:
    own = Shop("own", [Ware(A100, "", 0.0), Ware(H100, "", 0.0)])
    wanted = task(gpu=[A100, H100], region=["us-west", "us-*"], prefer="order")
    assert shown(choose(wanted, own, cloud)) == [
        "own  a100-80gb:8",
        "cloud us-west a100-80gb:8",
        "cloud us-east a100-80gb:8",
        "own  h100:8",
        "cloud us-west h100:8",
        "cloud us-east h100:8",
    ]


def test_what_costs_nothing_comes_first(cloud: Shop) -> None:
    own = Shop("own", [Ware(H100, "", 0.0)])
    found = choose(task(gpu=H100, num_instances=4), cloud, own)
    assert shown(found) == ["own  h100:8", "cloud us-east h100:8"]


def test_the_regions_of_the_settings_are_places_of_their_own() -> None:
    wares = [Ware(None, "far", 0.4), Ware(None, "near", 0.1)]
    shop = Shop("cloud", wares, own=["far", "near"])
    found = choose(task(), shop)
    assert [each.plan.region for each in found.ranked] == ["near", "far"]
    assert len(shop.asked) == 2


def test_the_worst_case_counts_and_not_the_price_of_now() -> None:
    calm = Shop("calm", [Ware(H100, "", 12.0)])
    wild = Shop("wild", [Ware(H100, "", 5.0, spot=True, ceiling=30.0)])
    found = choose(task(gpu=H100, max_run_time_hours=2), wild, calm)
    assert [each.plan.provider for each in found.ranked] == ["calm", "wild"]
    assert found.dearest.worst_case_cost == pytest.approx(30.0 * (2 + END_HOURS))


def spot_shop(*wares: Ware, caps: bool = True) -> Shop:
    """A cloud with spot whose ceiling differs from region to region."""
    regions = list(dict.fromkeys(ware.region for ware in wares))
    return Shop("cloud", wares, own=regions, spots=(True, False), caps=caps)


FAR = Ware(H100, "far", 0.40, spot=True, ceiling=1.0)
NEAR = Ware(H100, "near", 0.10, spot=True, ceiling=1.1)


def told(task_config: TaskConfig, shop: Shop) -> list[tuple[str, bool, float, float | None]]:
    found = choose(task_config, shop).ranked
    plans = [each.plan for each in found]
    return [(each.region, each.spot, each.price_per_hour, each.price_cap) for each in plans]


def test_spot_that_costs_less_now_comes_first_and_may_not_rise_further_than_elsewhere() -> None:
    found = choose(task(gpu=H100, spot=True, max_run_time_hours=2), spot_shop(FAR, NEAR))
    assert [(each.plan.region, each.plan.price_cap) for each in found.ranked] == [
        ("near", 1.0),
        ("far", 1.0),
    ]
    worst = 2 + END_HOURS
    assert [each.plan.worst_case_cost for each in found.ranked] == [pytest.approx(worst)] * 2
    # The run that the money pays for is that at the lower ceiling, everywhere.
    paid = choose(task(gpu=H100, spot=True, max_cost=3.0), spot_shop(FAR, NEAR))
    assert len({each.plan.max_run_seconds for each in paid.ranked}) == 1
    assert paid.best.max_run_seconds == pytest.approx(3 * 3600 - paid.best.reserved_seconds)


def test_the_price_on_demand_of_another_region_is_a_ceiling_too() -> None:
    wares = (NEAR, Ware(H100, "near", 1.1), Ware(H100, "far", 0.9))
    assert told(task(gpu=H100, spot="prefer"), spot_shop(*wares)) == [
        ("near", True, 0.1, 0.9),
        ("far", False, 0.9, None),
        ("near", False, 1.1, None),
    ]


def test_spot_above_the_ceiling_of_another_region_keeps_its_own() -> None:
    spike = dataclasses.replace(NEAR, price=1.05)
    assert told(task(gpu=H100, spot=True), spot_shop(spike, FAR)) == [
        ("far", True, 0.4, 1.0),
        ("near", True, 1.05, 1.1),
    ]


def test_ceilings_are_left_alone_where_they_cannot_be_set_or_the_order_counts() -> None:
    as_planned = [("far", True, 0.4, 1.0), ("near", True, 0.1, 1.1)]
    assert told(task(gpu=H100, spot=True), spot_shop(FAR, NEAR, caps=False)) == as_planned
    in_order = task(gpu=H100, spot=True, prefer="order")
    assert told(in_order, spot_shop(FAR, NEAR)) == as_planned
    # Another kind of machine is not bound by this one's prices.
    other = Ware(A100, "far", 0.2, spot=True, ceiling=0.3)
    found = told(task(gpu=[H100, A100], spot=True), spot_shop(FAR, NEAR, other))
    assert [cap for _, _, _, cap in found] == [0.3, 1.0, 1.0]


def test_under_one_cap_on_money_the_rate_decides() -> None:
    dear = Shop("dear", [Ware(H100, "", 60.0)])
    cheap = Shop("cheap", [Ware(H100, "", 30.0)])
    found = choose(task(gpu=H100, max_cost=10), dear, cheap)
    assert [each.plan.worst_case_cost for each in found.ranked] == [10.0, 10.0]
    assert [each.plan.provider for each in found.ranked] == ["cheap", "dear"]


def test_spot_is_preferred_where_there_is_some() -> None:
    wares = [
        Ware(H100, "a", 40.0),
        Ware(H100, "a", 15.0, spot=True, ceiling=40.0),
        Ware(H100, "b", 45.0),
    ]
    cloud = Shop("cloud", wares, own=["a", "b"], spots=(True, False))
    own = Shop("own", [Ware(H100, "", 50.0)])
    found = choose(task(gpu=H100, spot="prefer"), cloud, own)
    told = [(each.plan.provider, each.plan.region, each.options["spot"]) for each in found.ranked]
    assert told == [
        ("cloud", "a", True),
        ("cloud", "a", False),
        ("cloud", "b", False),
        ("own", "", None),
    ]
    assert [each.why for each in found.left_out] == ["cloud has no h100:8 in b"]


def test_places_above_a_cap_are_left_out_and_named(cloud: Shop) -> None:
    found = choose(task(gpu=[H100, A100], max_price_per_hour=30), cloud)
    assert shown(found) == ["cloud us-east a100-80gb:8"]
    (left,) = found.left_out
    assert left.options == {"provider": "cloud", "gpu": H100, "region": "us-east", "spot": None}
    assert "asks $40.00 per hour" in left.why
    assert "max_price_per_hour is $30.00" in left.why


def test_no_place_is_one_error_with_every_reason(cloud: Shop) -> None:
    own = Shop("own", [])
    with pytest.raises(CapExceeded) as caught:
        choose(task(gpu=H100, max_price_per_hour=1), own, cloud)
    first, *lines = str(caught.value).splitlines()
    assert first == "there is no place for the task:"
    assert lines[0] == "  own h100:8: own has no h100:8 in None"
    assert lines[1].startswith("  cloud us-east h100:8: cloud asks $40.00")
    with pytest.raises(ConfigError, match="there is no place"):
        choose(task(gpu="l4"), cloud, own)


def test_the_error_of_the_only_place_is_raised_as_it_is(cloud: Shop) -> None:
    with pytest.raises(CapExceeded, match=r"^cloud asks \$40\.00"):
        choose(task(gpu=H100, max_price_per_hour=1), cloud)


def test_a_rehearsal_on_cpu_is_no_place_beside_others(cloud: Shop) -> None:
    class Here(Shop):
        def plan(self, config: TaskConfig) -> Any:
            return dataclasses.replace(super().plan(config), gpus_per_node=0)

    here = Here("local", [Ware(H100, "", 0.0)])
    found = choose(task(gpu=H100), here, cloud)
    assert shown(found) == ["cloud us-east h100:8"]
    assert "rehearsed on CPU" in found.left_out[0].why


def test_the_same_machines_are_one_place(cloud: Shop) -> None:
    class Vague(Shop):
        def plan(self, config: TaskConfig) -> Any:
            return super().plan(config.replace(gpu=H100))

    found = choose(task(gpu=[H100, "h100-80gb:8"]), Vague("cloud", cloud.wares, own=["us-east"]))
    assert len(found.ranked) == 1
    assert [each.why for each in found.left_out] == ["it would launch the same as candidate 1"]


def test_a_pattern_needs_a_provider_with_regions(cloud: Shop) -> None:
    own = Shop("own", [Ware(H100, "", 0.0)])
    with pytest.raises(ConfigError, match=r"own has no list of regions for the pattern us-\*"):
        choose(task(gpu=H100, region="us-*"), own)
    with pytest.raises(ConfigError, match=r"cloud has none that fits mars-\*"):
        choose(task(gpu=H100, region="mars-*"), cloud)


def test_a_place_that_waits_for_its_price_is_the_last_resort(cloud: Shop) -> None:
    class Waiting(Shop):
        def plan(self, config: TaskConfig) -> Any:
            plan = super().plan(config)
            return dataclasses.replace(plan, unmet_price=50.0, price_cap=18.0, spot=True)

    waiting = Waiting("waiting", [Ware(H100, "a", 18.0), Ware(H100, "b", 18.0)], own=["a", "b"])
    found = choose(task(gpu=H100), waiting, cloud)
    assert shown(found) == ["cloud us-east h100:8"]
    assert "waiting asks $50.00 per hour" in found.left_out[0].why
    assert shown(choose(task(gpu=H100), waiting)) == ["waiting a h100:8", "waiting b h100:8"]


def test_a_task_with_volumes_is_where_its_provider_has_them(cloud: Shop) -> None:
    shop = Shop("cloud", cloud.wares, own=["us-east", "us-west"])
    found = choose(task(gpu=H100, volumes={"/data": "corpus"}), shop)
    assert shop.asked == [(H100, None, None)]
    assert len(found.ranked) == 1


def test_any_asks_all_that_are_set_up(cloud: Shop) -> None:
    away = Shop("away", [Ware(H100, "", 1.0)], ready=False)
    found = choose(task(gpu=H100), cloud, away, every=True)
    assert shown(found) == ["cloud us-east h100:8"]
    assert not found.left_out


def test_who_does_not_answer_is_left_out_and_named(
    cloud: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planning, "ANSWER_SECONDS", 0.3)
    gate = threading.Event()
    silent = Shop("silent", [Ware(H100, "", 0.0)], gate=gate)
    began = time.monotonic()
    try:
        found = choose(task(gpu=H100), silent, cloud)
    finally:
        gate.set()
    assert time.monotonic() - began < 60
    assert shown(found) == ["cloud us-east h100:8"]
    (left,) = found.left_out
    assert left.why.startswith("silent did not answer within 0.3 s; ")
    assert "another try" in left.why
    assert "provider='silent' alone is waited for" in left.why


def test_without_any_place_the_slow_ones_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "ANSWER_SECONDS", 0.05)
    gate = threading.Event()
    slow = Shop("slow", [Ware(H100, "", 9.0)], gate=gate)
    empty = Shop("empty", [])
    said: list[str] = []

    def say(text: str) -> None:
        said.append(text)
        gate.set()

    names = ["slow", "empty"]
    found = plan_candidates(task(gpu=H100), names, by_name(slow, empty), say=say)
    assert [each.plan.provider for each in found.ranked] == ["slow"]
    (text,) = said
    assert text.startswith("slow did not answer within 0.05 s; no other place is known yet")


def test_the_only_place_is_waited_for_and_that_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "SAID_AFTER", 0.05)
    gate = threading.Event()
    slow = Shop("slow", [Ware(H100, "", 9.0)], gate=gate)
    said: list[str] = []

    def say(text: str) -> None:
        said.append(text)
        gate.set()

    found = plan_candidates(task(gpu=H100), ["slow"], by_name(slow), say=say)
    assert [each.plan.provider for each in found.ranked] == ["slow"]
    (text,) = said
    assert text.startswith("slow has not answered for 0.05 s; it is waited for")


def test_a_region_that_does_not_answer_holds_up_no_other(
    cloud: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planning, "REGION_SECONDS", 0.3)
    gate = threading.Event()

    class OneIsSilent(Shop):
        def plan(self, config: TaskConfig) -> Any:
            if config.region == "us-west":
                gate.wait()
            return super().plan(config)

    try:
        found = choose(
            task(gpu=H100, region="us-*"), OneIsSilent("cloud", cloud.wares, own=["us-east"])
        )
    finally:
        gate.set()
    assert shown(found) == ["cloud us-east h100:8"]
    (left,) = found.left_out
    assert left.options["region"] == "us-west"
    assert "region='us-west' alone is waited for" in left.why


def test_an_error_that_is_no_reason_is_raised(cloud: Shop) -> None:
    class Broken(Shop):
        def plan(self, config: TaskConfig) -> Any:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        choose(task(gpu=H100), Broken("broken", []), cloud)


def test_counts_of_workers_may_differ() -> None:
    cloud = Shop("cloud", [Ware(H100, "", 40.0), Ware("a100-80gb:4", "", 20.0)])
    found = choose(task(gpu=[H100, "a100-80gb:4"]), cloud)
    assert [each.plan.processes_per_node for each in found.ranked] == [4, 8]


def test_a_launcher_is_checked_for_each_count(cloud: Shop) -> None:
    wanted = TaskConfig(command=("torchrun", "train.py"), gpu=["h100", H100])
    shop = Shop("cloud", [Ware("h100", "", 5.0), Ware(H100, "", 40.0)])
    found = choose(wanted, shop)
    assert [each.options["gpu"] for each in found.ranked] == ["h100"]
    assert "torchrun starts the workers itself" in found.left_out[0].why


def test_what_depends_on_the_choice_is_not_known_before() -> None:
    wanted = task(gpu=[H100, A100], region=["a", "b"])
    with pytest.raises(SpecError, match="any of h100:8, a100-80gb:8 would do"):
        _ = wanted.total_processes
    with pytest.raises(SpecError, match="any of a, b would do"):
        _ = wanted.one_region


# Beside brute force

REGIONS = ("a", "b", "c")
GPUS = (H100, A100, "l4")


@st.composite
def markets(draw: st.DrawFn) -> list[Shop]:
    """Two or three providers, each with wares at drawn prices."""
    shops = []
    for name in draw(st.sampled_from([("x", "y"), ("x", "y", "z")])):
        spots = draw(st.sampled_from([(), (True,), (True, False)]))
        wares = []
        for gpu, region, spot in itertools.product(GPUS, REGIONS, spots or (False,)):
            price = draw(st.sampled_from([None, 0.0, 1.0, 2.5, 7.0, 9.0]))
            if price is None:
                continue
            ceiling = price * draw(st.sampled_from([1.0, 1.5, 4.0])) if spot else None
            wares.append(Ware(gpu, region, price, spot, ceiling))
        shops.append(Shop(name, wares, own=REGIONS, spots=spots))
    return shops


def brute_force(
    shops: list[Shop], gpus: list[str], cap: float | None, hours: float | None, nodes: int
) -> tuple[bool, float, float, float] | None:
    """What the cheapest ware costs: whether anything, at most, per hour at most, and now. None if none is allowed."""
    costs = []
    for shop in shops:
        for ware in shop.wares:
            ceiling = max(ware.price, ware.ceiling or (cap or 0.0 if ware.spot else 0.0))
            if ware.gpu not in gpus or (
                cap is not None and max(ware.price, ware.ceiling or 0) > cap
            ):
                continue
            top = ceiling if ware.spot else ware.price
            worst = 0.0 if top == 0 else math.inf
            if top and hours is not None:
                worst = top * nodes * (hours + END_HOURS)
            costs.append((top > 0, round(worst, 6), round(top * nodes, 6), ware.price * nodes))
    return min(costs, default=None)


@settings(max_examples=60, deadline=None)
@given(
    shops=markets(),
    gpus=st.lists(st.sampled_from(GPUS), min_size=1, max_size=3, unique=True),
    cap=st.sampled_from([None, 2.0, 8.0]),
    hours=st.sampled_from([None, 3.0]),
    nodes=st.sampled_from([1, 4]),
)
def test_the_choice_is_that_of_brute_force(
    shops: list[Shop], gpus: list[str], cap: float | None, hours: float | None, nodes: int
) -> None:
    wanted = task(
        gpu=gpus,
        spot="prefer",
        num_instances=nodes,
        max_price_per_hour=cap,
        max_run_time_hours=hours,
    )
    expected = brute_force(shops, gpus, cap, hours, nodes)
    try:
        found = choose(wanted, *shops)
    except FlowError:
        assert expected is None
        return
    best = found.best
    worst = best.worst_case_cost
    assert expected == (
        best.is_paid,
        math.inf if worst is None else round(worst, 6),
        round(best.highest_rate * nodes, 6),
        best.price_per_hour * nodes,
    )
    # Every alternative is a place, or has a reason.
    alternatives = sum(
        len(gpus) * len(REGIONS) * len(shop.spot_choices or (None,)) for shop in shops
    )
    assert len(found.ranked) + len(found.left_out) == alternatives
    assert all(each.why for each in found.left_out)


@pytest.mark.parametrize("prefer", ["price", "order"])
def test_the_rank_is_that_of_the_record(prefer: Literal["price", "order"], cloud: Shop) -> None:
    found = choose(task(gpu=[H100, A100], region="*", prefer=prefer), cloud)
    first = found.ranked[0]
    assert first.plan == found.best
    assert first.options == {
        "provider": "cloud",
        "gpu": H100 if prefer == "order" else A100,
        "region": "eu-north" if prefer == "order" else "us-east",
        "spot": None,
    }
