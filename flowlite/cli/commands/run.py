"""`flow run`: runs a decorated function, a command or a task file on a gang of nodes."""

from __future__ import annotations

import inspect
import os
import shlex
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from flowlite.cli import output
from flowlite.cli.completion import complete_provider, complete_task
from flowlite.cli.scripts import is_plain
from flowlite.errors import ConfigError
from flowlite.spec.one_or_several import PREFER

if TYPE_CHECKING:
    from flowlite.api.app import Function
    from flowlite.cli.arguments import Parameter, Reading
    from flowlite.spec import TaskConfig

HELP = """Run a function, a command or a task file on a gang of nodes.

\b
flow run train.py::train --lr 1e-4        a decorated function; its options come from its signature
flow run -N 2 -- python train.py          any command, once per worker
flow run task.yaml                        the options of TaskConfig in a file
flow run job.sbatch                       a batch script of Slurm, on any provider

Shows the output of all workers and, at the end, what rank 0 returned. Ctrl-C cancels the task.
"""

_PANEL = "What to run on"
_CAPS = "Caps"


def register(application: typer.Typer, command: str) -> None:
    """Adds `flow run`."""
    application.command(command, help=HELP, context_settings={"allow_interspersed_args": False})(
        run
    )


def run(
    context: typer.Context,
    target: Annotated[
        str | None,
        typer.Argument(
            help="FILE.py::FUNCTION, FILE.py, task.yaml, job.sbatch, or -- COMMAND.",
            metavar="TARGET",
        ),
    ] = None,
    rest: Annotated[
        list[str] | None,
        typer.Argument(help="Arguments of the function or command.", metavar="ARGS"),
    ] = None,
    num_instances: Annotated[
        str | None,
        typer.Option(
            "--num-instances",
            "-N",
            help="Nodes in the gang; 2:8 for 2 to 8, as there is room.",
            rich_help_panel=_PANEL,
        ),
    ] = None,
    settle_seconds: Annotated[
        str | None,
        typer.Option(
            "--settle-seconds",
            metavar="TIME",
            help="How long such a gang waits for more nodes at first; 2m is read too.",
            rich_help_panel=_PANEL,
        ),
    ] = None,
    heal_seconds: Annotated[
        str | None,
        typer.Option(
            "--heal-seconds",
            metavar="TIME",
            help="How long it waits for nodes in place of lost ones.",
            rich_help_panel=_PANEL,
        ),
    ] = None,
    grow: Annotated[
        str | None,
        typer.Option(
            "--grow",
            metavar="WHEN",
            help="When it takes nodes for which there is room again: attempt (the next one), or checkpoint "
            "(where should_stop() is asked).",
            rich_help_panel=_PANEL,
        ),
    ] = None,
    spares: Annotated[
        int | None,
        typer.Option(
            "--spares",
            help="Further machines, ready to take the rank of a lost node.",
            rich_help_panel=_PANEL,
        ),
    ] = None,
    preflight: Annotated[
        str | None,
        typer.Option(
            "--preflight",
            help="Measure every node before the workers start: quick, or full with the network.",
            rich_help_panel=_PANEL,
        ),
    ] = None,
    processes_per_node: Annotated[
        str | None,
        typer.Option(
            "--processes-per-node",
            help="Workers on each node; auto: one per GPU.",
            rich_help_panel=_PANEL,
        ),
    ] = None,
    manual: Annotated[
        bool,
        typer.Option(
            "--manual",
            help="One process per node, for torchrun, accelerate, deepspeed.",
            rich_help_panel=_PANEL,
        ),
    ] = False,
    mode: Annotated[
        str | None,
        typer.Option(
            "--mode",
            help="How processes start: auto, manual, ray, mpi.",
            rich_help_panel=_PANEL,
        ),
    ] = None,
    start: Annotated[
        str | None,
        typer.Option(
            "--start",
            help="Whether ranks are forked with their imports: auto, fork, spawn.",
            rich_help_panel=_PANEL,
        ),
    ] = None,
    gpu: Annotated[
        str | None,
        typer.Option(
            "--gpu",
            help="GPUs of each node, such as h100:8; of several, h100:8,a100-80gb:8, any will do.",
            rich_help_panel=_PANEL,
        ),
    ] = None,
    provider: Annotated[
        str | None,
        typer.Option(
            "--provider",
            help="Name of the provider, or several: slurm,aws; any: all that are set up.",
            autocompletion=complete_provider,
            rich_help_panel=_PANEL,
        ),
    ] = None,
    region: Annotated[
        str | None,
        typer.Option(
            "--region", help="Region or zone, or several: eu-west-1,'us-*'.", rich_help_panel=_PANEL
        ),
    ] = None,
    image: Annotated[
        str | None, typer.Option("--image", help="Container image.", rich_help_panel=_PANEL)
    ] = None,
    priority: Annotated[
        str | None, typer.Option("--priority", help="low, med or high.", rich_help_panel=_PANEL)
    ] = None,
    spot: Annotated[
        bool | None,
        typer.Option(
            "--spot/--no-spot",
            help="Spot machines: cheaper, and may be taken away.",
            rich_help_panel=_PANEL,
        ),
    ] = None,
    prefer_spot: Annotated[
        bool,
        typer.Option(
            "--prefer-spot",
            help="Spot where there is some, else on demand.",
            rich_help_panel=_PANEL,
        ),
    ] = False,
    prefer: Annotated[
        str | None,
        typer.Option(
            "--prefer",
            help="Of several places, the first by price or by order (as listed).",
            rich_help_panel=_PANEL,
        ),
    ] = None,
    max_wait_hours: Annotated[
        str | None,
        typer.Option(
            "--max-wait-hours",
            metavar="HOURS",
            help="Hours to wait for room, or a time such as 30m.",
            rich_help_panel=_CAPS,
        ),
    ] = None,
    volume: Annotated[
        list[str] | None,
        typer.Option(
            "--volume",
            metavar="PATH=NAME[,…]",
            help="Mount a volume at a path. After its name, separated by commas: interface=block for a disk of one "
            "node, size_gb=500 to create it if it is missing.",
            rich_help_panel=_PANEL,
        ),
    ] = None,
    mount: Annotated[
        list[str] | None,
        typer.Option(
            "--mount",
            metavar="PATH=s3://…",
            help="Mount a bucket at a path, read-only.",
            rich_help_panel=_PANEL,
        ),
    ] = None,
    env: Annotated[
        list[str] | None,
        typer.Option(
            "--env",
            "-e",
            metavar="NAME=VALUE",
            help="Set a variable; NAME alone takes its value from your environment.",
            rich_help_panel=_PANEL,
        ),
    ] = None,
    secret: Annotated[
        list[str] | None,
        typer.Option(
            "--secret",
            metavar="NAME",
            help="Pass a variable of yours without recording its value.",
            rich_help_panel=_PANEL,
        ),
    ] = None,
    slurm: Annotated[
        list[str] | None,
        typer.Option(
            "--slurm",
            metavar="NAME=VALUE",
            help="Option for sbatch: partition=gpu, qos=high.",
            rich_help_panel=_PANEL,
        ),
    ] = None,
    notify: Annotated[
        list[str] | None,
        typer.Option(
            "--notify",
            metavar="TARGET",
            help="Tell of the end, a failure or a cap: a command, a webhook's URL, or a URL of Apprise.",
            rich_help_panel=_PANEL,
        ),
    ] = None,
    setup: Annotated[
        list[str] | None,
        typer.Option(
            "--setup",
            metavar="COMMAND",
            help="Run once on every node before the workers: 'pip install -e .'.",
            rich_help_panel=_PANEL,
        ),
    ] = None,
    outputs: Annotated[
        list[str] | None,
        typer.Option(
            "--outputs",
            metavar="PATTERN",
            help="Files of the working directory to bring back at the end: 'runs/**'.",
            rich_help_panel=_PANEL,
        ),
    ] = None,
    workdir: Annotated[
        str | None,
        typer.Option(
            "--workdir",
            help="Directory to start in: of the project, or an absolute path on the nodes.",
            rich_help_panel=_PANEL,
        ),
    ] = None,
    sync: Annotated[
        bool | None,
        typer.Option(
            "--sync/--no-sync",
            help="Send the project's files to the nodes, this machine included; or nothing.",
            rich_help_panel=_PANEL,
        ),
    ] = None,
    file: Annotated[
        list[str] | None,
        typer.Option(
            "--file",
            metavar="[PATH=]FILE",
            help="A file of this machine to send, and where it is to be below the working directory.",
            rich_help_panel=_PANEL,
        ),
    ] = None,
    max_price_per_hour: Annotated[
        float | None,
        typer.Option(
            "--max-price-per-hour", help="Dollars per instance and hour.", rich_help_panel=_CAPS
        ),
    ] = None,
    max_run_time_hours: Annotated[
        str | None,
        typer.Option(
            "--max-run-time-hours",
            metavar="HOURS",
            help="Hours from the start of the workers, or a time such as 1h30m.",
            rich_help_panel=_CAPS,
        ),
    ] = None,
    max_cost: Annotated[
        float | None,
        typer.Option("--max-cost", help="Dollars for the whole task.", rich_help_panel=_CAPS),
    ] = None,
    keep_warm: Annotated[
        str | None,
        typer.Option(
            "--keep-warm",
            metavar="TIME",
            help="Keep nodes and imports for the next task: 10m, 90s.",
            rich_help_panel=_PANEL,
        ),
    ] = None,
    retries: Annotated[
        int | None,
        typer.Option("--retries", help="New attempts after a failure.", rich_help_panel=_CAPS),
    ] = None,
    after: Annotated[
        list[str] | None,
        typer.Option(
            "--after",
            metavar="TASK",
            help="Begin when this task has completed; may be given several times.",
            autocompletion=complete_task,
        ),
    ] = None,
    schedule: Annotated[
        str | None,
        typer.Option(
            "--schedule",
            metavar="TIMES",
            help="Run at fixed times instead of now, as for cron: '0 3 * * *'. `flow schedule` lists and removes.",
        ),
    ] = None,
    name: Annotated[str | None, typer.Option("--name", help="Name of the task.")] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only show what would be launched, and its price.")
    ] = False,
    detach: Annotated[
        bool, typer.Option("--detach", "-d", help="Return as soon as the task is submitted.")
    ] = False,
    yes: Annotated[
        bool,
        typer.Option("--yes", "-y", help="Do not ask before a launch that costs money."),
    ] = False,
    no_logs: Annotated[
        bool, typer.Option("--no-logs", help="Do not show the output of the workers.")
    ] = False,
    json: Annotated[
        bool, typer.Option("--json", help="Print JSON: the task, and its result at the end.")
    ] = False,
) -> None:
    options: dict[str, Any] = {
        "num_instances": num_instances,
        "settle_seconds": settle_seconds,
        "heal_seconds": heal_seconds,
        "grow": grow,
        "spares": spares,
        "preflight": preflight,
        "processes_per_node": processes_per_node,
        "manual": manual,
        "mode": mode,
        "start": start,
        "gpu": gpu,
        "provider": provider,
        "region": region,
        "image": image,
        "priority": priority,
        "spot": spot,
        "prefer_spot": prefer_spot,
        "prefer": prefer,
        "max_wait_hours": max_wait_hours,
        "notify": notify or None,
        "setup": setup or None,
        "outputs": outputs or None,
        "workdir": workdir,
        "sync": sync,
        "file": file,
        "volume": volume,
        "mount": mount,
        "env": env,
        "secret": secret,
        "slurm": slurm,
        "max_price_per_hour": max_price_per_hour,
        "max_run_time_hours": max_run_time_hours,
        "max_cost": max_cost,
        "keep_warm": keep_warm,
        "retries": retries,
        "after": after or None,
        "name": name,
    }
    from flowlite.cli import batch_scripts
    from flowlite.cli.submit_and_follow import preview, submit_and_follow

    if schedule is not None:
        from flowlite.cli.commands.queue import schedule as schedules

        if target is not None and batch_scripts.is_script(target):
            raise ConfigError(
                "--schedule: a batch script cannot be scheduled; schedule `sh SCRIPT` or a task file"
            )
        found = config_of(context, target, rest or [], task_options(options))
        schedules.make(schedule, found, context.obj["arguments"], env or (), target or "")
        return

    if target is not None and batch_scripts.is_script(target):
        how = batch_scripts.RunOptions(
            dry_run=dry_run, detach=detach, json=json, show_logs=not no_logs, yes=yes
        )
        raise output.Quit(batch_scripts.run_script(target, rest or [], task_options(options), how))
    config = config_of(context, target, rest or [], task_options(options))
    if dry_run:
        preview(config, json)
        return
    raise output.Quit(
        submit_and_follow(config, detach=detach, json=json, show_logs=not no_logs, yes=yes)
    )


