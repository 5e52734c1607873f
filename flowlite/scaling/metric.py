"""Finds the number by which runs are compared in the result of a function, or in the output of its workers."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from flowlite.output.reader import LogLine
from flowlite.terminal import without_colours

_NUMBER = r"([-+]?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d*)?(?:[eE][-+]?\d+)?)"
# Rates without a name, as OpenCLIP prints them: `207.300/s, 51.8250/s/gpu`.
_RATES = re.compile(
    r"(?:throughput|(?:samples|items|images|tokens|examples)(?:/|_per_)s(?:ec|econd)?)"
)
_RATES_PER_GPU = re.compile(rf"{_RATES.pattern}(?:/|_per_)gpu")
_SHOWN_KEYS = 8


class NoMetric(ValueError):
    """The number was not found. The message says where it was searched for, and what is there."""


def of_result(value: Any, metric: str) -> float:
    """The number of that name in a result. If the result is itself a number, that number.

    Args:
        value: What rank 0 returned.
        metric: A key, or a dotted path such as `train.samples_per_s` or `epochs.0.rate`.

    Raises:
        NoMetric: It is missing, or is not a number above 0.
    """
    if isinstance(value, int | float) and not isinstance(value, bool):
        return _positive(value, metric, "the function returned")
    found = _at(value, metric)
    if found is None:
        raise NoMetric(f"the function returned {_described(value)}, and no {metric!r} in it")
    return _positive(found, metric, "the function returned")


def of_lines(lines: Iterable[LogLine], metric: str) -> float:
    """The last number of that name in the output of rank 0, else of the lowest rank that printed one.

    Recognised are `metric=1.5`, `metric: 1.5`, a line of JSON with that key or dotted path, `1.5 metric` for a unit
    such as `samples/s`, and for rates also OpenCLIP's `207.3/s, 51.8/s/gpu`, which has no name.

    Raises:
        NoMetric: No line has it, or the last one is not a number above 0.
    """
    named, unit = _named(metric), _unit(metric)
    # The key is (whether only the unit matched, rank); the smallest key wins.
    found: dict[tuple[bool, int], float] = {}
    for line in lines:
        text = without_colours(line.text) if "\x1b" in line.text else line.text
        value = _of_json(text, metric)
        if value is None and (matches := named.findall(text)):
            value = _number(matches[-1])
        if value is not None:
            found[False, line.rank] = value
        elif unit is not None and (matches := unit.findall(text)):
            found[True, line.rank] = _number(matches[-1])
    if not found:
        raise NoMetric(
            f"no line of the output has {metric!r}; let rank 0 print `{metric}=NUMBER`, or a line of JSON with it"
        )
    return _positive(found[min(found)], metric, "the last line with it has")


def _named(metric: str) -> re.Pattern[str]:
    return re.compile(rf"(?<![\w./-])['\"]?{re.escape(metric)}['\"]?\s*[:=]\s*['\"]?{_NUMBER}")


def _unit(metric: str) -> re.Pattern[str] | None:
    if _RATES_PER_GPU.fullmatch(metric):
        return re.compile(rf"(?<![\w.,]){_NUMBER}\s?\w*/s(?:ec)?/gpu(?![\w/])")
    if _RATES.fullmatch(metric):
        what = metric.partition("/")[0].partition("_")[0]
        return re.compile(rf"(?<![\w.,]){_NUMBER}\s?(?:{re.escape(what)})?/s(?:ec)?(?![\w/])")
    if "/" in metric:
        return re.compile(rf"(?<![\w.,]){_NUMBER}\s?{re.escape(metric)}(?![\w/])")
    return None


def _of_json(text: str, metric: str) -> float | None:
    start, end = text.find("{"), text.rfind("}")
    if start < 0 or end < start:
        return None
    try:
        found = _at(json.loads(text[start : end + 1]), metric)
        return None if found is None or isinstance(found, bool) else float(found)
    except (ValueError, TypeError, OverflowError, RecursionError):
        return None


def _at(value: Any, path: str) -> Any:
    """The value at a dotted path, or None. A key that itself has dots takes precedence."""
    if isinstance(value, Mapping) and path in value:
        return value[path]
    first, dot, rest = path.partition(".")
    inner: Any = None
    if isinstance(value, Mapping):
        inner = value.get(first)
    elif isinstance(value, Sequence) and not isinstance(value, str | bytes):
        if re.fullmatch(r"-?\d+", first) and -len(value) <= int(first) < len(value):
            inner = value[int(first)]
        else:
            inner = getattr(value, first, None)
    elif first.isidentifier() and not first.startswith("_"):
        inner = getattr(value, first, None)
    return _at(inner, rest) if dot and inner is not None else inner


def _number(text: str) -> float:
    return float(text.replace(",", ""))


def _positive(value: Any, metric: str, where: str) -> float:
    try:
        number = math.nan if isinstance(value, bool | str) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number) or number <= 0:
        raise NoMetric(f"{where} {metric}={value!r:.60}; a number above 0 is needed")
    return number


def _described(value: Any) -> str:
    if value is None:
        return "nothing"
    if isinstance(value, Mapping):
        keys = list(map(str, value))
        more = ", …" if keys[_SHOWN_KEYS:] else ""
        return (
            f"a mapping with {', '.join(keys[:_SHOWN_KEYS])}{more}" if keys else "an empty mapping"
        )
    return f"a value of type {type(value).__name__}"
