"""The time that decisions are made by: it looks like Unix time, and nobody can set it.

A wall clock may be moved by an hour at any moment: by NTP, by hand, by a laptop that wakes up. Whatever is decided by
how long something lasted (a lease, a limit, an age) therefore reads the time here. It is the machine's time since boot,
which goes on during a suspend, plus an offset that all processes of one FLOW_HOME share:

    now = CLOCK_BOOTTIME + offset        FLOW_HOME/clock.json: {"boot": id of the boot, "offset": seconds}

The offset is the wall clock's as first seen after a boot, so times of two boots can be compared as far as the wall
clock was right at both. `set_right` takes it anew, which is done only when nothing runs that an old time stands for.
What is only shown to people, or compared with the clock of another machine, is the wall clock's.

Code that spends money, and waits meanwhile, reads all its times here, and sleeps here: `now`, `wall`, `monotonic`,
`sleep`. Tests set another `Source` of them with `running_on`, so that hours of a launch pass in a moment.
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
from typing import Protocol

from flowlite.node.config.agent_config import write_atomically

FILE = "clock.json"
# Below this, a wall clock that goes a little differently is none of our business.
_TOLERANCE = 2.0
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
# By FLOW_HOME: what its file was when it was read, and what it said.
_known: dict[str, tuple[tuple[int, int], float]] = {}


class Source(Protocol):
    """Where the times of this process come from."""

    def since_boot(self) -> float:
        """As the function of that name."""

    def wall(self) -> float:
        """As the function of that name."""

    def monotonic(self) -> float:
        """As the function of that name."""

    def sleep(self, seconds: float) -> None:
        """As the function of that name."""


class _System:
    """This machine's own clocks."""

    def since_boot(self) -> float:
        return time.clock_gettime(_CLOCK)

    def wall(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


_source: Source = _System()


@contextmanager
def running_on(source: Source) -> Iterator[None]:
    """All threads of this process take their times from another source meanwhile. For simulations."""
    global _source
    before, _source = _source, source
    try:
        yield
    finally:
        _source = before


def now(home: Path | None = None) -> float:
    """Seconds that look like Unix time.

    Args:
        home: The FLOW_HOME; the one of this process unless given.
    """
    if not boot():
        # Nothing tells whether a time since boot is that of this boot.
        return wall()
    return since_boot() + _offset(_home() if home is None else home)


def since_boot() -> float:
    """Seconds since this machine was started, those of a suspend included."""
    return _source.since_boot()


def wall() -> float:
    """Unix time as this machine's wall clock has it, which may be set at any moment."""
    return _source.wall()


def monotonic() -> float:
    """Seconds that only this process can compare: for pauses and deadlines within it."""
    return _source.monotonic()


def sleep(seconds: float) -> None:
    """Has this thread wait."""
    _source.sleep(seconds)


def set_right(home: Path) -> None:
    """Takes the wall clock's word anew. Only while no task runs, and nothing is kept for one."""
    offset = wall() - since_boot()
    if abs(_offset(home) - offset) > _TOLERANCE:
        _write(home, offset)


def age_of(path: Path, home: Path | None = None) -> float:
    """Seconds since a file was changed: the least that it may be, as files bear the time of the wall clock.

    Raises:
        OSError: It is not there.
    """
    changed = path.stat().st_mtime
    return min(wall(), now(home)) - changed


@functools.cache
def boot() -> str:
    """What tells this boot of this machine from others; "" where nothing does."""
    if sys.platform == "linux":
        with suppress(OSError), open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
        return ""
    with suppress(OSError):
        argv = ["sysctl", "-n", "kern.bootsessionuuid"]
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        return done.stdout.strip()
    return ""


def _home() -> Path:
    from flowlite.settings import settings

    return settings.home()


def _offset(home: Path) -> float:
    path = home / FILE
    try:
        facts = os.stat(path)
        mark = (facts.st_ino, facts.st_mtime_ns)
        known = _known.get(str(home))
        if known is not None and known[0] == mark:
            return known[1]
        told = json.loads(path.read_bytes())
        if told["boot"] == boot():
            offset = float(told["offset"])
            _known[str(home)] = (mark, offset)
            return offset
    except FileNotFoundError:
        pass
    except (OSError, ValueError, KeyError, TypeError):
        # One that cannot be read is written anew; where that cannot be, the last word counts.
        if (known := _known.get(str(home))) is not None:
            return known[1]
    return _write(home, wall() - since_boot())


def _write(home: Path, offset: float) -> float:
    """Notes the offset for all processes; where that cannot be, this one keeps to it alone."""
    path = home / FILE
    try:
        write_atomically(path, json.dumps({"boot": boot(), "offset": offset}))
        facts = os.stat(path)
        _known[str(home)] = ((facts.st_ino, facts.st_mtime_ns), offset)
    except OSError:
        _known.setdefault(str(home), ((0, 0), offset))
        return _known[str(home)][1]
    return offset
