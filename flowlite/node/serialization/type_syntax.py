"""Type aliases and type parameters as Python 3.12 writes them (`type Pair[T] = tuple[T, T]`), sent by value.

They have no module that could be imported, or one that a node does not load: a notebook's. Their bounds, defaults and
values are evaluated when somebody asks for them, and may refer to themselves (`type Tree = list[Tree] | int`,
`class Node[T: Node]`). So they are made anew by the same syntax, from values that are filled in afterwards.
"""

from __future__ import annotations

import keyword
import sys
import typing
from typing import Any, NamedTuple

_STARS = {"TypeVar": "", "TypeVarTuple": "*", "ParamSpec": "**"}
_VALUES = "__flowlite_values__"


class Source(NamedTuple):
    """How an alias or a parameter is made anew.

    Attributes:
        name: Its name.
        text: A statement that makes it.
        kept: What the statement looks up later, by key. Objects that cannot be evaluated now are missing.
    """

    name: str
    text: str
    kept: dict[str, Any]


def is_alias(value: Any) -> bool:
    """Whether this is what `type NAME = …` makes."""
    kind = getattr(typing, "TypeAliasType", None)
    return kind is not None and type(value) is kind


def is_parameter(value: Any) -> bool:
    """Whether this is a type parameter in square brackets, and not the result of a call as `TypeVar("T")`."""
    kind = type(value)
    if sys.version_info < (3, 12):
        return False
    if kind.__module__ != "typing" or kind.__name__ not in _STARS or value.__module__ != "typing":
        return False
    # `typing` has some of its own, such as AnyStr.
    return getattr(typing, value.__name__, None) is not value


def of_alias(alias: Any) -> Source | None:
    """Returns how an alias is made; None if it was made by a call with other things than Python's syntax has."""
    parameters = alias.__type_params__
    if not _is_name(alias.__name__) or not all(map(_is_written, parameters)):
        return None
    kept: dict[str, Any] = {}
    _keep(kept, "value", alias, "__value__")
    inside = ", ".join(_text_of(each, kept, str(at)) for at, each in enumerate(parameters))
    text = f"type {alias.__name__}{f'[{inside}]' if inside else ''} = {_VALUES}['value']"
    return Source(alias.__name__, text, kept)


def of_parameter(parameter: Any) -> Source | None:
    """Returns how a parameter is made, as the only one of a function."""
    if not _is_written(parameter):
        return None
    kept: dict[str, Any] = {}
    inside = _text_of(parameter, kept, "0")
    return Source(parameter.__name__, f"def {parameter.__name__}[{inside}](): pass", kept)


def _is_written(parameter: Any) -> bool:
    return is_parameter(parameter) and _is_name(parameter.__name__)


def _is_name(text: str) -> bool:
    return text.isidentifier() and not keyword.iskeyword(text) and text != _VALUES


def _text_of(parameter: Any, kept: dict[str, Any], key: str) -> str:
    """Returns a parameter as it is written in square brackets."""
    text = f"{_STARS[type(parameter).__name__]}{parameter.__name__}"
    if type(parameter) is typing.TypeVar:
        _keep(kept, f"{key} constraints", parameter, "__constraints__")
        _keep(kept, f"{key} bound", parameter, "__bound__")
        if constraints := kept.pop(f"{key} constraints", None):
            each = [f"{key} constraint {at}" for at in range(len(constraints))]
            kept.update(zip(each, constraints, strict=True))
            text += f": ({', '.join(f'{_VALUES}[{name!r}]' for name in each)})"
        elif kept.get(f"{key} bound", ...) is not None:
            text += f": {_VALUES}['{key} bound']"
    if sys.version_info >= (3, 13) and parameter.has_default():
        _keep(kept, f"{key} default", parameter, "__default__")
        text += f" = {_VALUES}['{key} default']"
    return text


def _keep(kept: dict[str, Any], key: str, of: Any, name: str) -> None:
    try:
        kept[key] = getattr(of, name)
    except Exception:
        # It names something that does not exist, which is no error until the value is used.
        return


# The functions below run where the pickle is loaded. They import what they need and use no name of this module.


def make(name, text, values, tracker):  # type: ignore[no-untyped-def]
    """Makes what `text` says, or returns what this process knows under the same number already."""
    from cloudpickle import cloudpickle

    names = {"__name__": "__main__", "__flowlite_values__": values}
    exec(text, names)
    made = names[name]
    if text.startswith("def "):
        made = made.__type_params__[0]
    return made if tracker is None else cloudpickle._lookup_class_or_track(tracker, made)


def make_or_find(name, text, values, tracker):  # type: ignore[no-untyped-def]
    """Returns the alias that `__main__` has under this name, else makes it."""
    import sys

    held = getattr(sys.modules.get("__main__"), name, None)
    if type(held).__name__ == "TypeAliasType":
        return held
    names = {"__name__": "__main__", "__flowlite_values__": values}
    exec(text, names)
    return names[name]


def fill(made, state):  # type: ignore[no-untyped-def]
    """Fills in what `make` has only promised."""
    values, kept = state
    values.update(kept)


def parameter_of(alias, at):  # type: ignore[no-untyped-def]
    """Returns a parameter of an alias."""
    return alias.__type_params__[at]