def task_options(given: Mapping[str, Any]) -> dict[str, Any]:
    """The options of the task that were given on the command line."""
    options = dict(given)
    mode = _mode(options.pop("mode", None), options.pop("manual", False))
    options |= {
        "spot": _spot(options.get("spot"), options.pop("prefer_spot", False)),
        "processes_per_node": _number_or_text(options.pop("processes_per_node", None)),
        "num_instances": _number_or_text(options.pop("num_instances", None)),
        "volumes": _volumes(options.pop("volume", None)),
        "mounts": _pairs("--mount", options.pop("mount", None), "PATH=s3://bucket"),
        "environment": _environment(options.pop("env", None)),
        "secrets": options.pop("secret", None) or None,
        "slurm": _slurm(options.pop("slurm", None)),
        "files": _files(options.pop("file", None)),
    }
    if mode is not None:
        options["distributed_mode"] = mode
    return {name: value for name, value in options.items() if value is not None}


def config_of(
    context: typer.Context, target: str | None, rest: Sequence[str], options: Mapping[str, Any]
) -> TaskConfig:
    """The configuration for the command line.

    Raises:
        ConfigError: The command line names nothing to run or two things, or its options are wrong.
    """
    from flowlite.spec import TaskConfig

    if target is None:
        raise ConfigError(
            "nothing to run: give FILE.py::FUNCTION, a task file, or a command after `--`, as in "
            f"`{context.command_path} … -- python train.py`"
        )
    if target == "--":
        if not rest:
            raise ConfigError("nothing to run: `--` is followed by no command")
        _refuse_a_whole_line(context, rest)
        return TaskConfig(command=tuple(rest), **options)
    if "--" in rest:
        raise ConfigError(f"give either {target} or a command after `--`, not both")
    if target.endswith((".yaml", ".yml")):
        _read_rest(context, target, rest, [], what=target)
        return _changed(TaskConfig.from_yaml(target), options)
    if not target.partition("::")[0].endswith(".py"):
        raise ConfigError(
            f"{target!r} is neither FILE.py::FUNCTION nor a task file (.yaml); "
            f"to run it as a command: {_as_command(context, [target, *rest])}"
        )
    if "::" not in target and is_plain(Path(target)):
        raise ConfigError(
            f"{target} is a script without a decorated function; to run it as it is: "
            f"{_as_command(context, ['python', target, *rest])}"
        )
    return _function_config(context, target, rest, options)


