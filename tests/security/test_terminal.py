"""Texts that steer a terminal, in everything that comes from a node, a host or a cloud, through every command."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from flowlite import cli, provider, terminal
from flowlite.api import adapters
from flowlite.connect.values import Completed
from flowlite.errors import (
    ArgumentError,
    FlowError,
    HostKeyError,
    NotFound,
    ProviderError,
    RemoteError,
    RemoteTraceback,
    TaskFailed,
    TaskTimeout,
)
from flowlite.output import printing
from flowlite.provider import Finding, Instance, NodeSettings, Offer, Plan, VolumeInfo
from flowlite.settings.provider_settings import ProviderSettings
from tests.cli.conftest import Flow
from tests.helpers import kill_processes_of_home
from tests.tasks_made_by_hand import HandMade

# One of each kind: titles, clipboard, links, erasing, moves, resets, device control, C1, overwriting, directions, and
# what rich would take for markup.
POISON = (
    "\x1b]0;TITLE\x07\x1b]52;c;cm0gLXJm\x07\x1b]8;;http://x\x1b\\\x1b[2J\x1b[10;10H\x1b[?1049h\x1bc\x1bP1;2|q\x1b\\"
    "\x9b2J\x9d0;T\x9c\x90x\x9c\x85\x7f\x08\x08\x07\x00\x0b\x0c\rOVER\u202eRTL\u2066\u2069 [bold red]markup[/] "
    "[link=http://x]l[/link] :smile: \x1b[31mRED POISON"
)
_ACTS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
# What flowlite itself sends: colours, the row that it writes again, and how rich draws a table anew.
_OURS = re.compile(r"\x1b\[[0-9;]*m|\r\x1b\[2?K|\x1b\[1A\x1b\[2K|\x1b\[\?25[hl]|\r\n")


def harmless(shown: str) -> bool:
    """Whether a terminal that is sent this does nothing but write and change colours."""
    return _ACTS.search(_OURS.sub("", shown)) is None


class Screen(io.StringIO):
    """Standard output or error of a command; says that it is a terminal."""

    encoding = "utf-8"

    def __init__(self, *, terminal: bool) -> None:
        super().__init__()
        self._terminal = terminal

    def isatty(self) -> bool:
        return self._terminal


Show = Callable[..., str]


@pytest.fixture(autouse=True)
def shows_colours(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever the tests run, terminals are those that show colours."""
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)


@pytest.fixture(params=[False, True], ids=["piped", "on a terminal"])
def show(request: pytest.FixtureRequest, flow_home: Path, monkeypatch: pytest.MonkeyPatch) -> Show:
    """Runs a command and gives all that it wrote, after a look at it."""
    monkeypatch.setattr(
        "flowlite.supervise.process.launch.start_supervisor", lambda home, task_id, **_: 0
    )
    monkeypatch.setenv("COLUMNS", "200")

    def run(*words: str) -> str:
        out, err = Screen(terminal=request.param), Screen(terminal=request.param)
        with monkeypatch.context() as patch:
            patch.setattr(sys, "stdout", out)
            patch.setattr(sys, "stderr", err)
            cli.main(words)
        shown = out.getvalue() + err.getvalue()
        assert harmless(shown), repr(shown)
        if not request.param and words[0] not in ("logs", "ssh"):
            assert "\x1b" not in shown
        assert "not meant to happen" not in shown, shown
        return shown

    return run


class Evil:
    """An object of the user's whose own text is evil."""

    def __repr__(self) -> str:
        return f"<Evil {POISON}>"


