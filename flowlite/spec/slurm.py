"""The options of `slurm={...}`, which the table `[slurm]` of the configuration may set, too.

Standard library only. Values are written as for `sbatch`. Each is checked here, so that a wrong one is refused before
anything is sent.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from flowlite.settings.suggest import did_you_mean

if TYPE_CHECKING:
    from typing_extensions import TypeIs

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:,@+=-]*", re.ASCII)
_HOSTS = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.,\[\]-]*", re.ASCII)
_MEMORY = re.compile(r"\d+(?:[KMGT]B?)?", re.ASCII | re.IGNORECASE)
_GPUS = re.compile(r"(?:[A-Za-z0-9_][A-Za-z0-9_.-]*:)?\d+", re.ASCII)
_FLAG = re.compile(r"--[a-z][a-z0-9-]*(?:=.*)?|-[A-Za-z](?:[ =]?.*)?", re.ASCII)
_SINGLETON = re.compile(r"(?:^| )(?:--dep[a-z]*[= ]|-d[= ]?)\S*\bsingleton\b")
CONTAINERS = ("none", "pyxis", "apptainer", "singularity")
# Options that flowlite sets itself, with what to use instead.
_OURS = {
    "--nodes": "num_instances",
    "-N": "num_instances",
    "--ntasks": "processes_per_node",
    "-n": "processes_per_node",
    "--ntasks-per-node": "processes_per_node",
    "--cpus-per-task": "cpu",
    "-c": "cpu",
    "--time": "max_run_time_hours",
    "-t": "max_run_time_hours",
    "--job-name": "name",
    "-J": "name",
    "--output": "`flow logs`",
    "-o": "`flow logs`",
    "--error": "`flow logs`",
    "-e": "`flow logs`",
    "--array": "`.map(...)`",
    "-a": "`.map(...)`",
    "--comment": "nothing: flowlite knows its jobs by it",
    "--signal": "signal_seconds under [slurm]",
    "--wrap": "a command after `--`",
    "--clusters": "a login node of that cluster, as login under [slurm], or cluster there",
    "-M": "a login node of that cluster, as login under [slurm], or cluster there",
}


def checked(options: Mapping[str, object]) -> dict[str, Any]:
    """The options in their canonical form. Raises ValueError that names the option and says what is allowed."""
    found: dict[str, Any] = {}
    for key, value in options.items():
        reader = OPTIONS.get(key)
        if reader is None:
            known = did_you_mean(key, OPTIONS) or f"; known: {', '.join(OPTIONS)}"
            raise ValueError(f"{key!r} is not an option for Slurm{known}")
        try:
            found[key] = reader(value)
        except ValueError as error:
            raise ValueError(f"{key} is {value!r}; give {error}") from None
    return found


def of_words(words: Sequence[str]) -> dict[str, Any]:
    """Parses options such as `partition=gpu`, `exclusive=true`, `sbatch=--licenses=a:1`. Raises ValueError."""
    found: dict[str, Any] = {}
    for each in words:
        name, equals, value = each.partition("=")
        if not equals:
            raise ValueError(f"{each!r} is no option; write NAME=VALUE, as in partition=gpu")
        if name == "sbatch":
            found.setdefault(name, []).append(value)
        elif name in ("exclusive", "requeue") and value in ("true", "false"):
            found[name] = value == "true"
        else:
            found[name] = value
    return checked(found)


# Readers of single values. Each returns the value, or raises ValueError that says what is allowed.


def word(value: object) -> str:
    """A name that is valid in Slurm."""
    if not isinstance(value, str) or not _NAME.fullmatch(value):
        raise ValueError("a name without blanks")
    return value


def _expression(value: object) -> str:
    # With a quotation mark, what follows would be options of their own.
    plain = isinstance(value, str) and _one_line(value) and not {'"', "\\"} & set(value)
    if not isinstance(value, str) or not value.strip() or not plain:
        raise ValueError("an expression as for sbatch, as in 'a100&ib'")
    return value.strip()


def _hosts(value: object) -> str:
    text: object = ",".join(value) if _is_texts(value) else value
    if not isinstance(text, str) or not _HOSTS.fullmatch(text):
        raise ValueError("names of nodes, as in 'node[01-04],gpu7', or a list of them")
    return text


def _memory(value: object) -> str:
    text = f"{value}M" if type(value) is int and value else value
    text = str(text) if type(text) is int else text
    if not isinstance(text, str) or not _MEMORY.fullmatch(text):
        raise ValueError("memory of a node as for sbatch, as in '64G'; 0 for all of it")
    return text


def _gpus(value: object) -> str:
    text = str(value) if type(value) is int and value > 0 else value
    if not isinstance(text, str) or not _GPUS.fullmatch(text):
        raise ValueError("a number of GPUs, or type and number as in 'a100:4'")
    return text


def _truth(value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError("true or false")
    return value


def _exclusive(value: object) -> bool | str:
    if isinstance(value, bool) or value in ("user", "mcs", "topo"):
        return value
    raise ValueError("true or false, or 'user'")


def _lines(value: object) -> tuple[str, ...]:
    if not _is_texts(value):
        raise ValueError("a list of options for sbatch, as in ['--licenses=abaqus:1']")
    return tuple(_line(each) for each in value)


def _line(text: str) -> str:
    line = text.strip().removeprefix("#SBATCH").strip()
    if not _FLAG.fullmatch(line) or not _one_line(line):
        raise ValueError(f"options for sbatch, as in ['--licenses=abaqus:1']; {text!r} is none")
    try:
        words = shlex.split(line)
    except ValueError:
        raise ValueError(f"options for sbatch with quotes in pairs; {text!r} has none") from None
    # One line may have several options, as in a batch script.
    for word in words:
        _refuse_ours(word)
    if _SINGLETON.search(" ".join(words)):
        # Slurm goes by the job's name, which is another one for each task: it would wait for nothing.
        raise ValueError(
            f"other options: {line} waits for jobs of the same name, and each task's job has a name of its own; use "
            "after (--after TASK), or --dependency=afterany:JOB"
        )
    return line


def _refuse_ours(word: str) -> None:
    """Raises ValueError for an option that flowlite sets itself."""
    long = word.startswith("--") and len(word) > 2
    flag = word.partition("=")[0] if long else word[:2]
    if not long and not re.fullmatch(r"-[A-Za-z]", flag):
        return
    # sbatch takes long options by their beginning, too, if no other one begins so.
    short = long and len(flag) > len("--a")
    mine = flag if flag in _OURS else next((o for o in _OURS if short and o.startswith(flag)), "")
    if mine:
        raise ValueError(f"other options: {flag} cannot be given here; use {_OURS[mine]}")


def _one_line(text: str) -> bool:
    return text.isprintable()


def _is_texts(value: object) -> TypeIs[Sequence[str]]:
    return isinstance(value, list | tuple) and all(isinstance(each, str) for each in value)


def _container(value: object) -> str:
    if value not in CONTAINERS:
        raise ValueError(f"one of {', '.join(CONTAINERS)}{did_you_mean(str(value), CONTAINERS)}")
    return str(value)


def _image(value: object) -> str:
    if not isinstance(value, str) or not value or " " in value or not _one_line(value):
        raise ValueError("the name of an image, or the path of one")
    return value


OPTIONS: dict[str, Callable[[object], Any]] = {
    "partition": word,
    "account": word,
    "qos": word,
    "constraint": _expression,
    "reservation": word,
    "gres": word,
    "gpus_per_node": _gpus,
    "mem": _memory,
    "exclusive": _exclusive,
    "nodelist": _hosts,
    "exclude": _hosts,
    "requeue": _truth,
    "sbatch": _lines,
    "container": _container,
    "image": _image,
}
"""The reader of each option, by name."""
