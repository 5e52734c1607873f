"""The hosts that this FLOW_HOME has asked for, recorded before a lease is taken so that none is forgotten.

    FLOW_HOME/ssh/
        tasks/ID.json     the hosts that were asked for a task: {"hosts": {key: entry}}
        hosts/            cached facts of hosts

An entry is {"host", "token", "state", "instance", "peers"}; "retained" says that not all output of its ranks was
fetched. The state is "asked" before the host is asked, "taken" once the lease is known to be ours, "left" when the host
was unreachable and was given up, and "warm" when the task has ended and the host is kept for the next one until a time
("until").
"""

from __future__ import annotations

import fcntl
import functools
import json
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from flowlite.errors import ProviderError
from flowlite.node.system.atomic_files import write_atomically
from flowlite.provider import Instance
from flowlite.state import clock
from provider_adapters.identity import home_id

ASKED, TAKEN, LEFT, WARM = "asked", "taken", "left", "warm"
_REMEMBER_SECONDS = 86400.0
_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
Entry = dict[str, Any]
Entries = dict[str, Entry]


class Records:
    """The files of one FLOW_HOME."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    @functools.cached_property
    def client(self) -> str:
        """The id of this FLOW_HOME, created on first use."""
        return home_id(self._directory.parent)

    def tasks(self) -> list[str]:
        """Tasks that have asked for hosts and not released all of them."""
        with suppress(OSError):
            return sorted(path.stem for path in (self._directory / "tasks").glob("*.json"))
        return []

    def read(self, task_id: str) -> Entries:
        """The hosts of a task, by key."""
        return self._read(task_id)[1]

    def _read(self, task_id: str, marked: bytes = b"") -> tuple[bytes, Entries]:
        """The content of a task's file, and the hosts in it; none if the content lacks `marked`."""
        path = self._path(task_id)
        try:
            content = path.read_bytes()
            return content, dict(json.loads(content)["hosts"]) if marked in content else {}
        except FileNotFoundError:
            return b"", {}
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ProviderError(
                f"{path} cannot be read ({error}). It says which hosts the task {task_id} has: look with "
                "`flow hosts list` for what is leased, and remove the file when nothing is"
            ) from error

    def of_all(self, but: str = "", *, state: str | None = None) -> dict[str, Entries]:
        """The hosts of all tasks, by task. A damaged record is left out, so that it stops no other task.

        Args:
            but: A task whose record is not read.
            state: Tasks without a host in this state may be left out. Their records are not parsed.
        """
        marked = b"" if state is None else json.dumps(state).encode()
        found: dict[str, Entries] = {}
        for task in [each for each in self.tasks() if each != but]:
            with suppress(ProviderError):
                _, entries = self._read(task, marked)
                if entries and all(map(_is_entry, entries.values())):
                    found[task] = entries
        return found

    def held_beside(self, task_id: str) -> set[str]:
        """Keys of the hosts that other tasks have, or ask for just now, as far as their records can be read."""
        return {
            key
            for entries in self.of_all(but=task_id).values()
            for key, entry in entries.items()
            if entry["state"] in (ASKED, TAKEN)
        }

    @contextmanager
    def change(self, task_id: str) -> Iterator[Entries]:
        """Yields the hosts of a task, to be changed in place under a lock; the file is removed if none is left."""
        path = self._path(task_id)
        with _explained(path):
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            lock = os.open(self._directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            before, entries = self._read(task_id)
            yield entries
            with _explained(path):
                if not entries:
                    path.unlink(missing_ok=True)
                elif (after := json.dumps({"hosts": entries}).encode()) != before:
                    write_atomically(path, after)
        finally:
            os.close(lock)

    def retain(self, instances: Iterable[Instance]) -> None:
        """Records that not all output of the ranks on these hosts was fetched."""
        for instance in instances:
            with self.change(instance.task_id) as entries:
                if (entry := entries.get(str(instance.data["key"]))) is not None:
                    entry["retained"] = True

    def retaining(self, instances: Iterable[Instance]) -> set[str]:
        """Ids of those on which output is retained, or whose record is gone."""
        listed = list(instances)
        # Once for each task: the record of a task has an entry for each of its hosts.
        kept = {task: self.read(task) for task in {each.task_id for each in listed}}
        return {
            each.id
            for each in listed
            if (entry := kept[each.task_id].get(str(each.data["key"]))) is None
            or entry.get("retained")
        }

    def drop(self, instances: Iterable[Instance]) -> None:
        """Removes hosts that were released."""
        by_task: dict[str, list[str]] = {}
        for instance in instances:
            by_task.setdefault(instance.task_id, []).append(str(instance.data["key"]))
        for task, keys in by_task.items():
            with self.change(task) as entries:
                for key in keys:
                    entries.pop(key, None)

    def give_up(self, instances: Iterable[Instance]) -> list[Entry]:
        """Records that hosts are given up that these instances still have. Returns their entries."""
        found = []
        for instance in instances:
            with self.change(instance.task_id) as entries:
                entry = entries.get(str(instance.data["key"]))
                if entry and entry["state"] == TAKEN and entry["instance"]["id"] == instance.id:
                    entry |= {"state": LEFT, "left_at": clock.now()}
                    found.append(dict(entry))
        return found

    def left(self) -> list[Entry]:
        """The hosts of all tasks that were given up and may still run something."""
        long_ago = clock.now() - _REMEMBER_SECONDS
        return [
            entry
            for entries in self.of_all(state=LEFT).values()
            for entry in entries.values()
            if entry["state"] == LEFT and not _is_old(entry, long_ago)
        ]

    def forget_left(self, entry: Entry) -> None:
        """Removes one of them, unless it was leased again meanwhile."""
        instance = Instance.from_json(entry["instance"])
        with self.change(instance.task_id) as entries:
            known = entries.get(str(instance.data["key"]))
            if known and (known["state"], known["token"]) == (LEFT, entry["token"]):
                del entries[str(instance.data["key"])]

    def prune(self) -> None:
        """Removes hosts that were given up long ago: what ran there has ended by itself."""
        long_ago = clock.now() - _REMEMBER_SECONDS
        for task, kept in self.of_all(state=LEFT).items():
            if any(_is_old(entry, long_ago) for entry in kept.values()):
                with self.change(task) as entries:
                    for key in [k for k, entry in entries.items() if _is_old(entry, long_ago)]:
                        del entries[key]

    def _path(self, task_id: str) -> Path:
        if not is_plain(task_id):
            raise ProviderError(f"{task_id[:80]!r} is not the id of a task")
        return self._directory / "tasks" / f"{task_id}.json"


def is_plain(name: str) -> bool:
    """Whether the id of a task or an instance, which may come from a host, is safe in a path."""
    return bool(_PLAIN.fullmatch(name))


def _is_entry(value: Any) -> bool:
    return isinstance(value, dict) and isinstance(value.get("state"), str)


def _is_old(entry: dict[str, Any], before: float) -> bool:
    return entry["state"] == LEFT and float(entry.get("left_at", 0.0)) < before


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ProviderError(f"{path} cannot be written: {error.strerror or error}") from error
