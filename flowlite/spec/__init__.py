"""What a user asks for: values without I/O, checked when they are made. Each module is loaded on first use."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from flowlite.spec.checkpoint import Checkpoint
    from flowlite.spec.gpu import GpuRequest
    from flowlite.spec.limits import Retries
    from flowlite.spec.secrets import Secret
    from flowlite.spec.storage import Volume
    from flowlite.spec.task import BoundCall, TaskConfig

__all__ = ["BoundCall", "Checkpoint", "GpuRequest", "Retries", "Secret", "TaskConfig", "Volume"]

_HOME = {
    "BoundCall": "task",
    "Checkpoint": "checkpoint",
    "GpuRequest": "gpu",
    "Retries": "limits",
    "Secret": "secrets",
    "TaskConfig": "task",
    "Volume": "storage",
}


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
