"""Opens the storage that is named on the command line: a volume of a provider, or a bucket."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from flowlite.api.volume_files.files import Storage, plain_path
from flowlite.errors import ConfigError, NotFound

if TYPE_CHECKING:
    from flowlite.api.volume_files.on_machine import MachineVolume
    from flowlite.provider import Provider
    from flowlite.state.store import TaskRecord

_BUCKET = "s3://"


def split(text: str) -> tuple[str, str, bool]:
    """Parses `NAME:PATH` or `s3://BUCKET/PATH`. Raises ConfigError.

    Returns the name or the URL of the bucket, the path, and whether the path was given as a directory, with a slash.
    """
    if text.startswith(_BUCKET):
        bucket, _, path = text.removeprefix(_BUCKET).partition("/")
        name = f"{_BUCKET}{bucket}"
    else:
        from flowlite.spec.storage import volume_name

        name, _, path = text.partition(":")
        try:
            volume_name(name)
        except ValueError as error:
            raise ConfigError(f"{error}; write NAME:PATH, or s3://BUCKET/PATH") from None
    return name, plain_path(path), path == "" or path.endswith("/")


@contextmanager
def open_storage(name: str, provider: str | None) -> Iterator[Storage]:
    """Opens a volume of a provider (None for that of the settings), or the bucket of a URL, named as by `split`.

    Raises:
        NotFound: There is no such volume.
        ConfigError: Only a machine that does not run now can reach it.
        NodeUnreachable: The machine that has it does not answer.
    """
    if name.startswith(_BUCKET):
        from flowlite.api.volume_files.in_bucket import open_bucket

        yield open_bucket(name)
        return
    from flowlite.api.client import Flow
    from flowlite.api.volume_files.on_machine import MachineVolume

    adapter = Flow(provider)._chosen()
    with adapter.volume_place(name) as place:
        if place is not None:
            yield MachineVolume(name, place.connection, place.command, place.directory)
            return
    with _on_node(adapter, name) as volume:
        yield volume


@contextmanager
def _on_node(adapter: Provider, name: str) -> Iterator[MachineVolume]:
    """The volume as the workers of a running task see it."""
    from flowlite.api import node_access
    from flowlite.api.session import open_session
    from flowlite.api.volume_files.on_machine import MachineVolume

    if all(each.name != name for each in adapter.list_volumes()):
        raise NotFound(
            f"no volume {name!r} at the provider {adapter.name!r}; `flow volumes list` shows all"
        )
    session = open_session()
    for record in session.store.list_tasks(unfinished=True):
        path = _path_of(record, name)
        if record.provider != adapter.name or path is None or record.state != "running":
            continue
        with node_access.access(session, record, 0) as there:
            # Within the mounts of the workers.
            yield MachineVolume(name, there.connection, there.argv(there.program[:1]), path)
            return
    raise ConfigError(
        f"the volume {name!r} of {adapter.name} can only be reached from a machine that mounts it, and no task that "
        f"runs does; start one with `flow dev --provider {adapter.name} --volume /data={name}`, then repeat this"
    )


def _path_of(record: TaskRecord, name: str) -> str | None:
    """The path of a volume in a task."""
    volumes = record.config.get("volumes") or {}
    return next((path for path, each in volumes.items() if each.get("name") == name), None)
