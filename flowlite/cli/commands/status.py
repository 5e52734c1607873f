"""`flow status`: shows the list of tasks, or one task in detail."""

from __future__ import annotations

import sys
import time
from collections.abc import Collection, Sequence
from fnmatch import fnmatchcase
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flowlite import terminal
from flowlite.cli import output
from flowlite.cli.common_options import TASK, Json
from flowlite.cli.completion import complete_state
from flowlite.errors import ConfigError
from flowlite.node.quick_dataclass import dataclass
from flowlite.output import printing
from flowlite.settings.suggest import did_you_mean
from flowlite.state import clock
from flowlite.supervise import gang_size

if TYPE_CHECKING:
    from rich.table import Table

    from flowlite.api.client import Flow
    from flowlite.api.task import Node, Task
    from flowlite.state.store import Event, InstanceRecord, TaskKey, TaskRecord

# The number of finished tasks that `flow status` shows without --all.
SHOWN = 20
EVENTS_SHOWN = 20
# Values of `--state` besides the states themselves.
UNFINISHED, FINISHED = "unfinished", "finished"
_NAMES = ("name", "id", "status", "nodes", "gpu", "created", "run time", "cost", "reason")
_LEAST = {"name": 12, "reason": 16}
_LEAVE_OUT = {"cost": 1, "created": 2, "run time": 3, "nodes": 4, "gpu": 5}
_WATCH_EVERY = 1.0
# The last events of a task that `--watch` shows above the last lines of its output.
_EVENTS_WATCHED = 5


def status(
    task: Annotated[str | None, TASK] = None,
    all: Annotated[
        bool, typer.Option("--all", "-a", help="Show all finished tasks, not only the newest.")
    ] = False,
    state: Annotated[
        list[str] | None,
        typer.Option(
            "--state",
            "-s",
            help="Only tasks in this state, such as running or failed; also unfinished and finished. May be repeated.",
            autocompletion=complete_state,
        ),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option("--name", "-n", help="Only tasks of this name; * stands for anything."),
    ] = None,
    watch: Annotated[
        bool,
        typer.Option(
            "--watch",
            "-w",
            help="Update the list, or TASK with its last output, until Ctrl-C.",
        ),
    ] = False,
    json: Json = False,
) -> None:
    """Show all tasks, or one in detail."""
    from flowlite.api.client import Flow

    flow = Flow()
    if watch:
        _refuse_to_watch(json)
    if task is not None:
        if state or name or all:
            raise ConfigError(
                "--state, --name and --all choose among all tasks; give no TASK with them"
            )
        found = flow.get_task(task)
        if watch:
            _watch(flow, TaskFilters(only=found.id))
        else:
            _show_one(found, json)
            if warning := _not_recorded([found]):
                output.warn(warning)
            _ask_to_resume([found] if not json and found.needs_resume else [])
        return
    wanted = TaskFilters(_states(state), name, all)
    if watch:
        _watch(flow, wanted)
    else:
        _show_list(flow, wanted, json)


@dataclass(frozen=True, slots=True)
class TaskFilters:
    """The filters of the list.

    Attributes:
        states: Only tasks in these states; empty for all states.
        name: Only tasks whose names match this pattern.
        all: Include all finished tasks, not only the newest.
        only: Only the task with this id.
    """

    states: frozenset[str] = frozenset()
    name: str | None = None
    all: bool = False
    only: str | None = None

    def takes(self, record: TaskKey) -> bool:
        """Whether a task passes the filters."""
        if self.only is not None:
            return record.id == self.only
        if self.states and record.state not in self.states:
            return False
        return self.name is None or fnmatchcase(record.name, self.name)


