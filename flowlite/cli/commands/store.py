"""`flow store`: checks the database of tasks, and restores a backup of it."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from flowlite.cli import output
from flowlite.cli.common_options import Json
from flowlite.errors import ConfigError, NotFound
from flowlite.node.system.byte_sizes import human_size

if TYPE_CHECKING:
    from pathlib import Path

    from flowlite.state.backups import Backup

_LARGEST = 10


store = typer.Typer(
    help="Check the database of tasks, restore a backup, or show disk use.",
    no_args_is_help=True,
)


@store.command()
def check(json: Json = False) -> None:
    """Check the structure of the database, every row, and the files of every task. Changes nothing."""
    from flowlite.settings import settings
    from flowlite.supervise.cleanup import store_restore

    found = store_restore.check(settings.home())
    if json:
        output.print_json(
            "store", {**asdict(found), "last_copy": output.json_time(found.last_copy)}
        )
    else:
        for problem in found.problems:
            output.say(problem)
        copy = "none" if found.last_copy is None else f"{store_restore.age(found.last_copy)} old"
        wrong = f"{len(found.problems)} problems" if found.problems else "nothing is wrong"
        output.say(f"{found.tasks} tasks can be read, {wrong}; newest copy: {copy}")
    if found.problems:
        output.tell_wrapped(
            "`flow store restore` lists the copies of the database; `flow store restore latest` puts the newest in its "
            "place, and what is damaged is kept beside it"
        )
        raise output.Quit(1)


@store.command()
def restore(
    copy: Annotated[
        str | None,
        typer.Argument(
            help="Name of a backup, or `latest`; without it, all are listed.", metavar="COPY"
        ),
    ] = None,
    empty: Annotated[
        bool,
        typer.Option(
            "--empty",
            help="Start with an empty database, and find the tasks again from their files.",
        ),
    ] = False,
    yes: Annotated[
        bool,
        typer.Option(
            "--yes", "-y", help="Restore even if nothing is wrong with the current database."
        ),
    ] = False,
    json: Json = False,
) -> None:
    """Replace the database by a backup; tasks missing from the backup are found again from their files."""
    from flowlite.settings import settings
    from flowlite.state import backups
    from flowlite.supervise.cleanup import store_restore

    home = settings.home()
    found = backups.list_backups(home)
    if copy is None and not empty:
        _show(found, home, json)
        return
    chosen = None if empty else _chosen(found, str(copy))
    if not yes and not store_restore.check(home).problems:
        raise ConfigError(
            "nothing is wrong with the database that is there; add --yes to replace it"
        )
    done = store_restore.restore(home, chosen)
    if json:
        output.print_json("restored", {**asdict(done), "copy": chosen and chosen.name})
        return
    output.say(f"restored {chosen.name}" if chosen else "began with an empty database")
    if done.aside is not None:
        output.say(f"what was there is kept: {done.aside}")
    if done.supervisors:
        output.say(
            f"ended the supervisors of {', '.join(done.supervisors)}; the next command starts them again"
        )
    if done.found:
        output.say(f"found again from their files: {', '.join(done.found)}")
    for problem in done.problems:
        output.warn(problem)


def _chosen(found: list[Backup], name: str) -> Backup:
    if name == "latest" and found:
        return found[0]
    for backup in found:
        if backup.name == name:
            return backup
    raise NotFound(
        f"no copy {name!r}; `flow store restore` lists them, `--empty` begins without one"
    )


def _show(found: list[Backup], home: Path, json: bool) -> None:
    from flowlite.supervise.cleanup import store_restore

    if json:
        data = [
            {
                "name": each.name,
                "kind": each.kind,
                "made_at": output.json_time(each.made_at),
                "size": each.size,
            }
            for each in found
        ]
        output.print_json("copies", data)
        return
    if not found:
        output.say(
            f"no copies in {home / 'backups'}; `flow store restore --empty` begins without one, and finds tasks "
            "again from their files"
        )
        return
    output.table(
        ("copy", "made", "age", "size"),
        [
            (
                each.name,
                output.clock(each.made_at),
                store_restore.age(each.made_at),
                human_size(each.size),
            )
            for each in found
        ],
    )
    output.say("`flow store restore COPY` puts one in place")


@store.command()
def usage(json: Json = False) -> None:
    """Show how much room FLOW_HOME takes, by what it is for, and the tasks that take most."""
    from flowlite.api.session import open_session
    from flowlite.retention import usage as measure
    from flowlite.settings import settings

    home = settings.home()
    names = {task.id: f"{task.name} ({task.id})" for task in open_session().store.list_tasks()}
    kinds, tasks = measure.usage(home), measure.by_task(home)
    if json:
        output.print_json("usage", {"home": str(home), "bytes": kinds, "tasks": tasks})
        return
    rows = sorted(kinds.items(), key=lambda pair: -pair[1])
    total = [("in all", sum(kinds.values()))]
    output.table(("what", "size"), [(name, human_size(size)) for name, size in [*rows, *total]])
    largest = [(names.get(name, name), human_size(size)) for name, size in tasks.items()]
    if largest:
        output.say()
        output.table(("largest tasks", "size"), largest[:_LARGEST])
        output.tell_wrapped(
            "`flow rm TASK` removes a task; inputs and logs of old ones are pruned by themselves "
            "(settings keep_inputs_days, keep_logs_days, keep_gb)"
        )
