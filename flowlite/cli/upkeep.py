"""`flow gc` and `flow providers`: tidying up, and where nodes can come from."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flowlite.cli import output
from flowlite.errors import ConfigError, FlowError

if TYPE_CHECKING:
    from flowlite.session import Session
    from flowlite.store import TaskRecord

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def register(application: typer.Typer, command: str) -> None:
    """Adds one of the commands of this module."""
    commands: dict[str, Callable[..., None]] = {"gc": gc, "providers": providers}
    application.command(command)(commands[command])


def gc(
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say what would be ended and removed.")
    ] = False,
    older_than: Annotated[
        str | None,
        typer.Option(
            "--older-than",
            help="Also forget finished tasks, with logs and results, that ended so long ago: 7d, 12h.",
            metavar="AGE",
        ),
    ] = None,
    warm: Annotated[
        bool, typer.Option("--warm", help="Also end nodes that are kept warm for the next task.")
    ] = False,
    json: Json = False,
) -> None:
    """End whatever bears our tag and belongs to no live task; give tasks without supervisor a new one."""
    from flowlite.session import open_session
    from flowlite.supervise.reconcile import reconcile

    before = _age(older_than)
    session = open_session()
    found = reconcile(session.store, session.home, dry_run=dry_run, warm=warm)
    old = _old_tasks(session, before)
    if not dry_run:
        for task in old:
            _forget(session, task)
    if json:
        data = {"dry_run": dry_run, **found.to_json(), "forgotten": [task.id for task in old]}
        output.print_json("gc", data)
        return
    would = "would be " if dry_run else ""
    said = [
        *found.lines(dry_run),
        *(f"task {task.name} ({task.id}): {would}forgotten" for task in old),
    ]
    for line in said or ["nothing to do"]:
        output.say(line)


def providers(json: Json = False) -> None:
    """List where nodes can come from."""
    from flowlite.config import load_settings
    from flowlite.provider import get_provider, provider_names

    chosen = load_settings().provider
    rows = []
    for name in provider_names():
        try:
            about = _first_line(get_provider(name).__doc__)
            usable = True
        except (FlowError, ImportError) as error:
            about, usable = str(error), False
        rows.append({"name": name, "default": name == chosen, "usable": usable, "about": about})
    if json:
        output.print_json("providers", rows)
        return
    output.table(
        ("provider", "default", "what"),
        [(str(row["name"]), "yes" if row["default"] else "", str(row["about"])) for row in rows],
    )


def _age(text: str | None) -> float | None:
    """The Unix time that lies so long ago."""
    if text is None:
        return None
    from flowlite.logs import parse_since

    if not text[:-1].replace(".", "", 1).isdigit():
        raise ConfigError(f"--older-than: {text!r} is not allowed; write 12h or 7d")
    return parse_since(text)


def _old_tasks(session: Session, before: float | None) -> list[TaskRecord]:
    if before is None:
        return []
    tasks = session.store.list_tasks()
    return [task for task in tasks if task.final and (task.finished_at or time.time()) < before]


def _forget(session: Session, task: TaskRecord) -> None:
    # The files first: a task without files can be forgotten later, files without a task would never be found.
    shutil.rmtree(session.paths(task.id).directory, ignore_errors=True)
    session.store.delete_task(task.id)


def _first_line(text: Any) -> str:
    return str(text or "").strip().partition("\n")[0]
