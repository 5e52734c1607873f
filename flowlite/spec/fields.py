"""The types of values that options of a task take, each with its check and its error."""

from __future__ import annotations

import os
import posixpath
import re
import signal
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, PlainValidator

from flowlite.node.outputs import patterns
from flowlite.notify.targets import problem
from flowlite.settings.parse import duration_seconds, hours
from flowlite.settings.suggest import did_you_mean
from flowlite.spec.base import as_mapping, shown
from flowlite.spec.environment import is_unicode, variables
from flowlite.spec.gpu import GpuRequest
from flowlite.spec.limits import Retries
from flowlite.spec.one_or_several import ANY, PREFER
from flowlite.spec.secrets import Secret
from flowlite.spec.slurm import checked

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}", re.ASCII)
_PYTHON = re.compile(r"3\.\d{1,2}(\.\d{1,2})?", re.ASCII)
_WHOLE = re.compile(r"\d{1,9}", re.ASCII)
_MEMORY = re.compile(r"(\d+(?:\.\d+)?)\s*(gb|gib|tb|tib|g|t)", re.IGNORECASE | re.ASCII)
_GB = {"gb": 1.0, "g": 1.0, "gib": 1.073741824, "tb": 1000.0, "t": 1000.0, "tib": 1099.511627776}

INTERNODE = ("InfiniBand", "RoCE", "EFA", "Ethernet")
INTRANODE = (
    *("SXM", "SXM2", "SXM3", "SXM4", "SXM5", "SXM6"),
    *("NVLink", "NVSwitch", "PCIe", "XGMI"),
)


def _wanted(value: object, what: str) -> ValueError:
    return ValueError(f"{shown(value)} is not allowed; give {what}")


def _name(value: object) -> str:
    if not isinstance(value, str) or not _NAME.fullmatch(value):
        raise _wanted(
            value, "1 to 63 letters, digits, dots, dashes or underscores, a letter or digit first"
        )
    return value


def _processes(value: object) -> int | Literal["auto"]:
    if value == "auto":
        return "auto"
    if type(value) is not int or value < 1:
        raise _wanted(value, "a whole number of at least 1, or 'auto' for one per GPU")
    return value


def _nodes(value: object) -> int | tuple[int, int]:
    items: Iterable[object] = value if isinstance(value, list | tuple) else [value]
    if isinstance(value, str) and ":" in value:
        items = [int(word) if _WHOLE.fullmatch(word) else word for word in value.split(":")]
    found = [each for each in items if type(each) is int and each >= 1]
    if len(found) != len(list(items)) or not 1 <= len(found) <= 2 or found[0] > found[-1]:
        raise _wanted(
            value,
            "a whole number of at least 1, or the fewest and the most nodes, as in (2, 8) or '2:8'",
        )
    return found[0] if found[0] == found[-1] else (found[0], found[1])


def _gpu(value: object) -> str:
    if isinstance(value, GpuRequest):
        return str(value)
    if not isinstance(value, str):
        raise _wanted(value, "a text as in 'h100:8'")
    return str(GpuRequest.parse(value))


def _one_or_several(check: Callable[[object], str]) -> Callable[[object], str | tuple[str, ...]]:
    """A check of an option that takes one value or several: as a list, or as a text with commas."""

    def read(value: object) -> str | tuple[str, ...]:
        items: Iterable[object] = [value]
        if isinstance(value, str):
            items = [each.strip() for each in value.split(",")]
        elif isinstance(value, list | tuple):
            items = value
        found = tuple(dict.fromkeys(map(check, items)))
        if not found:
            raise _wanted(value, "one value or several, or leave it out")
        return found[0] if len(found) == 1 else found

    return read


def _provider(value: object) -> str | tuple[str, ...]:
    found = _one_or_several(_word)(value)
    if ANY in found and found != ANY:
        raise _wanted(value, f"names of providers, or {ANY!r} alone for all that are set up")
    return found


def _spot(value: object) -> bool | Literal["prefer"]:
    if isinstance(value, bool):
        return value
    if value != PREFER:
        raise _wanted(value, f"True, False, or {PREFER!r} for spot where there is some")
    return PREFER


def _word(value: object) -> str:
    if not isinstance(value, str) or not value or not value.isprintable() or " " in value:
        raise _wanted(value, "one word")
    return value


def _environment(value: object) -> dict[str, str]:
    return {} if value is None else variables(value)


