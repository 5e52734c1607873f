"""One SQLite file: opened, migrated, read and written, with errors that say what to do.

Every write is one short `BEGIN IMMEDIATE` transaction (a deferred one that reads first gets SQLITE_BUSY without
waiting). It is durable before it returns (`synchronous=FULL`). In WAL mode, readers never wait.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from flowlite.errors import StoreDamaged, StoreError
from flowlite.node.mount_namespace.mounts import is_shared
from flowlite.node.system import file_lock, trace
from flowlite.settings.flow_home import why_not_writable
from flowlite.state import backups, one_machine

BUSY_TIMEOUT_SECONDS = 30.0
# SQLite's `-shm`. Where there is no room for it, even reading fails, and the error says nothing of that.
_LOG_INDEX_BYTES = 32 << 10
# The longest that a fork waits for other threads to leave a database, in seconds.
_LONGEST_BEFORE_FORK = 1.0
# Error codes of SQLite for a file with invalid contents. A truncated file gives a read error.
_DAMAGE = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})
_SHORT_READ = sqlite3.SQLITE_IOERR | (2 << 8)
_MOVED = sqlite3.SQLITE_READONLY | (4 << 8)
RESTORE = "`flow store check` says what can be read, `flow store restore` brings back a copy"

# Entry i migrates a database from version i to i + 1, in one transaction. Never change an entry that was released.
MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        """CREATE TABLE tasks (
            id TEXT PRIMARY KEY, name TEXT NOT NULL, function TEXT NOT NULL, provider TEXT NOT NULL,
            state TEXT NOT NULL, reason TEXT NOT NULL DEFAULT '', outcome TEXT NOT NULL DEFAULT '',
            config TEXT NOT NULL, plan TEXT NOT NULL, call TEXT NOT NULL,
            attempt INTEGER NOT NULL DEFAULT 0, retries_used INTEGER NOT NULL DEFAULT 0,
            roster TEXT NOT NULL DEFAULT '[]',
            created_at REAL NOT NULL, started_at REAL, finished_at REAL,
            cancel_requested_at REAL, cost REAL NOT NULL DEFAULT 0,
            lease_owner TEXT, lease_token INTEGER NOT NULL DEFAULT 0, lease_expires REAL NOT NULL DEFAULT 0
        )""",
        "CREATE INDEX tasks_by_name ON tasks (name, created_at)",
        "CREATE INDEX tasks_by_state ON tasks (state)",
        """CREATE TABLE instances (
            id TEXT NOT NULL, task_id TEXT NOT NULL REFERENCES tasks (id), provider TEXT NOT NULL,
            node_rank INTEGER, state TEXT NOT NULL, price_per_hour REAL NOT NULL,
            launched_at REAL NOT NULL, ended_at REAL, data TEXT NOT NULL,
            PRIMARY KEY (provider, id)
        )""",
        "CREATE INDEX instances_by_task ON instances (task_id)",
        """CREATE TABLE intents (
            token TEXT PRIMARY KEY, task_id TEXT NOT NULL REFERENCES tasks (id), kind TEXT NOT NULL,
            data TEXT NOT NULL, state TEXT NOT NULL, created_at REAL NOT NULL, settled_at REAL
        )""",
        "CREATE INDEX intents_by_task ON intents (task_id)",
        """CREATE TABLE events (
            seq INTEGER PRIMARY KEY AUTOINCREMENT, task_id TEXT NOT NULL REFERENCES tasks (id),
            at REAL NOT NULL, kind TEXT NOT NULL, text TEXT NOT NULL, data TEXT NOT NULL
        )""",
        "CREATE INDEX events_by_task ON events (task_id, seq)",
    ),
    (
        "ALTER TABLE tasks ADD COLUMN candidates TEXT NOT NULL DEFAULT '[]'",
        "ALTER TABLE tasks ADD COLUMN candidate INTEGER NOT NULL DEFAULT 0",
        "ALTER TABLE tasks ADD COLUMN tried TEXT NOT NULL DEFAULT '[]'",
    ),
    (
        """CREATE TABLE full_places (
            place TEXT PRIMARY KEY, nodes INTEGER NOT NULL, task_id TEXT NOT NULL, at REAL NOT NULL
        )""",
    ),
)
SCHEMA_VERSION = len(MIGRATIONS)
TABLES = frozenset({"tasks", "instances", "intents", "events", "full_places"})
# A higher version does not come from a newer flowlite, but from a damaged file.
_HIGHEST_VERSION = SCHEMA_VERSION + 1000


class Database:
    """The database file. Safe to use from several threads and processes."""

    def __init__(self, path: Path) -> None:
        """Opens the database, creating or migrating it if needed.

        Raises:
            StoreDamaged: It is damaged, or missing although there are files of tasks beside it.
            StoreError: It cannot be opened or written, or belongs to a newer flowlite.
        """
        self.path = path
        self.lock = threading.RLock()
        self._depth = 0
        self._is_parents = False
        self._open()
        _opened.add(self)

    def close(self) -> None:
        """Closes the database. Safe to call twice."""
        with self.lock:
            if not self._is_parents:
                self._db.close()

    def leave_to_parent(self) -> None:
        """Called in the child of a fork: the connection is the parent's, and a thread of it may hold the lock."""
        _of_parent.append(self._db)
        self.lock = threading.RLock()
        self._depth = 0
        self._is_parents = True

    def version(self) -> int:
        """Returns a number that changes when another connection has written. Cheap enough to poll."""
        with self.read() as db:
            return int(db.execute("PRAGMA data_version").fetchone()[0])

    def make_sure_of_tables(self) -> None:
        """Raises StoreDamaged if a table is missing."""
        with self.read():
            self._expect_tables()

    def _expect_tables(self) -> None:
        if missing := sorted(TABLES - self._tables()):
            raise StoreDamaged(
                f"{self.path} is damaged: it has no table {', '.join(missing)}; {RESTORE}"
            )

    def _open(self) -> None:
        try:
            self._is_shared = is_shared(self.path.parent)
            is_new_here = claim(self.path)
            self._db = sqlite3.connect(
                self.path,
                timeout=BUSY_TIMEOUT_SECONDS,
                isolation_level=None,
                check_same_thread=False,
            )
            self._db.row_factory = sqlite3.Row
            # Text that is not UTF-8 is damaged. `rows.py` names its row.
            self._db.text_factory = _text
            _secure(self.path)
            self._file = _identity(self.path)
            try:
                self._prepare()
                if is_new_here:
                    # Another machine may have noted itself before SQLite's log was there.
                    _note_machine(self.path)
            except BaseException:
                # Else it would be used next time as it is: without tables, foreign keys or a write-ahead log.
                self._file = None
                raise
        except (sqlite3.Error, UnicodeDecodeError) as error:
            raise self._explain(error) from error
        except OSError as error:
            raise StoreError(f"{self.path}: {error.strerror or error}") from error

    def _prepare(self) -> None:
        self._db.execute("PRAGMA synchronous = FULL")
        self._db.execute("PRAGMA foreign_keys = ON")
        if self._is_prepared():
            return
        # When two connections switch a database to WAL at the same time, SQLite returns SQLITE_BUSY to one of them at
        # once, without its busy handler. Changes of the file as a whole are therefore made under a lock.
        with alone_with(self.path):
            if self._is_prepared():
                return
            if not self._tables() and has_tasks(self.path.parent):
                raise StoreDamaged(
                    f"{self.path} is empty or missing, though files of tasks lie beside it; `flow store restore` "
                    "brings back a copy, `flow store restore --empty` begins without one"
                )
            self._use_wal()
            if self._tables():
                backups.take(self.path, "schema", self._schema())
            else:
                backups.begin(self.path.parent)
            self._migrate()

    def _is_prepared(self) -> bool:
        """Whether the file is in WAL mode and has the current schema. Raises StoreError for a newer schema."""
        found = self._schema()
        if not 0 <= found <= _HIGHEST_VERSION:
            raise StoreDamaged(f"{self.path} is damaged (schema {found}); {RESTORE}")
        if found > SCHEMA_VERSION:
            raise StoreError(
                f"{self.path} was written by a newer flowlite (schema {found}, this one knows {SCHEMA_VERSION}); "
                "upgrade flowlite, or set FLOW_HOME to another directory"
            )
        if found == SCHEMA_VERSION:
            self._expect_tables()
        mode = self._db.execute("PRAGMA journal_mode").fetchone()[0]
        return found == SCHEMA_VERSION and mode == "wal"

    def _schema(self) -> int:
        return int(self._db.execute("PRAGMA user_version").fetchone()[0])

    def _tables(self) -> set[str]:
        query = "SELECT name FROM sqlite_master WHERE type = 'table'"
        return {str(row[0]) for row in self._db.execute(query)}

    def _use_wal(self) -> None:
        mode = self._db.execute("PRAGMA journal_mode = WAL").fetchone()[0]
        if mode != "wal":
            raise StoreError(
                f"{self.path}: SQLite cannot use a write-ahead log here (journal mode {mode!r}), as on network "
                "file systems; set FLOW_HOME to a directory on a local disk"
            )

    def _migrate(self) -> None:
        with self.write() as db:
            found = db.execute("PRAGMA user_version").fetchone()[0]
            for statements in MIGRATIONS[found:]:
                for statement in statements:
                    db.execute(statement)
            db.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")

    @contextmanager
    def read(self) -> Iterator[sqlite3.Connection]:
        """Yields the connection for reading."""
        with self._used():
            yield self._db

    @contextmanager
    def write(self) -> Iterator[sqlite3.Connection]:
        """Yields the connection inside one transaction: committed at the end, rolled back on any exception."""
        with self._used(writes=True), trace.span("write to the store"):
            try:
                # In the block: a Ctrl-C that comes while this waits for another writer is raised after it has begun.
                self._db.execute("BEGIN IMMEDIATE")
                yield self._db
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise

    @contextmanager
    def _used(self, *, writes: bool = False) -> Iterator[None]:
        with self.lock:
            try:
                if self._depth == 0:
                    self._follow(writes=writes)
                self._depth += 1
                try:
                    yield
                finally:
                    self._depth -= 1
            except (sqlite3.Error, UnicodeDecodeError) as error:
                raise self._explain(error) from error

    def _follow(self, *, writes: bool) -> None:
        """Opens the file again if it was replaced: SQLite keeps working on a file that was removed or replaced.

        The child of a fork opens it for itself. Before a write, a file that another machine has used meanwhile is also
        opened again.
        """
        if self._is_parents:
            self._open()
            self._is_parents = False
            return
        found = _identity(self.path)
        if found is None:
            raise StoreDamaged(f"{self.path} is gone; {RESTORE}")
        if found == self._file and not (
            writes and self._is_shared and not one_machine.is_noted(self.path)
        ):
            return
        # Closed until it has been opened again.
        self._file = None
        self._db.close()
        self._open()

    def _explain(self, error: sqlite3.Error | UnicodeDecodeError) -> StoreError:
        text = str(error)
        if is_damage(error):
            return StoreDamaged(f"{self.path} is damaged ({text}); {RESTORE}")
        if "full" in text:
            fix = "the disk is full; free some space and try again, nothing was half-written"
        elif "I/O" in text and (why := why_not_writable(self.path.parent, _LOG_INDEX_BYTES)):
            fix = why
        elif "readonly" in text or "unable to open" in text:
            fix = (
                "it cannot be written; make the directory writable or set FLOW_HOME to another one"
            )
        elif "locked" in text or "locking protocol" in text:
            fix = f"another process held it for over {BUSY_TIMEOUT_SECONDS:.0f} s; try again"
        else:
            fix = "set FLOW_HOME to another directory to start afresh"
        return StoreError(f"{self.path}: {text}: {fix}")


