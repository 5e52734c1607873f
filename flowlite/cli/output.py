"""Prints the output of commands: tables, JSON and errors. Coloured on a terminal, plain text elsewhere.

Everything is printed through `output/printing.py`, which cleans it.
"""

from __future__ import annotations

import errno
import json as json_module
import os
import stat
import sys
import traceback
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TextIO

from flowlite import terminal
from flowlite.display.format import UNKNOWN
from flowlite.display.format import cost_of as cost_of
from flowlite.display.format import duration as duration
from flowlite.display.format import money as money
from flowlite.display.format import run_time as run_time
from flowlite.errors import ConfigError, FlowError, RemoteTraceback, TaskFailed
from flowlite.in_worker.hidden_modules import hidden_module
from flowlite.output import printing, redact
from flowlite.output.printing import DIM, RED, YELLOW, ColouredText

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

    from flowlite.cli.columns import FittedTable
    from flowlite.display.shown_task import ShownTask

# The exit code of a question that was answered with Ctrl-D, or with no where the command cannot go on.
_NO_ANSWER = 130
# Increased when a field is renamed or removed; new fields do not count.
JSON_SCHEMA = 1

COLOURS = {
    "completed": "green",
    "running": "cyan",
    "failed": "red",
    "cancelled": "yellow",
    "stopping": "yellow",
}
# What a pipe without a reader, a full disk or a file-size limit gives.
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_STREAM_ERRORS = _FULL | {errno.EPIPE, errno.EIO}
# Longer texts are not coloured, since parsing them takes too long.
_LONGEST_COLOURED = 50_000


class Reparse(Exception):
    """Raised to parse the command line again, with its words in another order."""

    def __init__(self, arguments: list[str]) -> None:
        super().__init__()
        self.arguments = arguments


class Quit(Exception):
    """Raised to end the command with an exit code, without a further message."""

    def __init__(self, code: int) -> None:
        super().__init__()
        self.code = code


# JSON


def print_json(kind: str, data: Any) -> None:
    """Prints the format of all `--json` output: `{"schema": 1, "kind": …, "data": …}` on one line."""
    print_json_line({"schema": JSON_SCHEMA, "kind": kind, "data": data})


def print_json_line(document: Any) -> None:
    """Prints a JSON document on one line. Characters that a terminal would act on are escaped, none is removed."""
    text = json_module.dumps(document, ensure_ascii=False, default=str)
    try:
        text.encode(sys.stdout.encoding or "ascii")
    except UnicodeEncodeError:
        # Each can be written as an escape, and none gets lost.
        text = json_module.dumps(document, default=str)
    say(terminal.escaped_json(text))


def say_or_json(text: str, json: bool, kind: str, data: Any) -> None:
    """Prints a line on standard output, or what it says as JSON."""
    if json:
        print_json(kind, data)
    else:
        say(text)


def json_time(at: float | None) -> str | None:
    """A Unix time as text, such as `2025-01-31T10:30:00.250Z`."""
    if at is None:
        return None
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def task_json(task: ShownTask) -> dict[str, Any]:
    """A task in the JSON output of commands."""
    from flowlite.provider import Plan
    from flowlite.supervise import gang_size
    from flowlite.supervise.money import price_text

    record = task.record
    fewest, most = gang_size.bounds_of(record)
    return {
        "id": record.id,
        "name": record.name,
        "status": record.state,
        "reason": record.reason,
        "function": record.function,
        "provider": record.provider,
        "num_instances": gang_size.nodes_of(record),
        "num_instances_min": fewest,
        "num_instances_max": most,
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
        **price_text.worst_case_json(Plan.from_json(record.plan), ended=record.final),
        "estimated_cost": round(task.estimated_cost, 6),
        "upper_bound": task.cost_is_upper_bound,
    }


# Streams


def drop_unusable_streams(error: OSError) -> bool:
    """Redirects to /dev/null the streams that an error may be about: a pipe without a reader, a file that cannot grow.

    Returns whether the error can be about a stream.
    """
    if not _is_about_a_stream(error):
        return False
    for stream in (sys.stdout, sys.stderr):
        _drop_unusable(stream, error)
    return True


