"""`flow ssh` and `flow ssh-config` on nodes that are other machines."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import select
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.helpers import eventually
from tests.providers.lab import Lab

if TYPE_CHECKING:
    from flowlite.testing.hosts import Cluster

FLOW = [sys.executable, "-m", "flowlite.cli"]


@pytest.fixture
def lab(hosts: Cluster, flow_home: Path) -> Lab:
    """A pool of the hosts, and a task named `long` that runs on two of them."""
    lab = Lab(hosts, flow_home)
    lab.submit("-N", "2", "--name", "long", "--", "sh", "-c", "echo on; exec sleep 600")
    lab.wait("long", "running")
    return lab


def the_hosts(lab: Lab) -> list[str]:
    """Names of the hosts of the task, by node."""
    return [lab.flow("ssh", "long", "--node", n, "-c", "hostname").stdout.strip() for n in "01"]


def read_until(fd: int, end: bytes, seen: bytes = b"") -> bytes:
    """What comes from a terminal or pipe, up to a text."""
    while end not in seen:
        ready, _, _ = select.select([fd], [], [], 90)
        assert ready, f"no {end!r} within 90 s: {seen!r}"
        block = os.read(fd, 65536)
        assert block, f"it ended: {seen!r}"
        seen += block
    return seen


def _commands_on_nodes(lab: Lab) -> None:
    names = the_hosts(lab)
    assert len(set(names)) == 2
    ran = lab.flow("ssh", "long", "--node", "1", "-c", "echo node $FLOW_NODE_RANK; exit 9", code=9)
    assert (ran.stdout, ran.stderr) == ("node 1\n", "")
    ran = lab.flow(
        "ssh",
        "long",
        "--node",
        "all",
        "-c",
        "echo I am $RANK on $(hostname); kill -TERM $$",
        code=143,
    )
    lines = sorted(
        re.sub(r"\[\d\d:\d\d:\d\d\]", "[time]", line) for line in ran.stdout.splitlines()
    )
    assert lines == [f"[Node {n}] [time] I am {n} on {names[n]}" for n in (0, 1)]


def _lines_come_live(lab: Lab) -> None:
    names = the_hosts(lab)
    script = "echo first; until [ -e /tmp/go ]; do sleep 0.05; done; echo second >&2; exit $RANK"
    with lab.cluster.enter_laptop():
        process = subprocess.Popen(
            [*FLOW, "ssh", "long", "--node", "all", "-c", script],
            env=lab.environment,
            cwd=lab.home,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
    assert process.stdout is not None
    seen = b""
    while seen.count(b"first") < 2:
        seen += os.read(process.stdout.fileno(), 65536)
    assert process.poll() is None
    for host in lab.cluster:
        if host.name in names:
            host.exec(["touch", "/tmp/go"])
    _, err = process.communicate(timeout=90)
    assert sorted(line.split(b"] ")[-1] for line in err.splitlines()) == [b"second", b"second"]
    # The status of the first node, by rank, on which it failed.
    assert process.returncode == 1


def _ctrl_c_ends_it(lab: Lab) -> None:
    with lab.cluster.enter_laptop():
        child, terminal = pty.fork()
        if child == 0:
            os.chdir(lab.home)
            words = [*FLOW, "ssh", "long", "--node", "all", "-c", "echo on; exec sleep 600"]
            os.execve(FLOW[0], words, lab.environment)
    seen = read_until(terminal, b"] on")
    if seen.count(b"] on") < 2:
        read_until(terminal, b"] on")
    os.write(terminal, b"\x03")
    status = eventually(lambda: _ended(child, terminal))
    assert os.waitstatus_to_exitcode(status[0]) == 130
    os.close(terminal)


def _what_was_started_there_ends_with_the_task(lab: Lab) -> None:
    """Also if nobody waits for it any more."""
    names = the_hosts(lab)
    background = "nohup sleep 4321 >/dev/null 2>&1 & echo of $FLOW_TASK_ID"
    said = lab.flow("ssh", "long", "--node", "all", "-c", background).stdout
    assert said.count(f"of {lab.task('long')['id']}") == 2
    hosts = [host for host in lab.cluster if host.name in names]

    def sleeping() -> list[str]:
        return [host.exec(["pgrep", "-fx", "sleep 4321"]).stdout for host in hosts]

    assert all(sleeping())
    lab.flow("cancel", "--wait", "long")
    assert not any(sleeping())


def _a_shell(lab: Lab) -> None:
    name = the_hosts(lab)[1]
    with lab.cluster.enter_laptop():
        child, terminal = pty.fork()
        if child == 0:
            os.chdir(lab.home)
            os.execve(FLOW[0], [*FLOW, "ssh", "long", "--node", "1"], lab.environment)
    os.write(terminal, b"echo I am $((FLOW_NODE_RANK + 0)) of $FLOW_NUM_NODES on $(hostname)\n")
    read_until(terminal, f"I am 1 of 2 on {name}".encode())
    os.write(terminal, b"[ -t 0 ] && exit 5\n")
    status = eventually(lambda: _ended(child, terminal))
    assert os.waitstatus_to_exitcode(status[0]) == 5
    os.close(terminal)


def _ended(child: int, terminal: int) -> list[int]:
    """Its status once it has ended; what it says meanwhile is taken, so that it can."""
    if select.select([terminal], [], [], 0)[0]:
        with contextlib.suppress(OSError):
            os.read(terminal, 65536)
    pid, status = os.waitpid(child, os.WNOHANG)
    return [status] if pid else []


def _configuration_for_editors(lab: Lab) -> None:
    names = the_hosts(lab)
    found = lab.json("ssh-config", "long")
    assert found["hosts"] == ["flow-long-0", "flow-long-1"]
    path = lab.flow("ssh-config", "long", "--path").stdout.strip()
    assert path == found["path"]
    assert lab.flow("ssh-config", "long").stdout.startswith(
        f"# {path}: ssh -F {path} flow-long-0\n"
    )
    for alias, name in zip(found["hosts"], names, strict=True):
        with lab.cluster.enter_laptop():
            ran = subprocess.run(
                ["ssh", "-F", path, alias, "hostname"],
                capture_output=True,
                text=True,
                timeout=90,
                check=True,
            )
        assert ran.stdout.strip() == name


def _after_the_end(lab: Lab) -> None:
    lab.flow("cancel", "-w", "long")
    ran = lab.flow("ssh", "long", "-c", "true", code=5)
    assert "was given back" in ran.stderr
    assert "flow logs long" in ran.stderr
    assert lab.flow("ssh-config", "long", code=5).stdout == ""


def test_a_task_on_other_machines(lab: Lab) -> None:
    _commands_on_nodes(lab)
    _lines_come_live(lab)
    _configuration_for_editors(lab)
    _what_was_started_there_ends_with_the_task(lab)
    _after_the_end(lab)


def test_on_a_terminal(lab: Lab) -> None:
    _a_shell(lab)
    _ctrl_c_ends_it(lab)


def test_another_host_in_its_place(lab: Lab) -> None:
    name = the_hosts(lab)[1]
    host = next(host for host in lab.cluster if host.name == name)
    host.change_host_key()
    for words in (["-c", "true"], ["--node", "all", "-c", "true"]):
        ran = lab.flow("ssh", "long", "--node", "1", *words, code=5)
        assert f"flow hosts trust {name}" in ran.stderr


def test_nodes_that_are_here_need_no_login(flow_home: Path) -> None:
    words = ["run", "-d", "--name", "here", "--", "sh", "-c", "echo on; exec sleep 600"]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2])}

    def flow(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*FLOW, *arguments],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=90,
        )

    assert flow(*words).returncode == 0
    eventually(lambda: "running" in flow("status", "here").stdout, every=0.2)
    ran = flow("ssh-config", "here")
    assert ran.returncode == 2
    assert "flow ssh here --node 0" in ran.stderr
