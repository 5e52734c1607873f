"""Tracers that are active in this process: debuggers, profilers and coverage that an import or a .pth file has started.

A forked worker would show them what the fork server did before, which is not the user's program.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

# The tools that programs may claim in `sys.monitoring` (Python 3.12); it has others for sys.settrace itself.
_TOOLS = range(6)


def active_tracer() -> str:
    """Returns which tracer or profiler is active, as a sentence; "" if there is none."""
    return next(_active(), "")


def _active() -> Iterator[str]:
    threading: Any = sys.modules.get("threading")
    for traces in (sys.gettrace(), getattr(threading, "_trace_hook", None)):
        if traces is not None:
            yield f"{_name(traces)} traces this Python before its script begins"
    for profiles in (sys.getprofile(), getattr(threading, "_profile_hook", None)):
        if profiles is not None:
            yield f"{_name(profiles)} profiles this Python before its script begins"
    monitoring: Any = getattr(sys, "monitoring", None)
    for tool in _TOOLS if monitoring is not None else ():
        if (name := monitoring.get_tool(tool)) is not None:
            yield f"{name} monitors this Python before its script begins"
    tracemalloc: Any = sys.modules.get("tracemalloc")
    if tracemalloc is not None and tracemalloc.is_tracing():
        yield "tracemalloc traces this Python before its script begins"


def _name(function: Any) -> str:
    """Where a function, or an object that is called like one, comes from."""
    named = function if hasattr(function, "__qualname__") else type(function)
    return f"{named.__module__}.{named.__qualname__}"
