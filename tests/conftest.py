"""Fixtures for every room: a FLOW_HOME of its own for each test, and nothing left running after it."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from tests.helpers import kill_processes_of_home, put_agent

pytest_plugins = [
    "tests.plugins.require",
    "tests.plugins.passed",
    "tests.plugins.shared_files",
    "tests.plugins.collecting",
    "tests.plugins.alone",
    "tests.plugins.costs",
    "tests.plugins.slow",
    "tests.plugins.hosts",
    "tests.plugins.s3",
    "tests.plugins.slurm",
    "tests.plugins.containers",
    "tests.plugins.mithril",
]

# How long an example takes says more of the machine than of the code.
settings.register_profile("house", deadline=None)
settings.load_profile("house")

# The project of most tests is flowlite itself, which no task of theirs needs; gangs of whole modules are no exception.
os.environ["FLOW_SYNC"] = "false"

# A run in the background of a shell inherits that SIGINT is ignored, and everything started here would inherit it, too.
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(
            number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
        )


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Settings of the person who runs the tests must not decide how they come out."""
    for name in list(os.environ):
        if name.startswith("FLOW_") or name in {"PYTHONUNBUFFERED", "PYTHONDONTWRITEBYTECODE"}:
            monkeypatch.delenv(name)
    monkeypatch.setenv("FLOW_SYNC", "false")


@pytest.fixture
def flow_home(monkeypatch: pytest.MonkeyPatch, clean_environment: None) -> Iterator[Path]:
    """A fresh FLOW_HOME under a short path; whatever a failed test left running is killed at the end."""
    home = Path(tempfile.mkdtemp(prefix="flow-"))
    put_agent(home)
    # The first `flow` command after a paid launch would clean up in the background, for 2 s of processor time, since it
    # asks each region of AWS. A test of that removes this mark.
    (home / "tidied").touch(mode=0o600)
    monkeypatch.setenv("FLOW_HOME", str(home))
    yield home
    kill_processes_of_home(home)
    shutil.rmtree(home, ignore_errors=True)
