"""The base class of all specs: strict, frozen, without unknown options, and with errors that are sentences."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import ErrorDetails

from flowlite.errors import SpecError
from flowlite.settings.suggest import did_you_mean
from flowlite.spec.other_tools import option_for


class Spec(BaseModel):
    """Base class of the values that users give. Raises `SpecError`, one sentence per problem, not pydantic errors."""

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid", allow_inf_nan=False)

    # The fields that may be given by position.
    positional: ClassVar[tuple[str, ...]] = ()

    def __init__(self, /, *values: Any, **options: Any) -> None:
        if len(values) > len(self.positional):
            raise SpecError(f"{type(self).__name__} takes its options by name: {shown(values[-1])}")
        for name, value in zip(self.positional, values, strict=False):
            if name in options:
                raise SpecError(f"{name}: given twice")
            options[name] = value
        try:
            super().__init__(**options)
        except ValidationError as error:
            raise SpecError(explain(type(self), error)) from None

    # Makes pydantic validate nested specs itself, so that a problem keeps its whole path ("volumes./data.size_gb").
    __init__.__pydantic_base_init__ = True  # type: ignore[attr-defined]


def explain(spec: type[BaseModel], error: ValidationError) -> str:
    """The problems of a failed validation as sentences, one per line."""
    sentences = [_sentence(spec, detail) for detail in error.errors(include_url=False)]
    return "\n".join(dict.fromkeys(sentences))


def _sentence(spec: type[BaseModel], detail: ErrorDetails) -> str:
    where = _path(detail["loc"])
    if detail["type"] == "extra_forbidden":
        fields = _fields_at(spec, detail["loc"][:-1])
        near = option_for(str(detail["loc"][-1]), fields)
        return f"{where}: unknown option{near or '; known: ' + ', '.join(fields)}"
    text = _problem(detail)
    return f"{where}: {text}" if where else text


def _problem(detail: ErrorDetails) -> str:
    kind, context, given = detail["type"], detail.get("ctx", {}), detail["input"]
    if kind == "value_error":
        return str(context["error"])
    if kind == "missing":
        return "is missing and has no default"
    if kind == "literal_error":
        allowed = context["expected"].replace(" or ", ", ").split(", ")
        hint = did_you_mean(given, [a.strip("'") for a in allowed]) if type(given) is str else ""
        return f"{shown(given)} is not allowed; give {context['expected']}{hint}"
    wanted = _WANTED.get(kind)
    if wanted is None:
        return f"{shown(given)} is not allowed: {detail['msg'][:1].lower()}{detail['msg'][1:]}"
    return f"{shown(given)} is not allowed; give {wanted.format_map(context)}"


_WANTED = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "finite_number": "a finite number",
    "string_type": "a text",
    "bool_type": "True or False",
    "dict_type": "a mapping",
    "model_type": "a mapping of its options",
    "greater_than": "a number above {gt:g}",
    "greater_than_equal": "a number of at least {ge:g}",
    "less_than": "a number below {lt:g}",
    "less_than_equal": "a number of at most {le:g}",
}


def shown(value: object) -> str:
    """A value as shown in error messages, shortened."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:59]}…"


def _path(location: Iterable[int | str]) -> str:
    return ".".join(str(part) for part in location)


def _fields_at(spec: type[BaseModel], location: tuple[int | str, ...]) -> list[str]:
    """The option names of the spec at a location, which may lead through mappings of specs."""
    found: type[BaseModel] | None = spec
    for part in location:
        if found is None:
            return []
        field = found.model_fields.get(str(part))
        if field is None:
            continue
        found = _inner_spec(field.annotation)
    return list(found.model_fields) if found else []


def _inner_spec(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    for argument in getattr(annotation, "__args__", ()):
        inner = _inner_spec(argument)
        if inner is not None:
            return inner
    return None


def as_mapping(value: object) -> Mapping[str, Any]:
    """Returns the value if it is a mapping with text keys. Raises ValueError, for use in validators."""
    if not isinstance(value, Mapping):
        raise ValueError(f"{shown(value)} is not allowed; give a mapping")
    wrong = next((key for key in value if not isinstance(key, str)), None)
    if wrong is not None:
        raise ValueError(f"the key {shown(wrong)} is not a text")
    return value
