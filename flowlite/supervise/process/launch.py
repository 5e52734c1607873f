"""Submits tasks, and starts supervisors: the first one of a task, and a new one when it was killed.

A client submits a task in these steps:

    with draft_task(home) as draft:                       # creates tasks/ID; removes it again if anything fails
        bundle = build(function, args, kwargs, draft.paths.bundle)
        record = submit(store, draft, name=..., function=..., config=..., plan=plan, call=call, secrets=...)
"""

from __future__ import annotations

import errno
import json
import math
import os
import secrets as random_secrets
import shutil
import subprocess
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from flowlite.errors import ConfigError, NotFound, StoreError
from flowlite.node.quick_dataclass import dataclass
from flowlite.node.system import ownership, processes, trace
from flowlite.node.system.atomic_files import write_atomically
from flowlite.provider import Candidate, Plan
from flowlite.settings import flow_home
from flowlite.settings.private_files import private
from flowlite.state import clock
from flowlite.state.store import LeaseHolder, Store, TaskRecord
from flowlite.supervise.process import supervisor_process
from flowlite.supervise.queue import asleep, waking
from flowlite.supervise.record import process_identity
from flowlite.supervise.record.lifecycle import State
from flowlite.supervise.record.paths import TaskPaths

OUTPUTS = "flow-outputs"
"""Directory for the outputs of tasks, relative to the directory they are submitted from."""
_ALPHABET = "abcdefghijkmnpqrstuvwxyz23456789"
# How long a supervisor that was just started may take to be noted before its task counts as abandoned.
_START_SECONDS = 5.0
# How often one process looks at all tasks for those that wait, since each of hundreds may be waited for; and how many
# times the processor time of a look passes at least until the next, since a look at thousands takes half a second.
_ALL_EVERY, _ALL_SHARE = 1.0, 10
# When this process has looked so at a FLOW_HOME, and for how long it does not look again.
_looked_at: dict[Path, tuple[float, float]] = {}


@dataclass(slots=True)
class TaskDraft:
    """A task in preparation: it has an id and directories, but is not in the store yet."""

    task_id: str
    paths: TaskPaths
    submitted: bool = False


@contextmanager
def draft_task(home: Path) -> Iterator[TaskDraft]:
    """Creates the id and the directories of a new task. Removes them again unless `submit` has recorded the task.

    Raises:
        StoreError: FLOW_HOME cannot be written.
    """
    paths = TaskPaths(home, new_task_id())
    draft = TaskDraft(paths.task_id, paths)
    try:
        with explained(home):
            home.mkdir(mode=0o700, parents=True, exist_ok=True)
            paths.make()
        yield draft
    finally:
        if not draft.submitted:
            shutil.rmtree(paths.directory, ignore_errors=True)


