"""The arguments and options that several commands have."""

from __future__ import annotations

from typing import Annotated

import typer

from flowlite.cli.completion import complete_task

TASK = typer.Argument(
    help="Id, name or unique prefix.", autocompletion=complete_task, metavar="TASK"
)
TASKS = typer.Argument(
    help="Ids, names or unique prefixes.", autocompletion=complete_task, metavar="TASK..."
)
Rest = Annotated[
    list[str] | None,
    typer.Argument(help="Arguments of the function or command.", metavar="ARGS..."),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
JsonOfResult = Annotated[
    bool, typer.Option("--json", help="Print JSON: the task, and its result at the end.")
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]
YesToCost = Annotated[
    bool, typer.Option("--yes", "-y", help="Do not ask before a launch that costs money.")
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Only show what would be launched, and its price.")
]
Detach = Annotated[
    bool, typer.Option("--detach", "-d", help="Return as soon as the task is submitted.")
]
NoLogs = Annotated[bool, typer.Option("--no-logs", help="Do not show the output of the workers.")]
