"""Fetches what a node has kept of an ended task, for tests whose node is a directory here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flowlite.api.late_results import _Fetch
from flowlite.api.session import Session
from flowlite.provider import Instance, Plan
from flowlite.settings.flow_home import WriteProbe
from flowlite.state.store import Store
from flowlite.supervise.record.paths import TaskPaths
from tests.test_store import task


def fetch(paths: TaskPaths, provider: Any, sizes: Mapping[str, int | None]) -> _Fetch:
    """Fetches files from node 0 of a task of this home, as `flow result` does.

    Args:
        paths: The files of the task.
        provider: Knows the node, and forgets it.
        sizes: The files that the node has kept, with the sizes that were told.
    """
    store = Store(paths.home / "state.db")
    record = task(paths.task_id, plan=Plan("local", "this machine", 1, 1).to_json(), attempt=1)
    if record.id not in {each.id for each in store.list_tasks()}:
        store.create_task(record)
    told = {"node": 0, "instance": "n0", "files": dict(sizes), "kept": True}
    store.add_event(
        record.id, "lacking", "not all is here", {"attempt": 1, "nodes": [told], "ended_well": True}
    )
    session = Session(paths.home, store, WriteProbe(paths.home))
    found = _Fetch(session, provider, Instance("n0", record.id), record, told)
    found.run()
    store.close()
    return found
