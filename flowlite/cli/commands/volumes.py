"""`flow volumes`: manages named volumes of the provider, and the files of volumes and buckets."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flowlite.cli import output
from flowlite.cli.common_options import Json, Yes
from flowlite.cli.completion import complete_provider
from flowlite.cli.confirmation import can_ask, confirm
from flowlite.errors import ConfigError, NotFound
from flowlite.node.system.byte_sizes import human_size

if TYPE_CHECKING:
    from flowlite.api.client import Volumes
    from flowlite.provider import VolumeInfo

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
Name = Annotated[str, typer.Argument(help="Name of the volume.", metavar="NAME")]


volumes = typer.Typer(
    help="Named volumes, and the files of volumes and buckets.", invoke_without_command=True
)


@volumes.callback()
def _list_by_default(context: typer.Context, json: Json = False) -> None:
    if context.invoked_subcommand is None:
        list_volumes(json=json)


@volumes.command("list")
def list_volumes(provider: Where = None, json: Json = False) -> None:
    """List the volumes of all providers that are configured."""
    from flowlite.api.client import Flow
    from flowlite.cli.commands.money import ask_providers
    from flowlite.state import clock
    from flowlite.supervise.money.cost import volume_cost

    left_out: list[str] = []

    def look(name: str) -> list[VolumeInfo]:
        volumes, unseen = Flow(name).volumes.look()
        left_out.extend(f"{name}: not looked at: {each}" for each in unseen)
        return [*volumes]

    found, problems = ask_providers(look, provider)
    found.sort(key=lambda volume: (volume.name, volume.provider))
    costs = [volume_cost(volume, clock.now()) for volume in found]
    if json:
        data = [{**v.to_json(), "cost_so_far": c} for v, c in zip(found, costs, strict=True)]
        output.print_json("volumes", data)
    for text in (*left_out, *problems):
        output.warn(text)
    if json:
        return
    if not found:
        output.say(_none_there(provider))
        return
    _show(found, costs)


def _none_there(provider: str | None) -> str:
    """Says that one provider has no volumes, or none has, and how one is made."""
    from flowlite.cli.commands.money import providers_to_ask
    from flowlite.provider import adapter_class

    adapters = [adapter_class(name) for name in providers_to_ask(provider)]
    able = [each for each in adapters if each.has_volumes()]
    if not able:
        names = ", ".join(each.name for each in adapters)
        return f"{names} cannot have volumes; a task that names one is refused there"
    sized = [each.name for each in able if each.needs_volume_size]
    if not sized:
        return "no volumes yet; a task that names one makes it"
    if len(sized) == len(able):
        return "no volumes yet; a task that names one and gives its size_gb makes it"
    return f"no volumes yet; a task that names one makes it; at {' and '.join(sized)} it has to give size_gb"


def _print(rows: Sequence[dict[str, str]]) -> None:
    """Prints the table; on a terminal that is too narrow, without what is least important."""
    leave_out = {"region": 1, "interface": 2, "used": 3, "since": 4, "location": 5, "size": 6}
    # A terminal shows no column without a value.
    nothing = "" if sys.stdout.isatty() else "-"
    shown = [[nothing if text == "-" else text for text in row.values()] for row in rows]
    output.table_of_lines(tuple(rows[0]), shown, {"location": 16}, leave_out)


def _show(found: Sequence[VolumeInfo], costs: Sequence[float | None]) -> None:
    """Shows volumes as a table, with what they cost if any of them costs something."""
    months = [volume.price_per_month for volume in found if volume.price_per_month is not None]
    rows: list[dict[str, str]] = []
    for volume, cost in zip(found, costs, strict=True):
        paid = {
            "per month": output.money(volume.price_per_month),
            "since": output.day(volume.created_at),
            "so far": "by use" if volume.by_use and cost is None else output.money(cost),
        }
        rows.append(
            {
                "name": volume.name,
                "provider": volume.provider,
                "region": volume.region or "-",
                "interface": volume.interface,
                "size": f"{volume.size_gb:g} GB" if volume.size_gb else "-",
                "used": "-" if volume.used_bytes is None else human_size(volume.used_bytes),
                **(paid if months else {}),
                "used by": ", ".join(volume.used_by) or "-",
                "location": volume.location,
            }
        )
    _print(rows)
    if months:
        known = [cost for cost in costs if cost is not None]
        so_far = f", {output.money(sum(known))} so far" if known else ""
        output.say(f"in all: {output.money(sum(months))} per month{so_far}, until they are deleted")
    if any(volume.by_use for volume in found):
        output.say(
            "charged by use: per month is for what is stored now, so far for what was stored, if the provider has "
            "measured it; reads and writes are extra"
        )
    if unknown := [v.name for v in found if v.by_use and v.price_per_month is None]:
        output.say(
            f"no price is known for {', '.join(unknown)}, which costs something all the same"
        )


@volumes.command()
def create(
    name: Name,
    size_gb: Annotated[float | None, typer.Option("--size-gb", help="Size in GB.")] = None,
    interface: Annotated[str, typer.Option("--interface", help="file or block.")] = "file",
    provider: Annotated[
        str | None,
        typer.Option(
            "--provider",
            help="Provider to create it at; by default, that of the setting `provider`.",
            autocompletion=complete_provider,
        ),
    ] = None,
    region: Annotated[
        str | None,
        typer.Option(
            "--region",
            help="Region to create it in, or zone of a block volume; by default, that of the settings.",
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Create a volume, or show the one of that name."""
    from flowlite.api.client import Flow
    from flowlite.provider import kept_size

    volume = Flow(provider).volumes.create(name, size_gb, interface, region)
    if json:
        output.print_json("volume", volume.to_json())
        return
    output.say(f"volume {volume.name}: {volume.location}")
    if size_gb is not None and volume.size_gb is None:
        output.warn(f"{volume.name} grows with what is stored on it; --size-gb has no effect here")
    elif kept := kept_size(volume.name, volume.size_gb or 0.0, size_gb):
        output.warn(kept)


