"""`flow volumes`: manages named volumes of the provider."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from flowlite.cli import output
from flowlite.cli.completion import complete_provider
from flowlite.errors import ConfigError

Provider = Annotated[
    str | None,
    typer.Option(
        "--provider", help="Only volumes of this provider.", autocompletion=complete_provider
    ),
]
Where = Annotated[
    str | None,
    typer.Option(
        "--provider",
        help="Only this provider; by default, all that are configured.",
        autocompletion=complete_provider,
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Name = Annotated[str, typer.Argument(help="Name of the volume.", metavar="NAME")]


def register(application: typer.Typer, command: str) -> None:
    """Adds `flow volumes` with its subcommands."""
    group = typer.Typer(help="List, create and delete named volumes.", invoke_without_command=True)
    group.callback()(_list_by_default)
    group.command("list")(list_volumes)
    group.command("create")(create)
    group.command("delete")(delete)
    application.add_typer(group, name=command)


def _list_by_default(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        list_volumes()


def list_volumes(provider: Where = None, json: Json = False) -> None:
    """List the volumes of all providers that are configured."""
    from flowlite.api.client import Flow
    from flowlite.cli.commands.money import ask_providers

    found, problems = ask_providers(lambda name: Flow(name).volumes.list(), provider)
    found.sort(key=lambda volume: (volume.name, volume.provider))
    if json:
        output.print_json("volumes", [volume.to_json() for volume in found])
    for name, problem in problems:
        output.warn(f"{name}: {problem}")
    if json:
        return
    if not found:
        output.say("no volumes yet; a task that names one makes it")
        return
    output.table(
        (
            "name",
            "provider",
            "region",
            "interface",
            "size",
            "used",
            "per month",
            "used by",
            "location",
        ),
        [
            (
                volume.name,
                volume.provider,
                volume.region or "-",
                volume.interface,
                f"{volume.size_gb:g} GB" if volume.size_gb else "-",
                size(volume.used_bytes),
                output.money(volume.price_per_month),
                ", ".join(volume.used_by) or "-",
                volume.location,
            )
            for volume in found
        ],
    )


def create(
    name: Name,
    size_gb: Annotated[float | None, typer.Option("--size-gb", help="Size in GB.")] = None,
    interface: Annotated[str, typer.Option("--interface", help="file or block.")] = "file",
    provider: Provider = None,
    json: Json = False,
) -> None:
    """Create a volume, or show the one of that name."""
    from flowlite.api.client import Flow

    volume = Flow(provider).volumes.create(name, size_gb, interface)
    if json:
        output.print_json("volume", volume.to_json())
        return
    output.say(f"volume {volume.name}: {volume.location}")


def delete(
    name: Name,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    provider: Provider = None,
    json: Json = False,
) -> None:
    """Delete a volume and everything on it."""
    from flowlite.api.client import Flow

    if not yes:
        if not sys.stdin.isatty():
            raise ConfigError(f"everything on the volume {name!r} would be lost; add --yes")
        typer.confirm(f"Delete the volume {name!r} and everything on it?", abort=True)
    Flow(provider).volumes.delete(name)
    if json:
        output.print_json("volume", {"name": name, "deleted": True})
    else:
        output.say(f"volume {name} is deleted")


def size(count: int | None) -> str:
    """A number of bytes as text: `12 kB`, `3.4 GB`."""
    if count is None:
        return "-"
    amount = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if amount < 1000:
            return f"{amount:.0f} {unit}" if amount >= 10 or unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1000
    return f"{amount:.1f} TB"