def _items(value: object, what: str) -> list[Any]:
    if value is None:
        return []
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
        raise _wanted(value, what)
    return list(value)


def _secrets(value: object) -> tuple[Secret, ...]:
    found: dict[str, Secret] = {}
    for item in _items(value, "a list of names, or of Secret(…)"):
        if isinstance(item, Secret):
            secret = item
        elif isinstance(item, str):
            secret = Secret(item)
        elif isinstance(item, Mapping):
            secret = Secret(**item)
        else:
            raise _wanted(item, "a name, or Secret(name, env=…) or Secret(name, file=…)")
        if found.setdefault(secret.name, secret) != secret:
            raise ValueError(f"{secret.name!r} is given twice, with different sources")
    return tuple(found.values())


def _dependencies(value: object) -> tuple[str, ...] | str:
    what = "a list of requirements ('numpy>=2'), or the path of a requirements file"
    if isinstance(value, str):
        if not value.strip():
            raise _wanted(value, what)
        return value
    items = _items(value, what)
    for item in items:
        if not isinstance(item, str) or not item.strip() or item.startswith("-") or "\n" in item:
            raise _wanted(item, "a requirement as in 'numpy>=2'")
    return tuple(items)


def _python(value: object) -> str:
    if isinstance(value, float | int) and not isinstance(value, bool):
        raise _wanted(value, "a text, in quotes, as in '3.11'")
    if not isinstance(value, str) or not _PYTHON.fullmatch(value):
        raise _wanted(value, "a version as in '3.11'")
    return value


def _retries(value: object) -> object:
    if value is None or isinstance(value, bool | str | float):
        raise _wanted(value, "a number of new attempts, as in 2, or Retries(2, delay=60)")
    return {"max_retries": value} if type(value) is int else value


def _one_of(known: tuple[str, ...]) -> Callable[[object], str]:
    by_case = {name.lower(): name for name in known}

    def check(value: object) -> str:
        found = by_case.get(value.lower()) if isinstance(value, str) else None
        if found is None:
            raise _wanted(value, f"one of {', '.join(known)}{did_you_mean(str(value), known)}")
        return found

    return check


def _memory(value: object) -> float:
    if isinstance(value, str):
        match = _MEMORY.fullmatch(value.strip())
        size = float(match[1]) * _GB[match[2].lower()] if match else 0.0
    elif isinstance(value, int | float) and not isinstance(value, bool):
        size = float(value)
    else:
        size = 0.0
    if not 0 < size < float("inf"):
        raise _wanted(value, "a size in GB, as in 64 or '64GB'")
    return size


def _parsed(parse: Callable[[object], float]) -> Callable[[object], float]:
    def check(value: object) -> float:
        try:
            return parse(value)
        except ValueError as error:
            raise _wanted(value, str(error)) from None

    return check


def _stop_signal(value: object) -> str:
    name = value.upper() if isinstance(value, str) else ""
    name = name if name.startswith("SIG") else f"SIG{name}"
    if name in {"SIGKILL", "SIGSTOP"}:
        raise ValueError(
            f"{name} cannot be caught by a worker; for an end at once give grace_seconds=0"
        )
    known = ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2")
    if name not in known or not hasattr(signal, name):
        if type(value) is int and value in set(signal.Signals):
            name = signal.Signals(value).name
        raise _wanted(value, f"one of {', '.join(known)}{did_you_mean(name, known)}")
    return name


def _command(value: object) -> tuple[str, ...] | str:
    what = "a list of words, or a line for the shell"
    if isinstance(value, str):
        if not value.strip() or "\0" in value or not is_unicode(value):
            raise _wanted(value, what)
        return value
    words = _items(value, what)
    if not words or not words[0]:
        raise _wanted(value, what)
    for word in words:
        if not isinstance(word, str) or "\0" in word or not is_unicode(word):
            raise _wanted(word, "words of a command as texts, numbers in quotes")
    return tuple(words)


def _notify(value: object) -> tuple[str, ...]:
    """One or several targets of notifications."""
    given = [value] if isinstance(value, str) else [] if value is None else value
    if not isinstance(given, list | tuple):
        raise ValueError(
            "give a command, the URL of a webhook, or a URL of Apprise, or a list of these"
        )
    for each in given:
        if what := problem(each):
            raise ValueError(what)
    return tuple(given)