def submit(
    store: Store,
    draft: TaskDraft,
    *,
    name: str,
    function: str,
    config: Mapping[str, Any],
    plan: Plan,
    call: Mapping[str, Any],
    candidates: Sequence[Candidate] = (),
    secrets: Mapping[str, str] | None = None,
    storage: Mapping[str, Any] | None = None,
    outputs_below: Path | None = None,
    supervise: bool = True,
) -> TaskRecord:
    """Records a task durably and starts its supervisor. The task does not need its client after that.

    Args:
        name: Name of the task. Need not be unique.
        function: The function or command line, for people.
        config: `TaskConfig` as JSON.
        call: What workers run, as `AgentConfig.call`, with paths on this machine.
        candidates: All places where it may run, if there are several; the first is that of `plan`.
        secrets: Secret variables of the workers.
        storage: Credentials for the task's buckets on its nodes.
        outputs_below: Directory in which one is created for the task's outputs, if it has any. None is the task's own
            directory.
        supervise: False leaves the task to the next `ensure_supervisors`.

    Raises:
        StoreError: The task could not be recorded, and nothing is left behind; or its supervisor could not be started,
            and the text says what to do.
    """
    paths = draft.paths
    with explained(paths.home):
        if not store.unfinished_leases() and not store.warm_instances(clock.now(paths.home)):
            clock.set_right(paths.home)
    record = TaskRecord(
        id=draft.task_id,
        name=name,
        function=function,
        provider=plan.provider,
        config=dict(config),
        plan=plan.to_json(),
        call=dict(call),
        candidates=[each.to_json() for each in candidates],
        created_at=clock.now(paths.home),
    )
    with explained(paths.home):
        not_yet = paths.config.with_suffix(".draft")
        write_atomically(not_yet, json.dumps(record.config, indent=1).encode())
        write_atomically(paths.plan, json.dumps(record.plan, indent=1).encode())
        write_atomically(paths.secret, random_secrets.token_hex(32).encode())
        write_atomically(paths.secrets, json.dumps(dict(secrets or {})).encode())
        write_atomically(paths.storage, json.dumps(dict(storage or {})).encode())
        if record.config.get("outputs"):
            below = (outputs_below or paths.directory).absolute()
            to = below / OUTPUTS / f"{record.name}-{record.id}"
            _check_place_of_outputs(to.parent)
            write_atomically(paths.outputs, json.dumps({"to": str(to)}).encode())
    store.create_task(record)
    draft.submitted = True
    # A directory without it is a draft. One whose client was killed is removed, with the secrets in it.
    with suppress(OSError):
        # The task is in the store: without a supervisor, and with an error here, a later command would start it.
        os.replace(not_yet, paths.config)
    if supervise:
        try:
            with trace.span("start the supervisor"):
                why = _why_asleep(store, [record]).get(record.id, "")
                spare = bool(record.config.get("keep_warm"))
                _start(store, paths.home, record, why, spare=spare)
        except StoreError as error:
            raise StoreError(
                f"task {record.name} ({record.id}) was submitted, and has no supervisor yet: {error}. "
                f"`flow resume {record.id}` starts one, `flow cancel {record.id}` ends the task"
            ) from error
    return record


def _check_place_of_outputs(directory: Path) -> None:
    """Raises ConfigError if outputs cannot be written below a directory, which would be found out only at the end."""
    if why := ownership.taken(str(directory)):
        raise ConfigError(
            f"outputs: {why}, another user, who could change what comes there; submit the task from another directory"
        )
    if os.path.lexists(directory) and not directory.is_dir():
        raise ConfigError(
            f"outputs: {directory} is no directory, and the outputs go below it; rename it"
        )
    above = directory if directory.is_dir() else directory.parent
    if above.is_dir() and not os.access(above, os.W_OK | os.X_OK):
        raise ConfigError(
            f"outputs: {above} is not writable for you, and the outputs go below it; start from another directory"
        )


def cancel(store: Store, home: Path, task_id: str) -> bool:
    """Requests the end of a task and makes sure that it has a supervisor. False if the task is already final.

    Raises:
        StoreError: The request could not be recorded, and no supervisor hears it.
    """
    try:
        asked = store.request_cancel(task_id)
    except StoreError as error:
        return _cancel_without_store(store, home, task_id, error)
    if asked:
        # Its supervisor needs the directory, also to end what is left of a task whose files somebody has removed.
        with suppress(OSError):
            TaskPaths(home, task_id).make()
    if asked and not ensure_supervisors(store, home, only=task_id):
        unled = [holder for holder in store.unfinished_leases(task_id) if holder.owner is None]
        if unled and not TaskPaths(home, task_id).supervisor.exists():
            start_supervisor(home, task_id)
    if asked:
        waking.wake_cancelled(store, task_id)
    return asked


def _cancel_without_store(store: Store, home: Path, task_id: str, error: StoreError) -> bool:
    """Requests the end of a task by an empty file, for which a full disk has room. False if the task is final."""
    if store.get_task(task_id).final:
        return False
    if not process_identity.has_supervisor(home, task_id):
        raise error
    try:
        TaskPaths(home, task_id).cancel.touch(mode=0o600)
    except OSError:
        raise error from None
    return True


