"""A plan in words: what would be launched, at which price, and what it can come to at most."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from flowlite.provider import Plan

NO_LIMIT = "no limit: set max_run_time_hours or max_cost"


def dollars(amount: float) -> str:
    """`$1.25`; more digits for fractions of a cent."""
    return f"${amount:.4f}" if 0 < amount < 0.01 else f"${amount:,.2f}"


def gang(plan: Plan) -> str:
    """`4 × p5.48xlarge, 8 × h100 each`."""
    gpus = f", {plan.gpus_per_node} × {plan.gpu} each" if plan.gpus_per_node else ""
    return f"{plan.num_instances} × {plan.instance_type}{gpus}"


def price(plan: Plan) -> str:
    """Per instance and for all, with what it can rise to."""
    text = (
        f"{dollars(plan.price_per_hour)} per instance and hour, "
        f"{dollars(plan.price_per_hour * plan.num_instances)} in all"
    )
    if not plan.spot:
        return text
    if plan.price_cap is None:
        return f"{text}; spot, it may rise: max_price_per_hour sets a cap"
    return f"{text}; spot, at most {dollars(plan.price_cap)} per instance"


def worst_case(plan: Plan) -> str:
    """What it can come to at most, and from what that follows."""
    worst = plan.worst_case_cost
    if worst is None:
        return NO_LIMIT
    if plan.max_cost is not None and worst >= plan.max_cost * (1 - 1e-9):
        return f"{dollars(worst)} (max_cost)"
    if not worst or plan.max_run_seconds is None or plan.warm_seconds or plan.reserved_seconds:
        return dollars(worst)
    hours = plan.max_run_seconds / 3600
    return (
        f"{dollars(worst)} ({dollars(plan.highest_price)} × {plan.num_instances} × {hours:.4g} h)"
    )


def sentence(plan: Plan) -> str:
    """All of it in one line."""
    where = " ".join(filter(None, (plan.provider, plan.region)))
    return f"{gang(plan)}, {where}: {price(plan)}; cost at most: {worst_case(plan)}"
