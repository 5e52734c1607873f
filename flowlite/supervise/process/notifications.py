"""A task's notifications. Each event is sent by a process of its own, so that sending cannot harm the task.

The targets are in a file of the task that only its owner can read. The result of each notification is in the task's
history, where targets are shown without their keys.
"""

from __future__ import annotations

import dataclasses
import json
import os
import select
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from flowlite.errors import FlowError, NotFound, StoreError
from flowlite.node.system.atomic_files import write_atomically
from flowlite.notify.sending import SECONDS, Message, NotSent, readable, send
from flowlite.notify.targets import keys_in, shown
from flowlite.output import redact
from flowlite.state.store import Store, TaskRecord
from flowlite.supervise import gang_size
from flowlite.supervise.background import run_detached
from flowlite.supervise.money import price_text
from flowlite.supervise.money.cost import is_upper_bound
from flowlite.supervise.record import wording
from flowlite.supervise.record.paths import TaskPaths

# The process that was started last for each task of this supervisor.
_sending: dict[str, int] = {}

CAP, RETRYING = "cap", "retrying"
_WORDS = {CAP: "reached a cap and was ended", RETRYING: "failed and is started again"}


def keep_targets(paths: TaskPaths, targets: Sequence[str], directory: str) -> None:
    """Stores the targets of a task's notifications, and the working directory of the commands among them."""
    if targets:
        content = {"targets": list(targets), "directory": directory}
        write_atomically(paths.notify, json.dumps(content).encode())


def targets_of(paths: TaskPaths) -> tuple[list[str], Path]:
    """Returns the targets of a task's notifications, if any, and the working directory for commands."""
    try:
        found = json.loads(paths.notify.read_bytes())
        return [str(each) for each in found["targets"]], Path(str(found["directory"]))
    except (OSError, ValueError, KeyError, TypeError):
        return [], Path("/")


def begin(paths: TaskPaths, event: str, reason: str = "") -> None:
    """Starts the process that sends the notifications of an event, if the task has targets.

    Args:
        reason: Why, if the task's record may say something else by the time of the message.
    """
    if paths.notify.exists():
        process = run_detached(
            paths.home,
            "flowlite.supervise.process.notifications",
            *(paths.task_id, event, str(_sending.get(paths.task_id, 0))),
            given=reason,
        )
        if process is not None:
            _sending[paths.task_id] = process


def _await_end(process: int, seconds: float) -> None:
    """Waits for the end of a process, at most so many seconds, so that events are told in their order."""
    if not process or not hasattr(os, "pidfd_open"):
        return
    with suppress(ProcessLookupError):
        descriptor = os.pidfd_open(process)
        select.select([descriptor], [], [], seconds)
        os.close(descriptor)


def message_of(
    record: TaskRecord, event: str, *, reason: str = "", upper_bound: bool = False
) -> Message:
    """Returns the message for an event of a task.

    Args:
        reason: Why; "" for the reason of the task's state.
        upper_bound: Whether it may have cost less than its record says.
    """
    if reason:
        record = dataclasses.replace(record, reason=reason)
    what = _WORDS.get(event, record.state)
    title = f"{record.name} ({record.id}) {what}"
    text = f"task {title}"
    if record.reason:
        text += f": {record.reason}"
    if event != RETRYING:
        took = (record.finished_at or record.created_at) - (record.started_at or record.created_at)
        text += (
            f" ({wording.duration(max(0.0, took))}, {price_text.spent(record.cost, upper_bound)})"
        )
    task = {
        "id": record.id,
        "name": record.name,
        "status": record.state,
        "reason": readable(record.reason),
        "function": record.function,
        "provider": record.provider,
        "num_instances": gang_size.nodes_of(record),
        "attempt": record.attempt,
        "created_at": record.created_at,
        "started_at": record.started_at,
        "finished_at": record.finished_at,
        "cost": record.cost,
        "upper_bound": upper_bound,
    }
    return Message(event, readable(title), readable(text), task)


def notify(store: Store, paths: TaskPaths, event: str, reason: str = "") -> None:
    """Sends the notification of an event to each target in turn, and records each result in the task's history."""
    targets, directory = targets_of(paths)
    unobserved = is_upper_bound(store.instances(paths.task_id))
    record = store.get_task(paths.task_id)
    message = message_of(record, event, reason=reason, upper_bound=unobserved)
    for target in targets:
        for key in keys_in(target):
            redact.keep_out(key)
    for target in targets:
        try:
            send(target, message, directory)
            kind, said = "notified", f"notified {shown(target)} of: {event}"
        except (NotSent, OSError) as error:
            why = str(error) or type(error).__name__
            kind, said = "warning", f"{shown(target)} was not notified of: {event} ({why})"
        mask = redact.of_file(paths.secrets)
        # The task may have been removed meanwhile.
        with suppress(StoreError, NotFound):
            store.add_event(paths.task_id, kind, redact.cleaned(mask(said)), {"event": event})


def main() -> None:
    """Entry point of the sending process: `… ROOT TASK_ID EVENT BEFORE`, with FLOW_HOME set.

    BEFORE is the id of the process that sends the event before; 0 for none. The reason is on standard input.
    """
    task_id, event, before = sys.argv[2:5]
    home = Path(os.environ["FLOW_HOME"])
    with suppress(FlowError, OSError):
        reason = sys.stdin.read()
        paths = TaskPaths(home, task_id)
        _await_end(int(before), SECONDS * len(targets_of(paths)[0]))
        notify(Store(home / "state.db"), paths, event, reason)
    # A thread that waits for a server that never answers must not delay the exit.
    os._exit(0)
