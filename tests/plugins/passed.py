"""What passed in one run need not run again in the next.

CI runs the tests twice: on a bare machine as an ordinary user, and as root with every component. FLOW_TEST_PASSED_TO
names a file that the first run writes the tests into which passed. With FLOW_TEST_PASSED_BEFORE the second run leaves
these out, but for those marked `both`, which take another way as root.

What failed is in pytest's cache, where `tests/second_look.py` finds it.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

_TO = os.environ.get("FLOW_TEST_PASSED_TO")
_BEFORE = os.environ.get("FLOW_TEST_PASSED_BEFORE")
FAILED = "flowlite/failed"
_passed: dict[str, bool] = {}
_failed: dict[str, None] = {}


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out what passed in the run before."""
    if _BEFORE is None:
        return
    before = set(Path(_BEFORE).read_text().splitlines())
    again = [
        item for item in items if item.nodeid in before and item.get_closest_marker("both") is None
    ]
    left_out = set(again)
    items[:] = [item for item in items if item not in left_out]
    config.hook.pytest_deselected(items=again)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Notes how a test came out; its parts are set-up, the test and what follows it."""
    if report.when == "call" or report.outcome != "passed":
        _passed[report.nodeid] = report.passed
    if report.failed:
        _failed[report.nodeid] = None


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """In the process that hears of all tests: writes what passed, and what failed if nothing else went wrong."""
    if hasattr(session.config, "workerinput"):
        return
    if _TO is not None:
        lines = [f"{name}\n" for name, passed in _passed.items() if passed]
        Path(_TO).write_text("".join(lines))
    # Without the plugin `cacheprovider` there is none.
    cache: pytest.Cache | None = getattr(session.config, "cache", None)
    if cache is not None:
        only_tests_failed = exitstatus == pytest.ExitCode.TESTS_FAILED
        cache.set(FAILED, list(_failed) if only_tests_failed else [])
