"""`flow scale`: repeats a run on more and more nodes, and shows how well it scales."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable
from dataclasses import field
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flowlite import terminal
from flowlite.cli import interrupts, output
from flowlite.cli.commands.run import config_of
from flowlite.cli.common_options import DryRun, Json, Rest
from flowlite.cli.confirmation import asks_before, confirm
from flowlite.cli.task_options import task_options, with_task_options
from flowlite.errors import CapExceeded, ConfigError, FlowError
from flowlite.node.quick_dataclass import dataclass
from flowlite.provider.dollars import dollars
from flowlite.scaling.ladder import Run, read_nodes, rungs_of
from flowlite.scaling.metric import NoMetric, of_lines, of_result
from flowlite.supervise.money import price_text

if TYPE_CHECKING:
    from flowlite.api.client import Flow
    from flowlite.api.task import Task
    from flowlite.provider import Plan
    from flowlite.spec import TaskConfig

_PANEL = "Runs"
# Options of `flow run` that `flow scale` does not take over.
_LEFT_OUT = ("num_instances", "after")


@dataclass
class Ladder:
    """The planned runs, their options, and the runs so far."""

    configs: list[TaskConfig]
    plans: list[Plan]
    label: str
    metric: str
    repeat: int
    max_cost: float | None
    show_logs: bool
    runs: list[Run] = field(default_factory=list)

    def worst_case(self) -> float | None:
        """The most that all runs can cost, in US dollars; None without a limit."""
        costs = [plan.worst_case_cost for plan in self.plans]
        whole = None if None in costs else sum(c or 0.0 for c in costs) * self.repeat
        if self.max_cost is not None and any(plan.is_paid for plan in self.plans):
            return self.max_cost if whole is None else min(whole, self.max_cost)
        return whole

    def may_exceed(self) -> str:
        """When the runs can cost more than `worst_case`, in words; "" if it is a strict bound."""
        return next((plan.may_exceed for plan in self.plans if plan.may_exceed), "")

    def left(self, flow: Flow) -> float | None:
        """The part of `--max-cost` that is neither spent nor needed for kept nodes; None without the option."""
        if self.max_cost is None:
            return None
        return self.max_cost - sum(
            flow.get_task(each.task).committed_cost if each.task else each.cost
            for each in self.runs
        )

    def about(self) -> dict[str, Any]:
        """The fields of the JSON output that are not about a rung."""
        return {
            "name": self.label,
            "metric": self.metric,
            "repeat": self.repeat,
            "provider": self.plans[0].provider,
            "instance_type": self.plans[0].instance_type,
            "cost": round(sum(each.cost for each in self.runs), 6),
        }


@with_task_options(left_out=_LEFT_OUT)
def scale(
    context: typer.Context,
    target: Annotated[
        str | None,
        typer.Argument(
            help="FILE.py::FUNCTION, FILE.py, task.yaml, or -- COMMAND.", metavar="TARGET"
        ),
    ] = None,
    rest: Rest = None,
    nodes: Annotated[
        str,
        typer.Option(
            "--nodes",
            metavar="N,N,…",
            help="Numbers of nodes, such as 1,2,4.",
            rich_help_panel=_PANEL,
        ),
    ] = "",
    metric: Annotated[
        str,
        typer.Option(
            "--metric",
            help="What to compare: a key or dotted path of the result, or a name in the output.",
            rich_help_panel=_PANEL,
        ),
    ] = "",
    repeat: Annotated[
        int,
        typer.Option(
            "--repeat", min=1, help="Runs of each; the median counts.", rich_help_panel=_PANEL
        ),
    ] = 1,
    directory: Annotated[
        Path | None,
        typer.Option(
            "--output",
            metavar="DIR",
            help="Directory for the tables and the plot; default scale-NAME.",
            rich_help_panel=_PANEL,
        ),
    ] = None,
    max_cost: Annotated[
        float | None,
        typer.Option("--max-cost", help="Dollars for all runs together.", rich_help_panel="Caps"),
    ] = None,
    name: Annotated[str | None, typer.Option("--name", help="Name of the tasks.")] = None,
    dry_run: DryRun = False,
    yes: Annotated[
        bool,
        typer.Option("--yes", "-y", help="Do not ask before launches that cost money."),
    ] = False,
    logs: Annotated[bool, typer.Option("--logs", help="Show the output of the workers.")] = False,
    json: Json = False,
    **options: Any,
) -> None:
    """Run a function or command on 1, 2, 4 … nodes, and show how well it scales.

    \b
    flow scale train.py::train --nodes 1,2,4 --metric samples_per_s --lr 1e-4
    flow scale --nodes 1,2,4,8 --metric samples/s -- python -m open_clip_train.main …

    One task per number of nodes, one after the other. The metric is taken from what rank 0 returned, or from the last
    line of the output that has it. Efficiency is the throughput per node, divided by that of the first number of nodes.
    The options of `flow run` apply here, too.
    """
    from flowlite.api.client import Flow
    from flowlite.cli.submit_and_follow import warnings_as_lines

    config = config_of(context, target, rest or [], task_options(options))
    for option, value in (("--nodes", nodes), ("--metric", metric)):
        if not value:
            raise ConfigError(
                f"{option} is missing; as in flow scale train.py::train --nodes 1,2,4 --metric samples_per_s"
            )
    rungs = read_nodes(nodes)
    _refuse_common_checkpoints(config, len(rungs) * repeat)
    flow = Flow(notify=lambda text: output.tell(f"note: {text}"))
    label = name or config.name or _label(config)
    with warnings_as_lines():
        planned = [_planned(flow, config, rung, label, max_cost) for rung in rungs]
    configs, plans = [one for one, _ in planned], [plan for _, plan in planned]
    ladder = Ladder(configs, plans, label, metric, repeat, max_cost, logs and not json)
    _show_plan(ladder)
    if dry_run:
        if json:
            output.print_json("scale-plan", _plan_json(ladder))
        output.tell("dry run: nothing was submitted")
        return
    if any(asks_before(plan, yes or json) for plan in ladder.plans):
        confirm("Launch these, one after the other?", "nothing was launched")
    raise output.Quit(_climb(flow, ladder, directory, json))


# Planning


def _refuse_common_checkpoints(config: TaskConfig, tasks: int) -> None:
    """Raises ConfigError if the tasks would continue from one another's checkpoints."""
    if config.checkpoint is not None and tasks > 1:
        raise ConfigError(
            f"checkpoint: each run would go on from what the one before has copied to {config.checkpoint.sync}, and "
            "would have less to do, or nothing. Measure without checkpoints: beside the function, write "
            "bench = train.options(checkpoint=None), and scale FILE.py::bench"
        )