def result_is_lost(error: OSError) -> bool:
    """Whether standard output goes to a file that cannot grow. Ask it before the stream is dropped."""
    return error.errno in _FULL and not _cannot_be_written(sys.stderr)


def _is_about_a_stream(error: OSError) -> bool:
    return error.filename is None and error.errno in _STREAM_ERRORS


def _drop_unusable(stream: TextIO, error: OSError) -> None:
    descriptor = stream.fileno()
    is_file = error.errno != errno.EPIPE and not stream.isatty()
    pipe = stat.S_ISFIFO(os.fstat(descriptor).st_mode)
    if (pipe and not _has_reader(descriptor)) or (
        is_file and not pipe and _cannot_be_written(stream)
    ):
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, descriptor)
        os.close(nothing)


def _cannot_be_written(stream: TextIO) -> bool:
    """Whether what the stream still holds cannot be written. The other stream may go to a file that can grow."""
    try:
        stream.flush()
    except OSError as error:
        return _is_about_a_stream(error)
    return False


def _has_reader(descriptor: int) -> bool:
    """Whether somebody can still read what is written into a pipe."""
    # Not at the top, since every command imports this module.
    import select

    poll = select.poll()
    poll.register(descriptor, select.POLLOUT)
    return not any(event & select.POLLERR for _, event in poll.poll(0))


# Text


def say(*parts: str | ColouredText) -> None:
    """Prints a line on standard output."""
    printing.write(sys.stdout, *parts)


def tell(*parts: str | ColouredText) -> None:
    """Prints a line on standard error: progress and notes, apart from the command's result.

    A note that cannot be written, since its pipe has no reader or the disk is full, does not end the command.
    """
    try:
        printing.write(sys.stderr, *parts)
        sys.stderr.flush()
    except OSError as error:
        if not _is_about_a_stream(error):
            raise
        _drop_unusable(sys.stderr, error)


def tell_wrapped(text: str) -> None:
    """Prints a sentence on standard error, wrapped at the width of the terminal."""
    tell("\n".join(_wrapped(text, sys.stderr)))


def say_wrapped(text: str) -> None:
    """Prints a sentence on standard output, wrapped at the width of the terminal."""
    for line in _wrapped(terminal.in_one_line(text), sys.stdout):
        say(line)


def warn(text: str) -> None:
    """Prints a warning on standard error."""
    tell(ColouredText("warning:", YELLOW), " ", text)


def warn_of_others(count: int) -> None:
    """Says how many entries of a local directory were not sent to a node, volume or bucket, if any."""
    if count:
        warn(f"not copied: {count} links to directories or to nothing, and special files")


def warn_of_left_out(left_out: Mapping[str, int]) -> None:
    """Says how many files of a node were not copied, by reason."""
    for why, number in left_out.items():
        warn(f"not copied: {number} {why}")


def beside_json(error: Exception) -> Quit:
    """Shows an error after the JSON of what was done in spite of it, which is the only document of the command.

    Returns what ends the command.
    """
    return Quit(report(error))


