"""No reader of a task's output, reasons or failures sees the value of a secret."""

from __future__ import annotations

import base64
import json
import re
import resource
import shlex
import struct
from pathlib import Path
from secrets import token_hex
from urllib.parse import quote

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from flowlite import Flow, FlowApp, TaskConfig, TaskFailed, terminal
from flowlite.cli import output
from flowlite.node.log_stream import output_tail
from flowlite.node.protocol import messages
from flowlite.node.serialization import remote_exception
from flowlite.output import redact
from flowlite.output.reader import Logs
from flowlite.output.redact import SHOWN, Mask
from flowlite.supervise.attempt import leader_events

SECRET = 'hunter2/&"x'


def write(directory: Path, *pieces: bytes) -> None:
    """A stream as the supervisor keeps it; every piece came at a time of its own."""
    path = directory / "a1.n0.r0.out"
    for number, piece in enumerate(pieces):
        with open(path, "ab") as file, open(f"{path}.idx", "ab") as index:
            index.write(struct.pack("<Qd", file.tell(), 1_700_000_000.0 + number))
            index.flush()
            file.write(piece)


def texts(directory: Path, **options: object) -> list[str]:
    mask = Mask([SECRET])
    logs = Logs(directory, mask=mask, **options)  # type: ignore[arg-type]
    lines = [line.text for line in logs]
    shown = [line.split("] ", 2)[2] for line in "".join(logs.blocks()).splitlines()]
    assert shown == lines
    return lines


FORMS = {
    "plain": SECRET,
    "in a URL": quote(SECRET, safe=""),
    "in a URL, as Python does by default": quote(SECRET),
    "in a URL, as JavaScript's encodeURIComponent": quote(SECRET, safe="!'()*"),
    "in JSON": json.dumps({"token": SECRET}),
    "in base64": base64.b64encode(SECRET.encode()).decode(),
    "in base64 with a user before it": base64.b64encode(f"me:{SECRET}".encode()).decode(),
    "in base64 with more around it": base64.b64encode(f"token={SECRET}&x=1".encode()).decode(),
}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS.keys())
def test_a_line_does_not_show_it(tmp_path: Path, form: str) -> None:
    write(tmp_path, f"before\nkey {form} end\nafter\n".encode())
    lines = texts(tmp_path)
    assert lines[0::2] == ["before", "after"]
    assert lines[1].startswith("key ")
    assert SHOWN in lines[1]
    assert form not in lines[1]
    assert SECRET not in lines[1]


@pytest.mark.parametrize("around", ["", "'", '"', "'\"", "\\"])
@given(value=st.text(st.sampled_from("ab'\"\\\n\tä "), min_size=6, max_size=12))
@example(value='it\'s "it"')
def test_literals_do_not_show_it(around: str, value: str) -> None:
    assume(len(value.strip()) >= redact.SHORTEST)
    mask = Mask([value])
    for text in (repr(f"{around}{value}"), repr({"key": [value]}), repr(value.encode())):
        shown = mask(text)
        assert SHOWN in shown
        assert value not in shown
    assert mask(shlex.quote(f"{around}{value}")) != shlex.quote(f"{around}{value}")


def test_it_is_found_when_it_comes_in_pieces(tmp_path: Path) -> None:
    raw = f"a {SECRET} b\n".encode()
    write(tmp_path, *(raw[at : at + 1] for at in range(len(raw))))
    assert texts(tmp_path) == [f"a {SHOWN} b"]


@pytest.mark.parametrize("length", range(4, len(SECRET)))
def test_a_line_that_ends_in_the_middle_of_it_shows_nothing_of_it(
    tmp_path: Path, length: int
) -> None:
    write(tmp_path, f"done\nkey {SECRET[:length]}".encode())
    assert texts(tmp_path) == ["done", f"key {SHOWN}"]


INSIDE = {
    "a colour": "\x1b[31m",
    "an end of colours": "\x1b[0;1m",
    "a move of the cursor": "\x1b[10;10H",
    "an erasure": "\x1b[2K",
    "a title": "\x1b]0;title\x07",
    "a title without an end": "\x1b]0;\x07",
    "a control character": "\x08",
    "a character of C1": "\x85",
    "a turn of the direction": "\u202e",
}


