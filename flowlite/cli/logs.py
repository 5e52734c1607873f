"""`flow logs`, and the live display that `flow run` shares with it."""

from __future__ import annotations

import json as json_module
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from flowlite.cli import output
from flowlite.cli.names import complete_task

if TYPE_CHECKING:
    from flowlite.logs import LogLine


def register(application: typer.Typer, command: str) -> None:
    """Adds `flow logs`."""
    application.command(command)(logs)


def logs(
    task: Annotated[
        str,
        typer.Argument(
            help="Id, name or unique prefix.", autocompletion=complete_task, metavar="TASK"
        ),
    ],
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on until the task has ended.")
    ] = False,
    node: Annotated[int | None, typer.Option("--node", help="Only of this node rank.")] = None,
    rank: Annotated[int | None, typer.Option("--rank", help="Only of this global rank.")] = None,
    tail: Annotated[
        int | None, typer.Option("--tail", "-n", help="Only the last so many lines.")
    ] = None,
    since: Annotated[
        str | None, typer.Option("--since", help="Only lines since then: 90s, 5m, 2h, 10:30.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object per line.")] = False,
) -> None:
    """Print the output of a task's workers, merged and labelled."""
    from flowlite.client import Flow

    found = Flow().get_task(task)
    live = LiveLine() if follow and not json and sys.stdout.isatty() else None
    lines = found.logs(
        node=node,
        rank=rank,
        follow=follow,
        tail=tail,
        since=since,
        on_pause=live.show if live else _flush,
    )
    if json:
        for line in lines:
            sys.stdout.write(f"{json_line(line)}\n")
        return
    for block in lines.blocks():
        show(block, live)
    if live:
        live.clear()


def show(block: str, live: LiveLine | None = None) -> None:
    """Writes whole lines, above the line that is still being written to."""
    if live:
        live.clear()
    if "\x1b" in block and sys.stdout.isatty():
        # A colour that a line leaves switched on must not run into the next label.
        block = "".join(
            f"{line}{output.RESET}\n" if "\x1b" in line else f"{line}\n"
            for line in block.split("\n")[:-1]
        )
    _write(block)
    if live:
        sys.stdout.flush()


def json_line(line: LogLine) -> str:
    """One line as a JSON object."""
    return json_module.dumps(
        {
            "time": output.json_time(line.time),
            "node": line.node,
            "rank": line.rank,
            "stream": line.stream,
            "text": line.text,
        },
        ensure_ascii=False,
    )


class LiveLine:
    """The last row of the terminal: what a worker is writing just now, such as a progress bar."""

    def __init__(self) -> None:
        self._shown = ""

    def show(self, line: LogLine | None) -> None:
        """Shows the state of an unfinished line, or nothing."""
        from shutil import get_terminal_size

        text = "" if line is None else str(line)
        width = get_terminal_size().columns - 1
        if "\x1b" in text:
            from flowlite.logstream import without_colours

            text = without_colours(text)
        text = text[:width]
        if text != self._shown:
            sys.stdout.write(f"\r\x1b[K{text}")
            self._shown = text
        sys.stdout.flush()

    def clear(self) -> None:
        """Takes it away again."""
        if self._shown:
            sys.stdout.write("\r\x1b[K")
            self._shown = ""


def _flush(line: LogLine | None) -> None:
    sys.stdout.flush()


def _write(text: str) -> None:
    # A lone surrogate or a terminal that knows no UTF-8 must not end the command.
    try:
        sys.stdout.write(text)
    except UnicodeEncodeError:
        encoding = sys.stdout.encoding or "ascii"
        sys.stdout.write(text.encode(encoding, "replace").decode(encoding))
