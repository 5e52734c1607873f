"""What each test costs: with FLOW_TEST_COSTS=FILE, a line for each, with seconds and seconds of processor time.

On a busy machine only the latter says something. It counts all that a test starts, agents and hosts that leave its
process tree included, where this process may make a control group of its own (cgroup v1, as root); elsewhere it counts
this process and the children that it waited for.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Generator
from pathlib import Path

import pytest

_TO = os.environ.get("FLOW_TEST_COSTS")
_ACCOUNTS = Path("/sys/fs/cgroup/cpuacct")
_group: Path | None = None


def pytest_configure(config: pytest.Config) -> None:
    """Moves this process into a control group of its own, which all that it starts inherits."""
    global _group
    if _TO is None:
        return
    group = _ACCOUNTS / f"flowlite-tests-{os.getpid()}"
    with contextlib.suppress(OSError):
        group.mkdir()
        (group / "cgroup.procs").write_text(str(os.getpid()))
        _group = group


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Measures the test with its fixtures, and those of the session which are made or removed for it."""
    if _TO is None:
        return (yield)
    began, used = time.monotonic(), _processor_time()
    try:
        return (yield)
    finally:
        line = f"{time.monotonic() - began:8.2f} {_processor_time() - used:8.2f} {item.nodeid}\n"
        with open(_TO, "a") as costs:
            costs.write(line)


def _processor_time() -> float:
    if _group is not None:
        return int((_group / "cpuacct.usage").read_text()) / 1e9
    return sum(os.times()[:4])