@pytest.mark.parametrize("inside", INSIDE.values(), ids=INSIDE.keys())
def test_what_a_terminal_does_not_show_does_not_hide_it(tmp_path: Path, inside: str) -> None:
    for at in range(1, len(SECRET)):
        split = f"{SECRET[:at]}{inside}{SECRET[at:]}"
        assert Mask([SECRET]).finds(split)
        # As it is in exceptions and reasons, which are masked before they are cleaned.
        shown = Mask([SECRET])(f"a {split} b {SECRET} c")
        assert terminal.plain(shown).replace(terminal.REPLACEMENT, "") in (
            f"a {SHOWN} b {SHOWN} c",
            f"a {SHOWN}{terminal.plain(inside).replace(terminal.REPLACEMENT, '')} b {SHOWN} c",
        )
    directory = tmp_path / "logs"
    directory.mkdir()
    write(directory, f"key {SECRET[:5]}{inside}{SECRET[5:]} end\n".encode())
    (line,) = texts(directory)
    assert terminal.without_colours(line) == f"key {SHOWN} end"


def test_an_unfinished_line_with_colours_in_it_shows_nothing_of_it(tmp_path: Path) -> None:
    write(tmp_path, f"done\nkey {SECRET[:4]}\x1b[31m{SECRET[4:7]}".encode())
    assert [terminal.without_colours(line) for line in texts(tmp_path)] == ["done", f"key {SHOWN}"]


@given(st.lists(st.sampled_from([*SECRET, "\x1b[31m", "\x1b[0m", "\x08", "x", " "]), max_size=60))
def test_no_mixture_shows_it_and_nothing_else_changes(parts: list[str]) -> None:
    text = "".join(parts)
    shown = Mask([SECRET])(text)
    assert SECRET not in terminal.without_colours(shown).replace("\x08", "")
    if SECRET not in terminal.without_colours(text).replace("\x08", ""):
        assert shown == text


def test_control_characters_do_not_hide_it(tmp_path: Path) -> None:
    write(tmp_path, f"x\rkey {SECRET[:4]}\x07{SECRET[4:]}\n".encode())
    assert texts(tmp_path) == [f"key {SHOWN}"]


def test_positions_count_bytes_as_written(tmp_path: Path) -> None:
    write(tmp_path, f"one {SECRET}\ntwo {SECRET}\n".encode())
    logs = Logs(tmp_path, mask=Mask([SECRET]))
    lines = iter(logs)
    assert next(lines).text == f"one {SHOWN}"
    assert logs.position == {"a1.n0.r0.out": len(f"one {SECRET}\n")}
    rest = Logs(tmp_path, after=logs.position, mask=Mask([SECRET]))
    assert [line.text for line in rest] == [f"two {SHOWN}"]
    assert SECRET in (tmp_path / "a1.n0.r0.out").read_text()


def test_a_secret_of_several_lines_is_masked_line_by_line(tmp_path: Path) -> None:
    key = "-----BEGIN KEY-----\nMIIabcdefgh\n  \nx\n-----END KEY-----\n"
    write(tmp_path, key.encode())
    logs = Logs(tmp_path, mask=Mask([key]))
    assert [line.text for line in logs] == [SHOWN, SHOWN, "  ", "x", SHOWN]


LONG = "correct-horse-battery"
RED, PLAIN = "\x1b[31m", "\x1b[0m"


@pytest.mark.parametrize("cut", range(1, len(LONG)))
def test_no_piece_of_it_is_shown_where_a_reading_begins_or_ends(cut: int) -> None:
    """A piece that is too short to be told from other words is left."""
    mask = Mask([LONG])
    ends, begins = LONG[cut:], LONG[:cut]
    rest = SHOWN if len(ends) >= redact.SHORTEST else ends
    start = SHOWN if len(begins) >= redact.SHORTEST else begins
    lines = [f"{ends} after", f"all {LONG} of it", f"before {begins}"]
    shown = [f"{rest} after", f"all {SHOWN} of it", f"before {start}"]
    assert mask.lines(lines, whole=False, inside=True) == shown
    assert mask.lines(lines) == [lines[0], shown[1], lines[2]]
    assert mask.lines(lines, whole=False) == [lines[0], *shown[1:]]
    assert mask.lines(lines, inside=True) == [*shown[:2], lines[2]]
    assert mask.lines([ends], inside=True) == [rest]
    assert mask.lines([begins], whole=False) == [start]