def poisoned(state: str = "failed", **changes: Any) -> HandMade:
    """A task in which every text that a node or provider has a say in is evil."""
    made = HandMade("bad", nodes=2, per_node=1, price=1.0, **changes)
    made.instance(0, name=f"i-0{POISON}", price=1.0, hours=1)
    made.instance(1, name=f"i-1{POISON}", price=1.0, hours=1)
    made.write(0, f"before\n{POISON}\nafter\n{POISON}".encode())
    for kind in ("warning", "checkpoint", "suspect", "lost"):
        text = f"checkpoint: {POISON}"
        made.store.add_event(made.id, kind, text, {"attempt": 1, "text": text, "why": POISON})
    if state == "failed":
        error = ValueError(POISON)
        error.add_note(POISON)
        made.raises(0, error, first=True)
        made.fails(1, {"kind": "signal", "why": POISON}, signal=9, tail=[POISON, POISON])
    if state in ("failed", "completed", "cancelled"):
        made.end(state, f"first failure: {POISON}")
    else:
        made.change(state, POISON)
    return made


COMMANDS = [
    ("status",),
    ("status", "--all"),
    ("status", "bad"),
    ("logs", "bad"),
    ("logs", "bad", "--tail", "1"),
    ("result", "bad"),
    ("result", "bad", "--rank", "1"),
    ("result", "bad", "--no-pickle"),
    ("doctor", "bad"),
    ("top", "bad"),
    ("ssh", "bad", "-c", "true"),
    ("ssh-config", "bad"),
    ("cost", "bad"),
    ("cost",),
    ("cost", "--by", "function"),
    ("cost", "--by", "provider"),
    ("cancel", "bad"),
    ("gc", "--dry-run"),
    ("config", "list"),
    ("volumes",),
    ("providers",),
]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
@pytest.mark.parametrize("state", ["failed", "cancelled", "completed"])
def test_a_task_that_has_ended(state: str, command: tuple[str, ...], show: Show) -> None:
    made = poisoned(state)
    if state == "completed":
        made.returns(0, POISON)
        made.returns(1, {POISON: [POISON]})
    show(*command)
    if command[0] in ("status", "logs", "result", "doctor", "top", "cost", "ssh"):
        # JSON keeps every character, in a form that a terminal does not act on.
        for line in show(*command, "--json").splitlines():
            if line.startswith("{"):
                json.loads(line)


@pytest.mark.parametrize("value", [POISON, [POISON], Evil(), {"a": Evil()}], ids=type)
def test_results(value: object, show: Show) -> None:
    made = poisoned("completed")
    made.returns(0, value)
    assert "RED POISON" in show("result", "bad")
    found = show("result", "bad", "--json")
    if value == POISON:
        assert json.loads(found)["data"]["result"] == POISON


def test_json_keeps_what_was_said(show: Show) -> None:
    poisoned("failed")
    assert (
        json.loads(show("status", "bad", "--json"))["data"]["reason"] == f"first failure: {POISON}"
    )


def test_rich_takes_nothing_for_markup(show: Show) -> None:
    poisoned("failed")
    assert "[bold red]markup[/]" in show("status", "bad")
    assert "[bold red]markup[/]" in show("result", "bad")


class Connection:
    """A hostile node: whatever is asked, it answers with evil texts."""

    def __init__(self, answers: dict[str, Any]) -> None:
        self._answers = answers

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def close(self) -> None:
        pass

    def run(self, argv: list[str], **_: Any) -> Completed:
        for word, answer in self._answers.items():
            if word in argv:
                said = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
                return Completed(0, said, POISON.encode())
        return Completed(1, b"", POISON.encode())

    def follow(self, argv: list[str], take: Callable[[str, bytes], None]) -> int:
        for stream in ("out", "err"):
            take(stream, f"{POISON}\n{POISON}".encode())
        return 3


