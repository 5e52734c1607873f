"""`flow gc` and `flow providers`: tidying up, and where nodes can come from."""

from __future__ import annotations

import shutil
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flowlite.cli import output
from flowlite.cli.completion import complete_provider
from flowlite.errors import ConfigError, FlowError, ProviderError
from flowlite.state import clock

if TYPE_CHECKING:
    from flowlite.api.session import Session
    from flowlite.provider import Finding
    from flowlite.state.store import TaskRecord

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def register(application: typer.Typer, command: str) -> None:
    """Adds one of the commands of this module."""
    if command == "gc":
        application.command(command)(gc)
        return
    group = typer.Typer(
        help="Show the providers, and check their credentials.", invoke_without_command=True
    )
    group.callback()(providers)
    group.command("list")(list_providers)
    group.command("check")(check)
    application.add_typer(group, name=command)


def gc(
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only list what would be ended and removed.")
    ] = False,
    older_than: Annotated[
        str | None,
        typer.Option(
            "--older-than",
            help="Also delete finished tasks older than this, with logs and results: 7d, 12h.",
            metavar="AGE",
        ),
    ] = None,
    warm: Annotated[
        bool, typer.Option("--warm", help="Also end nodes that are kept warm for the next task.")
    ] = False,
    all_homes: Annotated[
        bool,
        typer.Option(
            "--all-homes",
            help="Also end what was launched from other FLOW_HOMEs, on any machine; asks first.",
        ),
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    json: Json = False,
) -> None:
    """End leftovers of tasks that have ended, and restart the supervisors of tasks that lost theirs."""
    from flowlite.api.adapters import settings_here
    from flowlite.api.session import open_session
    from flowlite.supervise.cleanup.reconcile import reconcile

    before = _age(older_than)
    session = open_session()
    unknown = yes
    if not dry_run and not yes:
        if all_homes:
            _ask_about_others(session, json)
        unknown = sys.stdin.isatty() and not json and _ask_about_unknown(session)
    found = reconcile(
        session.store,
        session.home,
        here=settings_here,
        dry_run=dry_run,
        warm=warm,
        unknown=unknown,
        all_homes=all_homes,
    )
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


def _ask_about_others(session: Session, json: bool) -> None:
    """Shows what other FLOW_HOMEs have, and asks. Raises ConfigError where nobody can be asked."""
    from flowlite.api.adapters import settings_here
    from flowlite.supervise.cleanup.reconcile import reconcile

    found = reconcile(session.store, session.home, here=settings_here, dry_run=True, all_homes=True)
    if not found.others:
        return
    if json or not sys.stdin.isatty():
        raise ConfigError(
            f"--all-homes would end {len(found.others)} machines that were launched from other FLOW_HOMEs; "
            "look at them with --dry-run, then add --yes"
        )
    for line in found.lines(dry_run=True):
        output.say(line)
    typer.confirm("End all of these?", abort=True)


def _ask_about_unknown(session: Session) -> bool:
    """Shows what belongs to tasks that the store does not know, and asks whether to end it."""
    from flowlite.api.adapters import settings_here
    from flowlite.supervise.cleanup.reconcile import reconcile

    found = reconcile(session.store, session.home, here=settings_here, dry_run=True, unknown=True)
    if not found.unknown:
        return False
    for each in found.unknown:
        output.say(f"{each['provider']} {each['id']} of task {each['task']}")
    return typer.confirm(
        "The store does not know these tasks: it may have been lost, or be a copy of an earlier day, and "
        "`flow store restore` finds tasks again. End what they have?"
    )


def providers(context: typer.Context, json: Json = False) -> None:
    """List the providers."""
    if context.invoked_subcommand is None:
        list_providers(json)


def list_providers(json: Json = False) -> None:
    """List the providers."""
    from flowlite.provider import adapter_class, provider_names
    from flowlite.settings.settings import load_settings

    chosen = load_settings().provider
    rows = []
    for name in provider_names():
        try:
            about = _first_line(adapter_class(name).__doc__)
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


def check(
    name: Annotated[
        str | None,
        typer.Argument(
            help="Only this provider; by default, all that are configured.",
            metavar="[NAME]",
            autocompletion=complete_provider,
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Check credentials and permissions, without launching anything."""
    from flowlite.cli.commands.money import set_up, side_by_side

    names = [name] if name is not None else set_up()
    rows = [
        {"provider": each, **finding.to_json()}
        for each, findings in zip(names, side_by_side(_findings, names), strict=True)
        for finding in findings
    ]
    if json:
        output.print_json("checks", rows)
    elif rows:
        output.table(
            ("provider", "check", "result", "detail"),
            [
                (
                    row["provider"],
                    row["what"],
                    "ok" if row["ok"] else "FAILED",
                    row["detail"],
                )
                for row in rows
            ],
        )
    if not json:
        for each in names:
            if all(row["provider"] != each for row in rows):
                output.say(f"{each}: nothing to check")
    if not all(row["ok"] for row in rows):
        raise output.Quit(ProviderError.exit_code)


def _findings(name: str) -> list[Finding]:
    from flowlite.api.adapters import adapter
    from flowlite.provider import Finding

    try:
        return adapter(name).check()
    except (FlowError, ImportError, OSError) as error:
        return [Finding("check", False, str(error) or type(error).__name__)]


def _age(text: str | None) -> float | None:
    """The Unix time that lies so long ago."""
    if text is None:
        return None
    from flowlite.output.reader import parse_since

    if not text[:-1].replace(".", "", 1).isdigit():
        raise ConfigError(f"--older-than: {text!r} is not allowed; write 12h or 7d")
    return parse_since(text)


def _old_tasks(session: Session, before: float | None) -> list[TaskRecord]:
    if before is None:
        return []
    tasks = session.store.list_tasks()
    return [task for task in tasks if task.final and (task.finished_at or clock.now()) < before]


def _forget(session: Session, task: TaskRecord) -> None:
    # The files first: a task without files can be forgotten later, files without a task would never be found.
    shutil.rmtree(session.paths(task.id).directory, ignore_errors=True)
    session.store.delete_task(task.id)


def _first_line(text: Any) -> str:
    return str(text or "").strip().partition("\n")[0]