def test_colours_in_a_piece_of_it_are_kept_behind_it() -> None:
    mask = Mask([LONG])
    begins = f"{RED}before {LONG[:5]}{PLAIN}{LONG[5:9]}"
    ends = f"{LONG[5:9]}{RED}{LONG[9:]} after{PLAIN}"
    assert mask.lines([begins], whole=False) == [f"{RED}before {SHOWN}{PLAIN}"]
    assert mask.lines([ends], inside=True) == [f"{SHOWN}{RED} after{PLAIN}"]
    twice = f"{LONG[:5]}{RED}{LONG[5:]}, {LONG}{PLAIN}; {RED}end"
    assert mask(twice) == f"{SHOWN}{RED}, {SHOWN}{PLAIN}; {RED}end"
    assert mask.lines([], whole=False, inside=True) == []
    assert Mask().lines([begins], whole=False, inside=True) == [begins]


def test_short_values_are_left_alone() -> None:
    assert not Mask(["", "abc", "   "])
    assert Mask(["abc"])("abc") == "abc"
    assert Mask(["abcd"])("abcde") == f"{SHOWN}e"


def test_the_longest_is_masked_whole() -> None:
    assert Mask(["token", "token-long"])("my token-long token") == f"my {SHOWN} {SHOWN}"


def test_everything_in_a_report_is_masked() -> None:
    body = {"rank": 3, "failure": {"message": f"bad {SECRET}"}, "tail": ["ok", SECRET], "at": 1.5}
    assert Mask([SECRET]).inside(body) == {
        "rank": 3,
        "failure": {"message": f"bad {SHOWN}"},
        "tail": ["ok", SHOWN],
        "at": 1.5,
    }


def test_values_come_from_the_file_of_the_task(tmp_path: Path) -> None:
    path = tmp_path / "secrets.json"
    assert not redact.of_file(path)
    path.write_text(json.dumps({"TOKEN": SECRET}))
    assert redact.of_file(path)(f"x {SECRET}") == f"x {SHOWN}"


def test_without_a_free_descriptor_nothing_is_shown_unmasked(tmp_path: Path) -> None:
    path = tmp_path / "secrets.json"
    path.write_text(json.dumps({"TOKEN": SECRET}))
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, limits[1]))
    try:
        with pytest.raises(OSError, match="Too many open files"):
            redact.of_file(path)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


# Without the character that is shown instead, which would make values of its own.
characters = st.characters(min_codepoint=43, max_codepoint=126)
printable = st.text(characters, min_size=4, max_size=12)


@given(values=st.lists(printable, min_size=1, max_size=4), around=st.text(characters, max_size=20))
def test_no_value_is_left_anywhere(values: list[str], around: str) -> None:
    mask = Mask(values)
    for value in values:
        masked = mask(f"{around}{value}{around}")
        assert SHOWN in masked
        assert not [each for each in values if each in masked]


@given(value=printable.filter(lambda v: len(v) >= 10), before=st.binary(max_size=5))
def test_base64_is_masked_wherever_it_begins(value: str, before: bytes) -> None:
    encoded = base64.b64encode(before + value.encode() + b"tail").decode()
    assert SHOWN in Mask([value])(encoded)


