"""`flow config`: shows settings with their origins, and changes them."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flowlite.cli import output
from flowlite.cli.common_options import Json

if TYPE_CHECKING:
    from flowlite.settings.settings import Entry


def _complete_setting(incomplete: str) -> list[tuple[str, str]]:
    from flowlite.settings.settings import SETTINGS

    return [
        (name, setting.help) for name, setting in SETTINGS.items() if name.startswith(incomplete)
    ]


Name = Annotated[
    str,
    typer.Argument(help="Name of the setting.", metavar="NAME", autocompletion=_complete_setting),
]


config = typer.Typer(help="Show and change settings.", invoke_without_command=True)


@config.callback()
def _list_by_default(context: typer.Context, json: Json = False) -> None:
    if context.invoked_subcommand is None:
        list_settings(json)


@config.command("list")
def list_settings(json: Json = False) -> None:
    """Show all settings, and where each was set."""
    from flowlite.settings.settings import load_settings

    settings = load_settings()
    entries = [*settings, *settings.provider_entries()]
    if json:
        output.print_json("settings", [asdict(entry) for entry in entries])
        return
    output.table(
        ("name", "value", "set by", "what"),
        [(entry.name, _shown(entry.value), _origin(entry), entry.help) for entry in entries],
    )
    if any(entry.trusted is False for entry in entries):
        output.tell("note: read what is not trusted, then accept it with `flow config trust`")


def _origin(entry: Entry) -> str:
    if entry.trusted is None:
        return entry.origin
    return f"{entry.origin} ({'trusted' if entry.trusted else 'not trusted'})"


@config.command()
def get(name: Name, json: Json = False) -> None:
    """Print the value of one setting."""
    from flowlite.settings.settings import load_settings

    settings = load_settings()
    found = {entry.name: entry for entry in settings.provider_entries()}
    entry = found.get(name) or settings.entry(name)
    _say(entry, _shown(entry.value), json)


@config.command("set")
def set_one(
    name: Name,
    value: Annotated[str, typer.Argument(help="Its value.", metavar="VALUE")],
    json: Json = False,
) -> None:
    """Set a value in the file of FLOW_HOME."""
    from flowlite.settings.settings import set_value

    entry = set_value(name, value)
    _say(entry, f"{name} = {_shown(entry.value)}, in {entry.origin}", json)


@config.command()
def unset(name: Name, json: Json = False) -> None:
    """Remove a value from the file of FLOW_HOME."""
    from flowlite.settings.settings import load_settings, unset_value

    unset_value(name)
    entry = load_settings().entries[name]
    _say(entry, f"{name} is {_shown(entry.value)} now ({entry.origin})", json)


def _say(entry: Entry, text: str, json: bool) -> None:
    data = {"name": entry.name, "value": entry.value, "origin": entry.origin}
    output.say_or_json(text, json, "setting", data)


@config.command()
def path(json: Json = False) -> None:
    """Print the path of the file that `set` writes."""
    from flowlite.settings.settings import HOME_FILE, home

    file = home() / HOME_FILE
    output.say_or_json(str(file), json, "path", {"path": str(file), "home": str(home())})


@config.command("trust")
def trust_project(
    withdraw: Annotated[bool, typer.Option("--withdraw", help="Withdraw the trust.")] = False,
    json: Json = False,
) -> None:
    """Trust the project's flow.toml as it is now, with the OpenSSH configuration that it names."""
    from flowlite.settings import trust
    from flowlite.settings.settings import ensure_home, project_file, read_project

    home, file = ensure_home(), project_file().absolute()
    if withdraw:
        known = trust.withdraw(file, home)
        data = {"file": str(file), "trusted": False, "files": [], "settings": []}
        text = f"{file} is {'no longer' if known else 'not'} trusted"
        output.say_or_json(text, json, "trust", data)
        return
    project = read_project()
    needing = [] if project is None else project.needing()
    files = [] if project is None else trust.files_of(project.path, project.tables)
    if project is not None:
        trust.trust(project.path, project.content, project.tables, home)
    if json:
        data = {"file": str(file), "trusted": project is not None, "files": files}
        output.print_json("trust", {**data, "settings": [name for name, _ in needing]})
        return
    if project is None:
        output.say(f"{file} sets nothing that needs trust" if file.exists() else f"no {file}")
        return
    for name, reason in needing:
        output.say(f"{name}: {reason}")
    output.say(f"trusted as they are now: {', '.join(files)}")


def _shown(value: Any) -> str:
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return "-" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
