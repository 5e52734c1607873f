"""Values of `secrets=` taken out of what people read: output of workers, reasons, failures, kept logs of agents.

What workers wrote is kept byte for byte, in files that only their owner may read; the values are masked whenever a line
of it is given out, which also finds those that came in two pieces. A value is found as it is, as it looks inside URLs,
JSON and base64, and as it looks on a terminal, which shows no colours and control sequences that stand inside it. It is
no protection from a worker that means to show it.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote, quote_plus

from flowlite import terminal

SHORTEST = 4
"""Values with fewer characters are not masked: they would be found everywhere."""

SHOWN = "***"
# One line of several, or a piece of base64, says less than a whole value, so it must be longer.
_SHORTEST_PART = 8


class Mask:
    """Takes some values out of texts. One without values changes nothing, and is false."""

    def __init__(self, values: Iterable[str] = ()) -> None:
        values = list(values)
        edged = {form for value in values for form in _base64_forms(value)}
        found = {form for value in values for form in _forms(value) if len(form) >= SHORTEST}
        # The longest first, so that nothing is left of one that begins with another.
        self._forms = sorted(found | edged, key=lambda form: (-len(form), form))
        self._edged = edged
        self._patterns = {form: re.compile(_pattern(form, form in edged)) for form in self._forms}

    def __bool__(self) -> bool:
        return bool(self._forms)

    def __call__(self, text: str) -> str:
        """The text without the values."""
        if not self._forms:
            return text
        for form in self._forms:
            if form in text:
                text = self._patterns[form].sub(SHOWN, text)
        for hidden in _hidden_in(text):
            seen = _Reading(text, hidden)
            if self._is_in(seen.text):
                text = seen.without(self._spans(seen.text))
        return text

    def finds(self, text: str) -> bool:
        """Whether a value is in there."""
        return bool(self._forms) and (
            self._is_in(text)
            or any(self._is_in(_Reading(text, hidden).text) for hidden in _hidden_in(text))
        )

    def _is_in(self, text: str) -> bool:
        return any(form in text for form in self._forms)

    def _spans(self, text: str) -> list[tuple[int, int]]:
        """Where the values stand in a text, in order and without overlap."""
        pattern = re.compile("|".join(each.pattern for each in self._patterns.values()))
        return [match.span() for match in pattern.finditer(text)]

    def lines(self, lines: Sequence[str], *, whole: bool = True, inside: bool = False) -> list[str]:
        """Lines without the values.

        Args:
            whole: False for lines of which the last may go on: it may end in the middle of a value.
            inside: Whether the first may begin in the middle of a value.
        """
        masked = list(lines)
        if self.finds("\n".join(lines)):
            masked = [self(line) for line in lines]
        if not whole and masked:
            masked[-1] = self._without_beginning(masked[-1])
        if inside and masked:
            masked[0] = self._without_end(masked[0])
        return masked

    def inside(self, value: Any) -> Any:
        """A value as JSON has them, with every text in it masked."""
        if isinstance(value, str):
            return self(value)
        if isinstance(value, dict):
            return {name: self.inside(each) for name, each in value.items()}
        if isinstance(value, list | tuple):
            return [self.inside(each) for each in value]
        return value

    def _without_beginning(self, line: str) -> str:
        for hidden in (None, *_hidden_in(line)):
            seen = _Reading(line, hidden)
            begun = self._begun(seen.text)
            if begun:
                return seen.without([(len(seen.text) - begun, len(seen.text))])
        return line

    def _without_end(self, line: str) -> str:
        for hidden in (None, *_hidden_in(line)):
            seen = _Reading(line, hidden)
            ended = self._ended(seen.text)
            if ended:
                return seen.without([(0, ended)])
        return line

    def _ended(self, text: str) -> int:
        """How many characters at the start of a text may be the end of a value."""
        found = max((self._with_edge(form, _common(form, text)) for form in self._forms), default=0)
        return min(found, len(text))

    def _begun(self, text: str) -> int:
        """How many characters at the end of a text may be the beginning of a value."""
        found = max((self._with_edge(form, _common(text, form)) for form in self._forms), default=0)
        return min(found, len(text))

    def _with_edge(self, form: str, length: int) -> int:
        """Characters that a piece of a form takes, with the one beside it that holds bits of the value, too."""
        return length + 1 if length and form in self._edged else length


def _common(left: str, right: str) -> int:
    """How many characters, but not all of a value, end one text and begin the other; few say nothing."""
    for length in range(min(len(left), len(right)), SHORTEST - 1, -1):
        if left.endswith(right[:length]):
            return length
    return 0


class _Reading:
    """A text as it reads without some of its characters, which stay where they are when a part is taken out."""

    def __init__(self, text: str, hidden: re.Pattern[str] | None) -> None:
        self._shown: list[str] = []
        self._hidden: list[str] = []
        at = 0
        for match in hidden.finditer(text) if hidden else ():
            self._shown.append(text[at : match.start()])
            self._hidden.append(match[0])
            at = match.end()
        self._shown.append(text[at:])
        self._hidden.append("")
        self.text = "".join(self._shown)

    def without(self, spans: Sequence[tuple[int, int]]) -> str:
        """The whole text, with parts of what it reads replaced; what is hidden inside such a part follows it."""
        parts: list[str] = []
        left = list(reversed(spans))
        at = 0
        for shown, hidden in zip(self._shown, self._hidden, strict=True):
            end = at + len(shown)
            while at < end:
                if not left or left[-1][0] >= end:
                    parts.append(shown[len(shown) - (end - at) :])
                    at = end
                    continue
                begin, stop = left[-1]
                if at <= begin:
                    start = len(shown) - (end - at)
                    parts.append(shown[start : start + begin - at])
                    parts.append(SHOWN)
                at = min(stop, end)
                if stop <= end:
                    left.pop()
            parts.append(hidden)
        return "".join(parts)


def _hidden_in(text: str) -> tuple[re.Pattern[str], ...]:
    """In which ways a text may read differently where it is shown."""
    return terminal.HIDDEN if terminal.UNSAFE.search(text) is not None else ()


_kept_out: set[str] = set()
_ours = Mask()


def keep_out(value: str) -> None:
    """Takes a value, such as an API key, out of everything that this process says from now on (`cleaned`)."""
    global _ours
    if value not in _kept_out:
        _kept_out.add(value)
        _ours = Mask(_kept_out)


def cleaned(text: str) -> str:
    """A text without the values that must be kept out of what this process says."""
    return _ours(text)


def of_file(path: Path) -> Mask:
    """The mask for a task's `secrets.json`; one that changes nothing if there is no such file."""
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return Mask()
    return Mask(str(value) for value in found.values()) if isinstance(found, dict) else Mask()


