"""kill -9 of clients, agents, leaders and workers, and workers that will not go: the end is right, nothing is left."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from flowlite.node.config.fencing import FENCE_AFTER
from flowlite.state.store import Store
from tests.gangs import PYTHON, Gang, let_go, shell, submit, waiting
from tests.helpers import KILLED, eventually, process_alive, taken_port

ROOT = Path(__file__).resolve().parent.parent.parent

_CLIENT = """
import sys, time
from pathlib import Path
from tests.gangs import submit, waiting
gang = submit(Path(sys.argv[1]), waiting(), nodes=2)
print(gang.id, flush=True)
time.sleep(60)
"""


def test_the_client_is_killed(flow_home: Path) -> None:
    client = subprocess.Popen(
        [sys.executable, "-c", _CLIENT, str(flow_home)], stdout=subprocess.PIPE, text=True, cwd=ROOT
    )
    assert client.stdout is not None
    task_id = client.stdout.readline().strip()
    client.kill()
    client.wait()
    store = Store(flow_home / "state.db")
    gang = Gang(flow_home, store, store.get_task(task_id))
    gang.wait("running")
    let_go(flow_home)
    gang.end()


@pytest.mark.parametrize("node", [0, 1], ids=["leader", "member"])
def test_an_agent_is_killed(flow_home: Path, node: int) -> None:
    gang = submit(flow_home, waiting(), nodes=3)
    gang.wait("running")
    began = time.monotonic()
    os.kill(gang.agent(node), signal.SIGKILL)
    record = gang.end("failed")
    # Its end is seen, not its silence.
    assert time.monotonic() - began < FENCE_AFTER
    assert record.reason.startswith(f"node {node} ({record.roster[node]})"), record.reason
    assert "lost" in record.reason
    assert "agent process is gone (killed from outside, or out of memory?)" in record.reason
    assert gang.output(2).strip().isdigit()


@pytest.mark.parametrize("node", [0, 1], ids=["leader", "member"])
def test_an_agent_is_killed_and_the_gang_is_retried(flow_home: Path, node: int) -> None:
    gang = submit(flow_home, waiting(), nodes=2, retries=1)
    gang.wait("running")
    workers = [eventually(lambda r=r: _pid(gang, r)) for r in range(2)]
    os.kill(gang.agent(node), signal.SIGKILL)
    eventually(lambda: gang.record.attempt == 2 and gang.record.state == "running")
    assert not any(process_alive(pid) for pid in workers)
    let_go(flow_home)
    record = gang.end()
    assert (record.attempt, record.retries_used) == (2, 1)


def _pid(gang: Gang, rank: int) -> int:
    found = list(gang.paths.directory.glob(f"nodes/*/a1/r{rank}.out"))
    text = found[0].read_text() if found else ""
    return int(text) if text.endswith("\n") else 0


def test_an_agent_and_the_supervisor_are_killed_together(flow_home: Path) -> None:
    gang = submit(flow_home, waiting(), nodes=2)
    gang.wait("running")
    agent = gang.agent(1)
    gang.kill_supervisor()
    os.kill(agent, signal.SIGKILL)
    assert f"node 1 ({gang.record.roster[1]}) is lost" in gang.end("failed").reason


def test_the_leader_and_the_supervisor_are_killed_together(flow_home: Path) -> None:
    gang = submit(flow_home, waiting(), nodes=2)
    gang.wait("running")
    agent = gang.agent(0)
    gang.kill_supervisor()
    os.kill(agent, signal.SIGKILL)
    assert "the leader, is lost" in gang.end("failed").reason


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_leader_that_hangs_is_lost_whatever_it_says_when_it_is_stopped(flow_home: Path) -> None:
    gang = submit(flow_home, waiting(), nodes=2)
    gang.wait("running")
    agent = gang.agent(0)
    os.kill(agent, signal.SIGSTOP)
    eventually(lambda: _has_pending(agent, signal.SIGTERM), timeout=150)
    os.kill(agent, signal.SIGCONT)
    record = gang.end("failed")
    assert re.search(
        r"the leader, is lost: its agent runs, but says nothing for \d+ s", record.reason
    )
    assert record.attempt == 1


def _has_pending(pid: int, number: int) -> bool:
    status = Path(f"/proc/{pid}/status").read_text()
    (pending,) = re.findall(r"^ShdPnd:\s*(\w+)$", status, re.MULTILINE)
    return bool(int(pending, 16) >> (number - 1) & 1)


def test_a_worker_is_killed(flow_home: Path) -> None:
    gang = submit(flow_home, waiting(), nodes=2, processes=2)
    gang.wait("running")
    os.kill(eventually(lambda: _pid(gang, 3)), signal.SIGKILL)
    record = gang.end("failed")
    first, _, how = record.reason.rpartition(": ")
    assert first == "first failure: node 1, rank 3"
    assert re.fullmatch(KILLED, how)


_STUBBORN = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
def stay():
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    time.sleep(600)
if os.fork() == 0:
    stay()
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        # Forgets whose it is: no session, no group, no variables, no output of ours.
        os.execve(sys.executable, [sys.executable, "-c", "import signal, time;"
            "signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)", os.environ["FLOW_TASK_ID"]], {})
    os._exit(0)
print("ready", flush=True)
stay()
"""


def test_a_worker_that_ignores_sigterm_and_leaves_grandchildren(flow_home: Path) -> None:
    gang = submit(flow_home, [PYTHON, "-c", _STUBBORN], nodes=2)
    gang.wait("running")
    logs = gang.paths.logs
    eventually(lambda: [p.read_text() for p in logs.glob("*.out")] == ["ready\n"] * 2)
    hidden = eventually(lambda: _with_argument(gang.id))
    began = time.monotonic()
    gang.store.request_cancel(gang.id)
    gang.end("cancelled")
    assert time.monotonic() - began < 60
    assert not [pid for pid in hidden if process_alive(pid)]


def _with_argument(task_id: str) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                arguments = (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if task_id.encode() in arguments and b"-P" not in arguments:
                found.append(int(entry.name))
    return found if len(found) == 2 else []


def test_port_29500_is_taken(flow_home: Path) -> None:
    with taken_port(29500):
        gang = submit(flow_home, shell('echo "$MASTER_ADDR:$MASTER_PORT"'), nodes=2)
        gang.end()
    ports = {gang.output(rank) for rank in range(2)}
    assert len(ports) == 1
    assert "29500" not in ports.pop()