def _planned(
    flow: Flow, config: TaskConfig, nodes: int, label: str, max_cost: float | None
) -> tuple[TaskConfig, Plan]:
    """Plans one rung. Errors are raised with its size."""
    changes: dict[str, Any] = {"num_instances": nodes, "name": f"{label[:55]}-n{nodes}"}
    if max_cost is not None:
        own = config.max_cost
        changes["max_cost"] = max_cost if own is None else min(own, max_cost)
    try:
        one, plan = flow.plan(config.replace(**changes))
    except FlowError as error:
        error.add_note(f"in the run with {_nodes(nodes)}; nothing was started")
        raise
    flow.tell_notes(plan)
    return one, plan


def _show_plan(ladder: Ladder) -> None:
    """Shows on standard error what will be run and what it can cost."""
    from flowlite.scaling import picture

    tasks = len(ladder.plans) * ladder.repeat
    sizes = ", ".join(str(plan.num_instances) for plan in ladder.plans)
    times = f", {ladder.repeat} times each" if ladder.repeat > 1 else ""
    number = f"{tasks} tasks, one after the other" if tasks > 1 else "1 task"
    output.tell(f"{ladder.label} on {sizes} {'node' if sizes == '1' else 'nodes'}{times}: {number}")
    if any(plan.is_paid for plan in ladder.plans):
        for plan in ladder.plans:
            output.tell(f"  {price_text.sentence(plan)}")
        worst = ladder.worst_case()
        total = price_text.NO_LIMIT if worst is None else dollars(worst)
        bound = f"cost at most {total}, for all runs together"
        output.tell(bound if worst is None else price_text.or_more(bound, ladder.may_exceed()))
    try:
        picture.check()
    except picture.NoMatplotlib as error:
        output.warn(str(error))


def _plan_json(ladder: Ladder) -> dict[str, Any]:
    rungs = [
        {"nodes": p.num_instances, "plan": p.to_json(), **price_text.worst_case_json(p)}
        for p in ladder.plans
    ]
    return {
        **ladder.about(),
        "worst_case_cost": ladder.worst_case(),
        "may_exceed": ladder.may_exceed(),
        "rungs": rungs,
    }


def _label(config: TaskConfig) -> str:
    """A name for tasks without one: that of the script, else of the program."""
    from flowlite.api.submission import command_line

    words = command_line(config.command or "task").split()
    word = next((word for word in words if word.endswith(".py")), words[0])
    return re.sub(r"[^A-Za-z0-9]+", "-", PurePath(word).stem).strip("-") or "task"


# Running


def _climb(flow: Flow, ladder: Ladder, given: Path | None, json: bool) -> int:
    """Runs all rungs, one after the other. Returns the exit code: 0 if every run has the metric."""
    from flowlite.scaling import files

    directory = files.directory_for(given, ladder.label)
    code = 0
    try:
        for config, plan in zip(ladder.configs, ladder.plans, strict=True):
            if ladder.runs:
                # A run of another size has no use for them.
                _end_kept(flow, ladder)
            for _ in range(ladder.repeat):
                ladder.runs.append(_run(flow, ladder, config, plan))
                _say(ladder.runs[-1], ladder.metric)
                files.write_tables(directory, rungs_of(ladder.runs), ladder.about())
    except _Left as left:
        code = left.code
        if ladder.runs:
            output.tell("the sweep ends here; this was measured before:")
    if ladder.runs:
        _show(ladder, directory, json)
    return code or int(any(each.value is None for each in ladder.runs))


