"""How a task gets under way, and gets a supervisor again when the first one was killed.

with draft_task(home) as draft:                       # tasks/ID exists; it is removed again if anything fails
    bundle = build(function, args, kwargs, draft.paths.bundle)
    record = submit(store, draft, name=..., function=..., config=..., plan=plan, call=call, secrets=...)
"""

from __future__ import annotations

import json
import os
import secrets as random_secrets
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import flowlite
from flowlite.errors import ConfigError, StoreError
from flowlite.provider import Plan
from flowlite.state import clock
from flowlite.state.store import LeaseHolder, Store, TaskRecord
from flowlite.supervise.record import process_identity
from flowlite.supervise.record.paths import TaskPaths, write_private

OUTPUTS = "flow-outputs"
"""Directory for the outputs of tasks, below the one they are submitted from."""
_ALPHABET = "abcdefghijkmnpqrstuvwxyz23456789"
# A supervisor that was just started has this long to be noted down before the task counts as abandoned.
_START_SECONDS = 5.0
# What an outer worker or launcher was told is not meant for the supervisor of another task.
_NOT_INHERITED = frozenset({"FLOW_TASK_ID", "FLOW_TASK_NAME", "FLOW_NODE_RANK", "FLOW_ATTEMPT"})

# The supervisor finds flowlite where this process found it, also in a checkout that is not installed; not through
# PYTHONPATH, which the workers would inherit. asyncio imports ssl, which takes long and which nothing here needs;
# adapters that do may still import it.
_SUPERVISOR = (
    "import sys; sys.path.insert(0, sys.argv.pop()); sys.modules['ssl'] = None; import asyncio; "
    "del sys.modules['ssl']; "
    "from flowlite.supervise.process.main import main; main()"
)

_started: set[int] = set()


@dataclass(slots=True)
class Draft:
    """A task that is being prepared: it has an id and directories, and nobody knows of it yet."""

    task_id: str
    paths: TaskPaths
    submitted: bool = False


@contextmanager
def draft_task(home: Path) -> Iterator[Draft]:
    """Makes the id and the directories of a new task; removes them again unless `submit` was reached.

    Raises:
        StoreError: FLOW_HOME cannot be written.
    """
    paths = TaskPaths(home, new_task_id())
    draft = Draft(paths.task_id, paths)
    try:
        with _explained(home):
            home.mkdir(mode=0o700, parents=True, exist_ok=True)
            paths.make()
        yield draft
    finally:
        if not draft.submitted:
            shutil.rmtree(paths.directory, ignore_errors=True)


def submit(
    store: Store,
    draft: Draft,
    *,
    name: str,
    function: str,
    config: Mapping[str, Any],
    plan: Plan,
    call: Mapping[str, Any],
    secrets: Mapping[str, str] | None = None,
    storage: Mapping[str, Any] | None = None,
    outputs_below: Path | None = None,
    supervise: bool = True,
) -> TaskRecord:
    """Records a task, durably, and starts its supervisor. From here on the task does not need its client any more.

    Args:
        store: Where to record it.
        draft: From `draft_task`.
        name: Name of the task, need not be unique.
        function: The function or command line, for people.
        config: `TaskConfig` as JSON.
        plan: What to launch.
        call: What workers run, as `AgentConfig.call`, with paths on this machine.
        secrets: Secret variables of the workers.
        storage: What opens the buckets of the task on its nodes.
        outputs_below: Where a directory is made for its outputs, if it has some; None is the directory of the task.
        supervise: False leaves the task to the next `ensure_supervisors`.

    Raises:
        StoreError: It could not be recorded; nothing was started and nothing is left behind.
    """
    paths = draft.paths
    with _explained(paths.home):
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
        created_at=clock.now(paths.home),
    )
    with _explained(paths.home):
        write_private(paths.config, json.dumps(record.config, indent=1).encode())
        write_private(paths.plan, json.dumps(record.plan, indent=1).encode())
        write_private(paths.secret, random_secrets.token_hex(32).encode())
        write_private(paths.secrets, json.dumps(dict(secrets or {})).encode())
        write_private(paths.storage, json.dumps(dict(storage or {})).encode())
        if record.config.get("outputs"):
            below = (outputs_below or paths.directory).absolute()
            to = below / OUTPUTS / f"{record.name}-{record.id}"
            write_private(paths.outputs, json.dumps({"to": str(to)}).encode())
    store.create_task(record)
    draft.submitted = True
    if supervise:
        start_supervisor(paths.home, record.id, spare=bool(record.config.get("keep_warm")))
    return record


def cancel(store: Store, home: Path, task_id: str) -> bool:
    """Asks for the end of a task and makes sure that somebody sees to it. False if it is final already."""
    asked = store.request_cancel(task_id)
    if asked and not ensure_supervisors(store, home, only=task_id):
        unled = [holder for holder in store.unfinished_leases(task_id) if holder.owner is None]
        if unled and not TaskPaths(home, task_id).supervisor.exists():
            start_supervisor(home, task_id)
    return asked


