"""A plan in words: what would be launched, at which price, and the cost at most."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flowlite.provider.dollars import dollars
from flowlite.supervise.record import wording

if TYPE_CHECKING:
    from flowlite.provider import Plan
    from flowlite.state.records import TaskRecord

NO_LIMIT = "no limit: set max_run_time_hours or max_cost"


def spent(amount: float, upper_bound: bool) -> str:
    """Returns what something has cost: `$1.25`, or `≤ $1.25` if it may have cost less."""
    return f"≤ {dollars(amount)}" if upper_bound else dollars(amount)


def gang(plan: Plan) -> str:
    """Returns `4 × p5.48xlarge, 8 × h100 each`."""
    gpus = f", {plan.gpus_per_node} × {plan.gpu} each" if plan.gpus_per_node else ""
    return f"{machines(plan)}{gpus}"


def machines(plan: Plan) -> str:
    """Returns `4 × p5.48xlarge`, or `2 to 4 + 1 spare × p5.48xlarge`."""
    spares = f" + {plan.spares} spare" if plan.spares else ""
    return f"{plan.size}{spares} × {plan.instance_type}"


def price(plan: Plan) -> str:
    """Returns the price per instance and for all, and the most it can rise to."""
    text = f"{dollars(plan.price_per_hour)} per instance and hour, {_in_all(plan)} in all"
    if plan.unmet_price is not None:
        text += f"; that is your limit, and the present price is {dollars(plan.unmet_price)}"
    if plan.extras_per_hour:
        text += f"; disk and address {dollars(plan.extras_per_hour)} more for each"
    if not plan.spot:
        return text
    if plan.price_cap is None:
        return f"{text}; spot, it may rise: max_price_per_hour sets a cap"
    return f"{text}; spot, at most {dollars(plan.price_cap)} per instance"


def _in_all(plan: Plan) -> str:
    nodes = (plan.fewest_instances, plan.num_instances)
    fewest, most = (plan.price_per_hour * (count + plan.spares) for count in nodes)
    return dollars(most) if fewest == most else f"{dollars(fewest)} to {dollars(most)}"


def worst_case(plan: Plan, of: str = "") -> str:
    """Returns the cost at most and how it is computed. If it is not a strict bound, says when it may be exceeded.

    Args:
        of: What the amount is for, if not for the whole task, such as " for each".
    """
    text = _bound(plan)
    return text if text == NO_LIMIT else or_more(f"{text}{of}", plan.may_exceed)


def or_more(bound: str, may_exceed: str) -> str:
    """Returns `$40.00, or more if this machine is lost`; the bound alone if it is strict."""
    return f"{bound}, or more {may_exceed}" if may_exceed else bound


def worst_case_of_task(record: TaskRecord) -> str | None:
    """The worst case of a task that costs money; None once it has ended, since its cost is then known."""
    from flowlite.provider import Plan

    plan = Plan.from_json(record.plan)
    return None if record.final or not plan.is_paid else worst_case(plan)


def worst_case_json(plan: Plan, *, ended: bool = False) -> dict[str, Any]:
    """The worst case in the JSON output of commands.

    `worst_case_cost` is None without a cap. `may_exceed` says when the cost may be higher; "" if it is a strict bound.
    A task has ended when the provider lists none of its machines any more.
    """
    return {
        "worst_case_cost": plan.worst_case_cost,
        "may_exceed": "" if ended else plan.may_exceed,
    }


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
    return f"{dollars(worst)} ({dollars(plan.highest_rate)} × {plan.machines} × {seconds / 3600:.4g} h{with_what})"


def sentence(plan: Plan) -> str:
    """Returns gang, place, price and cost at most in one line."""
    where = " ".join(filter(None, (plan.provider, plan.region)))
    return f"{gang(plan)}, {where}: {price(plan)}; cost at most: {worst_case(plan)}"
