"""Fills FLOW_HOME with finished tasks: runs one for real, and records it again under other ids."""

import dataclasses
import sys

from flowlite import FlowApp
from flowlite.settings import settings
from flowlite.state.store import Store

app = FlowApp()


@app.function(num_instances=2, processes_per_node=2)
def nothing() -> None:
    """Does nothing."""


if __name__ == "__main__":
    task = nothing.spawn()
    task.wait()
    store = Store(settings.home() / "state.db")
    record = store.get_task(task.id)
    instances = store.instances(task.id)
    for number in range(int(sys.argv[1]) - 1):
        # The supervisor may not have released its lease yet, and would hold that of each copy.
        copy = dataclasses.replace(
            record,
            id=f"{record.id}-{number:03}",
            name=f"task-{number:03}",
            lease_owner=None,
            lease_expires=0.0,
        )
        store.create_task(copy)
        lease = store.acquire_lease(copy.id, "benchmark", 60.0)
        assert lease is not None
        store.put_instances(
            lease,
            [dataclasses.replace(i, id=f"{i.id}-{number}", task_id=copy.id) for i in instances],
        )
        store.release_lease(lease)
