"""`flow outputs`: shows the files that `outputs=` has copied to this machine, or copies them now."""

from __future__ import annotations

import filecmp
import os
import shutil
import stat
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flowlite.cli import output
from flowlite.cli.common_options import Json
from flowlite.cli.task_argument import OptionalTask, task_or_newest
from flowlite.errors import ConfigError, FlowError, NotFound

if TYPE_CHECKING:
    from flowlite.api.task import Task

_MOST_SHOWN = 20


def outputs(
    task: OptionalTask = None,
    to: Annotated[
        Path | None,
        typer.Option("--to", help="Copy them to this directory; nothing there is overwritten."),
    ] = None,
    json: Json = False,
) -> None:
    """Show the outputs of a task; while it runs, bring what its nodes have now (with --to)."""
    from flowlite.api.client import Flow

    found = task_or_newest(Flow(), task)
    if not found.record.config.get("outputs"):
        raise ConfigError(
            f"task {found.name} ({found.id}) was submitted without outputs=; "
            f"while it runs, what its nodes have is copied by: flow cp {found.id}:PATH ."
        )
    if not found.record.final:
        _bring_now(found, to, json)
        return
    came = _came(found)
    place = Path(str(came["to"]))
    files = list(_files(place)) if place.is_dir() else []
    refused = _copy(place, files, to) if to is not None else []
    if json:
        shown = [{"path": path, "bytes": (place / path).lstat().st_size} for path in files]
        copied = {} if to is None else {"to": str(to), "taken": refused}
        output.print_json("outputs", {**came, "to": str(place), **copied, "listed": shown})
    else:
        _show(came, to or place, files)
    if refused:
        raise output.not_overwritten(refused, str(to))


def _came(task: Task[Any]) -> dict[str, Any]:
    """The supervisor's last event about outputs. Raises NotFound if the task ended before there were any."""
    noted = [event.data for event in task.events() if event.kind == "outputs"]
    if not noted:
        raise NotFound(
            f"task {task.name} ({task.id}) has ended ({task.status}) before there were outputs to bring"
        )
    return dict(noted[-1])


def _files(place: Path) -> Iterator[str]:
    from flowlite.supervise.attempt.outputs.output_directory import INCOMING

    for path in sorted(place.rglob("*")):
        relative = path.relative_to(place)
        if (path.is_file() or path.is_symlink()) and relative.parts[0] != INCOMING:
            yield str(relative)


def _copy(place: Path, files: list[str], to: Path) -> list[str]:
    """Copies files and links. Returns those that were not copied, since a different one exists at the target.

    Their names are a node's: another link among them may have any name, also that of a file which is still incomplete.
    """
    from flowlite.supervise.attempt.outputs.manifest import OutputFile
    from flowlite.supervise.attempt.outputs.output_directory import NameTaken, OutputDirectory

    destination, refused = OutputDirectory(to.absolute()), []
    for path in files:
        source, target = place / path, to / path
        found = source.lstat()
        try:
            if stat.S_ISLNK(found.st_mode):
                destination.link(path, os.readlink(source))
            elif not (target.is_file() and filecmp.cmp(source, target, shallow=False)):
                program = bool(found.st_mode & stat.S_IXUSR)
                file = OutputFile(path, found.st_size, found.st_mtime_ns, program)
                destination.take(path, file, str(source), partial(shutil.copyfile, source))
        except NameTaken:
            refused.append(path)
    if not refused:
        destination.finish()
    return refused


def _show(came: dict[str, Any], place: Path, files: list[str]) -> None:
    for path in files[:_MOST_SHOWN]:
        output.say(str(place / path))
    if len(files) > _MOST_SHOWN:
        output.tell(f"… and {len(files) - _MOST_SHOWN:,} more in {place}")
    if not files:
        output.tell("no outputs are here")
    for node, why in dict(came.get("missing") or {}).items():
        output.warn(f"not all outputs of node {node} are here: {why}")


def _bring_now(task: Task[Any], to: Path | None, json: bool) -> None:
    """Shows or copies the current outputs of a running task's nodes."""
    from flowlite.api import node_files
    from flowlite.cli.transfer_progress import Transfer, tell_copied
    from flowlite.supervise.attempt.outputs.output_directory import OutputDirectory

    if to is None:
        raise ConfigError(
            f"task {task.name} ({task.id}) is {task.status}: its outputs come at its end. "
            f"To bring what there is now: flow outputs {task.id} --to DIRECTORY"
        )
    destination, copied = OutputDirectory(to.absolute()), node_files.CopyResult()
    places: set[str] = set()
    errors: list[FlowError] = []
    for node in range(task.num_instances):
        below = f"node{node}/" if task.num_instances > 1 else ""
        # Files are brought while a gang runs because one of its nodes may be in trouble: the others have theirs.
        try:
            with task.reach(node) as there:
                found = node_files.outputs_of(there, task.record.config["outputs"])
                if found.place in places:
                    continue
                places.add(found.place)
                with Transfer(f"node {node}", found.size) as transfer:
                    copied.add(
                        node_files.bring(there, found, destination, transfer.moved, below=below)
                    )
        except FlowError as error:
            errors.append(error)
    if errors and not places:
        raise errors[0]
    for each in errors:
        output.report(each)
    output.warn_of_left_out(copied.left_out)
    tell_copied(
        str(to),
        copied.files,
        copied.bytes,
        json=json,
        taken=copied.taken,
        below=str(to),
        kind="outputs",
    )
    if errors:
        raise output.Quit(output.exit_code(errors[0]))
