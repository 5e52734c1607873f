"""`flow status`, `flow cancel`, `flow resume`, `flow result`: looking at tasks, and what is done to them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flowlite import clock
from flowlite.cli import output, values
from flowlite.cli.names import complete_task

if TYPE_CHECKING:
    from flowlite.store import Event, InstanceRecord, TaskRecord
    from flowlite.task import Node, Task

Name = Annotated[
    str,
    typer.Argument(help="Id, name or unique prefix.", autocompletion=complete_task, metavar="TASK"),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]

# Finished tasks that `flow status` shows unless asked for all.
SHOWN = 20
EVENTS_SHOWN = 20


def register(application: typer.Typer, command: str) -> None:
    """Adds one of the commands of this module."""
    commands: dict[str, Callable[..., None]] = {
        "status": status,
        "cancel": cancel,
        "resume": resume,
        "result": result,
    }
    application.command(command)(commands[command])


def status(
    task: Annotated[
        str | None,
        typer.Argument(
            help="Id, name or unique prefix.", autocompletion=complete_task, metavar="[TASK]"
        ),
    ] = None,
    all: Annotated[
        bool, typer.Option("--all", "-a", help="Show all finished tasks, not only the newest.")
    ] = False,
    json: Json = False,
) -> None:
    """Show all tasks, or one in detail."""
    from flowlite.client import Flow
    from flowlite.supervise import resuming

    flow = Flow()
    if task is not None:
        _show_one(flow.get_task(task), json)
        return
    tasks = flow.list_tasks()
    warm = flow.warm_nodes()
    hidden = 0
    if not all:
        finished = [one for one in tasks if one.record.final]
        older = {one.id for one in finished[SHOWN:]}
        hidden = len(older)
        tasks = [one for one in tasks if one.id not in older]
    if json:
        output.print_json("tasks", [_task_json(one, warm) for one in tasks])
        return
    if not tasks:
        output.say("no tasks yet; `flow run --help` shows how to start one")
        return
    output.table(
        ("name", "id", "status", "nodes", "gpu", "created", "run time", "cost", "reason"),
        [_row(one) for one in tasks],
    )
    for one in tasks:
        if one.needs_resume:
            output.tell(resuming.sentence(one.record))
    if hidden:
        output.tell(f"{hidden} older finished tasks are not shown; `flow status --all` shows them")
    if warm:
        output.say()
        output.say(_warm_line(warm))


def cancel(
    tasks: Annotated[
        list[str],
        typer.Argument(
            help="Ids, names or unique prefixes.", autocompletion=complete_task, metavar="TASK..."
        ),
    ],
    wait: Annotated[
        bool, typer.Option("--wait", "-w", help="Return only when the nodes are gone.")
    ] = False,
    json: Json = False,
) -> None:
    """End tasks. Their nodes are given back; logs stay."""
    from flowlite.client import Flow

    flow = Flow(notify=_unheard)
    # All names are looked up first, so that a wrong one cancels nothing.
    found = [flow.get_task(name) for name in tasks]
    asked = [one.cancel() for one in found]
    if wait:
        for one in found:
            one.wait()
    if json:
        data = [
            {**output.task_json(one.record, one.estimated_cost), "cancel_requested": was}
            for one, was in zip(found, asked, strict=True)
        ]
        output.print_json("tasks", data)
        return
    for one, was in zip(found, asked, strict=True):
        if not was:
            output.say(f"{one.name} ({one.id}) had ended before: {one.status}")
        elif wait:
            output.say(f"{one.name} ({one.id}): {one.status}")
        else:
            output.say(
                f"{one.name} ({one.id}) is being cancelled; `flow status {one.id}` shows its end"
            )


def resume(
    tasks: Annotated[
        list[str],
        typer.Argument(
            help="Ids, names or unique prefixes.", autocompletion=complete_task, metavar="TASK..."
        ),
    ],
    json: Json = False,
) -> None:
    """Have tasks go on that lost their supervisor before they had machines; they launch them now."""
    from flowlite.client import Flow

    flow = Flow(notify=_unheard)
    found = [flow.get_task(name) for name in tasks]
    for one in found:
        one.resume()
    if json:
        data = [output.task_json(one.record, one.estimated_cost) for one in found]
        output.print_json("tasks", data)
        return
    for one in found:
        output.say(f"{one.name} ({one.id}) goes on; `flow status {one.id}` shows how")


def result(
    task: Name,
    rank: Annotated[int, typer.Option("--rank", help="Of this global rank.")] = 0,
    pickle: Annotated[
        bool,
        typer.Option(
            "--pickle/--no-pickle",
            help="Load no pickle: neither a result that is not plain data nor an exception.",
        ),
    ] = True,
    timeout: Annotated[
        float | None, typer.Option("--timeout", help="Seconds to wait for the end of the task.")
    ] = None,
    json: Json = False,
) -> None:
    """Wait for the end of a task and print what it returned."""
    from flowlite.client import Flow

    found = Flow().get_task(task)
    value = found.result_of(rank, timeout, allow_pickle=pickle)
    if json:
        data = output.task_json(found.record, found.estimated_cost)
        output.print_json("result", {**data, "rank": rank, **result_json(value)})
        return
    show_value(value)


def result_json(value: Any) -> dict[str, Any]:
    """A result in JSON: the value where it is plain and not too large, and its text in any case."""
    return {
        "result": values.as_json(value),
        "result_text": None if value is None else values.one_line(value),
    }


def show_value(value: Any) -> None:
    """Prints a result: texts as they are, nothing for None, anything else as Python shows it."""
    if value is None:
        return
    if isinstance(value, str):
        output.say(value)
    else:
        output.say_value(values.pretty(value))


def _unheard(note: str) -> None:
    """For commands that do what a note of `Flow.get_task` advises."""


def _task_json(task: Task[Any], warm: Sequence[InstanceRecord]) -> dict[str, Any]:
    mine = [each for each in warm if each.task_id == task.id]
    return {
        **output.task_json(task.record, task.estimated_cost),
        "needs_resume": task.needs_resume,
        "warm_nodes": len(mine),
        "warm_until": output.json_time(_until(mine)),
    }


def _warm_line(warm: Sequence[InstanceRecord]) -> str:
    where = ", ".join(sorted({each.provider for each in warm}))
    price = sum(each.price_per_hour for each in warm)
    count = "1 node is" if len(warm) == 1 else f"{len(warm)} nodes are"
    return (
        f"{count} kept warm ({where}) until {output.clock(_until(warm))}, {output.money(price)} per hour; "
        "`flow gc --warm` ends them now"
    )


def _until(warm: Sequence[InstanceRecord]) -> float | None:
    return max((each.ended_at for each in warm if each.ended_at is not None), default=None)


def _show_one(task: Task[Any], json: bool) -> None:
    from flowlite.provider import settings_of_task

    record = task.record
    nodes = task.nodes
    events = task.events()
    if json:
        data = output.task_json(record, task.estimated_cost)
        data["needs_resume"] = task.needs_resume
        data["cost_per_hour_now"] = round(task.cost_per_hour, 6)
        data["nodes"] = [
            {
                "rank": node.rank,
                "id": node.id,
                "state": node.state,
                "address": node.address,
                "price_per_hour": node.price_per_hour,
                "warm_until": output.json_time(node.warm_until),
            }
            for node in nodes
        ]
        data["events"] = [
            {"at": output.json_time(event.at), "kind": event.kind, "text": event.text}
            for event in events
        ]
        data["settings"] = [
            {"name": name, "value": value, "origin": origin}
            for name, value, origin in settings_of_task(record).rows()
        ]
        output.print_json("task", data)
        return
    _show_facts(task)
    _show_settings(record)
    if nodes:
        output.say()
        output.table(
            ("node", "instance", "state", "address"),
            [
                (
                    str(node.rank if node.rank is not None else "-"),
                    node.id,
                    _state_of(node),
                    node.address,
                )
                for node in nodes
            ],
        )
    if events:
        output.say()
        _show_events(events)


def _state_of(node: Node) -> str:
    if node.state != "warm" or node.warm_until is None:
        return node.state
    return f"warm until {output.clock(node.warm_until)}"


def _show_facts(task: Task[Any]) -> None:
    from flowlite.provider import Plan
    from flowlite.supervise import quote

    record = task.record
    asked, config = Plan.from_json(record.plan), record.config
    plan, per_node = record.plan, record.plan.get("processes_per_node", 1)
    gpus = f", {plan['gpus_per_node']} × {plan['gpu']} each" if plan.get("gpus_per_node") else ""
    cost, rate = output.money(task.estimated_cost), task.cost_per_hour
    if rate:
        cost += f" so far, {output.money(rate)} per hour now"
    if task.cost_is_upper_bound:
        cost = f"at most {cost}: nobody saw the end of all its nodes"
    caps = [
        f"{output.money(config['max_price_per_hour'])} per instance and hour"
        if config.get("max_price_per_hour")
        else "",
        f"{output.money(config['max_cost'])} in all" if config.get("max_cost") else "",
        output.duration(plan["max_run_seconds"]) if plan.get("max_run_seconds") else "",
    ]
    output.facts(
        {
            "task": f"{record.name} ({record.id})",
            "runs": record.function,
            "status": record.state + (f": {record.reason}" if record.reason else ""),
            "gang": f"{plan.get('num_instances')} × {plan.get('instance_type')}, {per_node} per node{gpus}",
            "provider": " ".join(filter(None, (record.provider, plan.get("region")))),
            "attempt": str(record.attempt) if record.attempt > 1 else None,
            "created": output.clock(record.created_at),
            "started": output.clock(record.started_at) if record.started_at else None,
            "finished": output.clock(record.finished_at) if record.finished_at else None,
            "run time": output.duration(_run_time(record)) if record.started_at else None,
            "price": quote.price(asked) if asked.price_per_hour else None,
            "cost": cost,
            "at most": quote.worst_case(asked)
            if asked.price_per_hour and not record.final
            else None,
            "caps": ", ".join(filter(None, caps)) or None,
            "notes": "; ".join(plan.get("notes") or ()) or None,
        }
    )


def _show_settings(record: TaskRecord) -> None:
    """The settings of its provider that the task was submitted with, as far as somebody has set them."""
    from flowlite.provider import settings_of_task
    from flowlite.provider_settings import DEFAULT

    rows = [
        (name, str(value), origin)
        for name, value, origin in settings_of_task(record).rows()
        if origin != DEFAULT
    ]
    if rows:
        output.say()
        output.table(("setting at submission", "value", "set by"), rows)


def _show_events(events: list[Event]) -> None:
    # What stops the gang is noted when it happens and again as the reason of what follows.
    shown = [
        e for before, e in pairwise([None, *events]) if e and (not before or e.text != before.text)
    ]
    rows = [
        (
            time.strftime("%H:%M:%S", time.localtime(event.at)),
            event.text or event.kind,
        )
        for event in shown[-EVENTS_SHOWN:]
    ]
    output.table(("time", "what"), rows)


def _row(task: Task[Any]) -> tuple[str, ...]:
    record = task.record
    gpu = record.plan.get("gpu") or "-"
    count = record.plan.get("gpus_per_node")
    return (
        record.name,
        record.id,
        record.state,
        str(record.plan.get("num_instances", "-")),
        f"{gpu}:{count}" if count else gpu,
        f"{output.duration(clock.now() - record.created_at)} ago",
        output.duration(_run_time(record)),
        output.money(task.estimated_cost),
        " ".join(record.reason.split()),
    )


def _run_time(record: TaskRecord) -> float | None:
    if record.started_at is None:
        return None
    return (record.finished_at or clock.now()) - record.started_at