def start_supervisor(home: Path, task_id: str, *, spare: bool = False) -> int:
    """Starts the supervisor of a task, detached: it outlives this process and its terminal. Returns its process id.

    A second one for the same task does no harm: the lease lets in one at a time, and the other leaves.

    Args:
        spare: One that waits for work will do, if there is one.
    """
    paths = TaskPaths(home, task_id)
    if spare and (found := _hand_over(home, task_id)) is not None:
        _note_supervisor(paths, found)
        return found.pid
    root = str(Path(flowlite.__file__).resolve().parent.parent)
    with _explained(home), open(paths.supervisor_log, "ab") as log:
        child = subprocess.Popen(
            [sys.executable, "-P", "-c", _SUPERVISOR, task_id, root],
            cwd="/",
            env=_supervisor_environment(home),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    # It outlives us, so nobody waits for it; Popen would warn, and a zombie would stay until we end.
    child.returncode = 0
    _started.add(child.pid)
    _note_supervisor(paths, process_identity.of_process(child.pid))
    return child.pid


def _hand_over(home: Path, task_id: str) -> process_identity.Process | None:
    # Only who keeps nodes warm pays for the import.
    from flowlite.supervise.process import standby

    return standby.hand_over(home, task_id, _supervisor_environment(home))


def _note_supervisor(paths: TaskPaths, process: process_identity.Process) -> None:
    with suppress(OSError):
        write_private(paths.supervisor, json.dumps(process.to_json()).encode())


def ensure_supervisors(store: Store, home: Path, *, only: str | None = None) -> list[str]:
    """Starts a supervisor for every unfinished task that has none any more; cheap enough to call every second.

    One without machines that nobody has led for a while is left to `flow resume` and `flow cancel`.

    Returns:
        Ids of the tasks whose supervisor was started again.
    """
    begun: list[str] = []
    abandoned = abandoned_tasks(store, home, only=only)
    if not abandoned:
        return begun
    # Only who finds such a task pays for the import.
    from flowlite.supervise.process.resuming import needs_resume

    for task_id in abandoned:
        # Nor can a task be supervised whose row is damaged, or whose directory somebody has removed; `flow gc` names
        # the one, and ends what is left of the other.
        with suppress(StoreError):
            if needs_resume(store, store.get_task(task_id)):
                continue
            start_supervisor(home, task_id)
            begun.append(task_id)
    return begun


def abandoned_tasks(store: Store, home: Path, *, only: str | None = None) -> list[str]:
    """Unfinished tasks that nobody leads."""
    _reap()
    return [h.task_id for h in store.unfinished_leases(only) if _abandoned(home, h)]


def resume(store: Store, home: Path, task_id: str) -> None:
    """Has a task go on that was left alone; it asks for machines as if it had just been submitted.

    Raises:
        ConfigError: It has ended, or somebody leads it.
    """
    record = store.get_task(task_id)
    if record.final:
        raise ConfigError(
            f"{record.name} ({record.id}) has ended ({record.state}); submit it again"
        )
    if task_id not in abandoned_tasks(store, home, only=task_id):
        raise ConfigError(
            f"{record.name} ({record.id}) is {record.state} and goes on already; `flow status {record.id}`"
        )
    store.resume(task_id)
    start_supervisor(home, task_id)


def has_supervisor(home: Path, task_id: str) -> bool:
    """Whether the process that was started last to lead a task runs, whatever it does."""
    last = noted_supervisor(home, task_id)
    return last is not None and last.alive


def noted_supervisor(home: Path, task_id: str) -> process_identity.Process | None:
    """The process that was started last to lead a task, whether or not it lives."""
    try:
        noted = json.loads(TaskPaths(home, task_id).supervisor.read_bytes())
        return process_identity.Process(int(noted["pid"]), str(noted["start"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def new_task_id() -> str:
    """A fresh id: short enough to type, and without letters that look like digits."""
    return "t" + "".join(random_secrets.choice(_ALPHABET) for _ in range(10))


def _abandoned(home: Path, holder: LeaseHolder) -> bool:
    held = holder.owner is not None and holder.expires > clock.now(home)
    if held and holder.owner is not None and not process_identity.provably_dead(holder.owner):
        return False
    last = noted_supervisor(home, holder.task_id)
    if last is None:
        return clock.now(home) > holder.created_at + _START_SECONDS
    # One that was started a moment ago has no lease yet. One that has let its lease lapse hangs, and is replaced.
    return not last.alive or process_identity.owner(last) == holder.owner


def _reap() -> None:
    for pid in tuple(_started):
        with suppress(ChildProcessError):
            if os.waitpid(pid, os.WNOHANG)[0] == 0:
                continue
        _started.discard(pid)


def _supervisor_environment(home: Path) -> dict[str, str]:
    environment = {name: text for name, text in os.environ.items() if name not in _NOT_INHERITED}
    environment["FLOW_HOME"] = str(home.absolute())
    return environment


@contextmanager
def _explained(home: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StoreError(
            f"{home} cannot be written: {error.strerror or error} ({error.filename}); nothing was submitted. "
            "Free some space or make it writable, or set FLOW_HOME to another directory"
        ) from error