_opened: weakref.WeakSet[Database] = weakref.WeakSet()
# Kept, since a child must not close the connections of its parent either.
_of_parent: list[sqlite3.Connection] = []
_forking = threading.local()


def _before_fork() -> None:
    # SQLite has locks of its own, which the child would find held for ever if another thread were in a query now.
    _forking.held = [
        each for each in list(_opened) if each.lock.acquire(timeout=_LONGEST_BEFORE_FORK)
    ]


def _after_fork_in_parent() -> None:
    for each in _forking.held:
        each.lock.release()
    _forking.held = []


def _after_fork_in_child() -> None:
    for each in list(_opened):
        each.leave_to_parent()


os.register_at_fork(
    before=_before_fork,
    after_in_parent=_after_fork_in_parent,
    after_in_child=_after_fork_in_child,
)


def is_damage(error: sqlite3.Error | UnicodeDecodeError) -> bool:
    """Whether the file itself is damaged, so that a retry cannot help."""
    if isinstance(error, UnicodeDecodeError):
        # Python's sqlite3 module decodes names of columns and messages itself.
        return True
    code = getattr(error, "sqlite_errorcode", None) or 0
    if code & 0xFF in _DAMAGE or code in (_SHORT_READ, _MOVED):
        return True
    return str(error).startswith(("no such table", "no such column", "malformed"))


