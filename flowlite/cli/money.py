"""`flow cost` and `flow offers`: what tasks cost, and what nodes would cost."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import typer

from flowlite.cli import output
from flowlite.cli.names import complete_provider, complete_task


def register(application: typer.Typer, command: str) -> None:
    """Adds one of the commands of this module."""
    commands: dict[str, Callable[..., None]] = {"cost": cost, "offers": offers}
    application.command(command)(commands[command])


def cost(
    task: Annotated[
        str | None,
        typer.Argument(
            help="Id, name or unique prefix.", autocompletion=complete_task, metavar="[TASK]"
        ),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show what a task has cost so far and can cost at most, or the sum over all tasks."""
    from flowlite.client import Flow

    flow = Flow()
    tasks = [flow.get_task(task)] if task is not None else flow.list_tasks()
    rows = [_cost_of(one) for one in tasks]
    total = sum(row["estimated_cost"] for row in rows)
    rate = sum(row["cost_per_hour_now"] for row in rows)
    if json:
        data = {"tasks": rows, "estimated_cost": total, "cost_per_hour_now": rate}
        output.print_json("cost", data)
        return
    shown = (
        rows
        if task is not None
        else [r for r in rows if r["estimated_cost"] or r["cost_per_hour_now"]]
    )
    if shown:
        output.table(
            ("name", "id", "status", "so far", "per hour now", "at most"),
            [
                (
                    row["name"],
                    row["id"],
                    row["status"],
                    output.money(row["estimated_cost"]),
                    output.money(row["cost_per_hour_now"]),
                    output.money(row["worst_case_cost"]),
                )
                for row in shown
            ],
        )
    if task is None:
        tasks_counted = "1 task" if len(rows) == 1 else f"{len(rows)} tasks"
        output.say(
            f"in all: {output.money(total)} for {tasks_counted}, {output.money(rate)} per hour now"
        )


def offers(
    gpu: Annotated[str | None, typer.Option("--gpu", help="GPUs of each node, as h100:8.")] = None,
    num_instances: Annotated[
        int, typer.Option("--num-instances", "-N", help="Nodes in the gang.")
    ] = 1,
    provider: Annotated[
        str | None,
        typer.Option("--provider", help="Where nodes come from.", autocompletion=complete_provider),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show what could be had, and its price, cheapest first."""
    from flowlite.client import Flow

    found = Flow(provider).offers(gpu, num_instances)
    if json:
        output.print_json("offers", [offer.to_json() for offer in found])
        return
    if not found:
        output.say("nothing fits; ask for another GPU or another provider")
        return
    output.table(
        ("provider", "instance", "region", "gpu", "per hour", "for all", "available", "note"),
        [
            (
                offer.provider,
                offer.instance_type,
                offer.region or "-",
                f"{offer.gpu}:{offer.gpus_per_node}" if offer.gpus_per_node else "-",
                output.money(offer.price_per_hour),
                output.money(offer.price_per_hour * num_instances),
                "yes" if offer.available else "no",
                offer.note,
            )
            for offer in found
        ],
    )


def _cost_of(task: Any) -> dict[str, Any]:
    from flowlite.provider import Plan

    record = task.record
    return {
        "id": record.id,
        "name": record.name,
        "status": record.state,
        "estimated_cost": round(task.estimated_cost, 6),
        "cost_per_hour_now": round(task.cost_per_hour, 6),
        "worst_case_cost": Plan.from_json(record.plan).worst_case_cost,
    }
