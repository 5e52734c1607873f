"""Copies of the store, made by SQLite's own backup: one a day, and one before each migration.

A copy counts only after it was checked, and only then are older ones removed. A store that was damaged for a week
therefore has not displaced the last good copy.
"""

from __future__ import annotations

import contextlib
import os
import re
import sqlite3
import time
from collections.abc import Sequence
from pathlib import Path

from flowlite.errors import StoreDamaged, StoreError
from flowlite.node.quick_dataclass import dataclass
from flowlite.node.system.byte_sizes import room_on_disk

DIRECTORY = "backups"
DAILY = "daily"
# Copies kept of each kind, and bytes of all copies. The newest is always kept.
_KEPT = {DAILY: 7, "schema": 3}
_MOST_BYTES = 512 << 20
_NAME = re.compile(r"(\d{8}T\d{6})-(daily|schema)(\d*)\.db")
_STAMP = "%Y%m%dT%H%M%S"
_BUSY_TIMEOUT_SECONDS = 30.0
_PARTIAL = ".part"
# A part of a copy that is older was left by a process that was killed.
_ABANDONED_SECONDS = 86400.0
# A copy that is dated further ahead was made while the clock was wrong. Less may be another time zone.
_AHEAD_SECONDS = 86400.0


@dataclass(frozen=True, slots=True)
class Backup:
    """One copy.

    Attributes:
        path: The file.
        kind: "daily", or "schema" for a copy made before a migration.
        made_at: Unix time.
        size: In bytes.
    """

    path: Path
    kind: str
    made_at: float
    size: int

    @property
    def name(self) -> str:
        """The name by which `flow store restore` selects the copy."""
        return self.path.stem


def begin(home: Path) -> None:
    """Marks today's copy as begun. Also called for a new store, which has nothing to copy."""
    with contextlib.suppress(OSError):
        (home / DIRECTORY).mkdir(mode=0o700, exist_ok=True)
        os.utime(home / DIRECTORY)


def is_due(home: Path) -> bool:
    """Whether no copy was begun today. Looks only at a directory."""
    try:
        last = (home / DIRECTORY).stat().st_mtime
    except OSError:
        return (home / "state.db").exists()
    return time.localtime(last)[:3] != time.localtime()[:3]


def list_backups(home: Path) -> list[Backup]:
    """Returns all copies, newest first. Those that are dated in the future come last: their age is not known."""
    found = []
    latest = time.time() + _AHEAD_SECONDS
    for path in home.glob(f"{DIRECTORY}/*.db"):
        if match := _NAME.fullmatch(path.name):
            made_at = time.mktime(time.strptime(match[1], _STAMP))
            found.append(Backup(path, match[2], made_at, path.stat().st_size))
    return sorted(found, key=lambda each: (each.made_at <= latest, each.path.name), reverse=True)


def take(store: Path, kind: str, number: int | None = None) -> Path:
    """Copies the store, and removes copies that are too many or too large.

    Args:
        kind: "daily" or "schema".
        number: Version of the schema.

    Returns:
        Path of the copy.

    Raises:
        StoreDamaged: The store is damaged. No older copy was removed.
        StoreError: There is no room, or the copy cannot be written.
    """
    home = store.parent
    begin(home)
    _remove_abandoned(home)
    size = store.stat().st_size
    if room_on_disk(home)[0] < 2 * size:
        raise StoreError(f"{home / DIRECTORY}: no room for a copy of {store} ({size >> 20} MB)")
    name = f"{time.strftime(_STAMP)}-{kind}{'' if number is None else number}.db"
    partial = home / DIRECTORY / f"{name}.{os.getpid()}{_PARTIAL}"
    try:
        os.close(os.open(partial, os.O_CREAT | os.O_EXCL, 0o600))
        _copy(store, partial)
        if problems := problems_of(partial):
            raise StoreDamaged(f"{store} is damaged, and was not copied: {problems[0]}")
        os.replace(partial, partial.with_name(name))
    except (sqlite3.Error, OSError) as error:
        raise StoreError(f"{partial}: {store} cannot be copied: {error}") from error
    finally:
        partial.unlink(missing_ok=True)
    for backup in _superfluous(list_backups(home)):
        backup.path.unlink(missing_ok=True)
    return partial.with_name(name)


def problems_of(database: Path, most: int = 20) -> list[str]:
    """Returns the problems that SQLite finds in the structure of a database."""
    try:
        with contextlib.closing(sqlite3.connect(database, timeout=_BUSY_TIMEOUT_SECONDS)) as db:
            rows = db.execute(f"PRAGMA integrity_check({most})").fetchall()
    except (sqlite3.Error, UnicodeDecodeError) as error:
        return [str(error)]
    found = [line for row in rows for line in str(row[0]).splitlines()]
    return [] if found == ["ok"] else found[:most]


def _copy(source: Path, target: Path) -> None:
    with (
        contextlib.closing(sqlite3.connect(source, timeout=_BUSY_TIMEOUT_SECONDS)) as old,
        contextlib.closing(sqlite3.connect(target)) as new,
    ):
        old.backup(new)
        # The copy is one file, without a log beside it.
        new.execute("PRAGMA journal_mode = DELETE")


def _remove_abandoned(home: Path) -> None:
    """Removes parts of copies, and SQLite's journals of them, that killed processes have left."""
    for path in home.glob(f"{DIRECTORY}/*{_PARTIAL}*"):
        with contextlib.suppress(OSError):
            if time.time() - path.stat().st_mtime > _ABANDONED_SECONDS:
                path.unlink()


def _superfluous(backups: Sequence[Backup]) -> list[Backup]:
    """Returns the copies, of a list with the newest first, that need not be kept."""
    kept: list[Backup] = []
    for backup in backups:
        alike = sum(each.kind == backup.kind for each in kept)
        total = sum(each.size for each in kept) + backup.size
        if not kept or (alike < _KEPT[backup.kind] and total <= _MOST_BYTES):
            kept.append(backup)
    return [backup for backup in backups if backup not in kept]
