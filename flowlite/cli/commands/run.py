"""`flow run`: runs a decorated function, a command or a task file on a gang of nodes."""

from __future__ import annotations

import ast
import inspect
import shlex
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from flowlite.cli import output
from flowlite.cli.common_options import Detach, DryRun, JsonOfResult, NoLogs, Rest, YesToCost
from flowlite.cli.task_options import task_options, with_task_options
from flowlite.errors import ConfigError

if TYPE_CHECKING:
    from flowlite.api.app import Function
    from flowlite.cli.arguments import Parameter, Reading
    from flowlite.spec import TaskConfig


@with_task_options(at=3)
def run(
    context: typer.Context,
    target: Annotated[
        str | None,
        typer.Argument(
            help="FILE.py::FUNCTION, FILE.py, task.yaml, job.sbatch, or -- COMMAND.",
            metavar="TARGET",
        ),
    ] = None,
    rest: Rest = None,
    schedule: Annotated[
        str | None,
        typer.Option(
            "--schedule",
            metavar="TIMES",
            help="Run at fixed times instead of now, as for cron: '0 3 * * *'. `flow schedule` lists and removes.",
        ),
    ] = None,
    name: Annotated[str | None, typer.Option("--name", help="Name of the task.")] = None,
    dry_run: DryRun = False,
    detach: Detach = False,
    yes: YesToCost = False,
    no_logs: NoLogs = False,
    json: JsonOfResult = False,
    **options: Any,
) -> None:
    """Run a function, a command or a task file on a gang of nodes.

    \b
    flow run train.py::train --lr 1e-4   a decorated function, with its options
    flow run -N 2 -- python train.py     any command, once per worker
    flow run task.yaml                   the options of TaskConfig in a file
    flow run job.sbatch                  a batch script of Slurm, on any provider

    Shows the output of all workers and, at the end, what rank 0 returned. Ctrl-C cancels the task.
    """
    from flowlite.cli import batch_scripts
    from flowlite.cli.submit_and_follow import preview, submit_and_follow

    given = task_options({**options, "name": name})
    if schedule is not None:
        from flowlite.cli.commands.queue import schedule as schedules

        if target is not None and batch_scripts.is_script(target):
            raise ConfigError(
                "--schedule: a batch script cannot be scheduled; schedule `sh SCRIPT` or a task file"
            )
        found = config_of(context, target, rest or [], given)
        schedules.check(schedule, found)
        if dry_run:
            preview(found, json)
            return
        words = context.obj["arguments"]
        schedules.make(schedule, found, words, options["env"] or (), target or "")
        return

    if target is not None and batch_scripts.is_script(target):
        how = batch_scripts.RunOptions(
            dry_run=dry_run, detach=detach, json=json, show_logs=not no_logs, yes=yes
        )
        raise output.Quit(batch_scripts.run_script(target, rest or [], given, how))
    config = config_of(context, target, rest or [], given)
    if dry_run:
        preview(config, json)
        return
    raise output.Quit(
        submit_and_follow(config, detach=detach, json=json, show_logs=not no_logs, yes=yes)
    )


def config_of(
    context: typer.Context, target: str | None, rest: Sequence[str], options: Mapping[str, Any]
) -> TaskConfig:
    """The configuration for the command line. Raises ConfigError."""
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
    file, _, function = target.partition("::")
    if not file.endswith(".py"):
        if (meant := _with_two_colons(target)) is not None:
            raise ConfigError(
                f"{target!r}: a function is named by FILE.py::FUNCTION, as in {meant}"
            )
        raise ConfigError(
            f"{target!r} is neither FILE.py::FUNCTION nor a task file (.yaml); "
            f"to run it as a command: {_as_command(context, [target, *rest])}"
        )
    if not function and _is_plain(Path(target)):
        raise ConfigError(
            f"{target} is a script without a decorated function; to run it as it is: "
            f"{_as_command(context, ['python', target, *rest])}"
        )
    return _function_config(context, target, rest, options)


def _is_plain(path: Path) -> bool:
    """Whether a Python file neither imports flowlite nor decorates a function with `@….function`.

    The file is not executed. A file that cannot be read or parsed is not plain, since importing it shows the error.
    """
    try:
        tree = ast.parse(path.read_bytes(), str(path))
    except (OSError, SyntaxError, ValueError, RecursionError):
        return False
    return not any(_is_of_flowlite(node) for node in ast.walk(tree))


def _is_of_flowlite(node: ast.AST) -> bool:
    if isinstance(node, ast.Import):
        return any(name.name.partition(".")[0] == "flowlite" for name in node.names)
    if isinstance(node, ast.ImportFrom):
        return (node.module or "").partition(".")[0] == "flowlite"
    # The app may be imported from a module of the user: `from common import app`.
    return isinstance(node, ast.Attribute) and node.attr == "function"


def _with_two_colons(target: str) -> str | None:
    """What was probably meant by `FILE.py:FUNCTION`, or by the name of a module with a function; None if neither."""
    name, colons, function = target.rpartition(":")
    name = name.rstrip(":")
    if not colons or not function.isidentifier():
        return None
    file = name if name.endswith(".py") else f"{name.replace('.', '/')}.py"
    return f"{file}::{function}" if Path(file).is_file() else None


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
    launcher = launcher_in(tuple(command))
    told = {"--manual", "--mode"} & set(before)
    mode = launcher.option if launcher is not None and not told else ()
    return shlex.join(["flow", *before, *mode, "--", *command])


def _function_config(
    context: typer.Context, target: str, rest: Sequence[str], options: Mapping[str, Any]
) -> TaskConfig:
    from flowlite.cli.arguments import call_with, parameters_of
    from flowlite.cli.target import load_function

    function = load_function(target)
    parameters = parameters_of(function)
    if {"--help", "-h"} & set(rest):
        _show_help(context, target, function, parameters)
    found = _read_rest(context, target, rest, parameters, what=f"{function.__name__}()")
    values, named = call_with(parameters, found.complete())
    return function.options(**options).build_task_config(*values, **named)


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
