"""What a run may leave out, and how it says so.

A test whose components are missing here (marker `needs`, `tests/components.py`) is skipped; the end of the run has
one line for each component, with the command that installs it. With FLOW_TEST_REQUIRE=all a skipped test is a failed
one: the CI machine has every component, so a skip there means that something was not tested. Tests marked `gpu` are
left out where there is no GPU, those of another Python where it is not installed, and those marked `hours` unless
they are asked for (`pytest -m hours`); the end of the run names their files.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections import Counter
from collections.abc import Generator
from typing import Any

import pytest

from tests.components import left_out, need

REQUIRE_ALL = os.environ.get("FLOW_TEST_REQUIRE") == "all"
_left_out = pytest.StashKey[list[str]]()


def has_gpu() -> bool:
    """Whether `nvidia-smi` lists at least one GPU."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return False
    listed = subprocess.run([tool, "-L"], capture_output=True, text=True, check=False)
    return listed.returncode == 0 and "GPU 0" in listed.stdout


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skips a test that needs what is missing here."""
    for marker in item.iter_markers("needs"):
        need(*marker.args)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselects tests for a GPU or a Python that is not there, and those that take too long to be run every time."""
    markers = [] if "hours" in config.option.markexpr else ["hours"]
    if any(item.get_closest_marker("gpu") for item in items) and not has_gpu():
        markers.append("gpu")
    left = [
        item
        for item in items
        if any(map(item.get_closest_marker, markers))
        or any(left_out(marker.args) for marker in item.iter_markers("needs"))
    ]
    if left:
        items[:] = [item for item in items if item not in left]
        config.stash[_left_out] = [item.nodeid for item in left]
        config.hook.pytest_deselected(items=left)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Turns the skip of a test into a failure where everything is required."""
    report = yield
    _forbid_skip(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """The same for a module that skips itself."""
    report = yield
    _forbid_skip(report)
    return report


def pytest_sessionfinish(session: pytest.Session) -> None:
    """In a worker of pytest-xdist: hands the names to the process that prints the summary."""
    output = getattr(session.config, "workeroutput", None)
    if output is not None:
        output["left_out"] = session.config.stash.get(_left_out, [])


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """In that process: takes them. Only the first worker collects all tests."""
    told = getattr(node, "workeroutput", {}).get("left_out", [])
    known = node.config.stash.setdefault(_left_out, [])
    known += [name for name in told if name not in known]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Sums up what is missing here, and names the tests that wait for a GPU, or for somebody with time."""
    skipped = Counter(map(_why, terminalreporter.stats.get("skipped", [])))
    if skipped:
        terminalreporter.section("skipped here", sep="-")
    for reason, count in sorted(skipped.items()):
        tests = f"{count} test{'s' if count > 1 else ''}"
        terminalreporter.write_line(f"{tests:>10}  {reason}")
    left_out = terminalreporter.config.stash.get(_left_out, [])
    if left_out:
        files = Counter(name.partition("::")[0] for name in left_out)
        named = ", ".join(f"{file} ({count})" for file, count in sorted(files.items()))
        terminalreporter.write_line(
            f"not run, for want of a GPU, another Python, or hours (make test-hours): {named}"
        )


def _why(report: pytest.TestReport | pytest.CollectReport) -> str:
    """Why a test was skipped, in the words that it was skipped with."""
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    return reason.removeprefix("Skipped: ")


def _forbid_skip(report: pytest.TestReport | pytest.CollectReport) -> None:
    if REQUIRE_ALL and report.skipped and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"{_why(report)}\nFLOW_TEST_REQUIRE=all: a skipped test counts as failed"
