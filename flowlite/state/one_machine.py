"""Keeps two machines from using one database at the same time.

SQLite's write-ahead log has an index in memory that only processes of one machine share. Where several machines have
one home directory, as the login nodes of a cluster, a second one would not see what the first has written, and would
write over it.

A file beside the database names the machine that used it last. SQLite's log exists while any process has the database
open, and changes every few seconds while a supervisor runs.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path

from flowlite.node.system.atomic_files import write_atomically
from flowlite.state import clock

# A log that has not changed for longer was left by a process that was killed. Each supervisor changes it every 10 s;
# what a machine sees of a file on a server may be a minute old.
_QUIET_SECONDS = 180.0


def is_noted(database: Path) -> bool:
    """Whether this machine is the one that used a database last."""
    return _noted(database) == _this()


def user(database: Path) -> str:
    """The name of another machine that uses a database now; "" if there is none."""
    name, boot = _noted(database)
    if not name or name == _this()[0] or (boot and boot == _this()[1]):
        # It is this one, perhaps before a restart or under another name.
        return ""
    try:
        changed_at = database.with_name(f"{database.name}-wal").stat().st_mtime
        # The time of the file server, whose clock may differ.
        os.utime(_file(database))
        now = _file(database).stat().st_mtime
    except OSError:
        return ""
    return name if now - changed_at < _QUIET_SECONDS else ""


def note(database: Path) -> None:
    """Notes that this machine uses a database. Raises OSError."""
    name, boot = _this()
    write_atomically(_file(database), json.dumps({"host": name, "boot": boot}))


def _this() -> tuple[str, str]:
    return os.uname().nodename, clock.boot()


def _noted(database: Path) -> tuple[str, str]:
    with suppress(OSError, ValueError, KeyError, TypeError):
        noted = json.loads(_file(database).read_bytes())
        return str(noted["host"]), str(noted["boot"])
    return "", ""


def _file(database: Path) -> Path:
    return database.with_name(f"{database.name}.machine")