@volumes.command()
def delete(
    name: Name,
    yes: Yes = False,
    provider: Provider = None,
    json: Json = False,
) -> None:
    """Delete a volume and everything on it."""
    from flowlite.api.client import Flow

    volumes = Flow(provider).volumes
    try:
        if not yes:
            where = _provider_of(volumes, name)
            if not can_ask():
                raise ConfigError(f"everything on the volume {name!r} would be lost; add --yes")
            # `flow volumes list` shows volumes of the same name at other providers.
            confirm(
                f"Delete the volume {name!r}{where} and everything on it?", "nothing was deleted"
            )
        volumes.delete(name)
    except NotFound as error:
        if provider is not None:
            raise
        # `flow volumes list` shows those of other providers as well.
        raise NotFound(
            f"{error}; if `flow volumes list` shows it elsewhere, add its --provider"
        ) from error
    data = {"name": name, "deleted": True}
    output.say_or_json(f"volume {name} is deleted", json, "deleted-volume", data)


def _provider_of(volumes: Volumes, name: str) -> str:
    """Where a volume is, for the question whether to delete it; "" if that is not known. Raises NotFound."""
    found, unseen = volumes.look()
    for volume in found:
        if volume.name == name:
            return f" at {volume.provider}"
    # One that is somewhere else may be where the provider did not look.
    if not unseen:
        raise NotFound(f"there is no volume {name!r}")
    return ""


Place = Annotated[str, typer.Argument(help="NAME[:PATH], or s3://BUCKET/PATH.", metavar="VOLUME")]


@volumes.command()
def put(
    source: Annotated[Path, typer.Argument(help="A file or directory here.", metavar="SOURCE")],
    volume: Place,
    provider: Provider = None,
    json: Json = False,
) -> None:
    """Copy a file or directory from here to a volume or bucket.

    As with cp, it is copied into a directory that exists. Existing files are replaced. Run again, an interrupted
    copy resumes.
    """
    from flowlite.api.volume_files.files import count_others, name_of, sources_of
    from flowlite.api.volume_files.storage import open_storage, split
    from flowlite.cli.transfer_progress import Transfer, tell_copied

    if not source.exists():
        raise ConfigError(f"{source} does not exist")
    if not source.is_dir() and not source.is_file():
        raise ConfigError(f"{source} is neither a file nor a directory")
    name, path, is_directory = split(volume)
    with open_storage(name, provider) as storage:
        if is_directory or storage.is_directory(path):
            own = name_of(source)
            path = f"{path}/{own}" if path else own
        sources = sources_of(source, path)
        total = sum(each.size for each in sources)
        with Transfer(path, total) as transfer:
            storage.put(sources, transfer.moved)
    output.warn_of_others(count_others(source))
    tell_copied(_shown(name, path), len(sources), total, json=json)