@dataclass(frozen=True, slots=True)
class TaskSelection:
    """The tasks to show.

    Attributes:
        tasks: The tasks that are shown, newest first.
        further: Number of tasks that would be shown too, if there was room for them.
        older: Number of finished tasks that pass the filters but are not shown.
        others: Number of tasks that do not pass the filters.
        left: Ids of tasks that wait for `flow resume`.
        warning: Why what is shown may be out of date; "" if it is not.
    """

    tasks: list[Task[Any]]
    further: int
    older: int
    others: int
    left: frozenset[str]
    warning: str

    @classmethod
    def of(cls, flow: Flow, wanted: TaskFilters, most: int | None = None) -> TaskSelection:
        """Selects the tasks to show from all tasks, and reads these, or the newest `most` of them."""
        from flowlite.state.records import FINAL_STATES

        keys = flow.task_keys()
        fitting = [one for one in keys if wanted.takes(one)]
        finished = [one for one in fitting if one.state in FINAL_STATES]
        older = set() if wanted.all else {one.id for one in finished[SHOWN:]}
        ids = [one.id for one in fitting if one.id not in older]
        shown = flow.list_tasks(ids=ids[:most])
        further = 0 if most is None else max(0, len(ids) - most)
        others = len(keys) - len(fitting)
        left = frozenset(one.id for one in shown if one.needs_resume)
        return cls(shown, further, len(older), others, left, _not_recorded(shown))

    def not_shown(self) -> list[str]:
        """Sentences that say how many tasks are not shown, and which options show them."""
        said = []
        if self.older:
            said.append(
                f"{_tasks(self.older, 'older finished')} not shown; `flow status --all` shows them"
            )
        if self.others:
            said.append(
                f"{_tasks(self.others, 'other')} not shown; `flow status` without --state and --name shows them"
            )
        return said


def _not_recorded(tasks: Sequence[Task[Any]]) -> str:
    """Why nothing new about these tasks can be recorded; "" if it can, or if all have ended."""
    from flowlite.settings import flow_home

    if all(one.record.final for one in tasks):
        return ""
    return flow_home.not_recorded(flow_home.home())


def _tasks(count: int, what: str) -> str:
    return f"{count} {what} task is" if count == 1 else f"{count} {what} tasks are"


def _states(given: Sequence[str] | None) -> frozenset[str]:
    """The states that the values of `--state` stand for. Raises ConfigError."""
    from flowlite.state.records import FINAL_STATES, STATES

    groups = {UNFINISHED: STATES - FINAL_STATES, FINISHED: FINAL_STATES}
    found: set[str] = set()
    for word in given or ():
        if word in groups:
            found |= groups[word]
        elif word in STATES:
            found.add(word)
        else:
            known = sorted(STATES | groups.keys())
            hint = did_you_mean(word, known) or f"; it is one of {', '.join(known)}"
            raise ConfigError(f"--state: no state {word!r}{hint}")
    return frozenset(found)


# The list


def _show_list(flow: Flow, wanted: TaskFilters, json: bool) -> None:
    from flowlite.supervise.process import resuming

    listing = TaskSelection.of(flow, wanted)
    warm = flow.warm_nodes()
    if json:
        output.print_json("tasks", [_task_json(one, listing.left, warm) for one in listing.tasks])
        _tell_below(listing)
        return
    if listing.tasks:
        _print_table(listing)
    elif listing.others:
        output.say("no task fits")
    else:
        output.say("no tasks yet; `flow run --help` shows how to start one")
    waiting = [one for one in listing.tasks if one.id in listing.left]
    for one in waiting:
        output.tell_wrapped(resuming.sentence(one.record))
    _ask_to_resume(waiting)
    _tell_below(listing)
    if warm:
        output.say()
        output.say(_warm_line(warm))


def _tell_below(listing: TaskSelection) -> None:
    for text in listing.not_shown():
        output.tell_wrapped(text)
    if listing.warning:
        output.warn(listing.warning)


def _ask_to_resume(tasks: Sequence[Task[Any]]) -> None:
    """Asks on a terminal which of these tasks continue now. Those left for longer need `flow resume`."""
    from flowlite.cli.confirmation import can_ask
    from flowlite.supervise.process import resuming

    for one in tasks:
        if resuming.is_left(one.record) or not can_ask():
            continue
        if typer.confirm(f"Continue {one.name} ({one.id}) now?", err=True):
            one.resume()


def _print_table(listing: TaskSelection) -> None:
    """Prints one line for each task, cut to the width of a terminal; elsewhere in full."""
    if sys.stdout.isatty():
        rows = _rows(listing.tasks, listing.left)
    else:
        full = (_row(one, listing.left) for one in listing.tasks)
        rows = [(*(text or "-" for text in row[:-1]), row[-1]) for row in full]
    output.table_of_lines(_NAMES, rows, _LEAST, _LEAVE_OUT)


def _fitted(tasks: Sequence[Task[Any]], left: Collection[str], width: int) -> Table:
    """The list as a table of that width."""
    from flowlite.cli.columns import fit

    return output.fitted_table(fit(_NAMES, _rows(tasks, left), width, _LEAST, _LEAVE_OUT))


