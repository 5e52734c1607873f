"""`flow cost` and `flow offers`: the cost of tasks, and the prices of nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from flowlite.cli import output
from flowlite.cli.common_options import TASK, Json
from flowlite.cli.completion import complete_provider
from flowlite.errors import ConfigError
from flowlite.supervise.money import price_text

if TYPE_CHECKING:
    from flowlite.api.task import Task
    from flowlite.provider import Offer
    from flowlite.state.store import InstanceRecord

_Answer = TypeVar("_Answer")

GROUPS = ("day", "function", "provider")


def cost(
    task: Annotated[str | None, TASK] = None,
    by: Annotated[
        str | None, typer.Option("--by", help="Sum by day, function or provider.", metavar="WHAT")
    ] = None,
    json: Json = False,
) -> None:
    """Show what a task has cost so far and can cost at most, or the sum over all tasks."""
    from flowlite.api.client import Flow

    if by is not None and by not in GROUPS:
        from flowlite.settings.suggest import did_you_mean

        raise ConfigError(
            f"--by: {by!r} is not allowed; give {', '.join(GROUPS)}{did_you_mean(by, GROUPS)}"
        )
    flow = Flow()
    if task is not None:
        tasks = [flow.get_task(task)]
        problems = flow.look_up_cost([tasks[0].id])
        charged = {tasks[0].id: flow.instances_of(tasks[0])}
    else:
        problems = flow.look_up_cost()
        charged = flow.charged_instances()
        # Tasks that cost nothing are only counted, unless all are asked for.
        tasks = flow.list_tasks(ids=None if json or by is not None else charged)
    for problem in problems:
        output.warn(problem)
    rows = [_cost_of(one, charged.get(one.id, ())) for one in tasks]
    total = sum((row["estimated_cost"] for row in rows), 0.0)
    rate = sum((row["cost_per_hour_now"] for row in rows), 0.0)
    groups = None if by is None else _sums(tasks, charged, by)
    if json:
        data: dict[str, Any] = {"tasks": rows, "estimated_cost": total, "cost_per_hour_now": rate}
        if groups is not None:
            data |= {"by": by, "groups": groups}
        output.print_json("cost", data)
        return
    if groups is not None:
        _show_groups(str(by), groups)
    else:
        paid = [row for row in rows if row["estimated_cost"] or row["cost_per_hour_now"]]
        _show_tasks(rows if task is not None else paid)
    if left_out := sorted({each for row in rows for each in row["not_included"]}):
        output.say(f"not in it: {'; '.join(left_out)}")
    if task is None or groups is not None:
        in_all = price_text.spent(total, any(row["upper_bound"] for row in rows))
        counted = len(flow.task_keys()) if task is None else 1
        tasks_counted = "1 task" if counted == 1 else f"{counted} tasks"
        output.say(f"in all: {in_all} for {tasks_counted}, {output.money(rate)} per hour now")


def offers(
    gpu: Annotated[
        str | None,
        typer.Option("--gpu", help="GPUs of each node, such as h100:8, or several: h100:8,a100:8."),
    ] = None,
    num_instances: Annotated[
        int, typer.Option("--num-instances", "-N", help="Nodes in the gang.", min=1)
    ] = 1,
    provider: Annotated[
        str | None,
        typer.Option(
            "--provider",
            help="Only this provider, or several; by default, all that are configured.",
            autocompletion=complete_provider,
        ),
    ] = None,
    spot: Annotated[
        bool | None,
        typer.Option("--spot/--on-demand", help="Only spot machines, or only on-demand ones."),
    ] = None,
    region: Annotated[
        str | None,
        typer.Option("--region", help="Only this region or zone, or several: eu-west-1,'us-*'."),
    ] = None,
    max_price_per_hour: Annotated[
        float | None, typer.Option("--max-price-per-hour", help="Dollars per instance and hour.")
    ] = None,
    max_run_time_hours: Annotated[
        str | None,
        typer.Option("--max-run-time-hours", metavar="HOURS", help="Hours, or such as 1h30m."),
    ] = None,
    max_cost: Annotated[
        float | None, typer.Option("--max-cost", help="Dollars for the whole task.")
    ] = None,
    json: Json = False,
) -> None:
    """Show what is available, and its price, cheapest first; if nothing fits, the nearest offers and why not.

    With several values, a cap, or --provider any, show the places where a task with these options may run, and what it
    can cost at most.
    """
    from flowlite.provider import adapter_class

    caps = {
        "max_price_per_hour": max_price_per_hour,
        "max_run_time_hours": max_run_time_hours,
        "max_cost": max_cost,
    }
    if _several(gpu, provider, region) or any(each is not None for each in caps.values()):
        from flowlite.spec.one_or_several import ANY

        _show_places(
            json,
            provider=provider or ANY,
            gpu=gpu,
            num_instances=num_instances,
            spot=spot,
            region=region,
            **caps,
        )
        return
    found, problems = _ask_for_offers(provider, gpu, num_instances, spot, region)
    found.sort(key=lambda offer: (not offer.fits, offer.price_to_sort_by, offer.provider))
    if json:
        data = [
            {**offer.to_json(), "price_for_all": _for_all(offer, num_instances)} for offer in found
        ]
        output.print_json("offers", data)
    for problem in problems:
        output.warn(problem)
    if json:
        return
    fitting = [offer for offer in found if offer.fits]
    if fitting:
        _show_offers(fitting, num_instances)
    elif found:
        output.say("nothing fits; these come near:")
        _show_offers(found, num_instances)
    elif any(adapter_class(name).has_offers() for name in providers_to_ask(provider)):
        output.say("nothing fits; ask for another GPU or another provider")
    else:
        output.say(
            f"{', '.join(providers_to_ask(provider))} cannot list what is available; `flow run --dry-run` says what a "
            "task would get"
        )


def _several(gpu: str | None, provider: str | None, region: str | None) -> bool:
    """Whether options are given that allow several places."""
    from flowlite.spec.one_or_several import ANY, is_pattern

    listed = any("," in (each or "") for each in (gpu, provider, region))
    return listed or provider == ANY or is_pattern(region or "")


def _show_places(json: bool, **options: Any) -> None:
    """Shows where a task with these options may run."""
    from flowlite.api.client import Flow
    from flowlite.cli.candidate_table import candidates_json, show_candidates
    from flowlite.spec import TaskConfig

    config = TaskConfig(command="true", **options)
    found = Flow().candidates(config)[1]
    if json:
        output.print_json("places", candidates_json(found))
        return
    show_candidates(found)


def _ask_for_offers(
    provider: str | None, gpu: str | None, count: int, spot: bool | None, region: str | None
) -> tuple[list[Offer], list[str]]:
    """The offers of one provider or of all, and what failed. Raises if all of them failed."""
    from flowlite.api.client import Flow

    if gpu is not None:
        from flowlite.spec.gpu import GpuRequest

        gpu = str(GpuRequest.parse(gpu))

    def ask(name: str) -> list[Offer]:
        return Flow(name).offers(gpu, count, spot=spot, region=region)

    return ask_providers(ask, provider)


def ask_providers(
    ask: Callable[[str], list[_Answer]], provider: str | None
) -> tuple[list[_Answer], list[str]]:
    """Asks one provider, or all that are set up in parallel. Returns the answers, and what failed.

    Raises the error if all of them failed.
    """
    from flowlite.cli.node_queries import in_parallel
    from flowlite.provider import adapters_problem

    def guarded(name: str) -> list[_Answer] | Exception:
        try:
            return ask(name)
        except Exception as error:
            # A defect of one adapter hides nothing of the others.
            return error

    names = providers_to_ask(provider)
    answers = in_parallel(guarded, names)
    found = [one for each in answers if not isinstance(each, Exception) for one in each]
    failed = {
        name: each for name, each in zip(names, answers, strict=True) if isinstance(each, Exception)
    }
    if len(failed) == len(names) and failed:
        raise next(iter(failed.values()))
    return found, [f"{name}: {adapters_problem(error)}" for name, error in failed.items()]


def providers_to_ask(provider: str | None) -> list[str]:
    """The providers that a command asks: the one that the user has named, or all that are set up."""
    return [provider] if provider is not None else set_up()


def set_up() -> list[str]:
    """The names of the providers that the user has set up, and of the default provider."""
    from flowlite.api.adapters import adapter
    from flowlite.errors import ConfigError, FlowError
    from flowlite.provider import provider_names
    from flowlite.settings.settings import load_settings

    given, names = load_settings()["provider"], provider_names()
    chosen = [given] if isinstance(given, str) else list(given)
    found = [name for name in chosen if name not in (*names, "any")]
    for name in names:
        try:
            if name in chosen or adapter(name).configured():
                found.append(name)
        except (FlowError, ImportError) as error:
            # If its settings are wrong or not trusted, asking the provider reports that.
            if isinstance(error, ConfigError):
                found.append(name)
        except Exception:
            # So it does a defect of its adapter.
            found.append(name)
    return found


def _for_all(offer: Offer, count: int) -> float | None:
    return None if offer.price_per_hour is None else round(offer.price_per_hour * count, 6)


def _show_offers(found: Iterable[Offer], count: int) -> None:
    output.table(
        (
            *("provider", "instance", "region", "gpu", "per instance-hour", "for all"),
            *("kind", "available", "note"),
        ),
        [
            (
                offer.provider,
                offer.instance_type,
                offer.region or "-",
                f"{offer.gpu}:{offer.gpus_per_node}" if offer.gpus_per_node else "-",
                output.money(offer.price_per_hour),
                output.money(_for_all(offer, count)),
                "spot" if offer.spot else "on demand",
                "yes" if offer.available else "no",
                offer.note,
            )
            for offer in found
        ],
    )


def _show_tasks(rows: Sequence[dict[str, Any]]) -> None:
    if not rows:
        return
    output.table(
        ("name", "id", "status", "so far", "per hour now", "at most"),
        [
            (
                row["name"],
                row["id"],
                row["status"],
                price_text.spent(row["estimated_cost"], row["upper_bound"]),
                output.money(row["cost_per_hour_now"]),
                _worst_case(row),
            )
            for row in rows
        ],
    )
    for when in sorted({row["may_exceed"] for row in rows if _is_exceedable(row)}):
        output.say(f"or more: {when}")


def _worst_case(row: dict[str, Any]) -> str:
    amount = output.money(row["worst_case_cost"])
    return f"{amount} or more" if _is_exceedable(row) else amount


def _is_exceedable(row: dict[str, Any]) -> bool:
    """Whether the task has a cap, and may cost more all the same."""
    return bool(row["may_exceed"]) and row["worst_case_cost"] is not None


def _show_groups(by: str, groups: Sequence[dict[str, Any]]) -> None:
    shown = [row for row in groups if row["estimated_cost"]]
    if shown:
        output.table(
            (by, "tasks", "cost"),
            [
                (
                    row[by],
                    str(row["tasks"]),
                    price_text.spent(row["estimated_cost"], row["upper_bound"]),
                )
                for row in shown
            ],
        )


def _sums(
    tasks: Sequence[Task[Any]], charged: Mapping[str, Sequence[InstanceRecord]], by: str
) -> list[dict[str, Any]]:
    """The cost of tasks by group: days in order, other groups by descending cost."""
    from flowlite.state import clock
    from flowlite.supervise.money import cost

    now = clock.now()
    totals: dict[str, float] = {}
    counts: dict[str, int] = {}
    bounds: set[str] = set()
    for task in tasks:
        nodes = charged.get(task.id, ())
        parts = (
            cost.cost_by_day(nodes, now)
            if by == "day"
            else {_key(task, by): cost.cost_of(nodes, now)}
        )
        for key, amount in parts.items():
            totals[key] = totals.get(key, 0.0) + amount
            counts[key] = counts.get(key, 0) + 1
        if task.cost_is_upper_bound:
            bounds |= parts.keys()
    order = sorted(totals, key=lambda key: key if by == "day" else (-totals[key], key))
    return [
        {
            by: key,
            "tasks": counts[key],
            "estimated_cost": round(totals[key], 6),
            "upper_bound": key in bounds,
        }
        for key in order
    ]


def _key(task: Task[Any], by: str) -> str:
    return task.function if by == "function" else task.provider


def _cost_of(task: Any, nodes: Sequence[InstanceRecord]) -> dict[str, Any]:
    from flowlite.provider import Plan
    from flowlite.state import clock
    from flowlite.supervise.money import cost

    now = clock.now()
    record = task.record
    plan = Plan.from_json(record.plan)
    return {
        "id": record.id,
        "name": record.name,
        "status": record.state,
        "estimated_cost": round(cost.cost_of(nodes, now), 6),
        "upper_bound": cost.is_upper_bound(nodes),
        "cost_per_hour_now": round(cost.rate_of(nodes, now), 6),
        **price_text.worst_case_json(plan, ended=record.final),
        "not_included": list(plan.not_included),
    }
