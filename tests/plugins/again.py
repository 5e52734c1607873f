"""What failed at first and passed when it was run again (`--reruns`, in CI): named with its reason, never silent."""

from __future__ import annotations

import pytest


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """A test that fails now and then is a defect, of the test or of what it tests."""
    passed = {report.nodeid for report in terminalreporter.stats.get("passed", [])}
    found = [
        report for report in terminalreporter.stats.get("rerun", []) if report.nodeid in passed
    ]
    if not found:
        return
    terminalreporter.section(
        f"{len(found)} passed only on their second run: of what they failed first"
    )
    for report in found:
        crash = getattr(report.longrepr, "reprcrash", None)
        text = crash.message if crash else report.longreprtext
        said = " | ".join(line.strip() for line in text.strip().splitlines())
        terminalreporter.write_line(f"{report.nodeid} ({report.duration:.0f} s)")
        if crash:
            terminalreporter.write_line(f"    {crash.path}:{crash.lineno}")
        terminalreporter.write_line(f"    {said[:1500]}")