def not_overwritten(paths: Sequence[str], place: str) -> Quit:
    """Shows the error about files that were not copied, since other files have their names in that place.

    Returns what ends the command. The JSON of what was copied names them.
    """
    names = ", ".join(paths[:3]) + (", …" if paths[3:] else "")
    text = f"not written over other files in {place}: {names}; remove them, or give another target"
    return beside_json(FlowError(text))


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Prints a table: with rich on a terminal; elsewhere as aligned columns in which no cell is cut."""
    if sys.stdout.isatty():
        _rich_table(columns, rows)
        return
    everything = [
        tuple(column.upper() for column in columns),
        *(tuple(map(terminal.in_one_line, row)) for row in rows),
    ]
    widths = [max(len(row[i]) for row in everything) for i in range(len(columns))]
    for row in everything:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        say("  ".join(cells).rstrip())


def fitted_table(fitted: FittedTable) -> Table:
    """The rich table for a table that was already fitted to the width of the terminal."""
    drawn = _table_without_lines()
    for name in fitted.columns:
        drawn.add_column(name.upper(), no_wrap=True, overflow="ellipsis")
    for row in fitted.rows:
        drawn.add_row(*map(cell, row))
    return drawn


def table_of_lines(
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    least: Mapping[str, int],
    leave_out: Mapping[str, int],
) -> None:
    """Prints one line for each row: on a terminal cut to its width, as `columns.fit` does; elsewhere in full."""
    if not sys.stdout.isatty():
        table(columns, rows)
        return
    from rich.console import Console

    from flowlite.cli.columns import fit

    console = Console(file=sys.stdout)
    fitted = fit(columns, rows, console.width, least, leave_out)
    console.print(fitted_table(fitted))
    if fitted.left_out:
        left_out = ", ".join(fitted.left_out)
        tell_wrapped(f"no room for: {left_out}; a wider terminal or --json shows that too")


def _rich_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    from rich.console import Console

    drawn = _table_without_lines()
    for column in columns:
        # These columns may be long and are wrapped. The others stay on one line and are marked if they are cut.
        wraps = column in {"what", "function", "detail", "note", "reason"}
        drawn.add_column(
            column.upper(), overflow="fold" if wraps else "ellipsis", no_wrap=not wraps
        )
    for row in rows:
        drawn.add_row(*map(cell, row))
    Console(file=sys.stdout).print(drawn)


def _table_without_lines() -> Table:
    from rich.table import Table

    return Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))


def cell(text: str) -> Text:
    """A text for rich, without markup and without characters that a terminal would act on."""
    from rich.text import Text

    return Text(terminal.in_one_line(redact.cleaned(text)), style=COLOURS.get(text, ""))


def say_value(text: str) -> None:
    """Prints the repr of a value, in several lines, with syntax colours on a terminal."""
    if not printing.colourful(sys.stdout) or len(text) > _LONGEST_COLOURED:
        say(text)
        return
    from rich.console import Console
    from rich.highlighter import ReprHighlighter
    from rich.text import Text

    shown = Text(terminal.plain(redact.cleaned(text)))
    Console(file=sys.stdout).print(ReprHighlighter()(shown), soft_wrap=True)


def facts(
    pairs: Mapping[str, str | None],
    *,
    wrapped: bool = True,
    to: Callable[..., None] = say,
) -> None:
    """Prints names and values, except names without a value.

    Long values are `wrapped` between words on a terminal. Commands are to be copied, and must not be.
    """
    shown = {name: value for name, value in pairs.items() if value}
    width = max(map(len, shown), default=0)
    for name, value in shown.items():
        text = terminal.in_one_line(value)
        first, *more = _wrapped(text, sys.stdout, width + 2) if wrapped else [text]
        to(ColouredText(name.ljust(width), DIM), "  ", first)
        for line in more:
            to(" " * (width + 2), line)


def _wrapped(text: str, stream: TextIO, indent: int = 0) -> list[str]:
    """Wraps a text at the width of the terminal minus the indentation; without a terminal, it stays one line."""
    if not stream.isatty():
        return [text]
    import shutil
    import textwrap

    width = max(20, shutil.get_terminal_size().columns - indent)
    return (
        textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False) if text else [""]
    ) or [""]


def clock(at: float | None) -> str:
    """A Unix time as local date and time, to the second."""
    return UNKNOWN if at is None else f"{datetime.fromtimestamp(at):%Y-%m-%d %H:%M:%S}"


def day(at: float) -> str:
    """A Unix time as local date; unknown for 0."""
    return f"{datetime.fromtimestamp(at):%Y-%m-%d}" if at else UNKNOWN


# Errors


def report(error: BaseException, *, json: bool = False, brief: bool = False) -> int:
    """Prints an error and its notes. Returns the exit code. FLOW_DEBUG=1 shows the traceback.

    Args:
        json: Also print it as JSON on standard output.
        brief: Do not repeat the output of the workers, which was shown before.
    """
    if isinstance(error, Quit):
        return error.code
    if not is_of_worker(error):
        if type(error).__name__ == "NoArgsIsHelpError":
            tell(str(error.format_message()))  # type: ignore[attr-defined]
            return 2
        asked = _own_exit(error)
        if asked is not None:
            if asked == _NO_ANSWER:
                tell("\nstopped; what was asked about was not done")
            return asked
        error = _known(error)
    if os.environ.get("FLOW_DEBUG") == "1":
        tell("".join(traceback.format_exception(error)).rstrip())
    if json:
        try:
            print_json("error", error_json(error))
            sys.stdout.flush()
        except OSError as again:
            # Standard output may be what the error is about: a long text is written past the buffer, so that nothing
            # was left in it by which `drop_unusable_streams` could tell.
            if not drop_unusable_streams(again):
                raise
    first, _, rest = _message(error).partition("\n")
    if not brief and isinstance(error.__cause__, RemoteTraceback):
        tell(error.__cause__.text.rstrip())
    tell(ColouredText("error:", RED), " ", first)
    if not brief:
        for line in rest.splitlines():
            tell(line)
    for note in getattr(error, "__notes__", ()):
        tell("  ", note)
    return exit_code(error)


def _known(error: BaseException) -> BaseException:
    """The error itself, or a ConfigError if it comes from a current directory that was removed."""
    if not isinstance(error, FileNotFoundError) or error.filename is not None:
        return error
    from flowlite.api.client import check_current_directory

    try:
        check_current_directory()
    except ConfigError as known:
        return known.with_traceback(error.__traceback__)
    return error


def error_json(error: BaseException) -> dict[str, Any]:
    """An error in the JSON output of commands."""
    return {
        "type": type(error).__name__,
        "message": _message(error),
        "exit_code": exit_code(error),
        "notes": list(getattr(error, "__notes__", ())),
    }


def is_of_worker(error: BaseException) -> bool:
    """Whether a worker has raised the error, so that its type says nothing about this command."""
    return isinstance(error.__cause__, RemoteTraceback)


def exit_code(error: BaseException) -> int:
    """The exit code of `flow` for an error."""
    if is_of_worker(error):
        return TaskFailed.exit_code
    if isinstance(error, FlowError):
        return error.exit_code
    if _is_usage(error):
        return 2
    return 1


def _message(error: BaseException) -> str:
    if isinstance(error, FlowError):
        # The raw text, which is cleaned when it is printed and complete in JSON.
        return error.text or type(error).__name__
    if is_of_worker(error):
        return "".join(traceback.format_exception_only(type(error), error)[:1]).strip()
    if _is_usage(error):
        return _usage_message(error)
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
    # An error of click, or of the copy of click inside newer versions of typer.
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
        own = _options_of(context.command.name)
        meant = flag_for(unknown, known, own) or _after_target(unknown, context.find_root().obj)
        message = f"no option {unknown}{meant}"
    return f"{message}\nhelp: {context.command_path} --help"


def _options_of(command: str) -> Collection[str]:
    """The options of a task, for the command that takes them as flags."""
    if command != "run":
        return ()
    from flowlite.spec import TaskConfig

    return TaskConfig.model_fields


def _after_target(option: str, root: Any) -> str:
    """A clause for an option that stands before a function, and may be one of it; "" if no function is named."""
    words = list(root["arguments"]) if root else []
    words = words[: words.index("--")] if "--" in words else words
    target = next((word for word in words if word.partition("::")[0].endswith(".py")), None)
    return f"; options of a function follow it, as in {target} {option} …" if target else ""


def _own_exit(error: BaseException) -> int | None:
    """The exit code of exceptions by which the parser ends the command."""
    name = type(error).__name__
    if name == "Exit":
        return int(getattr(error, "exit_code", 0))
    if name == "Abort":
        return _NO_ANSWER
    return None