class Hostile:
    """A provider all of whose words are evil."""

    name = "local"
    teardown_seconds = 0.0
    settings = ProviderSettings("local")
    __doc__ = POISON

    def __init__(self, answers: dict[str, Any] | None = None, error: Exception | None = None):
        self._answers, self._error = answers or {}, error

    def _say(self, value: Any) -> Any:
        if self._error is not None:
            raise self._error
        return value

    def configured(self) -> bool:
        return True

    def check(self) -> list[Finding]:
        return self._say([Finding(POISON, False, POISON)])

    def plan(self, config: Any) -> Plan:
        return self._say(Plan("local", POISON, 1, 1, region=POISON, notes=(POISON,)))

    def offers(self, *_: Any, **__: Any) -> list[Offer]:
        offer = Offer("local", POISON, POISON, POISON, 8, 1.0, True, POISON)
        return self._say([offer])

    def list_volumes(self) -> list[VolumeInfo]:
        return self._say([VolumeInfo(POISON, "local", "file", 1.0, POISON, 1, POISON, (POISON,))])

    def list_instances(self, task_id: str | None = None) -> list[Instance]:
        return self._say([Instance(POISON, POISON, state="running")])

    def not_looked_at(self) -> list[str]:
        return [POISON]

    def others(self) -> list[Instance]:
        return []

    def sweep(self, live: Any, *, dry_run: bool = False) -> list[str]:
        return [POISON]

    def node_settings(self, plan: Plan, instance: Instance) -> NodeSettings:
        return NodeSettings(home="/nowhere", python="python3")

    def connect(self, instance: Instance) -> Any:
        return self._say(Connection(self._answers))

    def desk(self, *_: Any) -> Hostile:
        return self

    def rows(self, pool: str | None) -> list[dict[str, Any]]:
        keys = ("pool", "name", "address", "python", "cores", "gpus", "state", "why")
        return self._say([dict.fromkeys(keys, POISON)])

    def check_hosts(self, pool: str | None) -> list[dict[str, Any]]:
        problem = {"host": POISON, "serious": True, "problem": POISON, "fix": POISON}
        return self._say(
            [{"pool": POISON, "hosts": [POISON], "answered": [], "problems": [problem]}]
        )


class HostileDesk(Hostile):
    """As an adapter with hosts, whose `check` is another one."""

    def check(self, pool: str | None = None) -> Any:
        return self.check_hosts(pool)


class _Making:
    """Stands for the class of an adapter: settings are frozen as ever, and the adapter is the hostile one."""

    __doc__ = POISON

    def __init__(self, adapter: Any, hostile: Hostile) -> None:
        self._adapter, self._hostile = adapter, hostile

    def __getattr__(self, name: str) -> Any:
        return getattr(self._adapter, name)

    def __call__(self, *_: Any) -> Hostile:
        return self._hostile


def _use(monkeypatch: pytest.MonkeyPatch, hostile: Hostile) -> None:
    real = provider.adapter_class
    for place in (provider, adapters):
        monkeypatch.setattr(place, "adapter_class", lambda name: _Making(real(name), hostile))


PROVIDER_COMMANDS = [
    ("offers",),
    ("volumes",),
    ("providers",),
    ("providers", "check"),
    ("gc", "--dry-run"),
    ("hosts", "list"),
    ("hosts", "check"),
    ("run", "--dry-run", "--", "true"),
]


@pytest.mark.parametrize("error", [None, ProviderError(POISON), OSError(5, POISON)], ids=type)
@pytest.mark.parametrize("command", PROVIDER_COMMANDS, ids=" ".join)
def test_what_a_provider_says(
    command: tuple[str, ...], error: Exception | None, show: Show, monkeypatch: pytest.MonkeyPatch
) -> None:
    _use(monkeypatch, HostileDesk(error=error) if command[0] == "hosts" else Hostile(error=error))
    show(*command)
    show(*command, "--json") if "--" not in command else None


