"""What commands print: tables, JSON and errors. Coloured on a terminal, plain text elsewhere."""

from __future__ import annotations

import json as json_module
import os
import re
import sys
import traceback
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NoReturn, TextIO

from flowlite import masking
from flowlite.errors import FlowError, RemoteTraceback
from flowlite.supervise.quote import dollars

if TYPE_CHECKING:
    from flowlite.store import TaskRecord

# Rises when a field is renamed or taken away; new fields do not count.
JSON_SCHEMA = 1

RED, YELLOW, DIM, BOLD, RESET = "\x1b[31m", "\x1b[33m", "\x1b[2m", "\x1b[1m", "\x1b[0m"
COLOURS = {
    "completed": "green",
    "running": "cyan",
    "failed": "red",
    "cancelled": "yellow",
    "stopping": "yellow",
}
_ENDLESS = "-"


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
    document = {"schema": JSON_SCHEMA, "kind": kind, "data": data}
    say(json_module.dumps(document, ensure_ascii=False, default=str))


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


def json_value(value: Any) -> Any:
    """A value as JSON where it is JSON already (tuples count as lists), else None; see `result_text` beside it."""
    try:
        return json_module.loads(json_module.dumps(value, allow_nan=False))
    except (TypeError, ValueError, RecursionError):
        return None


# Text


def say(text: str = "") -> None:
    """A line on standard output."""
    sys.stdout.write(f"{masking.cleaned(text)}\n")


def tell(text: str) -> None:
    """A line on standard error: what is going on, beside what was asked for."""
    sys.stderr.write(f"{masking.cleaned(text)}\n")
    sys.stderr.flush()


def warn(text: str) -> None:
    """A warning on standard error."""
    tell(f"{coloured('warning:', YELLOW, sys.stderr)} {text}")


def coloured(text: str, colour: str, stream: TextIO) -> str:
    """The text in a colour, where the stream is a terminal."""
    return f"{colour}{text}{RESET}" if colourful(stream) else text


def colourful(stream: TextIO) -> bool:
    """Whether colours are welcome there."""
    return stream.isatty() and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"


def table(columns: Sequence[str], rows: Sequence[Sequence[str]], title: str = "") -> None:
    """A table: drawn by rich on a terminal, aligned words elsewhere, where no cell is ever cut."""
    if sys.stdout.isatty():
        _rich_table(columns, rows, title)
        return
    everything = [tuple(column.upper() for column in columns), *rows]
    widths = [max(len(row[i]) for row in everything) for i in range(len(columns))]
    for row in everything:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        say("  ".join(cells).rstrip())


def _rich_table(columns: Sequence[str], rows: Sequence[Sequence[str]], title: str) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    drawn = Table(
        title=title or None, title_justify="left", box=None, pad_edge=False, padding=(0, 2, 0, 0)
    )
    for column in columns:
        # These may be long; everything else stays whole.
        drawn.add_column(
            column.upper(), overflow="fold", no_wrap=column not in {"reason", "what", "function"}
        )
    for row in rows:
        drawn.add_row(
            *(
                # A reason keeps to one line; the task's own page has all of it.
                Text(cell, no_wrap=True, overflow="ellipsis")
                if column == "reason"
                else Text(cell, style=COLOURS.get(cell, ""))
                for column, cell in zip(columns, row, strict=True)
            )
        )
    Console(file=sys.stdout).print(drawn)


def facts(pairs: Mapping[str, str | None]) -> None:
    """Names and values, one a line; those without a value are left out."""
    shown = {name: value for name, value in pairs.items() if value}
    width = max(map(len, shown), default=0)
    for name, value in shown.items():
        say(f"{coloured(name.ljust(width), DIM, sys.stdout)}  {value}")


def money(amount: float | None) -> str:
    """`$1.25`; more digits for fractions of a cent."""
    if amount is None:
        return _ENDLESS
    return dollars(amount)


def duration(seconds: float | None) -> str:
    """`0.8s`, `14s`, `3m12s`, `2h05m`, `3d04h`."""
    if seconds is None:
        return _ENDLESS
    if seconds < 10:
        return f"{max(0.0, seconds):.1f}s"
    whole = int(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02}s"
    if whole < 86400:
        return f"{whole // 3600}h{whole % 3600 // 60:02}m"
    return f"{whole // 86400}d{whole % 86400 // 3600:02}h"


def clock(at: float | None) -> str:
    """Local date and time, to the second."""
    return _ENDLESS if at is None else f"{datetime.fromtimestamp(at):%Y-%m-%d %H:%M:%S}"


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
    tell(f"{coloured('error:', RED, sys.stderr)} {first}")
    if not brief:
        for line in rest.splitlines():
            tell(line)
    for note in getattr(error, "__notes__", ()):
        tell(f"  {note}")
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
        return str(error) or type(error).__name__
    if isinstance(error.__cause__, RemoteTraceback):
        return "".join(traceback.format_exception_only(type(error), error)[:1]).strip()
    if isinstance(error, OSError):
        return str(error)
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


def printable(text: str) -> str:
    """Text from elsewhere without anything that a terminal would act on."""
    return re.sub(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", "�", text)
