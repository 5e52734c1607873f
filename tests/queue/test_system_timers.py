"""Commands at fixed times: timers of the system, written and run with the real `crontab`."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowlite.cli import system_timers
from flowlite.errors import ConfigError, NotFound


@pytest.mark.parametrize(
    ("times", "calendar"),
    [
        ("0 3 * * *", ["03:00:00"]),
        ("*/30 8-9 * * mon-fri", ["Mon,Tue,Wed,Thu,Fri", "08,09:00,30:00"]),
        ("@weekly", ["Sun ", "00:00:00"]),
        ("5 4 1 jan,jul *", ["*-01,07-01 04:05:00"]),
        ("0 0 1 * 7", ["-01 00:00:00", "Sun *-"]),
    ],
)
def test_times_of_cron_in_the_words_of_systemd(times: str, calendar: list[str]) -> None:
    found = " ; ".join(system_timers.on_calendar(times))
    assert all(part in found for part in calendar)


@pytest.mark.parametrize(
    "times",
    [
        "",
        "0 3 * *",
        "60 3 * * *",
        "0 24 * * *",
        "0 3 0 * *",
        "x * * * *",
        "5-1 * * * *",
        "*/0 * * * *",
        "²  * * * *",
    ],
)
def test_what_is_no_schedule(times: str) -> None:
    with pytest.raises(ConfigError, match="--schedule"):
        system_timers.parse_times(times)


@given(st.text(alphabet="0123456789*/-, abc@", max_size=30))
def test_any_text_is_a_schedule_or_refused(text: str) -> None:
    try:
        found = system_timers.parse_times(text)
    except ConfigError:
        return
    assert all(found)


@pytest.mark.needs("systemd-analyze")
def test_systemd_understands_them() -> None:
    for times in ("0 3 * * *", "*/15 1-5,9 1 jan-mar mon", "@hourly"):
        subprocess.run(
            ["systemd-analyze", "calendar", *system_timers.on_calendar(times)],
            check=True,
            timeout=30,
        )


@pytest.fixture
def crontab() -> Iterator[None]:
    """This user's crontab, as it was before."""
    before = subprocess.run(["crontab", "-l"], capture_output=True, text=True, check=False).stdout
    yield
    subprocess.run(["crontab", "-"], input=before, text=True, check=True)


def flow(home: Path, directory: Path, *words: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "flowlite.cli", *words],
        env={
            **os.environ,
            "FLOW_HOME": str(home),
            "EXTRA": "from then",
            "DBUS_SESSION_BUS_ADDRESS": "unix:path=/nowhere",
            "XDG_RUNTIME_DIR": "/nowhere",
        },
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=120,
        stdin=subprocess.DEVNULL,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.needs("cron")
def test_cron_runs_it_as_it_was_asked_for(flow_home: Path, tmp_path: Path, crontab: None) -> None:
    words = ["run", "--schedule", "0 3 * * *", "--name", "nightly", "-e", "EXTRA", "--"]
    flow(flow_home, tmp_path, *words, "sh", "-c", 'echo "$EXTRA" > out; pwd >> out')
    (row,) = json.loads(flow(flow_home, tmp_path, "schedule", "list", "--json"))["data"]
    assert (row["name"], row["schedule"], row["timer"]) == ("nightly", "0 3 * * *", "cron")
    lines = subprocess.run(["crontab", "-l"], capture_output=True, text=True, check=True).stdout
    (line,) = [each for each in lines.splitlines() if str(flow_home) in each]
    assert line.startswith("0 3 * * * ")
    # As cron runs it: in the home directory, with next to no variables.
    alone = {"HOME": "/", "LOGNAME": "root", "SHELL": "/bin/sh", "PATH": "/usr/bin:/bin"}
    command = line.split(" ", 5)[5].replace(r"\%", "%")
    subprocess.run(["/bin/sh", "-c", command], env=alone, cwd="/", check=True, timeout=120)
    assert (tmp_path / "out").read_text() == f"from then\n{tmp_path}\n"
    log = Path(row["log"])
    assert "ended with exit code 0" in log.read_text()
    assert (log.stat().st_mode | log.with_suffix(".json").stat().st_mode) & 0o077 == 0
    # A run that has not ended is not joined by another.
    with open(log.with_suffix(".lock"), "ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        subprocess.run(["/bin/sh", "-c", command], env=alone, cwd="/", check=True, timeout=120)
    assert "left out, since the last run has not ended" in log.read_text()
    with pytest.raises(ConfigError, match="flow schedule rm nightly"):
        system_timers.add(flow_home, system_timers.read(flow_home, "nightly"))
    flow(flow_home, tmp_path, "schedule", "rm", "nightly")
    left = subprocess.run(["crontab", "-l"], capture_output=True, text=True, check=False).stdout
    assert str(flow_home) not in left
    with pytest.raises(NotFound, match="flow schedule list"):
        system_timers.read(flow_home, "nightly")


def test_where_there_is_no_timer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match=r"apt install cron"):
        system_timers.choose()
