"""Removes or replaces the control characters and escape sequences that a terminal would act on.

Text can make a terminal move the cursor, erase, rename its window, fill the clipboard or reverse the direction of
writing. `output/printing.py` cleans everything that flowlite prints with the functions here.
"""

from __future__ import annotations

import functools
import re

# Replaces a character that a terminal would act on.
REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
# C0 except tab and newline, DEL, C1, the characters that change the direction of writing, and the surrogates that some
# streams write as the bytes 0x80 to 0x9f (`surrogateescape`, in the locale C): C1 to a terminal without UTF-8, and a
# part of every other character here to one with it.
_UNSAFE = "\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\udc80-\udc9f"
UNSAFE = re.compile(f"[{_UNSAFE}]")
# The separators of lines and paragraphs are no newline to a terminal, but end a line for `str.splitlines`, too.
_UNSAFE_IN_JSON = re.compile(f"[{_UNSAFE}\u2028\u2029]")
_COLOUR = re.compile(r"\x1b\[[0-9;:]*m")


def _without(end: str) -> str:
    """The pattern of all that is not shown, but the colours. A string of a sequence has no character of `end`."""
    # It begins with the class of all characters in question: that is found much faster than branches are tried.
    return rf"""[{_UNSAFE}](?:
      (?<=\x1b)(?:
          \][^\x07\x1b\x9c{end}]*(?:\x07|\x1b\\|\x9c)?     # operating system commands: titles, links, clipboard
        | [PX^_][^\x1b\x9c{end}]*(?:\x1b\\|\x9c)?          # device control and other strings
        | (?!\[[0-9;:]*m)(?:
              \[[0-?]*[ -/]*[@-~]?                        # cursor, erasing, modes
            | [ -/]*[0-~]? ) )
    | (?<=\x9d)[^\x07\x1b\x9c{end}]*(?:\x07|\x1b\\|\x9c)?
    | (?<=[\x90\x98\x9e\x9f])[^\x1b\x9c{end}]*(?:\x1b\\|\x9c)?
    | (?<=\x9b)[0-?]*[ -/]*[@-~]?
    | (?<![{_BEGINS}\r])(?:(?![{_BEGINS}\r])[{_UNSAFE}])* )"""


# The characters that begin a sequence; all others in question go for themselves.
_BEGINS = "\x1b\x90\x98\x9b\x9d-\x9f"
# What `_removed` takes of ASCII without an escape.
_REMOVED_BYTES = bytes(set(range(0x20)) - set(b"\t\n\r\x1b") | {0x7F})


# These patterns are long. They are compiled on first use, since every process imports this module and few need them.


@functools.cache
def _removed() -> re.Pattern[str]:
    """What is removed of one state of a progress bar. Nothing is called for each match: there may be millions."""
    return re.compile(_without(r"\r"), re.VERBOSE)


@functools.cache
def hidden() -> tuple[re.Pattern[str], ...]:
    """What may be hidden when a text is shown: it depends on who shows it, and on how sequences are parsed there."""
    return (
        re.compile(rf"{_COLOUR.pattern}|\r|{_without('')}", re.VERBOSE),
        re.compile(rf"\x1b\[[0-?]*[ -/]*[@-~]|[{_UNSAFE}]"),
        re.compile(rf"{_COLOUR.pattern}|[{_UNSAFE}]"),
    )


# Cleaning


def plain(text: str) -> str:
    """Makes a text of any number of lines safe to show: removes colours and replaces other control characters."""
    if UNSAFE.search(text) is None:
        return text
    return UNSAFE.sub(REPLACEMENT, without_colours(text.replace("\r\n", "\n")))


def in_one_line(text: str) -> str:
    """As `plain`, on one line. Lines are joined, so that none of them can pass for a line of flowlite's own."""
    return plain(text).replace("\n", " ").replace("\t", " ")


def clean_line(text: str) -> str:
    """A line of a program's output: colours kept, other sequences removed, a progress bar cut to its last state."""
    if UNSAFE.search(text) is None or UNSAFE.search(without_colours(text)) is None:
        return text
    shown = _removed().sub("", text.rstrip("\r").rpartition("\r")[2])
    if "\r" not in text or without_colours(shown):
        return shown
    # What came last is invisible.
    cleaned = _removed().sub("", text)
    after = _states_after(cleaned)
    return "" if after is None else cleaned.rsplit("\r", after + 1)[-1 - after]


def clean_lines(raw: bytes) -> list[str]:
    """The lines of a program's output, as many as end in it and a rest, each as `clean_line` has it."""
    if not _is_simple(raw):
        return [clean_line(line) for line in raw.decode("utf-8", "replace").split("\n")]
    # The same, much faster.
    text = _simply_cleaned(raw).replace("\r\n", "\n")
    lines = text.split("\n")
    if "\r" not in text:
        return lines
    return [line.rstrip("\r").rpartition("\r")[2] if "\r" in line else line for line in lines]


def before_last_state(raw: bytes) -> int:
    """The length of what a progress bar has overwritten: all before its last state that shows anything."""
    simple = _is_simple(raw)
    after = _states_after(
        _simply_cleaned(raw) if simple else _removed().sub("", raw.decode("utf-8", "replace"))
    )
    if after is None:
        return 0
    before, *states = raw.rsplit(b"\r", after + 1)
    return len(before) + 1 if len(states) > after else 0


def _is_simple(raw: bytes) -> bool:
    """Whether each character that has to go can go for itself: there is no sequence."""
    return raw.isascii() and b"\x1b" not in raw


def _simply_cleaned(raw: bytes) -> str:
    return raw.translate(None, _REMOVED_BYTES).decode("ascii")


def _states_after(cleaned: str) -> int | None:
    """How many states of a progress bar come after the last one that shows anything; None if none shows anything."""
    seen = without_colours(cleaned)
    shown = seen.rstrip("\r")
    return len(seen) - len(shown) if shown else None


def without_colours(text: str) -> str:
    """A text without its colours."""
    return _COLOUR.sub("", text)


def escaped_json(text: str) -> str:
    """An equivalent JSON document, one line, in which the characters that a terminal would act on are escaped."""
    return _UNSAFE_IN_JSON.sub(lambda match: f"\\u{ord(match[0]):04x}", text)
