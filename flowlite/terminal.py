"""Removes or replaces the control characters and escape sequences that a terminal would act on.

Text can make a terminal move the cursor, erase, rename its window, fill the clipboard or reverse the direction of
writing. `output/printing.py` cleans everything that flowlite prints with the functions here.
"""

from __future__ import annotations

import re

# Replaces a character that a terminal would act on.
REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
# C0 except tab and newline, DEL, C1, and the characters that change the direction of writing.
_UNSAFE = "\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069"
UNSAFE = re.compile(f"[{_UNSAFE}]")
_COLOUR = re.compile(r"\x1b\[[0-9;:]*m")
_SEQUENCE = re.compile(
    rf"""(?P<colour>\x1b\[[0-9;:]*m)
    | (?:\x1b\]|\x9d)[^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)?      # operating system commands: titles, links, clipboard
    | (?:\x1b[PX^_]|[\x90\x98\x9e\x9f])[^\x1b\x9c]*(?:\x1b\\|\x9c)?   # device control and other strings
    | (?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]?                         # cursor, erasing, modes
    | \x1b[ -/]*[0-~]?
    | [{_UNSAFE}]""",
    re.VERBOSE,
)
HIDDEN = (
    _SEQUENCE,
    re.compile(rf"\x1b\[[0-?]*[ -/]*[@-~]|[{_UNSAFE}]"),
    re.compile(rf"{_COLOUR.pattern}|[{_UNSAFE}]"),
)
"""What may be hidden when a text is shown. It depends on the program that shows it and on how sequences are parsed."""


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
    if UNSAFE.search(text) is None:
        return text
    if "\r" in text:
        states = text.split("\r")
        for state in reversed(states):
            shown = _SEQUENCE.sub(_keep_colour, state)
            if shown and _COLOUR.sub("", shown):
                return shown
        return ""
    return _SEQUENCE.sub(_keep_colour, text)


def without_colours(text: str) -> str:
    """A text without its colours."""
    return _COLOUR.sub("", text)


def escaped_json(text: str) -> str:
    """An equivalent JSON document in which the characters that a terminal would act on are escaped."""
    return UNSAFE.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def _keep_colour(match: re.Match[str]) -> str:
    return match["colour"] or ""
