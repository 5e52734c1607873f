"""`flow gc` and `flow rm`, which clean up, and `flow providers`."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flowlite.cli import output
from flowlite.cli.common_options import TASKS, Json, Yes
from flowlite.cli.completion import complete_provider
from flowlite.cli.confirmation import can_ask, confirm
from flowlite.errors import ConfigError, ProviderError, StoreError
from flowlite.state import clock

if TYPE_CHECKING:
    from flowlite.api.session import Session
    from flowlite.provider import Finding
    from flowlite.state.store import TaskRecord


_AGE = re.compile(r"(\d+(?:\.\d+)?)\s*([smhd])", re.ASCII)
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


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
    yes: Yes = False,
    json: Json = False,
) -> None:
    """End leftovers of tasks that have ended, and restart the supervisors of tasks that lost theirs.

    Exit status 5 if something could not be looked at or ended, such as a region that does not answer.
    """
    from flowlite.api.adapters import settings_here
    from flowlite.api.session import open_session
    from flowlite.supervise.cleanup.reconcile import reconcile

    session = open_session()
    # Checked before anything is ended, so that a wrong age ends nothing.
    _old_tasks(session, older_than)
    unknown = yes
    if not dry_run and not yes:
        # What appears between this look and the next is not ended unless the user was asked.
        all_homes = all_homes and _ask_about_others(session, json)
        unknown = can_ask() and not json and _ask_about_unknown(session)
    found = reconcile(
        session.store,
        session.home,
        here=settings_here,
        dry_run=dry_run,
        warm=warm,
        unknown=unknown,
        all_homes=all_homes,
    )
    old = _old_tasks(session, older_than)
    if not dry_run:
        old, problems = _forget(session, old)
        found.problems += problems
    from flowlite.retention.pruning import remove_contents

    freed = remove_contents(session, dry_run=dry_run)
    if json:
        data = {
            "dry_run": dry_run,
            **found.to_json(),
            "forgotten": [task.id for task in old],
            "freed_bytes": freed,
        }
        output.print_json("gc", data)
    else:
        would = "would be " if dry_run else ""
        said = [
            *found.lines(dry_run),
            *(f"task {task.name} ({task.id}): {would}forgotten" for task in old),
        ]
        if freed:
            said.append(
                f"files of projects that no task used lately: {freed:,} bytes {would}removed"
            )
        for line in said or ["nothing to do"]:
            output.say(line)
    if found.incomplete:
        raise output.Quit(ProviderError.exit_code)


def rm(
    tasks: Annotated[list[str] | None, TASKS] = None,
    older_than: Annotated[
        str | None,
        typer.Option(
            "--older-than", help="All tasks that ended so long ago: 7d, 12h.", metavar="AGE"
        ),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    json: Json = False,
) -> None:
    """Forget tasks that have ended, with their inputs, logs and results. Volumes and outputs stay."""
    from flowlite.api.session import open_session
    from flowlite.retention.removal import reason_to_keep

    session = open_session()
    now = clock.now(session.home)
    if older_than is not None and tasks:
        raise ConfigError("give either TASKs or --older-than, not both")
    if older_than is not None:
        found = _old_tasks(session, older_than)
    elif tasks:
        # All tasks are checked first, so that nothing is removed if one of them must be kept.
        found = list({one.id: one for one in map(session.store.find_task, tasks)}.values())
        for one in found:
            if reason := reason_to_keep(session, one, now):
                raise ConfigError(f"{one.name} ({one.id}) cannot be removed: {reason}")
    else:
        raise ConfigError(
            "name the TASKs to remove, or give --older-than; `flow status --all` lists them"
        )
    if found and not yes and not json and can_ask():
        for one in found:
            output.tell(f"{one.name} ({one.id}), {one.state} {_ago(one, now)} ago")
        which = "this task" if len(found) == 1 else f"these {len(found)} tasks"
        confirm(f"Remove {which} with inputs, logs and results?", "nothing was removed")
    removed, problems = _forget(session, found)
    if json:
        output.print_json("removed", [one.id for one in removed])
    else:
        for one in removed:
            output.say(f"{one.name} ({one.id}) is removed")
    if problems:
        lacking = StoreError("\n".join(problems))
        raise output.beside_json(lacking) if json else lacking
    if not found and not json:
        output.say("no task is that old")


def _old_tasks(session: Session, age: str | None) -> list[TaskRecord]:
    """The tasks that ended at least this long ago, and of which nothing must be kept. Raises ConfigError."""
    from flowlite.retention.removal import reason_to_keep

    if age is None:
        return []
    found = _AGE.fullmatch(age.strip())
    if found is None:
        raise ConfigError(f"--older-than: {age!r} is not allowed; write 12h or 7d")
    now = clock.now(session.home)
    before = now - float(found[1]) * _SECONDS[found[2]]
    return [
        one
        for one in session.store.list_tasks()
        if one.final and (one.finished_at or now) < before and not reason_to_keep(session, one, now)
    ]


def _forget(session: Session, tasks: list[TaskRecord]) -> tuple[list[TaskRecord], list[str]]:
    """Removes tasks. Returns those that are removed, and why the others are not."""
    from flowlite.retention.removal import forget

    removed, problems = [], []
    for one in tasks:
        try:
            forget(session, one)
        except StoreError as error:
            problems.append(str(error))
        else:
            removed.append(one)
    return removed, problems


def _ago(record: TaskRecord, now: float) -> str:
    return output.duration(now - (record.finished_at or now))


def _ask_about_others(session: Session, json: bool) -> bool:
    """Shows what belongs to other FLOW_HOMEs, and asks for confirmation. Returns False if there is nothing.

    Raises ConfigError without a terminal.
    """
    from flowlite.api.adapters import settings_here
    from flowlite.supervise.cleanup.reconcile import reconcile

    found = reconcile(session.store, session.home, here=settings_here, dry_run=True, all_homes=True)
    if not (found.others or found.removed_of_others):
        return False
    if json or not can_ask():
        raise ConfigError(
            f"--all-homes would end {len(found.others)} machines that were launched from other FLOW_HOMEs, and remove "
            f"{len(found.removed_of_others)} things that those have left; look at them with --dry-run, then add --yes"
        )
    for line in found.lines(dry_run=True):
        output.tell(line)
    confirm("End and remove all of these?", "nothing was ended or removed")
    return True


def _ask_about_unknown(session: Session) -> bool:
    """Shows what belongs to tasks that are not in the store, and asks whether to end it."""
    from flowlite.api.adapters import settings_here
    from flowlite.supervise.cleanup.reconcile import reconcile

    found = reconcile(session.store, session.home, here=settings_here, dry_run=True, unknown=True)
    if not found.unknown:
        return False
    for each in found.unknown:
        output.tell(f"{each['provider']} {each['id']} of task {each['task']}")
    return typer.confirm(
        "The store does not know these tasks: it may have been lost, or be a copy of an earlier day, and "
        "`flow store restore` finds tasks again. End what they have?",
        err=True,
    )


providers = typer.Typer(
    help="Show the providers, and check their credentials.", invoke_without_command=True
)


@providers.callback()
def _list_by_default(context: typer.Context, json: Json = False) -> None:
    if context.invoked_subcommand is None:
        list_providers(json)


@providers.command("list")
def list_providers(json: Json = False) -> None:
    """List the providers."""
    from flowlite.provider import adapter_class, adapters_problem, provider_names
    from flowlite.settings.settings import load_settings
    from flowlite.spec.one_or_several import values_of

    chosen = values_of(load_settings()["provider"])
    rows = []
    for name in provider_names():
        try:
            about = _first_line(adapter_class(name).__doc__)
            usable = True
        except Exception as error:
            about, usable = adapters_problem(error), False
        rows.append({"name": name, "default": name in chosen, "usable": usable, "about": about})
    if json:
        output.print_json("providers", rows)
        return
    output.table(
        ("provider", "default", "what"),
        [(str(row["name"]), "yes" if row["default"] else "", str(row["about"])) for row in rows],
    )


@providers.command()
def check(
    name: Annotated[
        str | None,
        typer.Argument(
            help="Only this provider; by default, all that are configured.",
            metavar="NAME",
            autocompletion=complete_provider,
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Check credentials and permissions, without launching anything."""
    from flowlite.cli.commands.money import providers_to_ask
    from flowlite.cli.node_queries import in_parallel
    from flowlite.provider import adapter_class, provider_names

    if name is not None and name not in provider_names():
        # Raises NotFound, which names those there are.
        adapter_class(name)
    names = providers_to_ask(name)
    rows = [
        {"provider": each, **finding.to_json()}
        for each, findings in zip(names, in_parallel(_findings, names), strict=True)
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
    from flowlite.provider import Finding, adapters_problem

    try:
        return adapter(name).check()
    except Exception as error:
        return [Finding("check", False, adapters_problem(error))]


def _first_line(text: Any) -> str:
    return str(text or "").strip().partition("\n")[0]