FRAME = {"file": POISON, "line": 1, "function": POISON}
WORKER = {
    "rank": 0,
    "pid": 1,
    "state": POISON,
    "frames": [FRAME],
    "how": POISON,
    "why": POISON,
    "cpu_seconds": 1.0,
    "rss": 1,
}
LOOK = {
    "workers": [WORKER, {**WORKER, "rank": 1, "frames": []}],
    "variables": {f"NCCL_{POISON}": POISON},
    "load": [1.0],
    "cores": 1,
    "disks": [{"path": POISON, "free": 1, "total": 100}],
}
ANSWERS: dict[str, dict[str, Any]] = {
    "sound": {"look": LOOK},
    "an error": {"look": {"error": POISON}, "stats": {"error": POISON}, "links": {"error": POISON}},
    "another shape": {
        "look": {"workers": 7, "variables": [POISON], "load": POISON, "time": POISON},
        "stats": {"monotonic": POISON, "workers": {}},
        "links": [POISON],
    },
    "workers of another shape": {"look": {"workers": [{"rank": POISON, "frames": [7]}]}},
    "numbers beyond all measure": {
        "look": {**LOOK, "time": 1e400, "load": [1e308]},
        "stats": {
            "monotonic": 1e400,
            "workers": [],
            "cpu": None,
            "network": None,
            "gpus": [],
            "cores": 10**400,
        },
    },
    "no JSON": {"look": POISON.encode(), "stats": POISON.encode(), "links": POISON.encode()},
}


