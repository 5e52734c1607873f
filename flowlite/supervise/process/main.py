"""The process of a supervisor: it leads its task to the end and leaves, or waits for the next one (standby.py)."""

from __future__ import annotations

import asyncio
import os
import sys
import traceback
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flowlite.errors import FlowError, LeaseLost
from flowlite.provider import provider_of_task
from flowlite.state.store import Store
from flowlite.supervise.process.resuming import may_lead
from flowlite.supervise.process.supervisor import Supervisor
from flowlite.supervise.process.task_lease import LEASE_SECONDS
from flowlite.supervise.record import process_identity
from flowlite.supervise.record.log import say

if TYPE_CHECKING:
    from flowlite.supervise.process.standby import Standby


def main() -> None:
    """Leads the task of the command line, if nobody else does, and those that are handed over after it."""
    task_id, home = sys.argv[1], Path(os.environ["FLOW_HOME"])
    if os.environ.get("FLOW_DEBUG"):
        from flowlite.settings import request_log

        request_log.turn_on_if_asked()
    waiting: Standby | None = None
    while True:
        code, seconds = lead(task_id, home)
        # One that did not come to the end of its task must be seen to be gone.
        if code != 0 or seconds <= 0:
            break
        waiting = waiting or _as_spare()
        handed = waiting.wait(home, seconds)
        if handed is None:
            break
        handed.begin(home)
        task_id = handed.task_id
    # Threads that wait for a node that does not answer must not hold the process back.
    sys.stderr.flush()
    os._exit(code)


def _as_spare() -> Standby:
    # Only who keeps nodes warm pays for the import.
    from flowlite.supervise.process.standby import Standby

    return Standby(process_identity.began())


def lead(
    task_id: str,
    home: Path,
    *,
    owner: str | None = None,
    run: Callable[[Coroutine[Any, Any, None]], None] = asyncio.run,
) -> tuple[int, float]:
    """Leads a task to its end; gives an exit code, and for how long its nodes are kept for the next one.

    Args:
        owner: Who holds the lease: this process unless given.
        run: Runs the supervisor to its end.
    """
    code, seconds = 0, 0.0
    try:
        store = Store(home / "state.db")
        before = store.get_task(task_id)
        provider = provider_of_task(before, home)
        lease = None
        # Before it has the lease: to look must not count as a sign of life.
        if not before.final and may_lead(store, before, provider):
            lease = store.acquire_lease(
                task_id,
                owner or process_identity.owner(),
                LEASE_SECONDS,
                is_dead=process_identity.provably_dead,
            )
        record = store.get_task(task_id)
        if lease is not None and not record.final:
            supervisor = Supervisor(store, home, record, lease, provider)
            run(supervisor.run())
            store.release_lease(lease)
            seconds = supervisor.warm_seconds
        store.close()
    except LeaseLost as error:
        say(str(error))
    except FlowError as error:
        say(f"{type(error).__name__}: {error}")
        code = 1
    except Exception:
        say(traceback.format_exc())
        code = 1
    return code, seconds
