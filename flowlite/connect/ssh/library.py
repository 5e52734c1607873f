"""Imports paramiko without one of its dependencies, a runner of commands that takes a quarter of the import time.

Only `Match exec` of paramiko's own configuration parser needs it, which flowlite does not use. It is imported when
first accessed.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any

_RUNNER = "invoke"


class _LazyModule:
    """A module that is imported when one of its attributes is accessed."""

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
    config.invoke = _LazyModule()


_without_runner()

import paramiko  # noqa: E402
import paramiko.common  # noqa: E402
import paramiko.packet  # noqa: E402

__all__ = ["paramiko"]
