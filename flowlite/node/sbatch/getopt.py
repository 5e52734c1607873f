"""Parses options as Slurm's commands do: GNU style, long names by any unique prefix, values after `=` or a blank.

Pure. The reader of batch scripts and our `srun` share it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple


class OptionError(ValueError):
    """An option is unknown or lacks its value; the text names it."""


class Option(NamedTuple):
    """The form of an option. `value`: "needed", "none", or "optional" (then only after `=`)."""

    short: str = ""
    value: str = "needed"


class GivenOption(NamedTuple):
    """An option on a command line: its whole name, and its value, or None if it has none."""

    name: str
    value: str | None


def read(
    words: Sequence[str], table: Mapping[str, Option]
) -> tuple[list[GivenOption], list[str], list[str]]:
    """Parses options up to the first word that is not one.

    Returns:
        The options, the words that follow, and the unknown names, each as it was written. An unknown long name is taken
        to have no value unless it has one after `=`.

    Raises:
        OptionError: A value is missing or not allowed, or a prefix fits several options.
    """
    given: list[GivenOption] = []
    unknown: list[str] = []
    shorts = {option.short: name for name, option in table.items() if option.short}
    rest = list(words)
    while rest:
        word = rest[0]
        if word == "--":
            return given, rest[1:], unknown
        if word == "-" or not word.startswith("-"):
            break
        rest.pop(0)
        if word.startswith("--"):
            _long(word, rest, table, given, unknown)
        else:
            _cluster(word, rest, table, shorts, given, unknown)
    return given, rest, unknown


def find(name: str, table: Mapping[str, Option]) -> str | None:
    """Returns the whole name of a long option, from any unique prefix; None if it is unknown. Raises OptionError."""
    plain = name.replace("_", "-")
    if plain in table:
        return plain
    fitting = [known for known in table if known.startswith(plain)] if plain else []
    if len(fitting) > 1:
        raise OptionError(f"--{name} could be {' or '.join(f'--{each}' for each in fitting[:4])}")
    return fitting[0] if fitting else None


def _long(
    word: str,
    rest: list[str],
    table: Mapping[str, Option],
    given: list[GivenOption],
    unknown: list[str],
) -> None:
    written, equals, value = word[2:].partition("=")
    name = find(written, table)
    if name is None:
        unknown.append(f"--{written}")
        return
    kind = table[name].value
    if kind == "none" and equals:
        raise OptionError(f"--{name} takes no value, and has {value!r}")
    if kind == "needed" and not equals:
        if not rest:
            raise OptionError(f"--{name} has no value")
        value, equals = rest.pop(0), "="
    given.append(GivenOption(name, value if equals else None))


def _cluster(
    word: str,
    rest: list[str],
    table: Mapping[str, Option],
    shorts: Mapping[str, str],
    given: list[GivenOption],
    unknown: list[str],
) -> None:
    """Parses `-N4`, `-N 4`, or several letters without values."""
    letters = word[1:]
    while letters:
        name = shorts.get(letters[0])
        if name is None:
            unknown.append(f"-{letters[0]}")
            return
        kind, letters = table[name].value, letters[1:]
        value: str | None = None
        if kind != "none" and letters:
            value, letters = letters.removeprefix("="), ""
        elif kind == "needed":
            if not rest:
                raise OptionError(f"-{table[name].short} (--{name}) has no value")
            value = rest.pop(0)
        given.append(GivenOption(name, value))
