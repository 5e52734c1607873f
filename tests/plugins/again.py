"""What failed at first and passed when it was run again (`--reruns`, in CI): named with its reason, never silent."""

from __future__ import annotations

import pytest


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """A test that fails now and then is a defect, of the test or of what it tests."""
    found = terminalreporter.stats.get("rerun", [])
    if not found:
        return
    terminalreporter.section("failed at first, and were run again")
    for report in found:
        crash = getattr(report.longrepr, "reprcrash", None)
        text = crash.message if crash else report.longreprtext
        said = " | ".join(line.strip() for line in text.strip().splitlines())
        place = f"{crash.path}:{crash.lineno}: " if crash else ""
        terminalreporter.write_line(f"{report.nodeid}: {place}{said[:1500]}")
