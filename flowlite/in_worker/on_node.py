"""flowlite on a node: nothing has to be installed there for a module that uses the decorator to be imported.

The modules in `CARRIED` need the standard library only and travel with the node agent. They are found behind whatever
the node has itself. Every other public name is a placeholder there, if what it needs is missing: it can be made and
passed on (`volumes={"/data": Volume("data")}`), since options were checked before the task was submitted, and used for
nothing else.
"""

from __future__ import annotations

import os
from typing import Any

CARRIED = (
    "__init__",
    "api.__init__",
    "api.app",
    "api.remote",
    "api.remote_method",
    "api.sweep",
    "api.world_of_one",
    "errors",
    "in_worker.__init__",
    "in_worker.hidden_modules",
    "in_worker.on_node",
    "in_worker.should_stop",
    "terminal",
    "settings.__init__",
    "settings.suggest",
    "spec.__init__",
    "spec.gpu",
)

LOCAL_TASK = "local"
"""`FLOW_TASK_ID` during a plain call of a decorated function, which belongs to no task."""


def on_a_node() -> bool:
    """Whether this process belongs to a task: a worker, or the fork server that workers are forked from."""
    return os.environ.get("FLOW_TASK_ID", LOCAL_TASK) != LOCAL_TASK


def refuse_on_a_node() -> None:
    """Raises ConfigError in a worker: a module that starts a task when imported would start them without end."""
    from flowlite.errors import ConfigError

    if on_a_node() and os.environ.get("FLOW_NESTED") != "1":
        raise ConfigError(
            f"called by a worker of task {os.environ['FLOW_TASK_ID']}: each rank would start a task of its own. "
            "Call the function itself, or start the task under `if __name__ == '__main__':`. FLOW_NESTED=1 allows it "
            "all the same"
        )


def placeholder(name: str) -> type:
    """A class that takes any arguments and can do nothing."""

    def initialise(self: object, *_: Any, **__: Any) -> None:
        """Takes whatever the real one takes."""

    def refuse(self: object, attribute: str) -> Any:
        if attribute.startswith("__"):
            raise AttributeError(attribute)
        from flowlite.errors import ConfigError

        raise ConfigError(
            f"{name}.{attribute} cannot be used by a worker: flowlite is not installed on this node, only what the "
            "decorator needs; add 'flowlite' to dependencies"
        )

    members: dict[str, Any] = {
        "__init__": initialise,
        "__getattr__": refuse,
        "__module__": "flowlite",
    }
    if name == "Flow":
        from flowlite.in_worker.should_stop import should_stop

        members["should_stop"] = staticmethod(should_stop)
    return type(name, (), members)
