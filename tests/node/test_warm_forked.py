"""A fork server that imports nothing: forked from an agent, with nothing of the agent in it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from flowlite.node.system import processes
from tests.helpers import eventually
from tests.node.agents import RealGang

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

# Forks one while it holds a file open, says who it is, and then runs what it was told through it.
_AGENT = """
import asyncio, json, os, signal, sys
from pathlib import Path
from flowlite.node.system import processes; from flowlite.node.forkserver import client as warm
from flowlite.node.config.agent_config import AttemptPaths
from flowlite.node.forkserver.worker_group import Workers

directory, task = Path(sys.argv[1]), f"tforked{os.getpid()}"
lock = os.open(directory / "lock", os.O_RDWR | os.O_CREAT)
spec = warm.make_spec(task=task, socket=str(directory / "warm"), python=sys.executable,
                      log=str(directory / "warm.log"), environment={"GIVEN": "yes"}, function=False, idle=0.0)
for _ in range(2):
    warm.fork(spec)
if sys.argv[2] == "killed":
    [child] = processes.children_of_mine()
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)

async def main():
    workers = Workers(spec, AttemptPaths(directory), node=0, task=task, attempt=1,
                      stop_signal=signal.SIGTERM, grace=1.0, report=print)
    state = await workers.connect()
    server = state["fork_server"]
    told = {"children": sorted(processes.children_of_mine()), "fork_server": server,
            "files": sorted(os.readlink(f"/proc/{server}/fd/{each}") for each in os.listdir(f"/proc/{server}/fd")),
            "session": os.getsid(server), "command": Path(f"/proc/{server}/cmdline").read_text()}
    print(json.dumps(told), flush=True)
    workers.dismiss()
    await workers.close()

asyncio.run(main())
"""


def _run(directory: Path, how: str) -> dict[str, Any]:
    argv = [sys.executable, "-c", _AGENT, str(directory), how]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=90, check=False)
    assert done.returncode == 0, done.stderr
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return told


def test_it_is_forked_once_and_keeps_nothing_of_its_parent(tmp_path: Path) -> None:
    told = _run(tmp_path, "")
    assert told["children"] == [told["fork_server"]] == [told["session"]]
    assert "\0warm\0" not in told["command"]
    assert not [each for each in told["files"] if each == str(tmp_path / "lock")]
    eventually(lambda: not processes.is_alive(told["fork_server"]), what="the fork server to end")


def test_another_one_is_started_where_it_died(tmp_path: Path) -> None:
    told = _run(tmp_path, "killed")
    assert "\0warm\0" in told["command"]
    eventually(lambda: not processes.is_alive(told["fork_server"]), what="the fork server to end")


def test_a_gang_of_commands_runs_and_leaves_nothing(tmp_path: Path) -> None:
    call = {"kind": "command", "argv": ["sh", "-c", "echo $RANK; ls /proc/self/fd | wc -w"]}
    with RealGang(tmp_path, call, nodes=2, processes_per_node=1, shared=False) as gang:
        assert gang.run()["outcome"] == "done"
        # Its three streams, and what `ls` itself has open.
        assert [gang.text(rank).split() for rank in (0, 1)] == [["0", "4"], ["1", "4"]]
        gang.assert_nothing_left()