def has_tasks(home: Path) -> bool:
    """Whether a FLOW_HOME has files of submitted tasks."""
    return any(home.glob("tasks/*/config.json"))


@contextmanager
def alone_with(path: Path) -> Iterator[None]:
    """Holds the lock file beside a database, for changes of the file as a whole.

    Raises:
        StoreError: Another process has held it for too long, or the directory cannot be written.
    """
    lock = path.with_name(f"{path.name}.lock")
    try:
        descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise StoreError(f"{lock}: {error.strerror}: make the directory writable") from error
    try:
        if not file_lock.wait(lambda: file_lock.take(descriptor), BUSY_TIMEOUT_SECONDS):
            raise StoreError(
                f"{lock}: another process has held it for over {BUSY_TIMEOUT_SECONDS:.0f} s; try again"
            )
        yield
    finally:
        os.close(descriptor)


def claim(path: Path) -> bool:
    """Notes that this machine uses a database, if other machines see it, too.

    Returns:
        Whether it was not noted before.

    Raises:
        StoreError: Another machine uses it.
    """
    if not is_shared(path.parent) or one_machine.is_noted(path):
        return False
    _note_machine(path)
    return True


def _note_machine(path: Path) -> None:
    with alone_with(path):
        if other := one_machine.user(path):
            raise StoreError(
                f"{path} is in use on {other}, and SQLite cannot share it with another machine: run `flow` on "
                f"{other}, or set FLOW_HOME to a directory on a local disk of this machine (if nothing runs on {other} "
                "any more, try again in three minutes)"
            )
        one_machine.note(path)


def _text(stored: bytes) -> str:
    return stored.decode("utf-8", "surrogateescape")


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _secure(path: Path) -> None:
    if path.stat().st_mode & 0o077:
        os.chmod(path, 0o600)
