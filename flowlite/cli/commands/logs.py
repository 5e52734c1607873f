"""`flow logs`, and the live display that `flow run` shares with it."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flowlite import terminal
from flowlite.cli import output
from flowlite.cli.completion import complete_task
from flowlite.output import printing

if TYPE_CHECKING:
    from flowlite.output.reader import LogLine


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
        bool, typer.Option("--follow", "-f", help="Follow the output until the task has ended.")
    ] = False,
    node: Annotated[int | None, typer.Option("--node", help="Only this node rank.")] = None,
    rank: Annotated[int | None, typer.Option("--rank", help="Only this global rank.")] = None,
    tail: Annotated[
        int | None, typer.Option("--tail", "-n", help="Only this many of the last lines.")
    ] = None,
    since: Annotated[
        str | None, typer.Option("--since", help="Only lines since this time: 90s, 5m, 2h, 10:30.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object per line.")] = False,
) -> None:
    """Print the output of a task's workers, merged and labelled."""
    from flowlite.api.client import Flow

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
    try:
        if json:
            for line in lines:
                output.print_json_line(json_line(line))
            return
        for block in lines.blocks():
            show(block, live)
        if live:
            live.clear()
    except KeyboardInterrupt:
        if not follow:
            raise
        output.tell(f"\nstopped following; task {found.name} ({found.id}) continues")
        raise output.Quit(130) from None


def show(block: str, live: LiveLine | None = None) -> None:
    """Writes whole lines, above the line that is still being written to."""
    if live:
        live.clear()
    printing.write_lines(sys.stdout, block)
    if live:
        sys.stdout.flush()


def json_line(line: LogLine) -> dict[str, Any]:
    """One line as a JSON object."""
    return {
        "time": output.json_time(line.time),
        "node": line.node,
        "rank": line.rank,
        "stream": line.stream,
        "text": line.text,
    }


class LiveLine:
    """The last row of the terminal: what a worker is writing just now, such as a progress bar."""

    def __init__(self) -> None:
        self._shown = ""

    def show(self, line: LogLine | None) -> None:
        """Shows the state of an unfinished line, or nothing."""
        from shutil import get_terminal_size

        text = "" if line is None else terminal.in_one_line(str(line))
        text = text[: get_terminal_size().columns - 1]
        if text != self._shown:
            printing.rewrite(sys.stdout, text)
            self._shown = text
        sys.stdout.flush()

    def clear(self) -> None:
        """Takes it away again."""
        if self._shown:
            printing.rewrite(sys.stdout, "")
            self._shown = ""


def _flush(line: LogLine | None) -> None:
    sys.stdout.flush()
