"""The options of a task on the command line: those of `flow run`, which `flow scale` and `flow dev` have, too."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Annotated, Any

import typer

from flowlite.cli.completion import complete_provider, complete_task
from flowlite.errors import ConfigError
from flowlite.spec.one_or_several import PREFER

_PANEL = "What to run on"
_CAPS = "Caps"


def _option(
    flags: str, help: str, *, of: Any = str, panel: str | None = _PANEL, **settings: Any
) -> inspect.Parameter:
    """A parameter of a command, named after the first of its flags. `of` is the type of its value."""
    words = flags.split()
    is_switched_on = of is bool and "/" not in flags
    return inspect.Parameter(
        words[0].partition("/")[0].lstrip("-").replace("-", "_"),
        inspect.Parameter.KEYWORD_ONLY,
        default=False if is_switched_on else None,
        annotation=Annotated[
            of if is_switched_on else of | None,
            typer.Option(*words, help=help, rich_help_panel=panel, **settings),
        ],
    )


_OPTIONS = (
    _option("--num-instances -N", "Nodes in the gang; 2:8 for 2 to 8, as there is room."),
    _option(
        "--settle-seconds",
        "How long a gang that may grow (-N 2:8) waits for more nodes at first: 30s, 2m.",
        metavar="TIME",
    ),
    _option("--heal-seconds", "How long it waits for nodes in place of lost ones.", metavar="TIME"),
    _option(
        "--grow",
        "When it takes nodes for which there is room again: attempt (the next one), or checkpoint "
        "(where should_stop() is asked).",
        metavar="WHEN",
    ),
    _option("--spares", "Further machines, ready to take the rank of a lost node.", of=int),
    _option(
        "--preflight",
        "Measure every node before the workers start: quick, or full with the network.",
    ),
    _option("--processes-per-node", "Workers on each node; auto: one per GPU."),
    _option("--manual", "One process per node, for torchrun, accelerate, deepspeed.", of=bool),
    _option("--mode", "How processes start: auto, manual, ray, mpi."),
    _option("--start", "Whether ranks are forked with their imports: auto, fork, spawn."),
    _option(
        "--gpu", "GPUs of each node, such as h100:8; of several, h100:8,a100-80gb:8, any will do."
    ),
    _option(
        "--provider",
        "Name of the provider, or several: slurm,aws; any: all that are set up.",
        autocompletion=complete_provider,
    ),
    _option("--region", "Region or zone, or several: eu-west-1,'us-*'."),
    _option("--image", "Container image."),
    _option("--priority", "low, med or high."),
    _option("--spot/--no-spot", "Spot machines: cheaper, and may be taken away.", of=bool),
    _option("--prefer-spot", "Spot where there is some, else on demand.", of=bool),
    _option("--prefer", "Of several places, the first by price or by order (as listed)."),
    _option(
        "--max-wait-hours",
        "Hours to wait for room, or a time such as 30m.",
        panel=_CAPS,
        metavar="HOURS",
    ),
    _option(
        "--volume",
        "Mount a volume at a path. After its name, separated by commas: interface=block for a disk of one "
        "node, size_gb=500 to create it if it is missing.",
        of=list[str],
        metavar="PATH=NAME[,…]",
    ),
    _option("--mount", "Mount a bucket at a path, read-only.", of=list[str], metavar="PATH=s3://…"),
    _option(
        "--env -e",
        "Set a variable; NAME alone takes its value from your environment.",
        of=list[str],
        metavar="NAME=VALUE",
    ),
    _option(
        "--secret",
        "Pass a variable of yours without recording its value.",
        of=list[str],
        metavar="NAME",
    ),
    _option(
        "--slurm", "Option for sbatch: partition=gpu, qos=high.", of=list[str], metavar="NAME=VALUE"
    ),
    _option(
        "--notify",
        "Who is told of the end, a failure or a cap: a command, the URL of a webhook, or a URL of Apprise.",
        of=list[str],
        metavar="TARGET",
    ),
    _option(
        "--setup",
        "Run once on every node before the workers: 'pip install -e .'.",
        of=list[str],
        metavar="COMMAND",
    ),
    _option(
        "--outputs",
        "Files of the working directory to bring back at the end: 'runs/**'.",
        of=list[str],
        metavar="PATTERN",
    ),
    _option(
        "--workdir", "Directory to start in: of the project, or an absolute path on the nodes."
    ),
    _option(
        "--sync/--no-sync",
        "Send the project's files to the nodes, this machine included; or nothing.",
        of=bool,
    ),
    _option(
        "--file",
        "Send a file of this machine, to this path below the working directory.",
        of=list[str],
        metavar="[PATH=]FILE",
    ),
    _option("--max-price-per-hour", "Dollars per instance and hour.", of=float, panel=_CAPS),
    _option(
        "--max-run-time-hours",
        "Hours from the start of the workers, or a time such as 1h30m.",
        panel=_CAPS,
        metavar="HOURS",
    ),
    _option("--max-cost", "Dollars for the whole task.", of=float, panel=_CAPS),
    _option("--keep-warm", "Keep nodes and imports for the next task: 10m, 90s.", metavar="TIME"),
    _option(
        "--grace-seconds",
        "Seconds from the stop signal to SIGKILL, for every worker.",
        of=float,
        panel=_CAPS,
        metavar="SECONDS",
    ),
    _option("--retries", "New attempts after a failure.", of=int, panel=_CAPS),
    _option(
        "--after",
        "Begin when this task has completed; may be given several times.",
        of=list[str],
        panel=None,
        metavar="TASK",
        autocompletion=complete_task,
    ),
)


def with_task_options(
    *, left_out: Collection[str] = (), at: int | None = None
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Decorates a command that has the options of tasks beside its own; the function takes them as `**options`.

    Args:
        left_out: Names of the options that the command does not have.
        at: How many of its own come before them; None for all.
    """

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        own = list(inspect.signature(function, eval_str=True).parameters.values())[:-1]
        without = {each.name for each in own}.union(left_out)
        place = len(own) if at is None else at
        own[place:place] = [each for each in _OPTIONS if each.name not in without]

        def command(**given: Any) -> None:
            function(**given)

        command.__doc__ = function.__doc__
        command.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            [each.replace(kind=each.KEYWORD_ONLY) for each in own]
        )
        command.__annotations__ = {}
        return command

    return decorate


def task_options(given: Mapping[str, Any]) -> dict[str, Any]:
    """The options of the task that were given on the command line."""
    # An option that may be repeated is an empty list where it was not given.
    options: dict[str, Any] = {
        name: None if value == [] else value for name, value in given.items()
    }
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
    found: dict[str, str] = {}
    for word in given:
        key, equals, value = word.partition("=")
        if not equals or not key or not value:
            raise ConfigError(f"{option}: {word!r} is not allowed; write {form}")
        if key in found:
            raise ConfigError(
                f"{option}: {key} is given twice, with {found[key]} and {value}; give each path once"
            )
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
    found: dict[str, str] = {}
    for word in given or ():
        place, equals, source = word.partition("=")
        if not equals or os.path.exists(word):
            source = word
            place = os.path.relpath(word)
            if place.startswith("../") or place in ("..", "."):
                place = os.path.basename(os.path.abspath(word))
        if not place or not source:
            raise ConfigError(f"--file: {word!r} is not allowed; write FILE or PATH=FILE")
        if found.get(place, source) != source:
            raise ConfigError(
                f"--file: {found[place]} and {source} would both be {place}; write PATH={source}"
            )
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
