"""How a process is told apart from others where there is no /proc, as on macOS. Linux has a `ps` that says the same."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from flowlite.node.system import processes
from flowlite.state import clock
from flowlite.supervise.record import process_identity

SYSCTL = """\
#!/bin/sh
# kern.boottime of macOS is the wall clock without the time since the start: setting the clock moves it.
case "$2" in
kern.bootsessionuuid) echo 5D1D4C0B-0E3B-4C52-9C2B-6C5F5B7E1A11;;
kern.boottime) echo "{ sec = $(date +%s%N), usec = 0 }";;
esac
"""


@pytest.mark.needs("ps")
def test_the_start_of_a_process_is_the_same_in_every_time_zone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told = set()
    for zone in ("UTC0", "EST5", "JST-9"):
        monkeypatch.setenv("TZ", zone)
        told.add(processes._ps_rows(["-p", str(os.getpid())])[os.getpid()].start)
    assert len(told) == 1


def test_a_clock_that_is_set_does_not_make_a_supervisor_dead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "sysctl"
    program.write_text(SYSCTL)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(sys, "platform", "darwin")
    told = set()
    for _ in range(2):
        clock.boot.cache_clear()
        told.add(process_identity._place.__wrapped__())
    clock.boot.cache_clear()
    assert len(told) == 1
    assert "5D1D4C0B" in told.pop()