def _why_asleep(store: Store, records: Iterable[TaskRecord]) -> dict[str, str]:
    """Why the supervisors of tasks are started asleep, by task; without those that are started awake."""
    # A task with several places does not wait for its turn at one of them alone.
    waiting = {
        each.id
        for each in records
        if each.state == State.PENDING and _waits(each) and len(each.candidates) < 2
    }
    return waking.why_asleep(store, waiting)


def _start(
    store: Store,
    home: Path,
    record: TaskRecord,
    why_asleep: str,
    *,
    spare: bool = False,
    launches: bool = True,
) -> None:
    """Starts the supervisor of a task, asleep if there is a reason for that."""
    if why_asleep:
        store.note_waiting(record.id, why_asleep)
        start_supervisor(home, record.id, sleeping=True)
    else:
        start_supervisor(home, record.id, spare=spare, launches=launches)


def _waits(record: TaskRecord) -> bool:
    """Whether a task may have to wait for its turn, or for others to complete."""
    launched = record.state not in (State.PENDING, State.PROVISIONING)
    return not launched and bool(record.plan.get("slots") or record.config.get("after"))


def _may_look_at_all(home: Path) -> bool:
    """Whether this process has not looked at all tasks of a FLOW_HOME just now. If not, it is about to."""
    now = clock.monotonic()
    before, pause = _looked_at.get(home, (-math.inf, _ALL_EVERY))
    if 0 <= now - before < pause:
        return False
    _looked_at[home] = (now, _ALL_EVERY)
    return True


def start_supervisor(
    home: Path,
    task_id: str,
    *,
    spare: bool = False,
    sleeping: bool = False,
    launches: bool = True,
) -> int:
    """Starts the supervisor of a task as a detached process, which outlives this one and its terminal.

    A second supervisor for the same task does no harm: only one of them gets the lease, and the other exits.

    Args:
        spare: Whether the task may be handed to a supervisor that waits for its next task.
        sleeping: Whether it is started asleep, until it is the turn of its task.
        launches: Whether it may launch machines for a task that has none. If not, it hands the task back.

    Returns:
        The process id of the supervisor.

    Raises:
        StoreError: No process can be started, or its log cannot be written.
    """
    paths = TaskPaths(home, task_id)
    supervisor_process.note_start(home, sleeping=sleeping)
    if spare:
        # Imported only when nodes are kept warm.
        from flowlite.supervise.process import standby

        found = standby.hand_over(home, task_id, supervisor_process.environment(home))
        if found is not None:
            process_identity.note_supervisor(home, task_id, found)
            return found.pid
    arguments = (task_id,) if launches else (task_id, supervisor_process.NO_LAUNCH)
    ahead = supervisor_process.ahead(home)
    if ahead is not None and launches and not sleeping:
        process_identity.note_supervisor(home, task_id, process_identity.of_process(ahead.pid))
        if ahead.lead(task_id):
            return ahead.pid
    try:
        with open(paths.supervisor_log, "ab", opener=private) as log:
            if sleeping:
                argv, environment = (
                    supervisor_process.command(arguments),
                    supervisor_process.environment(home),
                )
                pid = processes.let_go(asleep.start(paths, argv, environment, log))
            else:
                pid = supervisor_process.start(home, arguments, subprocess.DEVNULL, log)
    except OSError as error:
        raise StoreError(f"a supervisor cannot be started: {_in_words(error)}") from error
    process_identity.note_supervisor(home, task_id, process_identity.of_process(pid))
    return pid