def _forms(value: str) -> Iterator[str]:
    """How a value may look in a line."""
    if len(value.strip()) < SHORTEST:
        return
    parts = [line.strip() for line in value.splitlines()]
    for part in parts:
        if len(parts) == 1 or len(part) >= _SHORTEST_PART:
            yield from (part, quote(part, safe=""), quote_plus(part), json.dumps(part)[1:-1])
    for text in {value, value.strip()}:
        yield json.dumps(text)[1:-1]
        yield quote(text, safe="")


def _pattern(form: str, edged: bool) -> str:
    """What is taken out for a form: itself, and beside a piece of base64 the characters with some bits of the value."""
    escaped = re.escape(form)
    return f"[A-Za-z0-9+/_-]?{escaped}[A-Za-z0-9+/_-]?={{0,2}}" if edged else escaped


def _base64_forms(value: str) -> Iterator[str]:
    """What of a value's base64 does not depend on what stands before and after it, in both alphabets.

    Three bytes are four characters, so a value can begin at three places in a group. A character beside the piece may
    hold some bits of the value, and some of its neighbour; `_pattern` takes it out as well.
    """
    if len(value.strip()) < SHORTEST:
        return
    for text in {value, value.strip()}:
        data = text.encode()
        for before in range(3):
            bits = 8 * (before + len(data))
            encoded = base64.b64encode(b"\0" * before + data).decode()
            # Whole characters of the value only: six bits each, the first after those of what stands before.
            piece = encoded[-(-8 * before // 6) : bits // 6]
            if len(piece) >= _SHORTEST_PART:
                yield piece
                yield piece.replace("+", "-").replace("/", "_")
