"""The places where a task may run, in the order in which they are tried, and those that were left out."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal

from flowlite.errors import CapExceeded, ConfigError, FlowError, ProviderError
from flowlite.node.quick_dataclass import dataclass
from flowlite.provider import Candidate, Plan
from flowlite.provider.dollars import exact

if TYPE_CHECKING:
    from flowlite.api.candidates.alternatives import Alternative
    from flowlite.state.records import TaskRecord


@dataclass(frozen=True, slots=True)
class LeftOut:
    """An alternative, or several of one provider, that cannot be a place for the task, and the reason.

    `options` has the values of `provider`, `gpu`, `region` and `spot`, as far as they are known.
    """

    options: dict[str, Any]
    error: Exception

    @property
    def why(self) -> str:
        """The reason in words."""
        return self.error.text if isinstance(self.error, FlowError) else str(self.error)


@dataclass(frozen=True, slots=True)
class Candidates:
    """The places where a task may run, the preferred one first, and the alternatives that are none, in their order."""

    ranked: tuple[Candidate, ...]
    left_out: tuple[LeftOut, ...] = ()

    @classmethod
    def of_task(cls, record: TaskRecord) -> Candidates:
        """Returns the places where a submitted task may run, in their order."""
        found = tuple(Candidate.from_json(each) for each in record.candidates)
        return cls(found or (Candidate(Plan.from_json(record.plan)),))

    @property
    def best(self) -> Plan:
        """The plan of the preferred place."""
        return self.ranked[0].plan

    @property
    def dearest(self) -> Plan:
        """The plan that can cost most. Its worst case is no strict bound if that of any place is none."""
        plans = [each.plan for each in self.ranked]
        found = max(plans, key=most_cost)
        unless = next((each.may_exceed for each in plans if each.may_exceed), "")
        return found if found.may_exceed else dataclasses.replace(found, may_exceed=unless)

    @property
    def sent_to(self) -> Plan:
        """The plan that decides which files of this machine are sent: a place on another machine, if there is one."""
        plans = [each.plan for each in self.ranked]
        return next((plan for plan in plans if plan.options.get("workdir") is None), plans[0])

    @property
    def several(self) -> bool:
        """Whether there is more than one place, or one was chosen among others."""
        return len(self.ranked) > 1 or bool(self.left_out)


def most_cost(plan: Plan) -> tuple[bool, float, float, float]:
    """A key by which plans compare by what the whole gang can cost.

    The worst case comes first. It is infinite without a cap on time or money, and it is `max_cost` for all plans that
    could cost more; the highest rate and then the present price per hour decide among those.
    """
    worst = plan.worst_case_cost
    return (
        plan.is_paid,
        math.inf if worst is None else round(worst, 6),
        round(plan.highest_rate * plan.machines, 6),
        round((plan.price_per_hour + plan.extras_per_hour) * plan.machines, 6),
    )


def ranked(
    planned: Iterable[tuple[Alternative, Plan]],
    left_out: Iterable[tuple[Alternative | None, LeftOut]],
    prefer: Literal["price", "order"],
) -> Candidates:
    """Puts plans in order. Those that would launch the same as a plan before them are left out.

    Raises FlowError with the reason for each alternative if there is no plan.
    """
    in_order, out = sorted(planned, key=lambda each: each[0].order), list(left_out)
    within = [(each, plan) for each, plan in in_order if plan.unmet_price is None]
    if within:
        # A place that waits for its price to fall is one only where there is no other.
        out += [
            (each, LeftOut(each.options, _unmet(plan)))
            for each, plan in in_order
            if plan.unmet_price is not None
        ]
        in_order = within
    if prefer == "price":
        in_order.sort(key=lambda each: most_cost(each[1]))
    places: list[tuple[Alternative, Plan]] = []
    for alternative, plan in in_order:
        rank = next((n for n, (_, other) in enumerate(places, 1) if _same(plan, other)), None)
        if rank is None:
            places.append((alternative, plan))
        else:
            why = ConfigError(f"it would launch the same as candidate {rank}")
            out.append((alternative, LeftOut(alternative.options, why)))
    out.sort(key=lambda each: (each[0] is None, each[0].order if each[0] is not None else ()))
    reasons = tuple(each for _, each in out)
    if not places:
        raise _none(reasons)
    return Candidates(tuple(Candidate(plan, dict(each.options)) for each, plan in places), reasons)


def _unmet(plan: Plan) -> CapExceeded:
    return CapExceeded(
        f"{plan.provider} asks {exact(plan.unmet_price or 0.0)} per hour for {plan.instance_type} just now, and at "
        f"most {exact(plan.price_cap or 0.0)} is offered"
    )


def _same(plan: Plan, other: Plan) -> bool:
    return dataclasses.replace(plan, notes=()) == dataclasses.replace(other, notes=())


def _none(left_out: Sequence[LeftOut]) -> FlowError:
    """The error if there is no place at all."""
    kinds = {type(each.error) for each in left_out}
    kind: type[FlowError] = ConfigError
    if CapExceeded in kinds:
        kind = CapExceeded
    elif all(issubclass(each, ProviderError) for each in kinds):
        kind = ProviderError
    lines = [f"{', '.join(names)}: {why}" for names, why in reasons(left_out)]
    return kind("there is no place for the task:\n" + "\n".join(f"  {line}" for line in lines))


def reasons(left_out: Sequence[LeftOut]) -> list[tuple[list[str], str]]:
    """Each reason once, with what was left out for it in words."""
    found: dict[str, list[str]] = {}
    for each in left_out:
        found.setdefault(each.why, []).append(in_words(each.options))
    return [(names, why) for why, names in found.items()]


def in_words(options: dict[str, Any]) -> str:
    """`aws us-east-1 h100:8 spot`."""
    spot = {True: "spot", False: "on demand"}.get(options.get("spot"))  # type: ignore[arg-type]
    words = (options.get("provider"), options.get("region"), options.get("gpu"), spot)
    return " ".join(str(each) for each in words if each)