def ensure_supervisors(store: Store, home: Path, *, only: str | None = None) -> list[str]:
    """Starts a supervisor for every unfinished task that has none. Cheap enough to call every second.

    Tasks without machines may be left to `flow resume` and `flow cancel` (`resuming.py`).

    Args:
        only: A task that somebody waits for. None for all, of which none is.

    Returns:
        Ids of the tasks for which a supervisor was started.
    """
    awaited, began = only, time.thread_time()
    with suppress(StoreError, NotFound):
        if only is not None and _waits(store.get_task(only)) and _may_look_at_all(home):
            # Its turn comes only if the tasks before it go on.
            only = None
    begun: list[str] = []
    left: list[TaskRecord] = []
    for task_id in abandoned_tasks(store, home, only=only):
        # Imported only when there is such a task.
        from flowlite.supervise.process.resuming import launches_unasked, needs_resume

        # A task whose row is damaged or whose directory was removed cannot be supervised either. `flow gc` reports the
        # first, and ends what is left of the second.
        with suppress(StoreError):
            record = store.get_task(task_id)
            if not needs_resume(store, record, is_awaited=task_id == awaited):
                left.append(record)
    with suppress(StoreError):
        # The queue is read once for all: after a restart of the machine, none of thousands that wait has a supervisor.
        asleep_ones = _why_asleep(store, left)
        for record in left:
            with suppress(StoreError):
                launches = launches_unasked(record, is_awaited=record.id == awaited)
                _start(store, home, record, asleep_ones.get(record.id, ""), launches=launches)
                begun.append(record.id)
    if only is None:
        waking.wake_due(store)
        if home in _looked_at:
            share = _ALL_SHARE * (time.thread_time() - began)
            _looked_at[home] = (_looked_at[home][0], max(_ALL_EVERY, share))
    return begun


def look_after_all(store: Store, home: Path) -> list[str]:
    """As `ensure_supervisors` for all tasks, at most once a second in one process.

    That takes 0.3 s for 2,000 tasks that wait for 200 hosts, and a program may look up each of them.
    """
    return ensure_supervisors(store, home) if _may_look_at_all(home) else []


def abandoned_tasks(store: Store, home: Path, *, only: str | None = None) -> list[str]:
    """Ids of unfinished tasks that have no supervisor."""
    processes.reap_let_go()
    return [h.task_id for h in store.unfinished_leases(only) if _abandoned(home, h)]


def resume(store: Store, home: Path, task_id: str) -> None:
    """Starts a supervisor for a task that was left without one. It launches machines as for a new task.

    Raises:
        ConfigError: The task has ended, or has a supervisor.
    """
    record = check_resumable(store, home, task_id)
    store.resume(task_id)
    _start(store, home, record, _why_asleep(store, [record]).get(task_id, ""))


def check_resumable(store: Store, home: Path, task_id: str) -> TaskRecord:
    """The record of a task that `resume` can continue. Raises the same errors."""
    record = store.get_task(task_id)
    if record.final:
        raise ConfigError(
            f"{record.name} ({record.id}) has ended ({record.state}); submit it again"
        )
    if task_id not in abandoned_tasks(store, home, only=task_id):
        raise ConfigError(
            f"{record.name} ({record.id}) is {record.state} and goes on already; `flow status {record.id}`"
        )
    return record


def new_task_id() -> str:
    """Returns a new task id: short enough to type, and without letters that look like digits."""
    return "t" + "".join(random_secrets.choice(_ALPHABET) for _ in range(10))


def _abandoned(home: Path, holder: LeaseHolder) -> bool:
    held = holder.owner is not None and holder.expires > clock.now(home)
    if held and holder.owner is not None and not process_identity.provably_dead(holder.owner):
        return False
    last = process_identity.noted_supervisor(home, holder.task_id)
    if last is None:
        return clock.now(home) > holder.created_at + _START_SECONDS
    # A supervisor that was just started has no lease yet. One that let its lease expire hangs, and is replaced.
    return not last.alive or process_identity.owner(last) == holder.owner


@contextmanager
def explained(home: Path) -> Iterator[None]:
    """Raises StoreError if FLOW_HOME cannot be written while a task is prepared there."""
    try:
        yield
    except OSError as error:
        fix = "Free some space or make it writable"
        if error.errno == errno.ENOSPC and flow_home.has_no_inodes(home):
            fix = "Its disk can hold no more files (`df -i`): remove some"
        raise StoreError(
            f"{home} cannot be written: {_in_words(error)}; nothing was submitted. "
            f"{fix}, or set FLOW_HOME to another directory"
        ) from error


def _in_words(error: OSError) -> str:
    where = f" ({error.filename})" if error.filename else ""
    return f"{error.strerror or error}{where}"
