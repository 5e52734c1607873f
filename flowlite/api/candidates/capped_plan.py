"""The plan of one place, as it is shown and launched: the adapter's plan with all caps, checked against them."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from flowlite.errors import CapExceeded, ConfigError
from flowlite.provider.dollars import exact

if TYPE_CHECKING:
    from flowlite.provider import Plan, Provider
    from flowlite.spec import TaskConfig


def capped_plan(config: TaskConfig, provider: Provider) -> Plan:
    """The plan of a task whose options allow one place. Raises ConfigError, CapExceeded."""
    return within_caps(config, adapters_plan(config, provider), provider.teardown_seconds)


def adapters_plan(config: TaskConfig, provider: Provider) -> Plan:
    """The plan of the adapter, with the notes that hold for any, and the provider's settings frozen in it.

    Raises ConfigError.
    """
    if config.is_elastic and not provider.elastic:
        raise ConfigError(
            f"num_instances: {provider.name} launches all nodes of a gang or none, so that it cannot have "
            f"{config.fewest_nodes} to {config.most_nodes}; give one number"
        )
    plan = with_notes(config, _with_spares(config, provider))
    if config.is_elastic and config.fewest_nodes < plan.num_instances:
        plan = dataclasses.replace(plan, min_instances=config.fewest_nodes)
    return dataclasses.replace(plan, settings=provider.settings.to_json())


def within_caps(config: TaskConfig, plan: Plan, teardown_seconds: float) -> Plan:
    """The adapter's plan with all caps. Raises CapExceeded if it exceeds one of them."""
    plan = with_caps(config, plan, teardown_seconds)
    check_caps(config, plan)
    return plan


def _with_spares(config: TaskConfig, provider: Provider) -> Plan:
    """The adapter's plan, for which it has found room for the nodes and their spares. Raises ConfigError."""
    if not config.spares:
        return provider.plan(config)
    if provider.no_spares:
        raise ConfigError(f"spares: {provider.no_spares}; leave it out")
    fewest, most = config.fewest_nodes + config.spares, config.most_nodes + config.spares
    machines = (fewest, most) if config.is_elastic else most
    # Not checked again: what depends on the number of ranks is right without the spares.
    plan = provider.plan(config.model_copy(update={"num_instances": machines}))
    nodes = plan.num_instances - config.spares
    return dataclasses.replace(plan, num_instances=nodes, spares=config.spares)


def with_caps(config: TaskConfig, plan: Plan, teardown_seconds: float) -> Plan:
    """The adapter's plan with all caps added, whether or not the adapter set them. This plan is shown and launched.

    `max_cost` is converted to a maximum run time, which the nodes enforce themselves. It assumes the highest possible
    price and subtracts the time that it takes to stop the workers and give the nodes back.
    """
    plan = dataclasses.replace(
        plan,
        warm_seconds=config.keep_warm or plan.warm_seconds,
        price_cap=plan.price_cap or (config.max_price_per_hour if plan.spot else None),
        max_cost=config.max_cost,
    )
    if plan.spot and plan.price_cap is None:
        also = f", or {plan.may_exceed}" if plan.may_exceed else ""
        plan = dataclasses.replace(plan, may_exceed=f"if the spot price rises{also}")
    bounds = [each for each in (config.max_run_seconds, plan.max_run_seconds) if each is not None]
    reserved = 0.0
    if plan.is_paid:
        checkpoint = config.checkpoint.final_seconds if config.checkpoint is not None else 0.0
        reserved = config.grace_seconds + checkpoint + teardown_seconds
    if (paid := plan.paid_seconds) is not None:
        bounds.append(max(0.0, paid - reserved))
    return dataclasses.replace(
        plan, max_run_seconds=min(bounds, default=None), reserved_seconds=reserved
    )


def with_notes(config: TaskConfig, plan: Plan) -> Plan:
    """The plan with notes that hold for any adapter: options of another provider that have no effect, and files that a
    run on this machine finds and that other machines would not have."""
    notes = []
    if config.slurm and plan.provider != "slurm":
        notes.append(f"slurm={{…}} has no effect on the provider {plan.provider}")
    elastic_only = {"settle_seconds", "heal_seconds", "grow"} & config.model_fields_set
    if elastic_only and not config.is_elastic:
        notes.append(
            f"{', '.join(sorted(elastic_only))}: no effect on a gang of one size; num_instances=(2, 8) makes it shrink "
            "and grow"
        )
    if 0 < plan.gpus_per_node < plan.processes_per_node:
        gpus = f"{plan.gpus_per_node} GPU{'s' * (plan.gpus_per_node > 1)}"
        notes.append(
            f"{plan.processes_per_node} processes share {gpus} on each node (processes_per_node), which NCCL refuses, "
            "as does torch.cuda.set_device(local_rank)"
        )
    if plan.options.get("workdir") is not None and config.command is not None:
        from flowlite.bundle.files_to_send import stays_behind

        notes += stays_behind(config)
    return dataclasses.replace(plan, notes=(*plan.notes, *notes)) if notes else plan


def check_caps(config: TaskConfig, plan: Plan) -> None:
    """Checks the plan against the caps, independently of the adapter. Raises CapExceeded, which has both figures."""
    cap, price = config.max_price_per_hour, plan.price_per_hour
    if cap is not None and price > cap:
        now = " just now" if plan.spot else ""
        raise CapExceeded(
            f"{plan.provider} asks {exact(price)} per hour for {plan.instance_type}{now}, and max_price_per_hour is "
            f"{exact(cap)}; raise the cap, or ask for another machine (`flow offers`)"
        )
    if cap is not None and plan.price_cap is not None and plan.price_cap > cap:
        raise CapExceeded(
            f"{plan.provider} would let the price of {plan.instance_type} rise to {exact(plan.price_cap)} per hour, "
            f"and max_price_per_hour is {exact(cap)}; nothing was launched"
        )
    if config.max_cost is not None and plan.reserved_seconds and not plan.max_run_seconds:
        rate = plan.highest_rate * plan.machines
        seconds = plan.paid_seconds or 0.0
        raise CapExceeded(
            f"max_cost of {exact(config.max_cost)} pays for {seconds:.0f} s of {plan.machines} × "
            f"{plan.instance_type} ({exact(rate)} per hour in all), and to stop and give them back alone takes up to "
            f"{plan.reserved_seconds:.0f} s; raise the cap, ask for less, or lower grace_seconds"
        )
