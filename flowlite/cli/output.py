"""What commands print: tables, JSON and errors. Coloured on a terminal, plain text elsewhere.

Whatever is shown goes through `flowlite.output.printing`, which cleans it.
"""

from __future__ import annotations

import json as json_module
import os
import sys
import traceback
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NoReturn, TextIO

from flowlite import terminal
from flowlite.display.amounts import UNKNOWN
from flowlite.display.amounts import duration as duration
from flowlite.display.amounts import money as money
from flowlite.errors import FlowError, RemoteTraceback
from flowlite.in_worker.hidden_modules import hidden_module
from flowlite.output import printing, redact
from flowlite.output.printing import DIM, RED, YELLOW, Painted

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

    from flowlite.cli.columns import Fitted
    from flowlite.state.store import TaskRecord

# Rises when a field is renamed or taken away; new fields do not count.
JSON_SCHEMA = 1

COLOURS = {
    "completed": "green",
    "running": "cyan",
    "failed": "red",
    "cancelled": "yellow",
    "stopping": "yellow",
}
# To find the parts of a longer text takes too long.
_LONGEST_COLOURED = 50_000


class Reparse(Exception):
    """The command line means something else than was thought; it is read again in this order."""

    def __init__(self, arguments: list[str]) -> None:
        super().__init__()
        self.arguments = arguments


class Quit(Exception):
    """The command ends with this exit code; everything has been said."""

    def __init__(self, code: int) -> None:
        super().__init__()
        self.code = code


# JSON


def print_json(kind: str, data: Any) -> None:
    """The one shape of `--json`: `{"schema": 1, "kind": …, "data": …}` on one line."""
    print_json_line({"schema": JSON_SCHEMA, "kind": kind, "data": data})


def print_json_line(document: Any) -> None:
    """A JSON document on a line of its own. It keeps every character; those that a terminal acts on are escaped."""
    text = json_module.dumps(document, ensure_ascii=False, default=str)
    say(terminal.escaped_json(text))


def json_time(at: float | None) -> str | None:
    """A time as in `2025-01-31T10:30:00.250Z`."""
    if at is None:
        return None
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def task_json(record: TaskRecord, cost: float) -> dict[str, Any]:
    """A task as commands give it out."""
    return {
        "id": record.id,
        "name": record.name,
        "status": record.state,
        "reason": record.reason,
        "function": record.function,
        "provider": record.provider,
        "num_instances": record.plan.get("num_instances"),
        "processes_per_node": record.plan.get("processes_per_node"),
        "gpu": record.plan.get("gpu") or None,
        "attempt": record.attempt,
        "created_at": json_time(record.created_at),
        "started_at": json_time(record.started_at),
        "finished_at": json_time(record.finished_at),
        "price_per_hour": record.plan.get("price_per_hour"),
        "spot": bool(record.plan.get("spot")),
        "price_cap": record.plan.get("price_cap"),
        "region": record.plan.get("region") or None,
        "max_price_per_hour": record.config.get("max_price_per_hour"),
        "max_cost": record.config.get("max_cost"),
        "estimated_cost": round(cost, 6),
    }


# Text


def say(*parts: str | Painted) -> None:
    """A line on standard output."""
    printing.write(sys.stdout, *parts)


def tell(*parts: str | Painted) -> None:
    """A line on standard error: what is going on, beside what was asked for."""
    printing.write(sys.stderr, *parts)
    sys.stderr.flush()


def tell_wrapped(text: str) -> None:
    """A sentence on standard error, broken between words where the terminal is narrower than it."""
    tell("\n".join(_wrapped(text, sys.stderr)))


def warn(text: str) -> None:
    """A warning on standard error."""
    tell(Painted("warning:", YELLOW), " ", text)


def table(columns: Sequence[str], rows: Sequence[Sequence[str]], title: str = "") -> None:
    """A table: drawn by rich on a terminal, aligned words elsewhere, where no cell is ever cut."""
    if sys.stdout.isatty():
        _rich_table(columns, rows, title)
        return
    everything = [
        tuple(column.upper() for column in columns),
        *(tuple(map(terminal.in_one_line, row)) for row in rows),
    ]
    widths = [max(len(row[i]) for row in everything) for i in range(len(columns))]
    for row in everything:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        say("  ".join(cells).rstrip())


def fitted_table(fitted: Fitted) -> Table:
    """A table that was cut to the width of the terminal, drawn as it is."""
    from rich.table import Table

    drawn = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name in fitted.columns:
        drawn.add_column(name.upper(), no_wrap=True, overflow="ellipsis")
    for row in fitted.rows:
        drawn.add_row(*map(cell, row))
    return drawn


def _rich_table(columns: Sequence[str], rows: Sequence[Sequence[str]], title: str) -> None:
    from rich.console import Console
    from rich.table import Table

    drawn = Table(
        title=cell(title) if title else None,
        title_justify="left",
        box=None,
        pad_edge=False,
        padding=(0, 2, 0, 0),
    )
    for column in columns:
        # These may be long and are wrapped; everything else keeps to one line, and is marked where it is cut.
        wraps = column in {"what", "function", "detail", "note", "reason"}
        drawn.add_column(
            column.upper(), overflow="fold" if wraps else "ellipsis", no_wrap=not wraps
        )
    for row in rows:
        drawn.add_row(*map(cell, row))
    Console(file=sys.stdout).print(drawn)


