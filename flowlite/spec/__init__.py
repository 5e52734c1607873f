"""What a user asks for: values without I/O, checked when they are made. Each module is loaded on first use.

`task.py` has `TaskConfig`, the configuration of one run, checked as a whole. `options.py` types the same options for
the decorator. `fields.py` has the kinds of values, each with its check and its error, and the modules beside it the
larger ones: `gpu.py`, `limits.py`, `storage.py`, `checkpoint.py`, `secrets.py`, `retry_policy.py`, `slurm.py`.
`launchers.py` refuses what would train several separate models. `taskfile.py` reads task files, with
errors that name file and line, and `batch/` reads Slurm's batch scripts. `other_tools.py` knows what other tools call
an option.

An error says which option is wrong, what was given, and what is allowed (`base.py`). Whether a machine with these
options exists is the provider's question (`Provider.plan`), not asked here.

Imports `settings` (for parsing), `notify`, `errors`, and pure modules of `node`. Supervisors do not load it: they
read `supervise/record/task_view.py`. Start with `task.py`.
"""

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
