"""Removes inputs and logs of tasks that ended long ago, or that together take more room than allowed; also contents of
projects (`FLOW_HOME/files`) that no task needs any more.

Results, history and rows of a task stay. Nothing is removed of a task that has not ended, whose nodes are kept warm,
or that still has files on its nodes. `prune_in_background` prunes once a day in a detached process.
"""

from __future__ import annotations

import os
import shutil
import stat
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from flowlite.errors import NotFound
from flowlite.node.quick_dataclass import dataclass
from flowlite.node.system.atomic_files import write_atomically
from flowlite.node.system.byte_sizes import human_size

if TYPE_CHECKING:
    from flowlite.api.session import Session
    from flowlite.settings.settings import Settings
    from flowlite.state.store import TaskRecord

DAY = 86400.0
GB = 1e9
INPUTS, LOGS = "inputs", "logs"
# A task that ended less than this many seconds ago is not pruned for room, since the user may still read its logs or
# run it again.
_YOUNGEST = 3600.0
_MARKER = "pruned"
# After a longer pause, the clock may have jumped by so much, and all tasks would look old. What it says is believed a
# day later, when a clock that is wrong has been noticed.
_PAUSE = 3 * DAY
_JUMPED = b"waits for a day"


@dataclass(frozen=True, slots=True)
class Limits:
    """How long, and up to which size, inputs and logs of ended tasks are kept.

    Attributes:
        inputs_days: Days from the end of a task for which its inputs are kept.
        logs_days: Days from the end of a task for which its logs are kept.
        gigabytes: Size of both for all ended tasks. Beyond it the oldest are removed first, inputs before logs.
    """

    inputs_days: float
    logs_days: float
    gigabytes: float

    @classmethod
    def of(cls, settings: Settings) -> Limits:
        """Returns the limits from the settings."""
        return cls(settings["keep_inputs_days"], settings["keep_logs_days"], settings["keep_gb"])


@dataclass(frozen=True, slots=True)
class Part:
    """The inputs or the logs of one task that has ended.

    Attributes:
        record: The task.
        what: `INPUTS` or `LOGS`.
        directory: Where they are.
        size: Bytes.
    """

    record: TaskRecord
    what: str
    directory: Path
    size: int

    @property
    def ended_at(self) -> float:
        """Unix time of the end of the task."""
        return self.record.finished_at or self.record.created_at


def prune(session: Session, limits: Limits, now: float) -> list[tuple[Part, str]]:
    """Removes what exceeds the limits, and records it in the history of each task.

    Returns:
        The parts that were removed, with the reason for each.
    """
    pruned = []
    for part, why in to_prune(_parts(session, now), limits, now):
        text = f"its {part.what} ({human_size(part.size)}) were removed: {why}"
        try:
            _empty(part.directory)
            session.store.add_event(part.record.id, "pruned", text, {"what": part.what})
        except (FileNotFoundError, NotFound):
            # `flow rm` has removed the task meanwhile.
            continue
        pruned.append((part, why))
    return pruned


def remove_contents(session: Session, *, dry_run: bool = False) -> int:
    """Removes contents of projects that no kept inputs of a task name, and that were not used lately.

    Args:
        dry_run: Only count them.

    Returns:
        Their bytes.
    """
    from flowlite.bundle.project_snapshot import MANIFEST, remove_unused

    # Those that are there, not those of the store: a task whose row is damaged may run, and can be restored.
    manifests = session.home.glob(f"tasks/*/bundle/{MANIFEST}")
    return remove_unused(session.home, manifests, dry_run=dry_run)


def to_prune(parts: list[Part], limits: Limits, now: float) -> list[tuple[Part, str]]:
    """Returns the parts to remove, with the reason for each."""
    days = {INPUTS: limits.inputs_days, LOGS: limits.logs_days}
    chosen, rest = [], []
    for part in parts:
        age = now - part.ended_at
        if age > days[part.what] * DAY:
            chosen.append(
                (part, f"it ended {age / DAY:.0f} days ago (setting keep_{part.what}_days)")
            )
        else:
            rest.append(part)
    room = sum(part.size for part in rest) - limits.gigabytes * GB
    for part in sorted(rest, key=lambda part: (part.what != INPUTS, part.ended_at)):
        if room <= 0:
            break
        if now - part.ended_at > _YOUNGEST:
            room -= part.size
            chosen.append(
                (part, f"ended tasks take more than {limits.gigabytes:g} GB (setting keep_gb)")
            )
    return chosen


def was_pruned(session: Session, task_id: str, what: str) -> str:
    """Returns when and why the inputs or logs of a task were removed; "" if they were not."""
    for event in session.store.events(task_id):
        if event.kind == "pruned" and event.data.get("what") == what:
            return f"{event.text}, on {time.strftime('%Y-%m-%d', time.localtime(event.at))}"
    return ""


def size_of(path: Path) -> int:
    """Bytes of a file or of all files below a directory. A file with several hard links counts in proportion."""
    try:
        about = path.lstat()
    except OSError:
        return 0
    if not stat.S_ISDIR(about.st_mode):
        return _share(about)
    size, directories = 0, [os.fspath(path)]
    # Without recursion, since a task may leave directories of any depth.
    while directories:
        with suppress(OSError), os.scandir(directories.pop()) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    directories.append(entry.path)
                    continue
                with suppress(OSError):
                    size += _share(entry.stat(follow_symlinks=False))
    return size


def _share(about: os.stat_result) -> int:
    return about.st_size // max(1, about.st_nlink)


def _parts(session: Session, now: float) -> list[Part]:
    from flowlite.retention.removal import reason_to_keep

    found = []
    for record in session.store.list_tasks():
        paths = session.paths(record.id)
        parts = [
            Part(record, what, directory, size)
            for what, directory in ((INPUTS, paths.bundle), (LOGS, paths.logs))
            if (size := size_of(directory))
        ]
        # The store is queried only for tasks that have such files.
        if parts and not reason_to_keep(session, record, now):
            found += parts
    return found


def _empty(directory: Path) -> None:
    for entry in list(os.scandir(directory)):
        if entry.is_dir(follow_symlinks=False):
            shutil.rmtree(entry.path, ignore_errors=True)
        else:
            Path(entry.path).unlink(missing_ok=True)


def prune_in_background(home: Path) -> bool:
    """Starts a pruning process, at most once a day and only if a task is older than a day. Returns whether it did."""
    now = time.time()
    marker, tasks = home / _MARKER, home / "tasks"
    known, since = b"", 0.0
    with suppress(OSError):
        known, since = marker.read_bytes()[: len(_JUMPED)], now - marker.stat().st_mtime
        if 0 <= since <= DAY:
            return False
    with suppress(OSError):
        if not any(now - entry.stat().st_mtime > DAY for entry in os.scandir(tasks)):
            return False
        jumped = since > _PAUSE and known != _JUMPED
        write_atomically(marker, _JUMPED if jumped else b"")
        if jumped:
            return False
        from flowlite.supervise.background import run_detached

        return run_detached(home, "flowlite.retention.pruning") is not None
    return False


def main() -> None:
    """Entry point of the pruning process. Uses the settings of FLOW_HOME and the environment. Prints nothing."""
    from flowlite.api.session import open_session
    from flowlite.errors import FlowError
    from flowlite.settings.settings import load_settings
    from flowlite.state import clock

    with suppress(FlowError, OSError):
        session = open_session()
        prune(session, Limits.of(load_settings(directory=session.home)), clock.now(session.home))
        remove_contents(session)