def _rows(tasks: Sequence[Task[Any]], left: Collection[str]) -> list[tuple[str, ...]]:
    """The texts of the list on a terminal, where a column without a value is left out: that of costs, if all are 0."""
    rows = [_row(one, left) for one in tasks]
    if any(one.estimated_cost for one in tasks):
        return rows
    cost = _NAMES.index("cost")
    return [(*row[:cost], "", *row[cost + 1 :]) for row in rows]


def _row(task: Task[Any], left: Collection[str]) -> tuple[str, ...]:
    """The texts of a task's line, in the order of `_NAMES`; "" for no value."""
    record = task.record
    gpu = record.plan.get("gpu") or ""
    count = record.plan.get("gpus_per_node")
    return (
        record.name,
        record.id,
        record.state,
        gang_size.in_words(record),
        f"{gpu}:{count}" if gpu and count else gpu,
        f"{output.duration(clock.now() - record.created_at)} ago",
        output.run_time(record),
        output.cost_of(task),
        " ".join(_reason(task, left).split()),
    )


def _reason(task: Task[Any], left: Collection[str]) -> str:
    """The reason of a task's state. What a task waited for when its supervisor was lost holds no longer."""
    if task.id not in left:
        return task.record.reason
    from flowlite.supervise.process import resuming

    return resuming.waits_for_resume(task.record)


# Watching


def _refuse_to_watch(json: bool) -> None:
    """Raises ConfigError if the output is no terminal on which the list can be replaced, or is JSON."""
    if json or not printing.can_rewrite(sys.stdout):
        raise ConfigError(
            "--watch needs a terminal, and not a dumb one; elsewhere, call `flow status --json` as often as you like"
        )


def _watch(flow: Flow, wanted: TaskFilters) -> None:
    """Refreshes the list every second, until Ctrl-C, or until the only watched task has ended."""
    from contextlib import suppress

    from rich.console import Console
    from rich.live import Live

    console = Console(file=sys.stdout)
    # Ctrl-C is the usual way to leave.
    with (
        suppress(KeyboardInterrupt),
        Live(console=console, auto_refresh=False, vertical_overflow="crop") as live,
    ):
        while True:
            listing = TaskSelection.of(flow, wanted, console.height)
            # A task reads its record anew each time: what has ended before the picture is drawn has ended in it, too.
            over = wanted.only and all(one.record.final for one in listing.tasks)
            draw = _picture_of_one if wanted.only and listing.tasks else _picture
            live.update(draw(listing, console.width, console.height), refresh=True)
            if over:
                return
            time.sleep(_WATCH_EVERY)


def _picture(listing: TaskSelection, width: int, height: int) -> Any:
    """The screen of `--watch`: as many tasks as there are rows, and the number of the others."""
    from rich.console import Group

    # The rows between the heading and the notes on tasks that are not shown.
    notes = [*listing.not_shown(), *filter(None, [listing.warning])]
    room = max(1, height - 2 - len(notes))
    tasks = listing.tasks[:room]
    below = [output.cell(text) for text in notes]
    total = len(listing.tasks) + listing.further
    if total > room:
        tasks = tasks[: room - 1]
        below.insert(0, output.cell(f"{total - len(tasks)} more; the terminal is too low"))
    if not tasks:
        return Group(output.cell("no task fits" if listing.others else "no tasks yet"), *below)
    return Group(_fitted(tasks, listing.left, width), *below)


