"""Multi-node training from a decorator.

    from flowlite import FlowApp

    app = FlowApp()

    @app.function(gpu="h100:8", num_instances=4, distributed_mode="auto")
    def train(lr: float = 1e-4) -> dict: ...

    result = train.remote(lr=5e-5)

Public names are imported on first use, so that `import flowlite` is fast.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from flowlite.api.app import FlowApp, Function
    from flowlite.api.as_completed import as_completed
    from flowlite.api.client import Flow
    from flowlite.api.task import Task
    from flowlite.errors import (
        AnswerTooLong,
        ArgumentError,
        BundleError,
        BundleWarning,
        CapacityUnavailable,
        CapExceeded,
        ConfigError,
        FlowError,
        HostKeyError,
        NodeUnreachable,
        NotFound,
        PermissionRefused,
        ProviderError,
        QuotaExceeded,
        RemoteError,
        RemoteTraceback,
        ResultUnavailable,
        SpecError,
        StoreDamaged,
        StoreError,
        TaskCancelled,
        TaskFailed,
        TaskTimeout,
    )
    from flowlite.in_worker.should_stop import should_stop
    from flowlite.output.reader import LogLine, Logs
    from flowlite.spec.checkpoint import Checkpoint
    from flowlite.spec.gpu import GpuRequest
    from flowlite.spec.limits import Retries
    from flowlite.spec.secrets import Secret
    from flowlite.spec.storage import Volume
    from flowlite.spec.task import TaskConfig

__version__ = "0.1.0"

__all__ = [
    "AnswerTooLong",
    "ArgumentError",
    "BundleError",
    "BundleWarning",
    "CapExceeded",
    "CapacityUnavailable",
    "Checkpoint",
    "ConfigError",
    "Flow",
    "FlowApp",
    "FlowError",
    "Function",
    "GpuRequest",
    "HostKeyError",
    "LogLine",
    "Logs",
    "NodeUnreachable",
    "NotFound",
    "PermissionRefused",
    "ProviderError",
    "QuotaExceeded",
    "RemoteError",
    "RemoteTraceback",
    "ResultUnavailable",
    "Retries",
    "Secret",
    "SpecError",
    "StoreDamaged",
    "StoreError",
    "Task",
    "TaskCancelled",
    "TaskConfig",
    "TaskFailed",
    "TaskTimeout",
    "Volume",
    "__version__",
    "as_completed",
    "should_stop",
]

_MODULES = {
    "Checkpoint": "spec.checkpoint",
    "Flow": "api.client",
    "FlowApp": "api.app",
    "Function": "api.app",
    "GpuRequest": "spec.gpu",
    "LogLine": "output.reader",
    "Logs": "output.reader",
    "Retries": "spec.limits",
    "Secret": "spec.secrets",
    "Task": "api.task",
    "TaskConfig": "spec.task",
    "Volume": "spec.storage",
    "as_completed": "api.as_completed",
    "should_stop": "in_worker.should_stop",
}


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    try:
        value = getattr(import_module(f"flowlite.{_MODULES.get(name, 'errors')}"), name)
    except ModuleNotFoundError:
        from flowlite.in_worker.on_node import on_a_node, placeholder

        if not on_a_node():
            raise
        value = placeholder(name)
    except (ImportError, AttributeError) as error:
        from flowlite.in_worker.hidden_modules import hidden_module

        if hidden := hidden_module(error):
            raise ImportError(hidden) from None
        raise
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
