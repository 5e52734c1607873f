"""`flow logs`: prints the output of a task's workers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from flowlite import terminal
from flowlite.cli import output
from flowlite.cli.task_argument import OptionalTask, task_or_newest
from flowlite.display.screen import terminal_screen
from flowlite.output.printing import DIM, ColouredText

if TYPE_CHECKING:
    from flowlite.output.reader import LogLine


def logs(
    task: OptionalTask = None,
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
    from flowlite.api.session import open_session
    from flowlite.retention.pruning import LOGS, was_pruned

    found = task_or_newest(Flow(), task)
    if found.record.final and (pruned := was_pruned(open_session(), found.id, LOGS)):
        output.warn(pruned)
    screen = terminal_screen()

    def pause(line: LogLine | None) -> None:
        if news := found.news_of_recording():
            screen.tell(ColouredText(f"· {terminal.in_one_line(news)}", DIM))
        screen.show_row("" if json or line is None else str(line))
        screen.flush()

    lines = found.logs(
        node=node,
        rank=rank,
        follow=follow,
        tail=tail,
        since=since,
        on_pause=pause,
    )
    try:
        if json:
            for line in lines:
                output.print_json_line(json_line(line))
            return
        for block in lines.blocks():
            screen.write_lines(block)
        screen.clear_row()
    except KeyboardInterrupt:
        if not follow:
            raise
        output.tell(f"\nstopped following; task {found.name} ({found.id}) continues")
        raise output.Quit(130) from None


def json_line(line: LogLine) -> dict[str, Any]:
    """One line as a JSON object."""
    return {
        "time": output.json_time(line.time),
        "node": line.node,
        "rank": line.rank,
        "stream": line.stream,
        "text": line.text,
    }
