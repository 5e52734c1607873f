"""The clock for decisions: its time looks like Unix time, but cannot be set.

A wall clock may jump by an hour at any moment: through NTP, by hand, or after a suspend. Everything that depends on
how long something lasted (a lease, a limit, an age) therefore uses this clock. It is the machine's time since boot,
which continues during a suspend, plus an offset shared by all processes of one FLOW_HOME:

    now = CLOCK_BOOTTIME + offset        FLOW_HOME/clock.json: {"boot": id of the boot, "offset": seconds}

The offset is taken from the wall clock when it is first read after a boot. Times of two boots can therefore be
compared as far as the wall clock was right at both. `set_right` takes the offset again, which is done only when no
running task depends on an older time. Times that are only shown, or compared with the clock of another machine, come
from the wall clock.

Code that spends money and waits reads all its times here and sleeps here: `now`, `wall`, `monotonic`, `sleep`. Tests
replace their `Source` with `running_on`, so that hours of a launch pass in a moment.
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from flowlite.node.system import processes
from flowlite.node.system.atomic_files import write_atomically
from flowlite.settings import flow_home

FILE = "clock.json"
# Smaller differences between the two clocks are ignored.
_TOLERANCE = 2.0
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
# By FLOW_HOME: identity of its file when it was read, and the offset.
_known: dict[str, tuple[tuple[int, int], float]] = {}


class Source:
    """Where the times of this process come from: the clocks of this machine."""

    def since_boot(self) -> float:
        """See the function of this name, as for the others."""
        return time.clock_gettime(_CLOCK)

    def wall(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


_source = Source()


@contextmanager
def running_on(source: Source) -> Iterator[None]:
    """Makes all threads of this process take their times from another source. For simulations."""
    global _source
    before, _source = _source, source
    try:
        yield
    finally:
        _source = before


def now(home: Path | None = None) -> float:
    """Seconds that look like Unix time.

    Args:
        home: The FLOW_HOME. Default: that of this process.
    """
    if not boot():
        # Without an id of the boot, an offset of an earlier boot could not be recognised.
        return wall()
    return since_boot() + _offset(flow_home.home() if home is None else home)


def since_boot() -> float:
    """Seconds since this machine was started, including suspends."""
    return _source.since_boot()


def wall() -> float:
    """Unix time of this machine's wall clock, which may be set at any moment."""
    return _source.wall()


def monotonic() -> float:
    """Seconds for pauses and deadlines within this process. Not comparable between processes."""
    return _source.monotonic()


def sleep(seconds: float) -> None:
    """Suspends this thread."""
    _source.sleep(seconds)


def set_right(home: Path) -> None:
    """Takes the offset from the wall clock again. Only while no task runs and no nodes are kept warm."""
    offset = wall() - since_boot()
    if abs(_offset(home) - offset) > _TOLERANCE:
        _write(home, offset)


def age_of(path: Path, home: Path | None = None) -> float:
    """Seconds since a file was changed, as a lower bound, since times of files come from the wall clock.

    Raises:
        OSError: The file does not exist.
    """
    changed = path.stat().st_mtime
    return min(wall(), now(home)) - changed


@functools.cache
def boot() -> str:
    """Returns an id of the present boot of this machine; "" if there is none."""
    if sys.platform == "linux":
        return processes.boot_id()
    with suppress(OSError):
        argv = ["sysctl", "-n", "kern.bootsessionuuid"]
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        return done.stdout.strip()
    return ""


def _offset(home: Path) -> float:
    try:
        facts = os.stat(f"{home}/{FILE}")
        mark = (facts.st_ino, facts.st_mtime_ns)
        known = _known.get(str(home))
        if known is not None and known[0] == mark:
            return known[1]
        told = json.loads((home / FILE).read_bytes())
        if told["boot"] == boot():
            offset = float(told["offset"])
            _known[str(home)] = (mark, offset)
            return offset
    except FileNotFoundError:
        pass
    except (OSError, ValueError, KeyError, TypeError):
        # A file that cannot be read is written again. If it was read before, its last offset is used.
        if (known := _known.get(str(home))) is not None:
            return known[1]
    return _write(home, wall() - since_boot())


def _write(home: Path, offset: float) -> float:
    """Stores the offset for all processes. If that fails, only this process uses it."""
    path = home / FILE
    try:
        write_atomically(path, json.dumps({"boot": boot(), "offset": offset}))
        facts = os.stat(path)
        _known[str(home)] = ((facts.st_ino, facts.st_mtime_ns), offset)
    except OSError:
        _known.setdefault(str(home), ((0, 0), offset))
        return _known[str(home)][1]
    return offset
