"""`flow schedule`: commands at fixed times, as `flow run --schedule` has written them."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flowlite.cli import output, system_timers
from flowlite.cli.common_options import Json
from flowlite.errors import FlowError
from flowlite.settings.settings import ensure_home, home

if TYPE_CHECKING:
    from flowlite.spec import TaskConfig

Name = Annotated[str, typer.Argument(help="Name of the schedule.", metavar="NAME")]


schedule = typer.Typer(
    help="Show and remove commands that run at fixed times (`flow run --schedule`).",
    no_args_is_help=True,
)


@schedule.command("list")
def list_schedules(json: Json = False) -> None:
    """Show the schedules of this FLOW_HOME."""
    here = home()
    found = []
    for name in system_timers.names(here):
        try:
            found.append(system_timers.read(here, name))
        except FlowError as error:
            output.tell(str(error))
    rows: list[dict[str, Any]] = [
        {
            "name": each.name,
            "schedule": each.times,
            "timer": each.timer,
            "command": f"flow {shlex.join(each.words)}",
            "directory": each.directory,
            "log": str(system_timers.log_of(here, each.name)),
        }
        for each in found
    ]
    if json:
        output.print_json("schedules", rows)
    elif not rows:
        output.say("there are no schedules; `flow run --schedule '0 3 * * *' …` makes one")
    else:
        columns = ("name", "schedule", "timer", "command", "log")
        output.table(columns, [[row[column] for column in columns] for row in rows])


@schedule.command("rm")
def remove(name: Name) -> None:
    """Remove a schedule. Its log is kept, and a task that runs goes on."""
    system_timers.remove(home(), name)
    output.say(f"{name} does not run any more")


@schedule.command()
def run(name: Name) -> None:
    """Run the command of a schedule now, as its timer does."""
    here = home()
    code, happened = system_timers.run(here, name)
    # A timer of the system sends what it reads here by mail, or to a journal.
    if sys.stdout.isatty():
        output.say(f"{name}: {happened}; what it printed is in {system_timers.log_of(here, name)}")
    raise output.Quit(code)


def check(times: str, config: TaskConfig) -> None:
    """Checks what would be run, and when, so that mistakes come out before the first time. Raises ConfigError."""
    from flowlite.api.submission import providers_of
    from flowlite.provider import adapter_class
    from flowlite.spec.one_or_several import ANY

    system_timers.parse_times(times)
    for name in providers_of(config):
        if name != ANY:
            adapter_class(name)


def make(
    times: str, config: TaskConfig, words: Sequence[str], env: Sequence[str], target: str
) -> None:
    """Makes a schedule of a `flow run` command line, with times and a configuration that passed `check`.

    Args:
        words: The words after `flow`, with `--schedule`.
        env: The values of `--env`.
        target: What is run: a function, a task file, or `--` before a command.
    """
    from flowlite import python_request
    from flowlite.api.submission import providers_of

    times = " ".join(times.split())
    here = ensure_home()
    what = config.command[0] if target == "--" and config.command else target
    name = config.name or what.rpartition("::")[2].rpartition("/")[2]
    named = [each for each in env if "=" not in each]
    named += [secret.env or secret.name for secret in config.secrets]
    if config.dependencies or config.python:
        # Without them, packages would come from another index.
        named += python_request.read_for_indexes(os.environ)
        text = python_request.requirements_text(config.dependencies)
        named += python_request.variables_in(text)
    timer = system_timers.Timer(
        name=name,
        times=times,
        words=_without_schedule(words),
        directory=os.getcwd(),
        owner=os.stat(os.curdir).st_uid,
        environment=system_timers.environment_for(named, os.environ, here),
        timer=system_timers.choose(),
    )
    system_timers.add(here, timer)
    log = system_timers.log_of(here, name)
    output.say(
        f"{name} runs at {times!r} from now on ({timer.timer}); what it prints is in {log}; "
        f"`flow schedule rm {name}` ends that"
    )
    for warning in system_timers.warnings(timer, os.environ, providers_of(config)):
        output.warn(warning)


def _without_schedule(words: Sequence[str]) -> list[str]:
    """The command line without `--schedule`; it asks nothing, since nobody is there to answer."""
    rest = list(words)
    for place, word in enumerate(rest):
        if word == "--schedule":
            del rest[place : place + 2]
            break
        if word.startswith("--schedule="):
            del rest[place]
            break
    return [rest[0], "--yes", *rest[1:]]
