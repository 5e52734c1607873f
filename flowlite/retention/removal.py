"""Removes ended tasks with all their files on this machine."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING

from flowlite.api.late_results import lacking
from flowlite.errors import StoreError
from flowlite.node.host_lease import cleanup
from flowlite.node.mount_namespace import unmount

if TYPE_CHECKING:
    from flowlite.api.session import Session
    from flowlite.state.store import TaskRecord


def reason_to_keep(session: Session, record: TaskRecord, now: float) -> str:
    """Returns why nothing of a task may be removed and what the user can do; "" if it may be removed."""
    if not record.final:
        return f"it is {record.state}; end it first: flow cancel {record.id}"
    for instance in session.store.instances(record.id):
        if instance.state == "warm" and (instance.ended_at or 0.0) > now:
            until = time.strftime("%H:%M:%S", time.localtime(instance.ended_at))
            return f"its nodes are kept warm until {until}; `flow gc --warm` ends them"
        if instance.ended_at is None:
            return "a node of it is not known to have ended; `flow gc` looks after it"
    told = lacking(record, session.store.events(record.id))
    if told is not None and any(each["kept"] for each in told.nodes):
        return (
            f"results or logs of it are still on its nodes; `flow result {record.id}` fetches them"
        )
    return ""


def forget(session: Session, record: TaskRecord) -> None:
    """Removes a final task: its files and its rows.

    Raises:
        StoreError: Some of its files cannot be deleted. Its rows stay, so that it can be removed later.
    """
    directory = session.paths(record.id).directory
    # A node of the local provider is below it, and a bucket that could not be unmounted at its end may be there still.
    if mounted := unmount.unmount_below(directory):
        raise StoreError(
            f"{record.name} ({record.id}) cannot be removed: what is mounted at {mounted[0]} would be deleted with it; "
            "unmount it first"
        )
    # Files first: a task without files can still be removed later, but files without a task would not be found.
    with suppress(OSError):
        cleanup.remove_tree(str(directory))
    if directory.exists():
        raise StoreError(
            f"{record.name} ({record.id}) cannot be removed: not all files in {directory} can be deleted; see whose "
            "they are, then try again"
        )
    session.store.delete_task(record.id)
