"""Control characters and sequences: what a terminal acts on, and how a text looks without them.

A terminal moves the cursor, erases, renames its window, fills the clipboard and turns the direction of writing when a
text tells it to. `output/printing.py` cleans everything that flowlite prints with the functions here.
"""

from __future__ import annotations

import re

# What stands in place of a character that a terminal would act on.
REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
# C0 but tab and newline, DEL, C1, and the characters that turn the direction of writing.
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
"""What may be missing of a text when it is shown, depending on who shows it and how much a sequence swallows."""


# Cleaning


def plain(text: str) -> str:
    """A text of any number of lines as it may be shown: colours removed, other control characters replaced."""
    if UNSAFE.search(text) is None:
        return text
    return UNSAFE.sub(REPLACEMENT, without_colours(text.replace("\r\n", "\n")))


def in_one_line(text: str) -> str:
    """As `plain`, for a place that has one line: its lines are joined, so that none can look like one of ours."""
    return plain(text).replace("\n", " ").replace("\t", " ")


def clean_line(text: str) -> str:
    """A line that a program wrote: colours kept, other control sequences removed, the last state of a progress bar."""
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
    """A JSON document with the characters escaped that JSON allows and a terminal acts on. It means the same."""
    return UNSAFE.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def _keep_colour(match: re.Match[str]) -> str:
    return match["colour"] or ""
