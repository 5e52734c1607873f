"""Entry point of the supervisor's process: leads its task to the end, then exits or waits for another task."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import traceback
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flowlite.errors import FlowError, LeaseLost, StoreError
from flowlite.node.system import process_title, processes, trace
from flowlite.provider import provider_of_task
from flowlite.state.store import Store
from flowlite.supervise.process import code_on_disk
from flowlite.supervise.process.resuming import launches_nothing, may_lead
from flowlite.supervise.process.supervisor import Supervisor
from flowlite.supervise.process.supervisor_process import AHEAD, NO_LAUNCH, command, environment
from flowlite.supervise.process.task_lease import LEASE_SECONDS
from flowlite.supervise.queue.waking import wake_due
from flowlite.supervise.record import process_identity
from flowlite.supervise.record.log import say
from flowlite.supervise.record.paths import TaskPaths

if TYPE_CHECKING:
    from flowlite.supervise.process.standby import Standby

# The last change of the files with which a supervisor has begun anew. A defect in them does not make it begin again.
_ANEW = "FLOW_SUPERVISOR_BEGUN_ANEW"


def main() -> None:
    """Leads the task named on the command line if it has no other supervisor, then the tasks handed over afterwards."""
    # The client may have been started with signals blocked. All processes below this one would inherit that, and those
    # that wait for the end of a child would never hear of it.
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    # Or with the ends of children ignored, so that every command that fails would seem to have succeeded: `squeue` too,
    # which then tells of no job.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    task_id, home = sys.argv[1], Path(os.environ["FLOW_HOME"])
    code_on_disk.note_known(float(os.environ.pop(_ANEW, 0.0)))
    launches = NO_LAUNCH not in sys.argv[2:]
    if task_id == AHEAD:
        task_id = _task_from_client(home)
    if os.environ.get("FLOW_DEBUG"):
        from flowlite.settings import request_log

        request_log.turn_on_if_asked()
    waiting: Standby | None = None
    began = trace.started_at()
    while True:
        _trace(task_id, home, began)
        began = None
        code, seconds = lead(task_id, home, launches=launches)
        if code != 0 and code_on_disk.have_changed():
            _begin_anew(task_id, home, launches)
        # A supervisor that did not finish its task must exit, so that it can be replaced.
        if code != 0 or seconds <= 0:
            break
        if waiting is None:
            # Imported only when nodes are kept warm.
            from flowlite.supervise.process.standby import Standby

            waiting = Standby(process_identity.began())
        handed = waiting.wait(home, seconds)
        if handed is None:
            break
        handed.begin(home)
        task_id, launches = handed.task_id, True
    _leave_hosts()
    with contextlib.suppress(OSError):
        sys.stderr.flush()
    # Threads that wait for a node that does not answer must not delay the exit.
    os._exit(code)


def _leave_hosts() -> None:
    """Ends the connections to hosts, if there were any."""
    half_open = sys.modules.get("flowlite.connect.ssh.half_open")
    if half_open is not None:
        half_open.leave_all()


def _begin_anew(task_id: str, home: Path, launches: bool) -> None:
    """Becomes a supervisor of the same task with the program as it is on disk now. Returns if that is impossible."""
    say(
        "the files of flowlite have changed since this supervisor was started; it begins anew with them"
    )
    _leave_hosts()
    argv = command([task_id] if launches else [task_id, NO_LAUNCH])
    with contextlib.suppress(OSError):
        os.execve(argv[0], argv, {**environment(home), _ANEW: str(code_on_disk.last_change())})


def _task_from_client(home: Path) -> str:
    """Waits for the id of its task on standard input (`SupervisorAhead`). Exits if the client submits none."""
    task_id = sys.stdin.readline().strip()
    if not task_id:
        os._exit(0)
    processes.redirect(os.devnull, 0)
    _show_task(task_id)
    processes.redirect(TaskPaths(home, task_id).supervisor_log, 1, 2)
    return task_id


def _show_task(task_id: str) -> None:
    """Makes this process look like one that was started for the task, to `ps` and whoever looks for its processes."""
    if processes.LINUX:
        where = sys.orig_argv.index(AHEAD)
        command = [*sys.orig_argv[:where], task_id, sys.orig_argv[-1]]
        process_title.become(os.path.basename(sys.orig_argv[0]), command, os.environ)


def _trace(task_id: str, home: Path, began: float | None) -> None:
    """Begins to record what this process does for a task, if that is asked for. `began` is when it was started."""
    if trace.wanted():
        trace.begin("supervisor", TaskPaths(home, task_id).trace)
        trace.add_start(began)
    else:
        trace.end()


def _note_self(home: Path, task_id: str) -> None:
    """Notes this process as the one that leads. Of several that were started at once, another one may be noted."""
    this = process_identity.of_process(os.getpid())
    if process_identity.noted_supervisor(home, task_id) != this:
        process_identity.note_supervisor(home, task_id, this)


def _note_leader(store: Store, home: Path, task_id: str) -> None:
    """Notes the process that leads, where this one is noted, which was started too late to."""
    if process_identity.noted_supervisor(home, task_id) == process_identity.of_process(os.getpid()):
        for holder in store.unfinished_leases(task_id):
            if (leader := process_identity.of_owner(holder.owner or "")) is not None:
                process_identity.note_supervisor(home, task_id, leader)


def lead(
    task_id: str,
    home: Path,
    *,
    owner: str | None = None,
    launches: bool = True,
    run: Callable[[Coroutine[Any, Any, None]], None] = asyncio.run,
) -> tuple[int, float]:
    """Leads a task to its end.

    Args:
        owner: Owner of the lease. Default: this process.
        launches: Whether machines may be launched for a task that has none. If not, it is handed back.
        run: Runs the supervisor's coroutine to its end.

    Returns:
        The exit code, and the seconds for which the task's nodes are kept for the next one.
    """
    code, seconds, lease = 0, 0.0, None
    try:
        with trace.span("open the store"):
            store = Store(home / "state.db")
        before = store.get_task(task_id)
        provider = provider_of_task(before, home)
        is_idle = launches_nothing(store, before)
        # Checked before the lease is acquired, since a lease counts as a sign of life.
        if not before.final and may_lead(store, before, provider):
            with trace.span("take the lease"):
                lease = store.acquire_lease(
                    task_id,
                    owner or process_identity.owner(),
                    LEASE_SECONDS,
                    is_dead=process_identity.provably_dead,
                )
        record = store.get_task(task_id)
        if lease is not None and not record.final:
            if owner is None:
                _note_self(home, task_id)
            launches = launches and not is_idle
            while True:
                supervisor = Supervisor(store, home, record, lease, provider, launches=launches)
                run(supervisor.run())
                if not supervisor.has_moved:
                    break
                # The same as for a supervisor that takes the task over.
                record = store.get_task(task_id)
                provider = provider_of_task(record, home)
                launches = supervisor.launches
            store.release_lease(lease)
            wake_due(store)
            seconds = supervisor.warm_seconds
        elif lease is None and owner is None:
            _note_leader(store, home, task_id)
        store.close()
    except LeaseLost as error:
        say(str(error))
    except FlowError as error:
        say(f"{type(error).__name__}: {error}")
        code = 1
    except Exception:
        say(traceback.format_exc())
        code = 1
    if code and lease is not None and code_on_disk.have_changed():
        # This process begins anew.
        with contextlib.suppress(StoreError):
            store.release_lease(lease)
    return code, seconds