def _end_kept(flow: Flow, ladder: Ladder) -> None:
    """Ends the nodes that runs have kept for others of their size."""
    for problem in flow.end_kept([each.task for each in ladder.runs]):
        output.warn(f"nodes that were kept could not be ended: {problem}")


class _Left(Exception):
    """Raised after Ctrl-C."""

    def __init__(self, code: int) -> None:
        super().__init__()
        self.code = code


def _run(flow: Flow, ladder: Ladder, config: TaskConfig, plan: Plan) -> Run:
    """Runs one task to its end. An error becomes the reason of the run."""
    from flowlite.cli.submit_and_follow import (
        follow,
        goes_on,
        interrupted,
        warnings_as_lines,
    )

    nodes, workers = plan.num_instances, plan.num_instances * plan.processes_per_node
    left = ladder.left(flow)
    if left is not None and plan.is_paid:
        if left <= 0:
            return Run(nodes, workers, reason=f"not run: max_cost of ${ladder.max_cost:g} is spent")
        config = config.replace(
            max_cost=left if config.max_cost is None else min(left, config.max_cost)
        )
    submitted: list[Task[Any]] = []
    began = time.monotonic()
    try:
        with interrupts.last_words(lambda: goes_on(submitted)):
            with warnings_as_lines():
                # The cost was shown before the first run.
                task = flow.submit(config, announce=submitted.append, show_plan=lambda plan: None)
            output.tell(f"{_nodes(nodes)}: task {task.name} ({task.id})")
            follow(task, ladder.show_logs)
        value, reason = _measured(task, ladder.metric)
    except CapExceeded as error:
        return Run(nodes, workers, reason=f"not run: {error}")
    except (KeyboardInterrupt, Exception) as error:
        if isinstance(error, Exception) and not interrupts.pressed():
            if isinstance(error, FlowError) and ladder.runs and not submitted:
                # As in an outage. What was measured before was paid for.
                return Run(nodes, workers, reason=f"not run: {error}")
            raise
        if not submitted:
            output.tell("\ninterrupted; no further task was submitted")
            raise _Left(130) from None
        raise _Left(interrupted(submitted[0], detach=False)) from None
    seconds = time.monotonic() - began
    return Run(nodes, workers, value, reason, task.id, seconds, task.estimated_cost)


def _measured(task: Task[Any], metric: str) -> tuple[float | None, str]:
    """The metric of a task that has ended, or why there is none."""
    if task.status != "completed":
        return None, task.reason or task.status
    missing = ""
    if task.record.call.get("kind") == "function":
        try:
            return of_result(task.result(show_logs=False), metric), ""
        except (NoMetric, FlowError) as error:
            missing = str(error)
    try:
        return of_lines(task.logs(), metric), ""
    except NoMetric as error:
        return None, f"{missing}; nor does the output have it" if missing else str(error)


# Results


def _say(run: Run, metric: str) -> None:
    from flowlite.scaling.chart import number

    found = f"{number(run.value)} {metric}" if run.value is not None else run.reason
    output.tell(f"{_nodes(run.nodes)}: {terminal.in_one_line(found)}")


def _show(ladder: Ladder, directory: Path, json: bool) -> None:
    from shutil import get_terminal_size

    from flowlite.scaling import chart, files, picture

    rungs = rungs_of(ladder.runs)
    written = [files.JSON_FILE, files.CSV_FILE]
    wide = chart.chart(rungs, ladder.metric)
    if wide:
        (directory / files.TEXT_FILE).write_text(f"{wide}\n", encoding="utf-8")
        written.append(files.TEXT_FILE)
        title = f"{ladder.label} on {ladder.plans[0].provider}"
        if _drawn(lambda: picture.draw(rungs, ladder.metric, title, directory / files.PNG_FILE)):
            written.append(files.PNG_FILE)
    if json:
        data = {
            **files.document(rungs, ladder.about()),
            "files": [f"{directory / each}" for each in written],
        }
        output.print_json("scale", data)
        return
    columns, rows = files.as_table(rungs, ladder.metric)
    output.table(columns, rows)
    plain = (sys.stdout.encoding or "ascii").lower().replace("-", "") != "utf8"
    drawn = chart.chart(rungs, ladder.metric, width=get_terminal_size().columns, plain=plain)
    if drawn:
        output.say(f"\n{drawn}")
    sys.stdout.flush()
    output.tell(f"written to {directory}: {', '.join(written)}")


def _drawn(draw: Callable[[], None]) -> bool:
    from flowlite.scaling.picture import NoMatplotlib

    try:
        draw()
    except NoMatplotlib:
        return False  # a message was shown before the first run
    return True


def _nodes(count: int) -> str:
    return "1 node" if count == 1 else f"{count} nodes"