def _refuse_a_whole_line(context: typer.Context, command: Sequence[str]) -> None:
    """Raises ConfigError if the only word of a command is a line for a shell."""
    word = command[0]
    if len(command) > 1 or len(word.split()) < 2 or shutil.which(word) is not None:
        return
    raise ConfigError(
        f"{word!r} is one word, and no program has that name; for a shell: "
        f"{_as_command(context, ['sh', '-c', word])}"
    )


def _as_command(context: typer.Context, command: Sequence[str]) -> str:
    """The `flow` command line that runs these words as a command, with the options given before the target."""
    from flowlite.spec.launchers import launcher_in

    words: list[str] = context.obj["arguments"]
    rest = len(context.params.get("rest") or ())
    before = words[: len(words) - rest - 1]
    manual = ["--manual"] if launcher_in(tuple(command)) and "--manual" not in before else []
    return shlex.join(["flow", *before, *manual, "--", *command])


def _function_config(
    context: typer.Context, target: str, rest: Sequence[str], options: Mapping[str, Any]
) -> TaskConfig:
    from flowlite.cli.arguments import parameters_of
    from flowlite.cli.target import load_function

    function = load_function(target)
    parameters = parameters_of(function)
    if {"--help", "-h"} & set(rest):
        _show_help(context, target, function, parameters)
    found = _read_rest(context, target, rest, parameters, what=f"{function.__name__}()")
    return function.options(**options).build_task_config(**found.complete())


