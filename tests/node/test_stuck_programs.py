"""Programs that SIGKILL does not end for now, as one within a driver that hangs. Nothing waits longer than it may.

A traced process that was killed stays at its exit until its tracer lets it go on. It is no zombie there: asyncio from
Python 3.12 on would wait for a zombie that is traced, which no driver makes.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from flowlite.node.attached_volumes import run
from flowlite.node.preflight import gpu_health
from flowlite.node.sidecar import agent_side
from flowlite.node.system import processes
from tests.helpers import eventually

STUCK = """#!{python}
import ctypes, os, time
SEIZE, STOP_AT_EXIT, SET_PTRACER, ANY = 0x4206, ctypes.c_ulong(0x40), 0x59616D61, ctypes.c_ulong(-1)
libc = ctypes.CDLL(None)
libc.prctl(SET_PTRACER, ANY, 0, 0, 0)
me, (ready, tell) = os.getpid(), os.pipe()
if os.fork() == 0:
    os.setsid()
    failed = libc.ptrace(SEIZE, me, None, STOP_AT_EXIT)
    for each in (0, 1, 2):
        os.close(each)
    with open({note!r}, "a") as note:
        note.write(f"{{os.getpid()}} {{failed}}\\n")
    os.write(tell, b"x")
    time.sleep(120)
    os._exit(0)
os.read(ready, 1)
time.sleep(120)
"""
SOON = 30.0

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes are traced otherwise")


@pytest.fixture
def stuck(tmp_path: Path) -> Iterator[Path]:
    """A program that cannot be ended; its tracer is, after the test."""
    note, program = tmp_path / "tracers", tmp_path / "nvidia-smi"
    program.write_text(STUCK.format(python=sys.executable, note=str(note)))
    program.chmod(0o755)
    began = time.monotonic()
    yield program
    took = time.monotonic() - began
    lines = [line.split() for line in note.read_text().splitlines()]
    for pid, _ in lines:
        with suppress(ProcessLookupError):
            os.kill(int(pid), signal.SIGKILL)
    if any(failed != "0" for _, failed in lines):
        pytest.skip("no process may be traced here")
    assert lines
    assert took < SOON


def test_what_the_driver_says_is_not_waited_for(
    stuck: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_health, "_SECONDS", 2.0)
    monkeypatch.setenv("PATH", f"{stuck.parent}:{os.environ['PATH']}")
    assert gpu_health.read() == gpu_health.GpuHealth()


def test_a_command_of_a_volume_is_late(stuck: Path) -> None:
    with pytest.raises(run.NotMounted, match="did not end within 2 s"):
        run.ask([str(stuck)], "volume 'ckpt'", 2.0)


def test_a_program_that_is_cancelled_is_left(stuck: Path) -> None:
    async def within() -> None:
        async with asyncio.timeout(2.0):
            await processes.run_group(str(stuck))

    with pytest.raises(TimeoutError):
        asyncio.run(within())


def test_a_sidecar_is_left(stuck: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_side.processes, "own_command", lambda *_, **__: [str(stuck)])

    async def end() -> bool:
        sidecar = agent_side.Sidecar("the process that tests", tmp_path / "log")
        await sidecar.launch("tests")
        await asyncio.to_thread(eventually, (tmp_path / "tracers").exists)
        return await sidecar.end(0.5)

    assert asyncio.run(end()) is False
