"""`flow ssh`: a shell or a command on a node, in the environment of its first worker."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flowlite.cli import output
from flowlite.cli.names import complete_task
from flowlite.errors import ConfigError, FlowError

if TYPE_CHECKING:
    from flowlite.task import Task

_MOST_AT_ONCE = 32


def register(application: typer.Typer, command: str) -> None:
    """Adds `flow ssh`."""
    application.command(command)(ssh)


def ssh(
    task: Annotated[
        str,
        typer.Argument(
            help="Id, name or unique prefix.", autocompletion=complete_task, metavar="TASK"
        ),
    ],
    node: Annotated[str, typer.Option("--node", help="Node rank, or all.", metavar="N|all")] = "0",
    command: Annotated[
        str | None,
        typer.Option("--command", "-c", help="A command for the shell; without it, a shell."),
    ] = None,
) -> None:
    """Open a shell on a node, or run a command there. The exit status is the command's."""
    from flowlite.client import Flow

    found = Flow().get_task(task)
    if node == "all":
        if command is None:
            raise ConfigError(
                "--node all needs a --command; a shell is opened on one node at a time"
            )
        raise output.Quit(_on_all(found, command))
    if not node.isdecimal():
        raise ConfigError(f"--node: {node!r} is not allowed; give a node rank, or all")
    raise output.Quit(_on_one(found, int(node), command))


def _on_one(task: Task[Any], node: int, command: str | None) -> int:
    terminal = sys.stdin.isatty() and sys.stdout.isatty()
    with task.reach(node) as there:
        if there.gone:
            _note(task)
        return _status(there.connection.stream(there.argv(command), terminal=terminal))


def _on_all(task: Task[Any], command: str) -> int:
    """Runs it everywhere at once; the status is that of the first node, by rank, on which it failed."""
    nodes = range(task.num_instances)
    with task.reach(0) as leader:
        if leader.gone:
            _note(task)
    with ThreadPoolExecutor(min(_MOST_AT_ONCE, len(nodes))) as pool:
        statuses = list(pool.map(lambda node: _labelled(task, node, command), nodes))
    return next((status for status in statuses if status), 0)


def _note(task: Task[Any]) -> None:
    output.tell(
        f"note: task {task.name} ({task.id}) has ended ({task.status}) and its nodes are given back; "
        "this machine stands in for them"
    )


def _labelled(task: Task[Any], node: int, command: str) -> int:
    import time

    from flowlite.logs import LogLine
    from flowlite.logstream import clean

    try:
        done = task.exec(command, node)
    except FlowError as error:
        output.tell(f"[Node {node}] {error}")
        return error.exit_code
    for stream, data in ((sys.stdout, done.stdout), (sys.stderr, done.stderr)):
        lines = data.decode("utf-8", "replace").splitlines()
        at = time.time()
        text = "".join(f"{LogLine(node, -1, '', at, clean(line))}\n" for line in lines)
        # One write, so that the lines of two nodes are not mixed up.
        stream.write(text)
        stream.flush()
    return _status(done.code)


def _status(code: int) -> int:
    """An exit status as a shell gives it: 128 and the signal for a command that was killed."""
    return 128 - code if code < 0 else code