def _picture_of_one(listing: TaskSelection, width: int, height: int) -> Any:
    """The screen of `--watch TASK`: its line, its whole reason, its last events, its last output."""
    from rich.console import Group

    (task,) = listing.tasks
    drawn = _fitted([task], listing.left, width)
    texts = filter(None, (listing.warning, _reason(task, listing.left)))
    told = [terminal.in_one_line(text) for text in texts]
    events = [
        output.cell(f"{time.strftime('%H:%M:%S', time.localtime(event.at))}  {event.text}")
        for event in _told_once(task.events())[-_EVENTS_WATCHED:]
    ]
    # Two rows for the task, an empty one, and those that long texts take.
    room = height - 4 - len(events) - sum(len(text) // max(1, width) + 1 for text in told)
    lines = [output.cell(str(line)) for line in task.logs(tail=max(0, room))] if room > 0 else []
    for row in (*events, *lines):
        row.truncate(width, overflow="ellipsis")
    parts = [output.cell(""), *lines] if lines else []
    return Group(drawn, *map(output.cell, told), *events, *parts)


# One task


def _task_json(
    task: Task[Any], left: Collection[str], warm: Sequence[InstanceRecord]
) -> dict[str, Any]:
    mine = [each for each in warm if each.task_id == task.id]
    return {
        **output.task_json(task),
        "reason": _reason(task, left),
        "needs_resume": task.id in left,
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
    from flowlite.cli.candidate_table import candidate_json, show_ranked, show_tried, tried_json
    from flowlite.provider import Candidate, settings_of_task

    record = task.record
    candidates = [Candidate.from_json(each) for each in record.candidates]
    nodes = task.nodes
    events = task.events()
    left = {task.id} if task.needs_resume else set()
    reason = _reason(task, left)
    if json:
        data = output.task_json(task)
        data["reason"] = reason
        data["call"] = task.call
        data["needs_resume"] = bool(left)
        data["cost_per_hour_now"] = round(task.cost_per_hour, 6)
        data["candidate"] = record.candidate
        data["candidates"] = [candidate_json(each) for each in candidates]
        data["tried"] = tried_json(record)
        data["nodes"] = [
            {
                "rank": node.rank,
                "id": node.id,
                "role": _role_of(node),
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
    _show_facts(task, reason)
    _show_settings(record)
    if candidates:
        output.say("\nplaces where it may run, * the present one:")
        show_ranked(candidates, record.candidate)
    if record.tried:
        output.say("\nplaces that were tried:")
        show_tried(record)
    if nodes:
        output.say()
        output.table(
            ("node", "role", "instance", "state", "address"),
            [
                (
                    str(node.rank if node.rank is not None else "-"),
                    _role_of(node),
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


def _role_of(node: Node) -> str:
    """What the machine is for: a rank, or to take one; "-" for machines that have ended, or without a task."""
    if node.state in ("spare", "joining"):
        return node.state
    return "rank" if node.rank is not None and node.state == "running" else "-"


def _state_of(node: Node) -> str:
    if node.state != "warm" or node.warm_until is None:
        return node.state
    return f"warm until {output.clock(node.warm_until)}"


def _show_facts(task: Task[Any], reason: str) -> None:
    from flowlite.provider import Plan
    from flowlite.supervise.money import price_text

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
            "runs": task.call,
            "status": record.state + (f": {reason}" if reason else ""),
            "gang": f"{gang_size.in_words(record)} × {plan.get('instance_type')}, {per_node} per node{gpus}",
            "provider": " ".join(filter(None, (record.provider, plan.get("region")))),
            "attempt": str(record.attempt) if record.attempt > 1 else None,
            "created": output.clock(record.created_at),
            "started": output.clock(record.started_at) if record.started_at else None,
            "finished": output.clock(record.finished_at) if record.finished_at else None,
            "run time": output.run_time(record),
            "price": price_text.price(asked) if asked.is_paid else None,
            "cost": cost,
            "at most": price_text.worst_case_of_task(record),
            "not in it": "; ".join(asked.not_included) or None,
            "caps": ", ".join(filter(None, caps)) or None,
            "notes": "; ".join(plan.get("notes") or ()) or None,
            "ranks": _start_of_ranks(task),
        }
    )


def _start_of_ranks(task: Task[Any]) -> str | None:
    """Why the ranks of a command of Python are not forked from the fork server; None if they are, or for others."""
    from flowlite.node.config.python_command import STARTED_ANEW

    why = task.record.call.get("why")
    return f"{STARTED_ANEW}: {why}" if why else None


def _show_settings(record: TaskRecord) -> None:
    """Shows the provider settings of the task that were not defaults at submission."""
    from flowlite.provider import settings_of_task
    from flowlite.settings.provider_settings import DEFAULT

    rows = [
        (name, str(value), origin)
        for name, value, origin in settings_of_task(record).rows()
        if origin != DEFAULT
    ]
    if rows:
        output.say()
        output.table(("setting at submission", "value", "set by"), rows)


def _show_events(events: list[Event]) -> None:
    rows = [
        (
            time.strftime("%H:%M:%S", time.localtime(event.at)),
            event.text or event.kind,
        )
        for event in _told_once(events)[-EVENTS_SHOWN:]
    ]
    output.table(("time", "what"), rows)


def _told_once(events: Sequence[Event]) -> list[Event]:
    """The events without repeated texts.

    The failure that stops the gang is recorded twice: when it happens, and as the reason of the next state.
    """
    pairs = pairwise([None, *events])
    return [e for before, e in pairs if e and (not before or e.text != before.text)]