def cell(text: str) -> Text:
    """A text as rich draws it: nothing in it is markup, and nothing acts on the terminal."""
    from rich.text import Text

    return Text(terminal.in_one_line(redact.cleaned(text)), style=COLOURS.get(text, ""))


def say_value(text: str) -> None:
    """A value as Python writes it, in several lines, with its parts in colours on a terminal."""
    if not printing.colourful(sys.stdout) or len(text) > _LONGEST_COLOURED:
        say(text)
        return
    from rich.console import Console
    from rich.highlighter import ReprHighlighter
    from rich.text import Text

    shown = Text(terminal.plain(redact.cleaned(text)))
    Console(file=sys.stdout).print(ReprHighlighter()(shown), soft_wrap=True)


def facts(pairs: Mapping[str, str | None]) -> None:
    """Names and values; those without a value are left out. On a terminal, long values are wrapped between words."""
    shown = {name: value for name, value in pairs.items() if value}
    width = max(map(len, shown), default=0)
    for name, value in shown.items():
        first, *more = _wrapped(terminal.in_one_line(value), sys.stdout, width + 2)
        say(Painted(name.ljust(width), DIM), "  ", first)
        for line in more:
            say(" " * (width + 2), line)


def _wrapped(text: str, stream: TextIO, indent: int = 0) -> list[str]:
    """A text in lines as wide as the terminal, without what the indentation takes; elsewhere in one line."""
    if not stream.isatty():
        return [text]
    import shutil
    import textwrap

    width = max(20, shutil.get_terminal_size().columns - indent)
    return (
        textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False) if text else [""]
    ) or [""]


def clock(at: float | None) -> str:
    """Local date and time, to the second."""
    return UNKNOWN if at is None else f"{datetime.fromtimestamp(at):%Y-%m-%d %H:%M:%S}"


# Errors


def report(error: BaseException, *, json: bool = False, brief: bool = False) -> int:
    """Says what went wrong in one line and what hangs on it, and gives the exit code.

    FLOW_DEBUG=1 shows the traceback.

    Args:
        error: What went wrong.
        json: Print it as JSON on standard output too.
        brief: The output of the workers was shown before; do not repeat it.
    """
    if isinstance(error, Quit):
        return error.code
    if type(error).__name__ == "NoArgsIsHelpError":
        tell(str(error.format_message()))  # type: ignore[attr-defined]
        return 2
    asked = _own_exit(error)
    if asked is not None:
        return asked
    if os.environ.get("FLOW_DEBUG") == "1":
        tell("".join(traceback.format_exception(error)).rstrip())
    if json:
        print_json("error", error_json(error))
    first, _, rest = _message(error).partition("\n")
    if not brief and isinstance(error.__cause__, RemoteTraceback):
        tell(error.__cause__.text.rstrip())
    tell(Painted("error:", RED), " ", first)
    if not brief:
        for line in rest.splitlines():
            tell(line)
    for note in getattr(error, "__notes__", ()):
        tell("  ", note)
    return exit_code(error)


def error_json(error: BaseException) -> dict[str, Any]:
    """An error as commands give it out."""
    return {
        "type": type(error).__name__,
        "message": _message(error),
        "exit_code": exit_code(error),
        "notes": list(getattr(error, "__notes__", ())),
    }


def exit_code(error: BaseException) -> int:
    """What `flow` ends with after this error."""
    if isinstance(error, FlowError):
        return error.exit_code
    if _is_usage(error):
        return 2
    return 1


def _message(error: BaseException) -> str:
    if _is_usage(error):
        return _usage_message(error)
    if isinstance(error, FlowError):
        # Its own text, which is cleaned where it is printed and whole in JSON.
        return error.text or type(error).__name__
    if isinstance(error.__cause__, RemoteTraceback):
        return "".join(traceback.format_exception_only(type(error), error)[:1]).strip()
    if isinstance(error, OSError):
        return str(error)
    if hidden := hidden_module(error):
        return hidden
    where = traceback.extract_tb(error.__traceback__)
    place = f" ({where[-1].filename}:{where[-1].lineno})" if where else ""
    return (
        f"{type(error).__name__}: {error}{place}\n"
        "This is not meant to happen: FLOW_DEBUG=1 shows where it comes from."
    )


def _is_usage(error: BaseException) -> bool:
    # Of click, or of the copy of click inside newer versions of typer.
    return hasattr(error, "format_message") and hasattr(error, "exit_code")


def _usage_message(error: Any) -> str:
    message = str(error.format_message()).strip()
    context = getattr(error, "ctx", None)
    if context is None:
        return message
    unknown = getattr(error, "option_name", None)
    if unknown is not None and hasattr(error, "possibilities"):
        from flowlite.spec.other_tools import flag_for

        known = [flag for option in context.command.params for flag in option.opts]
        message = f"no option {unknown}{flag_for(unknown, known)}"
    return f"{message}\nhelp: {context.command_path} --help"


def _own_exit(error: BaseException) -> int | None:
    """The code of exceptions by which the parser itself asks for the end."""
    name = type(error).__name__
    if name == "Exit":
        return int(getattr(error, "exit_code", 0))
    if name == "Abort":
        return 130
    return None


def show_version() -> NoReturn:
    """Prints the version and ends."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        found = version("flowlite")
    except PackageNotFoundError:
        found = "of a checkout that is not installed"
    say(f"flowlite {found}")
    raise Quit(0)
