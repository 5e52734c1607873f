"""`flow ssh`: runs a shell or a command on a node, in the environment of its first worker; and `flow ssh-config`."""

from __future__ import annotations

import re
import shlex
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer

from flowlite.cli import output
from flowlite.cli.common_options import Json
from flowlite.cli.node_queries import in_parallel
from flowlite.cli.task_argument import OptionalRunningTask, task_or_newest
from flowlite.errors import ConfigError, FlowError

if TYPE_CHECKING:
    from flowlite.api.task import Task

_MOST_AT_ONCE = 64
# Longer lines are shown in pieces of this many bytes.
_LONGEST = 64 * 1024
_ALIAS = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,60}")


def ssh(
    task: OptionalRunningTask = None,
    words: Annotated[
        list[str] | None,
        typer.Argument(
            help="Program to run there, with its arguments; one word alone is text for the shell.",
            metavar="-- PROGRAM...",
        ),
    ] = None,
    node: Annotated[str, typer.Option("--node", help="Node rank, or all.", metavar="N|all")] = "0",
    command: Annotated[
        str | None,
        typer.Option(
            "--command", "-c", help="Command to run in the shell; without it, an interactive shell."
        ),
    ] = None,
) -> None:
    """Open a shell on a node, or run a command there. The exit status is the command's."""
    from flowlite.api.client import Flow

    if words and command is not None:
        raise ConfigError("a program after TASK and --command exclude each other; give one")
    if words:
        command = words[0] if len(words) == 1 else shlex.join(words)
    found = task_or_newest(Flow(), task or None, unfinished=True)
    if node == "all":
        if command is None:
            raise ConfigError("--node all needs a command; a shell is opened on one node at a time")
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
    """Runs the command on all nodes in parallel. Returns the status of the first node, by rank, on which it failed."""
    nodes = range(task.num_instances)
    with task.reach(0) as leader:
        if leader.gone:
            _note(task)
    ended: dict[int, int | Exception] = {}
    places = threading.Semaphore(_MOST_AT_ONCE)

    def one(node: int) -> None:
        with places:
            try:
                ended[node] = _labelled(task, node, command)
            except Exception as error:
                ended[node] = error

    # Daemon threads, since a pool would wait for every command after Ctrl-C.
    threads = [threading.Thread(target=one, args=(node,), daemon=True) for node in nodes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    failed = next((ended[node] for node in nodes if ended[node]), 0)
    if isinstance(failed, Exception):
        raise failed
    return failed


def _note(task: Task[Any]) -> None:
    output.tell(
        f"note: task {task.name} ({task.id}) has ended ({task.status}) and its nodes are given back; "
        "this machine stands in for them"
    )


def _labelled(task: Task[Any], node: int, command: str) -> int:
    lines = {"out": _Lines(node, sys.stdout), "err": _Lines(node, sys.stderr)}
    try:
        with task.reach(node) as there:
            code = there.connection.follow(
                there.argv(command), lambda stream, block: lines[stream].take(block)
            )
    except FlowError as error:
        output.tell(f"[Node {node}] {error}")
        return error.exit_code
    finally:
        for each in lines.values():
            each.end()
    return _status(code)


class _Lines:
    """Shows the output of one node on one stream, line by line as it arrives."""

    _showing = threading.Lock()

    def __init__(self, node: int, stream: TextIO) -> None:
        self._node = node
        self._stream = stream
        self._rest = b""

    def take(self, block: bytes) -> None:
        """Adds a block of bytes, and shows the lines that it completes."""
        *whole, self._rest = (self._rest + block).split(b"\n")
        if len(self._rest) > _LONGEST:
            whole, self._rest = [*whole, self._rest], b""
        self._show(whole)

    def end(self) -> None:
        """Shows the last line if it has no newline."""
        self._show([self._rest] if self._rest else [])
        self._rest = b""

    def _show(self, lines: list[bytes]) -> None:
        from flowlite.output.printing import write_lines
        from flowlite.output.reader import LogLine
        from flowlite.terminal import clean_line

        at = time.time()
        texts = (clean_line(line.decode("utf-8", "replace")) for line in lines)
        text = "".join(f"{LogLine(self._node, -1, '', at, line)}\n" for line in texts)
        if text:
            # The lock keeps the lines of two nodes apart.
            with self._showing:
                write_lines(self._stream, text)
                self._stream.flush()


def _status(code: int) -> int:
    """An exit status as in a shell: 128 plus the signal number for a command that was killed."""
    return 128 - code if code < 0 else code


def ssh_config(
    task: OptionalRunningTask = None,
    path: Annotated[
        bool, typer.Option("--path", help="Print the path of the file only, for `ssh -F`.")
    ] = False,
    json: Json = False,
) -> None:
    """Print OpenSSH configuration for the nodes of a task, for editors and other programs."""
    from flowlite.api.client import Flow
    from flowlite.connect.ssh.system import write
    from flowlite.settings.settings import home
    from flowlite.supervise.record.paths import TaskPaths

    found = task_or_newest(Flow(), task, unfinished=True)
    name = found.name if _ALIAS.fullmatch(found.name) else found.id
    aliases = [f"flow-{name}-{node}" for node in range(found.num_instances)]
    directory = TaskPaths(home(), found.id).directory / "ssh"
    entries = _entries(found, aliases, directory / "known_hosts")
    text = "\n".join(text for text, _ in entries)
    file = write(directory, text, "".join(dict.fromkeys(keys for _, keys in entries)))
    if json:
        output.print_json("ssh-config", {"path": str(file), "hosts": aliases, "config": text})
    elif path:
        output.say(str(file))
    else:
        output.say(f"# {file}: ssh -F {file} {aliases[0]}\n\n{text.rstrip()}")


def _entries(task: Task[Any], aliases: list[str], known: Path) -> list[tuple[str, str]]:
    """The configuration entry of each node, and the lines for its known_hosts file."""

    def entry(node: int) -> tuple[str, str]:
        with task.reach(node) as there:
            found = there.connection.ssh_entry(aliases[node], known)
        if found is None:
            raise ConfigError(
                f"task {task.name} ({task.id}): node {node} is on this machine, where nobody has to log in; "
                f"`flow ssh {task.name} --node {node}` opens a shell"
            )
        return found

    return in_parallel(entry, range(len(aliases)))
