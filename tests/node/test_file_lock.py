"""Locks that several processes take in turn, with real processes, and how often a lock is tried for."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from flowlite.errors import ProviderError
from flowlite.node.system import file_lock
from flowlite.state import clock
from provider_adapters.rented.ledger import Ledger

HOLD = """
import fcntl, sys
file = open(sys.argv[1], "a")
fcntl.flock(file, fcntl.LOCK_EX)
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def lock(tmp_path: Path) -> Path:
    path = tmp_path / "lock"
    path.touch()
    return path


def hold(path: Path) -> subprocess.Popen[str]:
    """Another process that holds the lock, until its input ends."""
    pipe = subprocess.PIPE
    held = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path)], stdin=pipe, stdout=pipe, text=True
    )
    assert held.stdout is not None
    assert held.stdout.readline() == "held\n"
    return held


class Time:
    """A clock that goes on only while somebody sleeps."""

    def __init__(self) -> None:
        self.now = 0.0
        self.pauses: list[float] = []

    def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds


def test_a_lock_is_had_once_its_holder_has_ended(lock: Path) -> None:
    descriptor = os.open(lock, os.O_RDWR)
    with hold(lock) as held:
        assert not file_lock.take(descriptor)
        tries = 0

        def attempt() -> bool:
            nonlocal tries
            tries += 1
            if tries == 3:
                held.kill()
                held.wait()
            return file_lock.take(descriptor)

        assert file_lock.wait(attempt, 60.0)
    assert tries == 3
    # It has it already.
    assert file_lock.take(descriptor)
    os.close(descriptor)


def test_who_waits_long_tries_seldom_and_loses_little() -> None:
    for released in (0.5, 5.0, 60.0):
        time = Time()
        assert file_lock.wait(
            lambda time=time, released=released: time.now >= released,
            90.0,
            monotonic=lambda time=time: time.now,
            sleep=time.sleep,
        )
        assert time.now <= released * 1.1 + 0.02
    # 4,500 times with pauses of 20 ms.
    assert len(time.pauses) < 300
    assert not file_lock.wait(lambda: False, 90.0, monotonic=lambda: time.now, sleep=time.sleep)


def test_a_launch_that_another_process_holds_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = Ledger(tmp_path)
    time = Time()
    monkeypatch.setattr(clock, "monotonic", lambda: time.now)
    monkeypatch.setattr(clock, "sleep", time.sleep)
    with hold(tmp_path / "token.lock") as held:
        with (
            pytest.raises(ProviderError, match=r"another process has been busy .* for 90 s"),
            ledger.hold("token"),
        ):
            pass
        assert 90.0 < time.now < 91.0
        assert len(time.pauses) < 400
        held.kill()
        held.wait()
    with ledger.hold("token"):
        pass
