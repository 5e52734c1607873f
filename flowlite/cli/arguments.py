"""Derives command-line options from a function's signature, and parses their values by its annotations."""

from __future__ import annotations

import enum
import inspect
import math
import types
import typing
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import field, replace
from pathlib import Path
from typing import Annotated, Any, Literal, NewType, Union, get_args, get_origin

from flowlite.errors import ConfigError
from flowlite.in_worker.signatures import signature_of
from flowlite.node.quick_dataclass import dataclass
from flowlite.settings.parse import truth
from flowlite.settings.suggest import did_you_mean
from flowlite.spec.other_tools import flag_for

Convert = Callable[[str], Any]
_CONTAINERS: dict[Any, Callable[[list[Any]], Any]] = {
    list: list,
    tuple: tuple,
    set: set,
    frozenset: frozenset,
    Sequence: list,
    Iterable: list,
    Collection: list,
}
_IN_WORDS = {
    "NUMBER": "a number",
    "INTEGER": "a whole number",
    "true|false": "true or false",
    "": "true or false",
}
_MISSING = inspect.Parameter.empty
_STARS: Mapping[Any, str] = {
    inspect.Parameter.VAR_POSITIONAL: "*",
    inspect.Parameter.VAR_KEYWORD: "**",
}


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter of a function as an option.

    Attributes:
        name: Its name in the signature.
        option: Its option, such as `--learning-rate`.
        wanted: Description of the allowed values.
        convert: Parses a text, or raises ValueError; None if the value cannot be given on a command line.
        many: The container type of an option that may be given several times, else None.
        each: Its elements, if it has a fixed number of them, as `tuple[int, str]`; else empty.
        flag: Whether it is given as `--flag` or `--no-flag`, without a value.
        default: Its default; `inspect.Parameter.empty` if it must be given.
        by_position: Whether the function takes it by its position only.
        by_name: Whether the function takes it by its name only.
    """

    name: str
    option: str
    wanted: str
    convert: Convert | None
    many: Callable[[list[Any]], Any] | None = None
    each: Sequence[Parameter] = ()
    flag: bool = False
    default: Any = _MISSING
    by_position: bool = False
    by_name: bool = False

    @property
    def required(self) -> bool:
        """Whether it has no default."""
        return self.default is _MISSING

    def usage(self) -> str:
        """Its usage, as shown in the help."""
        if self.flag:
            return f"{self.option}/--no-{self.option[2:]}"
        return f"{self.option} {self.wanted}{'...' if self.many and not self.each else ''}"


@dataclass(slots=True)
class Reading:
    """A parsed command line.

    Attributes:
        given: Values by parameter name; lists for parameters that may be given several times.
        foreign: Words that belong to options of `flow` itself.
        own: All other words.
    """

    parameters: Sequence[Parameter]
    what: str
    given: dict[str, Any] = field(default_factory=dict)
    foreign: list[str] = field(default_factory=list)
    own: list[str] = field(default_factory=list)

    def complete(self) -> dict[str, Any]:
        """The arguments for the call. Raises ConfigError that names what is missing."""
        missing = [p for p in self.parameters if p.required and p.name not in self.given]
        for parameter in missing:
            if parameter.convert is None:
                _value(parameter, "", self.what)
        if missing:
            options = ", ".join(parameter.usage() for parameter in missing)
            raise ConfigError(f"{self.what}: missing: {options}")
        for parameter in self.parameters:
            count = len(self.given.get(parameter.name, ())) if parameter.each else 0
            if count and count != len(parameter.each):
                raise ConfigError(
                    f"{self.what}: {parameter.option} takes {len(parameter.each)} values, and got {count}: "
                    f"{parameter.usage()}"
                )
        many = {parameter.name: parameter.many for parameter in self.parameters if parameter.many}
        return {
            name: many[name](value) if name in many else value for name, value in self.given.items()
        }


def call_with(
    parameters: Sequence[Parameter], values: Mapping[str, Any]
) -> tuple[list[Any], dict[str, Any]]:
    """The positional and the named arguments of a call with these values."""
    named = dict(values)
    first = [parameter for parameter in parameters if parameter.by_position]
    while first and first[-1].name not in named:
        first.pop()
    return [named.pop(each.name, each.default) for each in first], named


def parameters_of(function: Callable[..., Any]) -> list[Parameter]:
    """The parameters of a function as options, in the order of the signature."""
    function = inspect.unwrap(function)
    found = []
    for parameter in signature_of(function).parameters.values():
        stars = _STARS.get(parameter.kind)
        if stars is not None:
            name = f"{stars}{parameter.name}"
            found.append(Parameter(name, name, "", None, default=()))
            continue
        found.append(_parameter(parameter, _resolved(function, parameter)))
    return found


def _resolved(function: Callable[..., Any], parameter: inspect.Parameter) -> Any:
    """The annotation of one parameter as a type.

    Annotations are resolved one by one, since a name that only type checkers import must not affect the others.
    """
    alone = types.SimpleNamespace(__annotations__={"it": parameter.annotation})
    names = getattr(function, "__globals__", {})
    try:
        return typing.get_type_hints(alone, names, {"empty": _MISSING})["it"]
    except Exception:
        return _MISSING


def read_arguments(
    parameters: Sequence[Parameter],
    words: Sequence[str],
    others: Mapping[str, bool] | None = None,
    what: str = "the function",
) -> Reading:
    """Reads the words after a function named `what`. Raises ConfigError for an option that is unknown, or has no value.

    `others` has the options of `flow` itself, with whether each takes a value; they are collected in `Reading.foreign`.
    """
    by_option: dict[str, tuple[Parameter, bool]] = {}
    for parameter in parameters:
        for option in (parameter.option, f"--{parameter.name}"):
            by_option[option] = (parameter, True)
            if parameter.flag:
                by_option[f"--no-{option[2:]}"] = (parameter, False)
    reading = Reading(parameters, what)
    queue = deque(words)
    while queue:
        word = queue[0]
        option, equals, value = word.partition("=")
        known = None if others is None else _other(others, word)
        if not _is_option(word):
            _take_positional(reading, _next(queue, reading.own))
        elif option in by_option:
            _next(queue, reading.own)
            parameter, sense = by_option[option]
            _take(reading, parameter, sense, value if equals else None, queue)
        elif known is not None:
            _next(queue, reading.foreign)
            if known and queue:
                _next(queue, reading.foreign)
        else:
            rest = next((each for each in parameters if each.name.startswith("**")), None)
            if rest is not None:
                _value(rest, option, what)
            raise ConfigError(_unknown(option, by_option, others, what))
    return reading


def _next(queue: deque[str], kept: list[str]) -> str:
    kept.append(queue.popleft())
    return kept[-1]


def _parameter(parameter: inspect.Parameter, annotation: Any) -> Parameter:
    return replace(
        _by_annotation(parameter, annotation),
        by_position=parameter.kind is inspect.Parameter.POSITIONAL_ONLY,
        by_name=parameter.kind is inspect.Parameter.KEYWORD_ONLY,
    )


def _by_annotation(parameter: inspect.Parameter, annotation: Any) -> Parameter:
    option = f"--{parameter.name.replace('_', '-')}"
    default = parameter.default
    if annotation is _MISSING:
        annotation = _type_of(default)
    annotation, optional = _without_none(annotation)
    annotation = _meant(annotation)
    if annotation is bool:
        return Parameter(parameter.name, option, "", _to_bool, flag=True, default=default)
    many = _CONTAINERS.get(get_origin(annotation) or annotation)
    if many is not None:
        if items := _fixed_items(annotation):
            each = [
                Parameter(parameter.name, option, wanted, convert)
                for convert, wanted in map(_converter, items)
            ]
            wanted = " ".join(element.wanted for element in each)
            return Parameter(
                parameter.name,
                option,
                wanted,
                each[0].convert,
                many=many,
                each=each,
                default=default,
            )
        convert, wanted = _converter(_item_of(annotation))
        return Parameter(parameter.name, option, wanted, convert, many=many, default=default)
    convert, wanted = _converter(annotation)
    if optional and convert is not None and annotation is not str:
        convert = _or_none(convert)
    return Parameter(parameter.name, option, wanted, convert, default=default)


def _type_of(default: Any) -> Any:
    """The type of a parameter without an annotation, from its default."""
    if default is None or default is _MISSING:
        return str
    if type(default) in (list, tuple, set, frozenset) and default:
        item: Any = type(next(iter(default)))
        more = (...,) if type(default) is tuple else ()
        return types.GenericAlias(type(default), (item, *more))
    return type(default)


def _meant(annotation: Any) -> Any:
    """The type that an alias (`type Rate = float`), a `NewType` or an `Annotated` stands for; any other type itself."""
    origin, inner = get_origin(annotation), get_args(annotation)
    try:
        if _is_alias(annotation):
            return _meant(annotation.__value__)
        if _is_alias(origin):
            return _meant(origin.__value__[inner])
    except Exception:
        # Its value is evaluated only now, and may have a name that only type checkers import.
        return annotation
    if isinstance(annotation, NewType):
        return _meant(annotation.__supertype__)
    return _meant(inner[0]) if origin is Annotated else annotation


def _is_alias(value: Any) -> bool:
    # `typing` has them from Python 3.12 on, and `typing_extensions` its own.
    return type(value).__name__ == "TypeAliasType"


def _without_none(annotation: Any) -> tuple[Any, bool]:
    annotation = _meant(annotation)
    if get_origin(annotation) in (Union, types.UnionType):
        rest = [one for one in get_args(annotation) if one is not type(None)]
        optional = len(rest) < len(get_args(annotation))
        if len(rest) == 1:
            return rest[0], optional
        return Union[tuple(rest)], optional  # noqa: UP007 - made at run time
    return annotation, False


def _fixed_items(annotation: Any) -> tuple[Any, ...]:
    """The types of the elements of a tuple whose length is fixed, as in `tuple[int, str]`; else empty."""
    items = get_args(annotation)
    return items if get_origin(annotation) is tuple and Ellipsis not in items else ()


def _item_of(annotation: Any) -> Any:
    items = [item for item in get_args(annotation) if item is not Ellipsis]
    return items[0] if items else str


def _converter(annotation: Any) -> tuple[Convert | None, str]:
    """The parser of a type (None if the type has no text form), and the description of its values."""
    annotation = _meant(annotation)
    if annotation in (str, Any, object):
        return str, "TEXT"
    if annotation is int:
        return _to_int, "INTEGER"
    if annotation is float:
        return _to_float, "NUMBER"
    if annotation is bool:
        return _to_bool, "true|false"
    if get_origin(annotation) is Literal:
        return _one_of({str(value): value for value in get_args(annotation)})
    if isinstance(annotation, type) and issubclass(annotation, enum.Enum):
        return _one_of(
            {**{str(m.value): m for m in annotation}, **{m.name: m for m in annotation}},
            [m.name for m in annotation],
        )
    if isinstance(annotation, type) and issubclass(annotation, Path):
        return annotation, "PATH"
    if get_origin(annotation) in (Union, types.UnionType):
        return _first_of([_converter(one) for one in get_args(annotation)])
    return None, getattr(annotation, "__name__", str(annotation))


def _to_int(text: str) -> int:
    try:
        return int(text.replace("_", ""), 0)
    except ValueError:
        number = float(text)
    if not math.isfinite(number) or number != int(number):
        raise ValueError(text)
    return int(number)


def _to_float(text: str) -> float:
    return float(text.replace("_", ""))


def _to_bool(text: str) -> bool:
    return truth(text.strip())


def _one_of(allowed: Mapping[str, Any], names: Sequence[str] | None = None) -> tuple[Convert, str]:
    def convert(text: str) -> Any:
        if text not in allowed:
            raise ValueError(did_you_mean(text, allowed))
        return allowed[text]

    return convert, "|".join(names or allowed)


def _or_none(convert: Convert) -> Convert:
    return lambda text: None if text.strip().lower() in ("none", "null") else convert(text)


def _first_of(readers: Sequence[tuple[Convert | None, str]]) -> tuple[Convert | None, str]:
    # A text fits everything, so it is tried last.
    usable = sorted((c for c, _ in readers if c is not None), key=lambda c: c is str)

    def convert(text: str) -> Any:
        for one in usable:
            try:
                return one(text)
            except ValueError:
                continue
        raise ValueError(text)

    return (convert if usable else None), "|".join(dict.fromkeys(wanted for _, wanted in readers))


def _is_option(word: str) -> bool:
    if not word.startswith("-") or word == "-":
        return False
    # A negative number is a value.
    return not word[1:2].isdigit() and not (word[1:2] == "." and word[2:3].isdigit())


def _take(
    reading: Reading, parameter: Parameter, sense: bool, value: str | None, queue: deque[str]
) -> None:
    if parameter.flag:
        if value is None and queue and queue[0].lower() in ("true", "false"):
            # It would go to the next parameter that takes a text.
            value = _next(queue, reading.own)
        given = True if value is None else _value(parameter, value, reading.what)
        _keep(reading, parameter, given is sense)
        return
    if value is not None:
        _keep(reading, parameter, _value(_element(reading, parameter), value, reading.what))
        return
    if not queue or _is_option(queue[0]):
        raise ConfigError(f"{reading.what}: {parameter.option} needs a value: {parameter.usage()}")
    # As its usage says (`--names TEXT...`), such an option takes all words up to the next option.
    while queue and not _is_option(queue[0]):
        element = _element(reading, parameter)
        _keep(reading, parameter, _value(element, _next(queue, reading.own), reading.what))
        if not parameter.many or _is_full(reading, parameter):
            return


def _take_positional(reading: Reading, word: str) -> None:
    """Assigns a word without an option to the first parameter that was not given yet, as a call from Python does."""
    by_position = [parameter for parameter in reading.parameters if not parameter.by_name]
    for parameter in by_position:
        begun = parameter.name in reading.given
        more = begun and bool(parameter.each) and not _is_full(reading, parameter)
        if (not begun or more) and not parameter.name.startswith("**"):
            _keep(reading, parameter, _value(_element(reading, parameter), word, reading.what))
            return
    takes = ", ".join(parameter.option for parameter in by_position) or "none"
    by_name = ", ".join(parameter.option for parameter in reading.parameters if parameter.by_name)
    also = f", and by name only: {by_name}" if by_name else ""
    raise ConfigError(f"{reading.what}: {word!r} is one argument too many; it takes {takes}{also}")


def _element(reading: Reading, parameter: Parameter) -> Parameter:
    """What the next value of a parameter is read by. Raises ConfigError if the parameter has all its values."""
    if not parameter.each:
        return parameter
    if _is_full(reading, parameter):
        raise ConfigError(
            f"{reading.what}: {parameter.option} takes {len(parameter.each)} values, and got more: {parameter.usage()}"
        )
    return parameter.each[len(reading.given.get(parameter.name, ()))]


def _is_full(reading: Reading, parameter: Parameter) -> bool:
    """Whether a parameter with a fixed number of values has them all."""
    return bool(parameter.each) and len(reading.given.get(parameter.name, ())) >= len(
        parameter.each
    )


def _keep(reading: Reading, parameter: Parameter, value: Any) -> None:
    if parameter.many:
        reading.given.setdefault(parameter.name, []).append(value)
    elif parameter.name in reading.given:
        raise ConfigError(f"{reading.what}: {parameter.option} is given twice")
    else:
        reading.given[parameter.name] = value


def _value(parameter: Parameter, text: str, what: str) -> Any:
    if parameter.name.startswith("*"):
        instead = (
            "**" not in parameter.name
            and f", or give it a parameter {parameter.name[1:]}: list[str]"
        )
        raise ConfigError(
            f"{what}: {parameter.name} has no form on a command line ({text!r} would go there); call the function from "
            f"Python{instead or ', or name its parameters'}"
        )
    if parameter.convert is None:
        raise ConfigError(
            f"{what}: {parameter.option} is a {parameter.wanted}, which has no form on a command line; "
            "call the function from Python instead"
        )
    try:
        return parameter.convert(text)
    except (ValueError, OverflowError) as error:
        hint = str(error) if str(error).startswith("; did you mean") else ""
        wanted = _IN_WORDS.get(parameter.wanted) or f"one of {parameter.wanted.replace('|', ', ')}"
        raise ConfigError(
            f"{what}: {parameter.option}: {text!r} is not allowed; give {wanted}{hint}"
        ) from None


def _other(others: Mapping[str, bool], word: str) -> bool | None:
    """Whether a foreign option still needs its value; None if the option is unknown."""
    option, equals, _ = word.partition("=")
    if option in others:
        return others[option] and not equals
    short = word[:2]
    if not word.startswith("--") and short in others:
        # `-N4` includes its value.
        return others[short] and len(word) == 2
    return None


def _unknown(
    option: str,
    mine: Mapping[str, tuple[Parameter, bool]],
    others: Mapping[str, bool] | None,
    what: str,
) -> str:
    known = dict.fromkeys(
        parameter.option for parameter, _ in mine.values() if not parameter.name.startswith("*")
    )
    hint = did_you_mean(option, known) or flag_for(option, others or {})
    return f"{what} has no option {option}{hint or ('; it has ' + ', '.join(known) if known else '; it has none')}"
