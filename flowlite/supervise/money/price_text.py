"""A plan in words: what would be launched, at which price, and the cost at most."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flowlite.supervise.record import wording

if TYPE_CHECKING:
    from flowlite.provider import Plan

NO_LIMIT = "no limit: set max_run_time_hours or max_cost"


def dollars(amount: float) -> str:
    """Returns `$1.25`, with more digits for fractions of a cent."""
    return f"${amount:.4f}" if 0 < amount < 0.01 else f"${amount:,.2f}"


def gang(plan: Plan) -> str:
    """Returns `4 × p5.48xlarge, 8 × h100 each`."""
    gpus = f", {plan.gpus_per_node} × {plan.gpu} each" if plan.gpus_per_node else ""
    return f"{plan.num_instances} × {plan.instance_type}{gpus}"


def price(plan: Plan) -> str:
    """Returns the price per instance and for all, and the most it can rise to."""
    text = (
        f"{dollars(plan.price_per_hour)} per instance and hour, "
        f"{dollars(plan.price_per_hour * plan.num_instances)} in all"
    )
    if plan.extras_per_hour:
        text += f"; disk and address {dollars(plan.extras_per_hour)} more for each"
    if not plan.spot:
        return text
    if plan.price_cap is None:
        return f"{text}; spot, it may rise: max_price_per_hour sets a cap"
    return f"{text}; spot, at most {dollars(plan.price_cap)} per instance"


def worst_case(plan: Plan) -> str:
    """Returns the cost at most and how it is computed. If it is not a strict bound, says when it may be exceeded."""
    text = _bound(plan)
    if text == NO_LIMIT or not plan.may_exceed:
        return text
    return f"{text}; more {plan.may_exceed}"


def _bound(plan: Plan) -> str:
    worst = plan.worst_case_cost
    if worst is None:
        return NO_LIMIT
    if plan.max_cost is not None and worst >= plan.max_cost * (1 - 1e-9):
        return f"{dollars(worst)} (max_cost)"
    seconds = plan.longest_charge_seconds
    if not worst or seconds is None:
        return dollars(worst)
    # Time charged besides the run itself: boot, teardown, nodes kept warm.
    beside = seconds - (plan.max_run_seconds or 0.0)
    with_what = f", with {wording.duration(beside)} to start and end" if beside >= 1 else ""
    return f"{dollars(worst)} ({dollars(plan.highest_rate)} × {plan.num_instances} × {seconds / 3600:.4g} h{with_what})"


def sentence(plan: Plan) -> str:
    """Returns gang, place, price and cost at most in one line."""
    where = " ".join(filter(None, (plan.provider, plan.region)))
    return f"{gang(plan)}, {where}: {price(plan)}; cost at most: {worst_case(plan)}"
