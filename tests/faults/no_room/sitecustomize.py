"""Lets this machine have room for as many nodes as a file says, and makes a supervisor kill itself at chosen points.

The file `room` in FLOW_HOME has the number of nodes that a task may have. The points are counted from the moment at
which there is a file `armed`, before and after everything that a supervisor records, launches and ends; at that of
`KILL_AT` it is killed, once.
"""

import dataclasses
import os
import signal
import sys
from pathlib import Path


def _patch() -> None:
    sys.path.insert(0, sys.orig_argv[-1])
    from flowlite.errors import CapacityUnavailable
    from flowlite.provider import Instance, LaunchIntent
    from flowlite.state.store import Store
    from provider_adapters.local import LocalProvider

    launch = LocalProvider.launch

    def within_room(self: LocalProvider, intent: LaunchIntent) -> list[Instance]:
        room = int((Path(os.environ["FLOW_HOME"]) / "room").read_text())
        mine = self.list_instances(intent.task_id)
        made = [each for each in mine if each.id.startswith(f"{intent.task_id}-")]
        again = (Path(os.environ["FLOW_HOME"]) / f"made-{intent.token}").exists()
        free = room - len(made)
        if not again and free < intent.fewest:
            raise CapacityUnavailable(f"room for {room} nodes", retry_after=0.2)
        if not again:
            (Path(os.environ["FLOW_HOME"]) / f"made-{intent.token}").write_text(
                str(min(free, intent.count))
            )
        count = int((Path(os.environ["FLOW_HOME"]) / f"made-{intent.token}").read_text())
        return launch(self, dataclasses.replace(intent, count=count, least=0))

    LocalProvider.launch = within_room  # type: ignore[method-assign]
    if os.environ.get("KILL_AT"):
        _kill(Store, LocalProvider)


def _kill(store: type, provider: type) -> None:
    at, marker = int(os.environ["KILL_AT"]), Path(os.environ["KILL_MARKER"])
    if marker.exists():
        return
    armed = Path(os.environ["FLOW_HOME"]) / "armed"
    passed = 0

    def point(name: str) -> None:
        nonlocal passed
        passed += armed.exists()
        if passed == at:
            marker.write_text(name)
            os.kill(os.getpid(), signal.SIGKILL)

    def around(owner: type, name: str) -> None:
        original = getattr(owner, name)

        def wrapped(*arguments: object, **options: object) -> object:
            point(f"before {name}")
            found = original(*arguments, **options)
            point(f"after {name}")
            return found

        setattr(owner, name, wrapped)

    for name in ("transition", "put_intent", "put_instances", "settle_intent", "add_event"):
        around(store, name)
    for name in ("launch", "terminate"):
        around(provider, name)


if "flowlite.supervise.process.main" in " ".join(sys.orig_argv):
    _patch()