@volumes.command()
def get(
    volume: Place,
    target: Annotated[str, typer.Argument(help="A path here.", metavar="TARGET")] = ".",
    provider: Provider = None,
    json: Json = False,
) -> None:
    """Copy a file or directory from a volume or bucket to here.

    As with cp, it is copied into a directory that exists. Nothing here is overwritten. Run again, an interrupted copy
    resumes.
    """
    from flowlite.api.volume_files.storage import open_storage, split
    from flowlite.cli.transfer_progress import Transfer, tell_copied
    from flowlite.supervise.attempt.outputs.output_directory import OutputDirectory, check_made

    name, path, _ = split(volume)
    own = path.rpartition("/")[2] or name.removeprefix("s3://")
    with open_storage(name, provider) as storage:
        tree = storage.tree(path)
        single = ""
        # `Path` drops the slash at the end, by which a directory is named that does not exist yet.
        inside = target.endswith("/") or Path(target).is_dir()
        root = (Path(target) / own if inside else Path(target)).absolute()
        if tree.single:
            root, single = root.parent, root.name
        elif inside:
            check_made(root)
        with Transfer(path or name, tree.size) as transfer:
            taken = storage.get(path, tree, OutputDirectory(root), single, transfer.moved)
    if tree.others:
        output.warn(
            f"not copied: {tree.others} links, special files, directories that cannot be read, and names that are no "
            "paths"
        )
    # A file that was removed there meanwhile is not here.
    copied = [
        file
        for file in tree.files
        if (single or file.path) not in taken and (root / (single or file.path)).exists()
    ]
    place = str(root / single if single else root)
    copied_size = sum(file.size for file in copied)
    tell_copied(place, len(copied), copied_size, json=json, taken=taken, below=str(root))


@volumes.command()
def ls(volume: Place, provider: Provider = None, json: Json = False) -> None:
    """List the files in a directory of a volume or bucket."""
    from flowlite.api.volume_files.storage import open_storage, split

    name, path, _ = split(volume)
    with open_storage(name, provider) as storage:
        entries = storage.entries(path)
    if json:
        shown = [
            {
                "name": each.name,
                "kind": each.kind,
                "bytes": each.size,
                "modified": output.json_time(each.modified),
            }
            for each in entries
        ]
        output.print_json("files", shown)
        return
    if not entries:
        output.tell(f"{_shown(name, path)} is empty")
        return
    output.table(
        ("name", "size", "modified"),
        [
            (
                f"{each.name}/" if each.kind == "directory" else each.name,
                human_size(each.size) if each.kind == "file" else "-",
                _time(each.modified),
            )
            for each in entries
        ],
    )


@volumes.command()
def rm(
    volume: Place,
    recursive: Annotated[
        bool,
        typer.Option("--recursive", "-r", help="Remove a directory with everything in it."),
    ] = False,
    provider: Provider = None,
    json: Json = False,
) -> None:
    """Remove a file or directory from a volume or bucket."""
    from flowlite.api.volume_files.storage import open_storage, split

    name, path, _ = split(volume)
    with open_storage(name, provider) as storage:
        count = storage.remove(path, recursive=recursive)
    if json:
        output.print_json("removed-files", {"path": _shown(name, path), "files": count})
    else:
        from flowlite.cli.transfer_progress import files

        output.tell(f"{files(count)} removed")


def _time(at: float | None) -> str:
    return "-" if at is None else time.strftime("%Y-%m-%d %H:%M", time.localtime(at))


def _shown(name: str, path: str) -> str:
    separator = "/" if name.startswith("s3://") else ":"
    return f"{name}{separator}{path}"