def _after(value: object) -> tuple[str, ...]:
    """One or several tasks, by id or name, or as objects that have an id."""
    given = value if isinstance(value, list | tuple) else [] if value is None else [value]
    names: list[str] = []
    for each in given:
        name = getattr(each, "id", each)
        if not isinstance(name, str) or not name or not name.isprintable():
            raise _wanted(each, "a task, its id or its name, or a list of these")
        names.append(name)
    return tuple(dict.fromkeys(names))


def _setup(value: object) -> tuple[str, ...]:
    what = "a command for the shell, or a list of them"
    commands = [value] if isinstance(value, str) else _items(value, what)
    for each in commands:
        if not isinstance(each, str) or not each.strip() or "\0" in each or not is_unicode(each):
            raise _wanted(each, what)
    return tuple(commands)


def _outputs(value: object) -> tuple[str, ...]:
    what = "a list of paths below the working directory, as in ['runs/**']"
    given = [value] if isinstance(value, str) else _items(value, what)
    for each in given:
        if not isinstance(each, str) or not is_unicode(each):
            raise _wanted(each, what)
        if problem := patterns.problem(each):
            raise ValueError(f"{shown(each)} is not allowed; {problem}")
    return tuple(dict.fromkeys(given))


def _directory(value: object) -> str:
    if not isinstance(value, str) or not value.strip() or not value.isprintable():
        raise _wanted(
            value,
            "a directory of the project, as in 'experiments', or an absolute path on the node",
        )
    return posixpath.normpath(value)


def _files(value: object) -> dict[str, str]:
    if value is None:
        return {}
    found: dict[str, str] = {}
    for place, source in as_mapping(value).items():
        path = posixpath.normpath(place)
        if not place.strip() or "\0" in place or place.startswith(("/", "~")) or path == ".":
            raise _wanted(
                place, "where the file is to be, below the working directory, as in 'data.csv'"
            )
        if not isinstance(source, str | os.PathLike) or not str(source).strip():
            raise ValueError(
                f"{place}: {shown(source)} is not allowed; give a path on this machine"
            )
        if found.setdefault(path, str(source)) != str(source):
            raise ValueError(f"{path!r} is given twice, with {found[path]} and {source}")
    return found


def _slurm(value: object) -> dict[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise _wanted(value, "a mapping as in {'partition': 'gpu', 'qos': 'high'}")
    return checked(value)


Name = Annotated[str, PlainValidator(_name)]
Nodes = Annotated[int | tuple[int, int], PlainValidator(_nodes)]
Processes = Annotated[int | Literal["auto"], PlainValidator(_processes)]
Gpus = Annotated[str | tuple[str, ...], PlainValidator(_one_or_several(_gpu))]
Providers = Annotated[str | tuple[str, ...], PlainValidator(_provider)]
Regions = Annotated[str | tuple[str, ...], PlainValidator(_one_or_several(_word))]
Spot = Annotated[bool | Literal["prefer"], PlainValidator(_spot)]
Word = Annotated[str, PlainValidator(_word)]
Environment = Annotated[dict[str, str], BeforeValidator(_environment)]
Secrets = Annotated[tuple[Secret, ...], BeforeValidator(_secrets)]
Dependencies = Annotated[tuple[str, ...] | str, BeforeValidator(_dependencies)]
PythonVersion = Annotated[str, PlainValidator(_python)]
RetriesField = Annotated[Retries, BeforeValidator(_retries)]
Internode = Annotated[str, PlainValidator(_one_of(INTERNODE))]
Intranode = Annotated[str, PlainValidator(_one_of(INTRANODE))]
Memory = Annotated[float, PlainValidator(_memory)]
Hours = Annotated[float, PlainValidator(_parsed(hours))]
Duration = Annotated[float, PlainValidator(_parsed(duration_seconds))]
StopSignal = Annotated[str, PlainValidator(_stop_signal)]
Command = Annotated[tuple[str, ...] | str, BeforeValidator(_command)]
Outputs = Annotated[tuple[str, ...], BeforeValidator(_outputs)]
After = Annotated[tuple[str, ...], BeforeValidator(_after)]
Notify = Annotated[tuple[str, ...], BeforeValidator(_notify), Field(repr=False)]
Setup = Annotated[tuple[str, ...], BeforeValidator(_setup)]
Directory = Annotated[str, PlainValidator(_directory)]
Files = Annotated[dict[str, str], PlainValidator(_files)]
SlurmOptions = Annotated[dict[str, Any], PlainValidator(_slurm)]
