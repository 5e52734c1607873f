"""How far the price of spot may rise at each place: no further than the same machine costs at another one.

Without a cap of the user, spot may rise to the price on demand of its region. That differs between regions, so that the
worst case alone would prefer the region with the lowest price on demand, however dear spot is there now. The lowest of
these prices is therefore the ceiling in all regions: the worst case is the same in all of them, it holds, and the
present price decides.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from flowlite.node.quick_dataclass import dataclass

if TYPE_CHECKING:
    from flowlite.api.candidates.alternatives import Alternative
    from flowlite.provider import Plan


@dataclass(frozen=True, slots=True)
class PlannedPlace:
    """A place that would do, with its plan.

    Attributes:
        with_price_cap: Returns the plan with another price cap; None if the price of its machines cannot be capped.
    """

    alternative: Alternative
    plan: Plan
    with_price_cap: Callable[[float], Plan] | None = None


def with_common_ceilings(places: Iterable[PlannedPlace]) -> list[PlannedPlace]:
    """The places, with the price caps of spot lowered to the lowest rate that the same machine costs at most elsewhere.

    A place whose present price is above that keeps the next higher ceiling that it is below.
    """
    listed = list(places)
    ceilings: dict[tuple[str, str], list[float]] = defaultdict(list)
    for each in listed:
        if not each.plan.spot or each.plan.price_cap is not None:
            ceilings[_machine(each.plan)].append(each.plan.highest_rate)
    return [_lowered(each, ceilings[_machine(each.plan)]) for each in listed]


def _lowered(place: PlannedPlace, ceilings: Iterable[float]) -> PlannedPlace:
    plan = place.plan
    possible = [rate for rate in ceilings if rate >= plan.price_per_hour + plan.extras_per_hour]
    if place.with_price_cap is None or not possible:
        return place
    cap = min(possible) - plan.extras_per_hour
    if plan.price_cap is not None and cap >= plan.price_cap:
        return place
    return replace(place, plan=place.with_price_cap(cap))


def _machine(plan: Plan) -> tuple[str, str]:
    return plan.provider, plan.instance_type