def _read_rest(
    context: typer.Context,
    target: str,
    rest: Sequence[str],
    parameters: Sequence[Parameter],
    what: str,
) -> Reading:
    """Parses the words after the target. Raises Reparse to move options of `flow run` among them in front of it."""
    from flowlite.cli.arguments import read_arguments

    found = read_arguments(parameters, rest, _own_options(context), what)
    if found.foreign:
        words: list[str] = context.obj["arguments"]
        before = words[: len(words) - len(rest) - 1]
        raise output.Reparse([*before, *found.foreign, target, *found.own])
    return found


def _own_options(context: typer.Context) -> dict[str, bool]:
    """The options of the command itself, with whether each takes a value."""
    return {
        name: not getattr(option, "is_flag", False)
        for option in context.command.params
        for name in (*option.opts, *option.secondary_opts)
        if name.startswith("-")
    }


def _show_help(
    context: typer.Context,
    target: str,
    function: Function[..., Any],
    parameters: Sequence[Parameter],
) -> NoReturn:
    command = context.command_path
    output.say(f"usage: {command} [OPTIONS] {target} [ARGS]...")
    if function.__doc__:
        output.say(f"\n{inspect.cleandoc(function.__doc__)}")
    if parameters:
        output.say(f"\narguments of {function.__name__}:")
        width = max(len(parameter.usage()) for parameter in parameters)
        for parameter in parameters:
            about = "required" if parameter.required else f"default: {parameter.default!r}"
            output.say(f"  {parameter.usage().ljust(width)}  {about}")
    output.say(f"\noptions of {command} itself: {command} --help")
    raise output.Quit(0)