@pytest.mark.parametrize("answers", ANSWERS.values(), ids=ANSWERS)
@pytest.mark.parametrize(
    "command",
    [
        ("doctor", "bad"),
        ("top", "bad"),
        ("top", "bad", "--once"),
        ("ssh", "bad", "--node", "all", "-c", "true"),
    ],
    ids=" ".join,
)
def test_what_running_nodes_say(
    command: tuple[str, ...],
    answers: dict[str, Any],
    show: Show,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if command[0] == "top" and len(command) == 2:
        # Live, on a terminal, it goes on until the task has ended.
        monkeypatch.setattr("flowlite.cli.commands.top._live", _one_picture(monkeypatch))
    made = poisoned("running")
    _use(monkeypatch, Hostile(answers))
    show(*command)
    made.end("cancelled")


def _one_picture(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    from flowlite.cli.commands import top

    live, pictures = top._live, top._pictures

    def once(task: Any, interval: float) -> None:
        monkeypatch.setattr(top, "_pictures", lambda *_: [next(pictures(task, interval))])
        live(task, interval)

    return once


@pytest.mark.parametrize("error", [ProviderError(POISON), OSError(5, POISON)], ids=type)
def test_nodes_that_cannot_be_reached(
    error: Exception, show: Show, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = poisoned("running")
    _use(monkeypatch, Hostile(error=error))
    for command in (("doctor", "bad"), ("ssh", "bad", "-c", "true"), ("top", "bad", "--json")):
        show(*command)
    made.end("cancelled")


# A real run, from its first line to its last

EVIL = f"""\
import os
import signal
import sys

POISON = {POISON!r}


def boom():
    print(POISON, flush=True)
    print(POISON, file=sys.stderr, flush=True)
    raise ValueError(POISON)


def killed():
    print(POISON, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)


def text():
    return POISON
"""


@pytest.mark.parametrize("function", ["boom", "killed", "text"])
def test_a_run_from_its_first_line_to_its_last(
    function: str, flow: Flow, flow_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / f"evil_{function}.py").write_text(EVIL)
    monkeypatch.chdir(tmp_path)
    try:
        ran = flow("run", f"evil_{function}.py::{function}")
        shown = [ran, *(flow(what, function) for what in ("logs", "result", "doctor", "status"))]
        for each in shown:
            assert harmless(each.out), repr(each.out)
            assert harmless(each.err), repr(each.err)
        assert "RED POISON" in ran.out + ran.err
    finally:
        kill_processes_of_home(flow_home)


_PROGRAM = """\
import sys
from flowlite import FlowApp

app = FlowApp()
POISON = sys.argv[1]


@app.function
def fails():
    import os, signal
    print(POISON, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    fails.remote()
"""


def test_what_python_prints_for_a_call_that_failed(flow_home: Path, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(_PROGRAM)
    try:
        ended = subprocess.run(
            [sys.executable, "program.py", POISON.replace("\0", "")],
            cwd=tmp_path,
            env={**os.environ, "FLOW_SHOW_LOGS": "always"},
            capture_output=True,
            timeout=120,
            check=False,
        )
    finally:
        kill_processes_of_home(flow_home)
    shown = ended.stdout.decode() + ended.stderr.decode()
    assert ended.returncode == 1
    assert "TaskFailed" in shown
    assert "RED POISON" in shown
    assert harmless(shown), repr(shown)


@pytest.mark.parametrize(
    "error",
    [
        FlowError(POISON),
        TaskFailed(POISON),
        RemoteError(POISON, remote_traceback=POISON),
        NotFound(POISON),
        TaskTimeout(POISON),
        ArgumentError(POISON),
        HostKeyError(POISON),
    ],
    ids=type,
)
def test_errors_show_nothing_else_than_they_may(error: FlowError) -> None:
    error.__cause__ = RemoteTraceback(POISON)
    shown = "".join(traceback.format_exception(error))
    assert harmless(shown), repr(shown)
    assert error.text == POISON


# The functions


@given(st.text(alphabet=st.characters(codec="utf-8")))
@example("one\u2028two\u2029three\x85four\x1c")
def test_no_text_steers_the_terminal(text: str) -> None:
    for cleaned in (terminal.plain(text), terminal.in_one_line(text)):
        assert _ACTS.search(cleaned) is None
    assert "\n" not in terminal.in_one_line(text)
    assert terminal.plain(text) == text or _ACTS.search(text)
    document = json.dumps(text, ensure_ascii=False)
    assert _ACTS.search(terminal.escaped_json(document)) is None
    assert json.loads(terminal.escaped_json(document)) == text
    # Scripts read the lines of `flow logs --json` by `str.splitlines`, which knows more ends than a newline.
    assert len(terminal.escaped_json(document).splitlines()) == 1


def test_bytes_in_the_guise_of_surrogates_steer_no_terminal() -> None:
    """In the locale C, Python writes the surrogates of undecodable bytes as these bytes."""
    written = io.BytesIO()
    stream = io.TextIOWrapper(written, encoding="utf-8", errors="surrogateescape")
    # C1 for a terminal without UTF-8, C1 and a change of direction for one with it, and the name of a file.
    printing.write(stream, "\udc9b31m \udcc2\udc9b31m \udce2\udc80\udcae caf\udce9.txt")
    printing.write(stream, terminal.escaped_json('{"error": "\udc9b31m"}'))
    stream.flush()
    shown = written.getvalue()
    assert not set(shown.replace("\ufffd".encode(), b"")) & set(range(0x80, 0xA0)), shown
    assert b"caf\xe9.txt" in shown
    assert json.loads(shown.splitlines()[1]) == {"error": "\udc9b31m"}


def test_our_own_colours_survive_and_those_of_a_text_do_not() -> None:
    screen = Screen(terminal=True)
    printing.write(screen, printing.ColouredText("error:", printing.RED), " \x1b[32mgreen\x1b[0m")
    assert screen.getvalue() == "\x1b[31merror:\x1b[0m green\n"
    pipe = Screen(terminal=False)
    printing.write(pipe, printing.ColouredText("error:", printing.RED), " \x1b[32mgreen\x1b[0m")
    assert pipe.getvalue() == "error: green\n"


def test_lines_of_a_log_keep_their_colours_and_nothing_else() -> None:
    screen = Screen(terminal=True)
    printing.write_lines(screen, terminal.clean_line(f"\x1b[32mgreen{POISON}") + "\n")
    assert harmless(screen.getvalue())
    assert screen.getvalue().endswith("\x1b[0m\n")