@given(
    value=st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=8, max_size=40),
    before=st.binary(max_size=5),
    after=st.binary(max_size=5),
    url=st.booleans(),
)
def test_base64_leaves_no_edge_of_a_value(
    value: str, before: bytes, after: bytes, url: bool
) -> None:
    encode = base64.urlsafe_b64encode if url else base64.b64encode
    shown = Mask([value])(encode(before + value.encode() + after).decode())
    left, _, right = shown.partition(SHOWN)
    assert SHOWN in shown
    # What is left stands for bytes before the value, and for bytes after it, and for no bit of its own.
    assert len(left) <= 8 * len(before) // 6
    assert len(right.rstrip("=")) <= -(-8 * len(after) // 6)


@pytest.mark.parametrize("before", ["", "a", "ab", "user:"])
@pytest.mark.parametrize(
    "value", ["wandb-0123456789-Zz", "wandb-0123456789-Z", "wandb-0123456789-"]
)
def test_a_value_alone_in_base64_is_masked_with_its_padding(before: str, value: str) -> None:
    shown = Mask([value])(f"key {base64.b64encode((before + value).encode()).decode()} end")
    assert shown.endswith(f"{SHOWN} end")
    assert len(shown) <= len(f"key {SHOWN} end") + 8 * len(before) // 6


def pieces_of(value: str, text: str) -> list[str]:
    """What is in a text of a value, in pieces of as many characters as are masked."""
    starts = range(len(value) - redact.SHORTEST + 1)
    found = (value[at : at + redact.SHORTEST] for at in starts)
    return [piece for piece in found if piece in text]


# Nothing that is written around it has one of its letters.
LONG = "".join(f"{number:04x}" for number in range(7, 60000, 97))[:1500].translate(
    str.maketrans("0123456789abcdef", "ABCDEFGHIJKLMNOP")
)


@given(
    st.integers(0, 3000), st.integers(4, len(LONG)), st.integers(0, 3000), st.integers(100, 2000)
)
def test_where_a_text_was_cut_no_piece_of_it_is_left(
    before: int, size: int, after: int, limit: int
) -> None:
    value = LONG[:size]
    mask = Mask([value])
    text = f"{'x' * before}{value}{'y' * after}"
    for cut in (
        messages.shorten(text, limit),
        remote_exception._cut(text, limit),
        # Twice, as the last bytes of a long line.
        messages.shorten(f"[… {limit} characters …] {text[-limit:]}", limit // 2),
        leader_events.trimmed({"a": "z" * (leader_events._MOST_CHARACTERS - limit), "b": text})[
            "b"
        ],
    ):
        shown = mask(cut)
        assert pieces_of(value, shown) == []
        # The value begins or ends with these, if at all, as often as it is cut.
        assert shown.count("x") + shown.count("y") >= cut.count("x") + cut.count("y")
        assert mask.finds(cut) == (shown != cut)


@given(
    st.binary(min_size=12, max_size=300).map(lambda data: data.hex()[: len(data)]),
    st.binary(max_size=100),
    st.binary(max_size=100),
    st.sampled_from([4, 64, 76]),
    st.sampled_from(["", "  "]),
)
def test_base64_in_lines_is_masked(
    value: str, before: bytes, after: bytes, width: int, indent: str
) -> None:
    """As `base64`, `openssl` and Python's `encodebytes` write it."""
    encoded = base64.b64encode(before + value.encode() + after).decode()
    lines = [f"{indent}{encoded[at : at + width]}" for at in range(0, len(encoded), width)]
    mask = Mask([value])
    text = "\n".join(["(first)", *lines, "(last)"])
    for shown in (mask(text), "\n".join(mask.lines(text.split("\n"))), mask.inside([text])[0]):
        assert shown.startswith("(first)\n")
        assert shown.endswith("\n(last)")
        assert shown.count("\n") == text.count("\n")
        # What is left lies before the value or after it.
        left = "".join(line.strip() for line in shown.split("\n")[1:-1]).split(SHOWN)
        first, rest = left[0], left[-1]
        assert len(left) > 1
        assert len(first) * 6 <= len(before) * 8
        assert (len(rest.rstrip("=")) - 1) * 6 <= len(after) * 8
    assert mask.finds(text)
    assert mask.inside(["(first)", *lines, "(last)"]) == mask.lines(text.split("\n"))


@given(
    st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=16, max_size=400),
    st.text(st.sampled_from("-=|"), max_size=90),
    st.integers(9, 120),
    st.sampled_from(["", "   "]),
)
def test_a_value_that_a_program_has_folded_is_masked(
    value: str, before: str, width: int, indent: str
) -> None:
    """As rich and `textwrap` do with what is longer than a line, such as the token of a session."""
    whole = before + value
    lines = [f"{indent}{whole[at : at + width]}" for at in range(0, len(whole), width)]
    mask = Mask([value])
    shown = mask.lines(["(first)", *lines, "(last)"])
    assert shown[0] == "(first)"
    assert shown[-1] == "(last)"
    assert len(shown) == len(lines) + 2
    assert "".join(map(str.strip, shown[1:-1])).replace(SHOWN, "").strip("-=|") == ""
    assert mask.finds("\n".join(lines))


@pytest.mark.parametrize("size", [100, 3000, 9000])
def test_the_last_words_of_a_worker_have_no_piece_of_it(tmp_path: Path, size: int) -> None:
    value = (LONG * 9)[:size]
    path = tmp_path / "err"
    for text in (f"{'x' * 4000}{value}", f"{value}{'x' * 4050}", f"one\n{value}\nno", value):
        path.write_text(text)
        body = {"tail": output_tail.tail(path)}
        shown = Mask([value]).inside(messages.shorten_body(body))
        assert pieces_of(value, "\n".join(shown["tail"])) == []


# The whole way


def leak_long(end: bool) -> None:
    import os
    import sys

    value = os.environ["API_TOKEN"]
    if end:
        sys.stderr.write(f"refused: {value}\n")
        os._exit(3)
    raise SystemError(f"{'x' * 8000} refused: {value} {'y' * 80000}")


def leak() -> None:
    import os
    import sys

    value = os.environ["API_TOKEN"]
    print("with", value, flush=True)
    sys.stderr.write(f"and {value} without an end")
    raise ValueError(f"refused: {value}")


def die() -> None:
    import os
    import signal

    print(os.environ["API_TOKEN"], flush=True)
    os.kill(os.getpid(), signal.SIGKILL)


def everything_under(home: Path) -> dict[str, bytes]:
    """All that is kept of the tasks but what the workers themselves wrote, and the file of the secrets."""
    return {
        str(path.relative_to(home)): path.read_bytes()
        for path in home.rglob("*")
        if path.is_file() and path.suffix not in (".out", ".err", ".result")
        if path.name != "secrets.json"
    }


def test_a_task_that_fails_shows_its_secret_nowhere(
    flow_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Made here, for the source of this test travels with the task.
    secret = f"tok-{token_hex(8)}"
    monkeypatch.setenv("API_TOKEN", secret)
    app = FlowApp()
    task = app.function(leak, secrets=["API_TOKEN"]).spawn()
    error = task.exception()
    assert isinstance(error, ValueError)
    assert str(error) == "refused: ***"
    assert secret not in str(error.__cause__)
    assert "refused: ***" in str(error.__cause__)
    assert secret not in str(task.logs())
    assert "with ***" in str(task.logs())
    assert "and *** without an end" in str(task.logs())
    assert task.reason == "first failure: node 0, rank 0: ValueError: refused: ***"
    assert secret not in str([(event.text, event.data) for event in task.events()])
    killed = app.function(die, secrets=["API_TOKEN"]).spawn()
    failed = killed.exception()
    assert isinstance(failed, TaskFailed)
    assert "  ***\n" in str(failed)
    # What lies in FLOW_HOME beside the workers' own output does not have it either, on a disk that others may back up.
    found = [
        name for name, content in everything_under(flow_home).items() if secret.encode() in content
    ]
    assert found == []


def test_a_task_that_fails_shows_no_piece_of_a_long_secret(
    flow_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as a session token or the key file of a cloud: the texts of failures are shorter."""
    secret = token_hex(2000)
    monkeypatch.setenv("API_TOKEN", secret)
    run = FlowApp().function(leak_long, secrets=["API_TOKEN"])
    shown = ""
    for task in (run.spawn(True), run.spawn(False)):
        error = task.exception(show_logs=False)
        assert "refused: ***" in str(error)
        events = [(event.text, event.data) for event in task.events()]
        shown += f"{error} {error.__cause__} {task.reason} {task.logs()} {events}"
    for content in everything_under(flow_home).values():
        shown += content.decode(errors="replace")
    longest = 12
    pieces = {secret[at : at + longest] for at in range(len(secret) - longest)}
    # One pass over all that is shown, which is megabytes.
    there = {found[1] for found in re.finditer(f"(?=([0-9a-f]{{{longest}}}))", shown)}
    assert pieces & there == set()


def test_a_command_line_does_not_show_it(
    flow_home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A shell has put the value of the variable there."""
    secret = f"tok-{token_hex(8)}"
    monkeypatch.setenv("API_TOKEN", secret)
    task = Flow().run(TaskConfig(command=["echo", secret], secrets=["API_TOKEN"]))
    task.wait()
    assert (task.function, task.call) == ("echo ***", "echo ***")
    said = "".join(capsys.readouterr())
    assert "echo ***" in said
    assert secret not in said + str(output.task_json(task))
