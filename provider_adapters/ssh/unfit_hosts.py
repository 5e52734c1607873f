"""The hosts that no task of this FLOW_HOME gets for a while, because one of them found them broken or lost them.

    FLOW_HOME/ssh/unfit.json     {key of a host: {"host", "why", "task", "at", "losses", "instance"}}

A host with a broken GPU is avoided at once, a lost host after it was lost `LOSSES` times in a row. All tasks avoid it
for `AVOIDED_SECONDS`, and the task that found it until that task ends. `flow hosts check` ends both if it is well.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from flowlite.connect.bounded import parse_object
from flowlite.node.system.atomic_files import write_atomically
from flowlite.provider import Instance
from flowlite.state import clock

AVOIDED_SECONDS = 6 * 3600.0
LOSSES = 2
"""How many times in a row a host may be lost before it is avoided."""
_REMEMBER_SECONDS = 7 * 86400.0
Notes = dict[str, dict[str, Any]]


class UnfitHosts:
    """The notes of one FLOW_HOME."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / "unfit.json"

    def note(self, instances: Sequence[Instance]) -> None:
        """Notes hosts whose instances were lost or are broken (`Instance.sick`). Each instance counts once."""
        with self._change() as notes:
            for each in instances:
                key = str(each.data["key"])
                before = notes.get(key, {})
                if before.get("instance") == each.id:
                    continue
                losses = int(before.get("losses", 0)) + (not each.sick)
                notes[key] = {
                    "host": str(each.data["host"]),
                    "why": each.sick
                    or (f"lost {losses} times in a row" if losses >= LOSSES else ""),
                    "task": each.task_id,
                    "at": clock.now(),
                    "losses": losses,
                    "instance": each.id,
                }

    def well(self, instances: Sequence[Instance]) -> None:
        """Notes hosts that were given back in order after their task, so that an earlier loss counts no more."""
        keys = {str(each.data["key"]): each.id for each in instances}
        if not any(key in keys for key in self._read()):
            return
        with self._change() as notes:
            for key, name in keys.items():
                if key in notes and not notes[key]["why"] and notes[key]["instance"] != name:
                    del notes[key]

    def lift(self, key: str) -> None:
        """Lets tasks use a host again."""
        with self._change() as notes:
            notes.pop(key, None)

    def why(self, key: str, task_id: str = "") -> str:
        """Why a host is not used, in words for people; "" if it may be. `task_id` is the task that wants it."""
        note = self._read().get(key)
        if note is None or not note["why"]:
            return ""
        until = note["at"] + AVOIDED_SECONDS
        # A time that is still to come was noted while the clock was wrong.
        if not note["at"] <= clock.now() < until and note["task"] != task_id:
            return ""
        last = time.strftime("%H:%M", time.localtime(until))
        return (
            f"{note['host']} is not used until {last}, since task {note['task']} found: {note['why']}. Once it is "
            "repaired, `flow hosts check` lets tasks use it again"
        )

    def _read(self) -> Notes:
        try:
            found = parse_object(self._path.read_bytes())
        except (OSError, ValueError):
            return {}
        # Without a note that is damaged, its host is used once more.
        return {key: note for key, note in found.items() if _is_note(note)}

    @contextmanager
    def _change(self) -> Iterator[Notes]:
        """Yields the notes, to be changed in place under a lock."""
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = os.open(self._path.with_name("lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            notes = self._read()
            before = json.dumps(notes)
            yield notes
            long_ago = clock.now() - _REMEMBER_SECONDS
            kept = {key: note for key, note in notes.items() if note["at"] > long_ago}
            if json.dumps(kept) != before:
                write_atomically(self._path, json.dumps(kept))
        finally:
            os.close(lock)


def _is_note(value: Any) -> bool:
    kinds: dict[str, Any] = {
        "host": str,
        "why": str,
        "task": str,
        "instance": str,
        "losses": int,
        "at": int | float,
    }
    return isinstance(value, dict) and all(
        isinstance(value.get(name), kinds[name]) for name in kinds
    )
