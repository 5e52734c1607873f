"""Lets nodes import modules that use the decorator without having flowlite installed.

The modules in `CARRIED` need only the standard library and are sent with the node agent. They come last in `sys.path`,
after the node's own modules. Every other public name whose requirements are missing is a placeholder there. A
placeholder can be created and passed on (`volumes={"/data": Volume("data")}`), since options were checked before the
task was submitted, but it has no other use.
"""

from __future__ import annotations

import os
from typing import Any

CARRIED = (
    "__init__",
    "api.__init__",
    "api.app",
    "api.import_guard",
    "api.remote",
    "api.remote_method",
    "api.sweeps.__init__",
    "api.sweeps.async_sweep",
    "api.sweeps.sweep",
    "api.sweeps.sweep_method",
    "api.user_signature",
    "api.world_of_one",
    "errors",
    "in_worker.__init__",
    "in_worker.hidden_modules",
    "in_worker.on_node",
    "in_worker.should_stop",
    "in_worker.signatures",
    "terminal",
    "settings.__init__",
    "settings.suggest",
    "spec.__init__",
    "spec.gpu",
)

LOCAL_TASK = "local"
"""`FLOW_TASK_ID` during a plain call of a decorated function, which belongs to no task."""


def on_a_node() -> bool:
    """Whether this process belongs to a task: a worker, or the fork server."""
    return os.environ.get("FLOW_TASK_ID", LOCAL_TASK) != LOCAL_TASK


def refuse_on_a_node() -> None:
    """Raises ConfigError in a worker, since a module that starts a task when it is imported would do so endlessly."""
    from flowlite.errors import ConfigError

    if on_a_node() and os.environ.get("FLOW_NESTED") != "1":
        raise ConfigError(
            f"called by a worker of task {os.environ['FLOW_TASK_ID']}: each rank would start a task of its own. "
            "Call the function itself, or start the task under `if __name__ == '__main__':`. A program that starts "
            "tasks runs without `flow run --`, as in `python train.py`. FLOW_NESTED=1 allows it all the same"
        )


def placeholder(name: str) -> type:
    """A class that takes any arguments and can do nothing."""

    def initialise(self: object, *_: Any, **__: Any) -> None:
        """Accepts any arguments, as the real class may take them."""

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
