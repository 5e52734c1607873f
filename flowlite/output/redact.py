"""Masks the values of `secrets=` in everything that is shown: output of workers, reasons, failures, logs of agents.

The output of workers is kept byte for byte, in files that only their owner may read. Values are masked when lines are
read, which also finds values that arrived in two pieces, and long ones that a program has folded. A value is found as
it is, as encoded in URLs, JSON and base64, and with colours and control sequences inside it, which a terminal does not
show; and what is left of it where flowlite has cut a long text. This does not protect against a worker that shows a
value deliberately.
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
# A line of a multi-line value, or a piece of base64, is less specific than a whole value, so it must be longer.
_SHORTEST_PART = 8
# A value that may be in two lines must be longer than one that lines have by chance when they are put together.
_SHORTEST_FOLDED = 16
# What stands where a node has cut the middle out of a text, or its beginning (`node/protocol/messages.py: shorten`,
# `node/serialization/remote_exception.py`), with a word of it.
_CUT_WORD = "characters"
_CUT = re.compile(r"( ?\[… [\d,]+ characters …\] ?|\n\.\.\. \d+ characters left out \.\.\.\n)")
# Characters that programs leave as they are in a URL: all are escaped, Python's `quote`, JavaScript's two functions.
_KEPT_IN_URLS = ("", "/", "!'()*", ";,/?:@&=+$!*'()#")


class Mask:
    """Masks some values in texts. A mask without values changes nothing, and is false."""

    def __init__(self, values: Iterable[str] = ()) -> None:
        values = list(values)
        edged = {form for value in values for form in _base64_forms(value)}
        found = {form for value in values for form in _forms(value) if len(form) >= SHORTEST}
        # The longest come first, so that a form which begins with another one is masked as a whole.
        self._forms = sorted(found | edged, key=lambda form: (-len(form), form))
        self._edged = edged
        # Programs fold what is longer than a line, and nothing tells such a line from another.
        long = {
            form for form in found if len(form) >= _SHORTEST_FOLDED and not re.search(r"\s", form)
        }
        self._folded = sorted(edged | long, key=lambda form: (-len(form), form))
        self._patterns = {form: re.compile(_pattern(form, form in edged)) for form in self._forms}

    def __bool__(self) -> bool:
        return bool(self._forms)

    def __call__(self, text: str) -> str:
        """Returns the text with the values masked."""
        if not self._forms:
            return text
        text = self._without_pieces(text)
        if self._is_wrapped_in(text):
            text = "\n".join(self._without_wrapped(text.split("\n")))
        for form in self._forms:
            if form in text:
                text = self._patterns[form].sub(SHOWN, text)
        for hidden in _hidden_in(text):
            if self._is_in(hidden.sub("", text)):
                seen = _Reading(text, hidden)
                text = seen.without(self._spans(seen.text))
        return text

    def finds(self, text: str) -> bool:
        """Whether the text has one of the values."""
        return bool(self._forms) and (
            self._without_pieces(text) != text
            or self._is_wrapped_in(text)
            or self._is_in(text)
            or any(self._is_in(hidden.sub("", text)) for hidden in _hidden_in(text))
        )

    def _is_in(self, text: str) -> bool:
        return any(form in text for form in self._forms)

    def _spans(self, text: str) -> list[tuple[int, int]]:
        """The positions of the values in a text, in order and without overlap."""
        pattern = re.compile("|".join(each.pattern for each in self._patterns.values()))
        return [match.span() for match in pattern.finditer(text)]

    def lines(self, lines: Sequence[str], *, whole: bool = True, inside: bool = False) -> list[str]:
        """Returns the lines with the values masked.

        Args:
            whole: False if the last line may continue, so that it may end in the middle of a value.
            inside: Whether the first line may begin in the middle of a value.
        """
        masked = list(lines)
        if self.finds("\n".join(lines)):
            masked = [self(line) for line in self._without_wrapped(lines)]
        if not whole and masked:
            masked[-1] = self._without_beginning(masked[-1])
        if inside and masked:
            masked[0] = self._without_end(masked[0])
        return masked

    def inside(self, value: Any) -> Any:
        """Returns a JSON value with every text in it masked."""
        if isinstance(value, str):
            return self(value)
        if isinstance(value, dict):
            return {name: self.inside(each) for name, each in value.items()}
        if isinstance(value, list | tuple):
            if value and all(isinstance(each, str) for each in value):
                # The last lines of a worker, mostly.
                value = self._without_wrapped(value)
            return [self.inside(each) for each in value]
        return value

    def _is_wrapped_in(self, text: str) -> bool:
        """Whether the lines of a text, put together, have a value of which a program has made several lines."""
        if not self._folded or "\n" not in text:
            return False
        joined = "".join(map(str.strip, text.split("\n")))
        return any(form in joined for form in self._folded)

    def _without_wrapped(self, lines: Sequence[str]) -> list[str]:
        """Masks values that go on from line to line."""
        masked, bare = list(lines), [line.strip() for line in lines]
        joined = "".join(bare)
        spans = [
            match.span()
            for form in self._folded
            if form in joined
            for match in self._patterns[form].finditer(joined)
        ]
        begin = 0
        for at, (line, text) in enumerate(zip(lines, bare, strict=True)):
            end = begin + len(text)
            here = [
                (max(first, begin) - begin, min(last, end) - begin)
                for first, last in spans
                if first < end and last > begin
            ]
            if here:
                first, last = min(here)[0], max(last for _, last in here)
                indent = line[: len(line) - len(line.lstrip())]
                masked[at] = f"{indent}{text[:first]}{SHOWN}{text[last:]}"
            begin = end
        return masked

    def _without_pieces(self, text: str) -> str:
        """Masks what is left of values in a text that was cut: their beginnings before a cut, their ends after it."""
        if _CUT_WORD not in text:
            return text
        parts = _CUT.split(text)
        # Every second one is a cut.
        for at in range(0, len(parts) - 2, 2):
            parts[at] = self._without_beginning(parts[at])
            parts[at + 2] = self._without_end(parts[at + 2])
        for at in range(2, len(parts) - 2, 2):
            # It may have neither end of a value.
            if len(parts[at]) >= SHORTEST and any(parts[at] in form for form in self._forms):
                parts[at] = SHOWN
        return "".join(parts)

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
        """The number of characters at the start of a text that may be the end of a value."""
        found = max((self._with_edge(form, _common(form, text)) for form in self._forms), default=0)
        return min(found, len(text))

    def _begun(self, text: str) -> int:
        """The number of characters at the end of a text that may be the beginning of a value."""
        found = max((self._with_edge(form, _common(text, form)) for form in self._forms), default=0)
        return min(found, len(text))

    def _with_edge(self, form: str, length: int) -> int:
        """The number of characters to mask for a piece of a form; in base64, the next one has bits of the value."""
        return length + 1 if length and form in self._edged else length


def _common(left: str, right: str) -> int:
    """The length of the overlap of the end of one text and the start of the other; 0 if below `SHORTEST`."""
    for length in range(min(len(left), len(right)), SHORTEST - 1, -1):
        if left.endswith(right[:length]):
            return length
    return 0


class _Reading:
    """A text without its hidden characters. They keep their places when a part of the text is masked."""

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
        """The whole text, with spans of the visible text masked. Characters hidden inside a span are put after it."""
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
    """The patterns of characters that may be hidden when a text is shown."""
    return terminal.hidden() if terminal.UNSAFE.search(text) is not None else ()


_kept_out: set[str] = set()
_ours = Mask()


def keep_out(value: str) -> None:
    """Masks a value, such as an API key, in everything that this process prints from now on (`cleaned`)."""
    global _ours
    if value not in _kept_out:
        _kept_out.add(value)
        _ours = Mask(_kept_out)


def cleaned(text: str) -> str:
    """Returns a text with the values of `keep_out` masked."""
    return _ours(text)


def of_file(path: Path) -> Mask:
    """The mask for a task's `secrets.json`; an empty mask if there is no such file, or it is damaged.

    Raises:
        OSError: The file cannot be read now, so what is to be masked is not known.
    """
    try:
        found = json.loads(path.read_bytes())
    except (FileNotFoundError, ValueError):
        return Mask()
    return Mask(str(value) for value in found.values()) if isinstance(found, dict) else Mask()


def _forms(value: str) -> Iterator[str]:
    """Yields the forms in which a value may appear in a line."""
    if len(value.strip()) < SHORTEST:
        return
    parts = [line.strip() for line in value.splitlines()]
    for part in parts:
        if len(parts) == 1 or len(part) >= _SHORTEST_PART:
            yield from (part, json.dumps(part)[1:-1], quote_plus(part), *_as_literals(part))
            yield from (quote(part, safe=safe) for safe in _KEPT_IN_URLS)
    for text in {value, value.strip()}:
        yield from (json.dumps(text)[1:-1], *_as_literals(text))
        yield from (quote(text, safe=safe) for safe in _KEPT_IN_URLS)


def _as_literals(text: str) -> Iterator[str]:
    """Yields the text as Python's `repr` and shells write it between quotes.

    `repr` escapes an apostrophe only where the whole value has a quotation mark, too.
    """
    data = text.encode("utf-8", "surrogateescape")
    for escaped in (repr(f'"{text}')[2:-1], repr(b'"' + data)[3:-1]):
        yield from (escaped, escaped.replace("\\'", "'"))
    # By `shlex.quote`, and by `set -x`.
    yield from (text.replace("'", "'\"'\"'"), text.replace("'", r"'\''"))


def _pattern(form: str, edged: bool) -> str:
    """The pattern to mask for a form. For base64, it includes the adjacent characters, which have bits of the value."""
    escaped = re.escape(form)
    return f"[A-Za-z0-9+/_-]?{escaped}[A-Za-z0-9+/_-]?={{0,2}}" if edged else escaped


def _base64_forms(value: str) -> Iterator[str]:
    """The parts of a value's base64 that do not depend on the text around the value, in both alphabets.

    Three bytes are four characters, so a value can begin at three places in a group. A character beside the piece may
    have some bits of the value and some of its neighbour; `_pattern` masks it as well.
    """
    if len(value.strip()) < SHORTEST:
        return
    for text in {value, value.strip()}:
        data = text.encode("utf-8", "surrogateescape")
        for before in range(3):
            bits = 8 * (before + len(data))
            encoded = base64.b64encode(b"\0" * before + data).decode()
            # Only characters whose six bits all belong to the value.
            piece = encoded[-(-8 * before // 6) : bits // 6]
            if len(piece) >= _SHORTEST_PART:
                yield piece
                yield piece.replace("+", "-").replace("/", "_")