def _changed(config: TaskConfig, options: Mapping[str, Any]) -> TaskConfig:
    """A task file's configuration with the options of the command line; mappings are merged."""
    changes = dict(options)
    for name in ("volumes", "mounts", "environment", "slurm", "files"):
        if name in changes:
            changes[name] = {**getattr(config, name), **changes[name]}
    return config.replace(**changes)


def _number_or_text(text: str | None) -> int | str | None:
    return int(text) if text is not None and text.isdecimal() else text


def _spot(spot: bool | None, preferred: bool) -> bool | str | None:
    if preferred and spot is not None:
        raise ConfigError("give either --prefer-spot or --spot/--no-spot, not both")
    return PREFER if preferred else spot


def _mode(mode: str | None, manual: bool) -> str | None:
    if manual and mode not in (None, "manual"):
        raise ConfigError(f"give either --manual or --mode {mode}, not both")
    return "manual" if manual else mode


def _pairs(option: str, given: Sequence[str] | None, form: str) -> dict[str, str] | None:
    if not given:
        return None
    found = {}
    for word in given:
        key, equals, value = word.partition("=")
        if not equals or not key or not value:
            raise ConfigError(f"{option}: {word!r} is not allowed; write {form}")
        found[key] = value
    return found


_VOLUME_FORM = "PATH=NAME or, with more about it, PATH=NAME,interface=block,size_gb=500"


def _volumes(given: Sequence[str] | None) -> dict[str, Any] | None:
    """Volumes by path, as the decorator takes them. Words after the name are fields of `Volume`."""
    pairs = _pairs("--volume", given, _VOLUME_FORM)
    return pairs and {path: _volume(path, words) for path, words in pairs.items()}


def _volume(path: str, words: str) -> str | dict[str, Any]:
    name, *more = words.split(",")
    if not more:
        return name
    found: dict[str, Any] = {"name": name}
    for word in more:
        key, equals, value = word.partition("=")
        # Dashes are accepted since `flow volumes create` has --size-gb.
        key = key.replace("-", "_")
        if not equals or not value or key in found:
            said = f"{path}={words}"
            raise ConfigError(f"--volume: {said!r} is not allowed; write {_VOLUME_FORM}")
        found[key] = _number(value) if key == "size_gb" else value
    return found


def _files(given: Sequence[str] | None) -> dict[str, str] | None:
    """The files to send, by their path on the node.

    A file without a path keeps its path below the current directory, or only its name if it is elsewhere.
    """
    found = {}
    for word in given or ():
        place, equals, source = word.partition("=")
        if not equals or os.path.exists(word):
            source = word
            place = os.path.relpath(word)
            if place.startswith("../") or place in ("..", "."):
                place = os.path.basename(os.path.abspath(word))
        if not place or not source:
            raise ConfigError(f"--file: {word!r} is not allowed; write FILE or PATH=FILE")
        found[place] = source
    return found or None


def _number(text: str) -> float | str:
    """A number; a text that is not a number is returned as it is, for the error of the option's check."""
    try:
        return float(text)
    except ValueError:
        return text


def _slurm(given: Sequence[str] | None) -> dict[str, Any] | None:
    if not given:
        return None
    from flowlite.spec.slurm import of_words

    try:
        return of_words(given)
    except ValueError as error:
        raise ConfigError(f"--slurm: {error}") from None


def _environment(given: Sequence[str] | None) -> dict[str, str] | None:
    found = {}
    for word in given or ():
        name, equals, value = word.partition("=")
        if not equals:
            if name not in os.environ:
                raise ConfigError(
                    f"--env: {name} is not set here; set it, or write --env {name}=VALUE"
                )
            value = os.environ[name]
        found[name] = value
    return found or None
