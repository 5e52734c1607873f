"""`Screen`: whole lines and a last row, from many threads."""

from __future__ import annotations

import io
import threading
from typing import TextIO, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowlite.display.screen import Screen
from flowlite.output.printing import RED, ColouredText


class Tty(io.StringIO):
    """A terminal that remembers what was sent to it."""

    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def usual_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")


def rows(sent: str) -> list[str]:
    """What stands on a terminal that knows newlines, carriage returns and the erasing of a row."""
    found = [""]
    for part in sent.replace("\r\x1b[K", "\0").split("\n"):
        found[-1] = (found[-1] + part).rpartition("\0")[2]
        found.append("")
    return found[:-1]


actions = st.lists(
    st.tuples(
        st.sampled_from(["tell", "lines", "row", "clear"]),
        st.text(st.characters(categories=["L", "N"]), max_size=30),
    ),
    max_size=40,
)


@given(actions)
def test_only_the_last_row_is_ever_written_anew(did: list[tuple[str, str]]) -> None:
    tty = Tty()
    screen = Screen(lambda: tty, lambda: tty)
    lines, row = [], ""
    for what, text in did:
        if what == "tell":
            screen.tell(text)
            lines.append(text)
            row = ""
        elif what == "lines":
            screen.write_lines(f"{text}\n{text}\n")
            lines += [text, text]
            row = ""
        elif what == "row":
            screen.show_row(text)
            row = text
        else:
            screen.clear_row()
            row = ""
    assert rows(tty.getvalue()) == [*lines, row]


def test_a_terminal_that_only_shows_characters_has_no_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """Emacs's shell, for one: it shows the erasing of a row as `^[[K`."""
    monkeypatch.setenv("TERM", "dumb")
    tty = Tty()
    screen = Screen(lambda: tty, lambda: tty)
    screen.show_row("step 1")
    screen.tell(ColouredText("hello", RED))
    screen.show_row("step 2")
    screen.clear_row()
    assert not screen.has_row
    assert tty.getvalue() == "hello\n"


def test_threads_do_not_cut_each_others_lines() -> None:
    tty = Tty()
    screen = Screen(lambda: tty, lambda: tty)

    def write(word: str) -> None:
        for n in range(200):
            screen.write_lines(f"{word * 30}\n{word * 30}\n")
            screen.show_row(f"{word} {n}")
            screen.tell(word * 10)

    threads = [threading.Thread(target=write, args=(word,)) for word in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    whole = {word * count for word in "abcd" for count in (10, 30)}
    shown = rows(tty.getvalue())
    assert len(shown) == 4 * 200 * 3 + 1
    assert set(shown) - whole == {""}


def test_there_is_no_last_row_away_from_a_terminal() -> None:
    file = io.StringIO()
    screen = Screen(lambda: file, lambda: file)
    screen.show_row("50%")
    screen.tell("line")
    screen.clear_row()
    assert file.getvalue() == "line\n"


def test_streams_that_are_not_there_are_not_written_to() -> None:
    closed = io.StringIO()
    closed.close()
    screen = Screen(lambda: None, lambda: closed)
    screen.tell("line")
    screen.write_lines("line\n")
    screen.show_row("50%")
    screen.flush()


class Sink:
    """What programs put in the place of `sys.stderr` to log it: it can be written to, and nothing else."""

    def __init__(self) -> None:
        self.text = ""

    def write(self, text: str) -> None:
        if text.startswith("bad"):
            raise RuntimeError("the window was closed")
        self.text += text


def test_streams_that_can_only_be_written_to() -> None:
    sink = Sink()
    screen = Screen(lambda: cast("TextIO", sink), lambda: cast("TextIO", sink))
    screen.tell(ColouredText("message", RED))
    screen.write_lines("\x1b[31mline\x1b[0m\n")
    screen.show_row("50%")
    screen.flush()
    assert not screen.has_row
    assert sink.text == "message\n\x1b[31mline\x1b[0m\n"


def test_a_stream_that_raises_anything_costs_a_program_nothing() -> None:
    sink = Sink()
    screen = Screen(lambda: None, lambda: cast("TextIO", sink), dispensable=True)
    screen.tell("one")
    screen.tell("bad")
    screen.tell("two")
    assert sink.text == "one\n"
    with pytest.raises(RuntimeError):
        Screen(lambda: None, lambda: cast("TextIO", sink)).tell("bad")
