"""Parses values of settings from TOML or from the text of a variable. The ValueError says what is allowed."""

from __future__ import annotations

import math
import re
from collections.abc import Callable

from flowlite.settings.suggest import did_you_mean


def text(value: object) -> str:
    """A word."""
    if not isinstance(value, str) or not value or not value.isprintable():
        raise ValueError("a word")
    return value


def words(value: object) -> str | tuple[str, ...]:
    """A word, or several: as a list, or as a text with commas."""
    items = value.split(",") if isinstance(value, str) else value
    if not isinstance(items, list | tuple) or not items:
        raise ValueError("a word, or a list of words")
    found = tuple(text(each.strip() if isinstance(each, str) else each) for each in items)
    return found[0] if len(found) == 1 else found


def choice(*allowed: str) -> Callable[[object], str]:
    """A parser that accepts one of these words."""

    def read(value: object) -> str:
        if value not in allowed:
            raise ValueError(f"one of {', '.join(allowed)}{did_you_mean(str(value), allowed)}")
        return str(value)

    return read


def positive(value: object) -> float:
    """A number above 0."""
    try:
        number = float(value) if isinstance(value, str) else value
    except ValueError:
        number = None
    if isinstance(number, bool) or not isinstance(number, int | float):
        raise ValueError("a number above 0")
    if not 0 < number < math.inf:
        raise ValueError("a finite number above 0")
    return float(number)


def whole(value: object) -> int:
    """A whole number of at least 1."""
    number = int(value) if isinstance(value, str) and value.strip().isdecimal() else value
    if type(number) is not int or number < 1:
        raise ValueError("a whole number of at least 1")
    return number


_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(kb|mb|gb|tb)", re.ASCII | re.IGNORECASE)
_BYTES = {"kb": 1e3, "mb": 1e6, "gb": 1e9, "tb": 1e12}


def size(value: object) -> int:
    """Bytes, from a number or from a text such as "500MB"."""
    if isinstance(value, str) and (match := _SIZE.fullmatch(value.strip())):
        return int(float(match[1]) * _BYTES[match[2].lower()])
    try:
        return int(positive(value))
    except ValueError:
        raise ValueError("a size, as in '500MB' or '2GB', or a number of bytes") from None


_TRUE, _FALSE = ("true", "yes", "on", "1"), ("false", "no", "off", "0")


def truth(value: object) -> bool:
    """True or false, as a boolean or as words."""
    word = str(value).lower() if isinstance(value, bool | str) else ""
    if word not in _TRUE + _FALSE:
        raise ValueError("true or false")
    return word in _TRUE


def truth_or(word: str) -> Callable[[object], bool | str]:
    """A parser that accepts true, false, or this word."""

    def read(value: object) -> bool | str:
        try:
            return word if value == word else truth(value)
        except ValueError as error:
            raise ValueError(f"{error}, or {word}") from None

    return read


_DURATION = re.compile(
    r"(?:(\d+(?:\.\d+)?)d)?(?:(\d+(?:\.\d+)?)h)?(?:(\d+(?:\.\d+)?)m)?(?:(\d+(?:\.\d+)?)(s)?)?",
    re.ASCII,
)
LONGEST_WARM = 86400.0
"""The longest time in seconds for which nodes may be kept warm: a day, so that forgotten nodes stop costing money."""


def duration_seconds(value: object) -> float:
    """Seconds, from a number or from a text such as "90s", "10m", "1h30m". The ValueError says what is allowed."""
    seconds = -1.0
    if isinstance(value, str):
        seconds = _seconds(value, 1.0)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        seconds = float(value)
    if not 0 <= seconds <= LONGEST_WARM:
        raise ValueError("a time of at most a day, as in '10m', '1h30m', or a number of seconds")
    return seconds


def at_least(least: float) -> Callable[[object], float]:
    """A parser that accepts a time as `duration_seconds`, of at least so many seconds."""

    def read(value: object) -> float:
        seconds = duration_seconds(value)
        if seconds < least:
            raise ValueError(f"a time of at least {least:g} s, as in '10m'")
        return seconds

    return read


def hours(value: object) -> float:
    """Hours, from a number or from a text such as "90m", "1h30m", "2d". The ValueError says what is allowed."""
    found = -1.0
    if isinstance(value, str):
        found = _seconds(value, 3600.0) / 3600
    elif isinstance(value, int | float) and not isinstance(value, bool):
        found = float(value)
    if not 0 < found < math.inf:
        raise ValueError("a number of hours above 0, or a time as in '1h30m'")
    return found


def _seconds(text: str, unit: float) -> float:
    """Seconds of a text such as "1h30m"; -1 if it cannot be read. `unit` is the seconds of a number without a unit."""
    plain = text.strip().lower().replace(" ", "")
    match = _DURATION.fullmatch(plain)
    if match is None or not any(match.groups()):
        return -1.0
    days, hours_, minutes, rest = (float(part or 0.0) for part in match.groups()[:4])
    bare = match[4] is not None and match[5] is None
    if bare and not any(match.groups()[:3]):
        return rest * unit
    if bare and unit != 1.0:
        return -1.0
    return 86400 * days + 3600 * hours_ + 60 * minutes + rest
