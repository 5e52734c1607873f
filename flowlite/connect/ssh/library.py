"""paramiko, imported without what it brings along for nothing: a runner of commands, a quarter of the time it takes.

Only `Match exec` of paramiko's own reader of configurations needs that, which we do not use; whoever does gets it then.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any

_RUNNER = "invoke"


class _Later:
    """A module that is imported when something of it is wanted."""

    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module(_RUNNER), name)


def _without_runner() -> None:
    if _RUNNER in sys.modules or "paramiko" in sys.modules:
        return
    sys.modules[_RUNNER] = None  # type: ignore[assignment]
    try:
        config: Any = importlib.import_module("paramiko.config")
    finally:
        del sys.modules[_RUNNER]
    config.invoke = _Later()


_without_runner()

import paramiko  # noqa: E402
import paramiko.common  # noqa: E402
import paramiko.packet  # noqa: E402

__all__ = ["paramiko"]
