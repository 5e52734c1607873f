"""Commands on other nodes of a gang that node 0 leads: relay, exec servers and callers, without agents around them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from flowlite.node.config.agent_config import AgentConfig
from flowlite.node.leader_run import context as places
from flowlite.node.leader_run.context import GangContext, Unreachable
from flowlite.node.leader_run.remote_exec import CommandFailed, ask, call
from flowlite.supervise.attempt import certificates
from tests.helpers import eventually, process_alive

ROOT = Path(__file__).resolve().parents[2]
SECRET = b"s" * 32
NODES = 2


class Meeting:
    """The processes of one gang on this machine, each node with a directory of its own."""

    def __init__(self, top: Path, tls: bool) -> None:
        self.top = top
        self.processes: dict[str, subprocess.Popen[str]] = {}
        certificate = certificates.make() if tls else None
        for node in range(NODES):
            directory = self.directory(node)
            directory.mkdir(parents=True)
            (directory / "secret").write_bytes(SECRET)
            if certificate is not None:
                (directory / "rendezvous.crt").write_bytes(certificate.certificate)
                if node == 0:
                    assert certificate.key is not None
                    (directory / "rendezvous.key").write_bytes(certificate.key)
            config = AgentConfig(
                task="t1",
                name="n",
                attempt=1,
                instance=f"i{node}",
                roster=[f"i{each}" for each in range(NODES)],
                processes_per_node=1,
                call={"kind": "command", "argv": ["true"]},
                mode="mpi",
                tls=tls,
            )
            (directory / "agent.json").write_text(config.to_json())
            told = {"addresses": ["127.0.0.1"] * NODES, "cores": 1}
            (directory / places.FILE).write_text(json.dumps(told))
        relay = self.start("relay", 0, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert relay.stdout is not None
        self.port = int(json.loads(relay.stdout.readline())["port"])
        for node in range(NODES):
            leader = {"address": "127.0.0.1", "port": 1, "gang": self.port}
            (self.directory(node) / "leader.json").write_text(json.dumps(leader))
        self.start("follow", 1)
        leading = self.start("lead", 0, stdout=subprocess.PIPE)
        assert leading.stdout is not None
        self.told = json.loads(leading.stdout.readline())

    def directory(self, node: int) -> Path:
        return self.top / f"node{node}" / "a1"

    def place(self, node: int = 0) -> GangContext:
        return GangContext.read(str(self.directory(node)))

    def start(self, what: str, node: int, **options: int) -> subprocess.Popen[str]:
        """A program of the gang, on a node."""
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "FLOW_NODE_RANK": str(node)}
        command = [sys.executable, "-m", "flowlite.node", "gang", what, str(self.directory(node))]
        self.processes[what] = started = subprocess.Popen(
            command,
            env=environment,
            cwd=self.top,
            text=True,
            **{"stdin": subprocess.DEVNULL, **options},
        )
        return started

    def end(self) -> None:
        for process in self.processes.values():
            process.kill()
            process.communicate()


@pytest.fixture
def meet(tmp_path: Path) -> Iterator[Callable[..., Meeting]]:
    """Has a gang meet."""
    met: list[Meeting] = []

    def meet(tls: bool = False) -> Meeting:
        met.append(Meeting(tmp_path / f"gang{len(met)}", tls))
        return met[-1]

    yield meet
    for each in met:
        each.end()


def sh(text: str) -> list[str]:
    return ["/bin/sh", "-c", text]


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "encrypted"])
def test_a_command_runs_on_the_node_it_is_meant_for(
    meet: Callable[..., Meeting], tls: bool
) -> None:
    gang = meet(tls)
    assert gang.told["environment"]["FLOW_GANG"] == str(gang.directory(0))
    for node in range(NODES):
        assert ask(
            gang.place(), node, sh('echo "$FLOW_NODE_RANK $FLOW_GANG"')
        ).decode().split() == [
            str(node),
            str(gang.directory(node)),
        ]
    # Any node may call any other.
    assert ask(gang.place(1), 0, sh("echo $FLOW_NODE_RANK")) == b"0\n"
    big = ask(gang.place(), 1, sh("head -c 3000000 /dev/zero"))
    assert len(big) == 3_000_000


def test_streams_and_status_pass(meet: Callable[..., Meeting], tmp_path: Path) -> None:
    gang = meet()
    out, err = bytearray(), bytearray()
    fed = tmp_path / "fed"
    fed.write_bytes(b"y" * 200_000)
    with fed.open("rb") as source:
        code = call(
            gang.place(),
            1,
            sh("wc -c; echo said >&2; exit 7"),
            out=out.extend,
            err=err.extend,
            source=source.fileno(),
        )
    assert (code, out.split(), err) == (7, [b"200000"], b"said\n")
    assert call(gang.place(), 1, sh("kill -9 $$"), out=out.extend, err=err.extend) == -9
    with pytest.raises(CommandFailed, match=r"/bin/sh on node 1 ended with 3: no such thing"):
        ask(gang.place(), 1, sh("echo no such thing >&2; exit 3"))


def test_what_cannot_run_is_said(meet: Callable[..., Meeting]) -> None:
    gang = meet()
    with pytest.raises(Unreachable, match="node 1 cannot run 'no-such-program'"):
        ask(gang.place(), 1, ["no-such-program"])
    with pytest.raises(Unreachable, match="there is no node 5; the gang has 2"):
        ask(gang.place(), 5, ["true"])


def test_a_command_ends_with_its_caller(meet: Callable[..., Meeting], tmp_path: Path) -> None:
    gang = meet()
    note = tmp_path / "pid"
    ssh = str(gang.directory(0) / "bin" / "ssh")
    caller = subprocess.Popen(
        [ssh, "flow-node-1", f"echo $$ > {note}; while :; do sleep 0.1; done"],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL,
    )
    pid = int(eventually(lambda: note.exists() and note.read_text().strip()))
    assert process_alive(pid)
    caller.kill()
    caller.wait()
    eventually(lambda: not process_alive(pid))


def test_what_a_command_leaves_in_the_background_does_not_hold_it(
    meet: Callable[..., Meeting], tmp_path: Path
) -> None:
    gang = meet()
    note = tmp_path / "pid"
    text = f"sleep 600 > /dev/null 2>&1 & echo $! > {note}"
    assert ask(gang.place(), 1, sh(text)) == b""
    pid = int(note.read_text())
    assert process_alive(pid)
    os.kill(pid, 9)


def test_ssh_stands_in_for_ssh(meet: Callable[..., Meeting]) -> None:
    gang = meet()
    environment = {**os.environ, **gang.told["environment"], "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [
            "ssh",
            "-o",
            "BatchMode=yes",
            "127.0.0.2",
            'read line; echo "$FLOW_NODE_RANK $line"; exit 3',
        ],
        input="hello\n",
        capture_output=True,
        text=True,
        env=environment,
        timeout=90,
        check=False,
    )
    assert (done.returncode, done.stdout) == (3, "1 hello\n"), done.stderr
    refused = subprocess.run(
        ["ssh", "-L", "1:2:3", "flow-node-1"],
        capture_output=True,
        text=True,
        env=environment,
        timeout=90,
        check=False,
    )
    assert refused.returncode == 255
    assert "does not forward ports" in refused.stderr


def test_other_hosts_are_left_to_the_machines_own_ssh(
    meet: Callable[..., Meeting], tmp_path: Path
) -> None:
    gang = meet()
    own = tmp_path / "own"
    own.mkdir()
    (own / "ssh").write_text('#!/bin/sh\necho "own: $*"\n')
    (own / "ssh").chmod(0o755)
    path = f"{gang.directory(0) / 'bin'}:{own}:{os.environ['PATH']}"
    done = subprocess.run(
        ["ssh", "-p", "22", "git@example.com", "true"],
        capture_output=True,
        text=True,
        env={**os.environ, "PATH": path, "PYTHONPATH": str(ROOT)},
        timeout=90,
        check=False,
    )
    assert done.stdout == "own: -p 22 git@example.com true\n", done.stderr


def test_nobody_gets_in_without_the_secret(meet: Callable[..., Meeting]) -> None:
    gang = meet()
    (gang.directory(1) / "secret").write_bytes(b"x" * 32)
    with pytest.raises(Unreachable, match="let nobody in"):
        gang.place(1).dial("call", node=0)


def test_the_others_end_well_when_node_0_has_come_to_its_end(meet: Callable[..., Meeting]) -> None:
    gang = meet()
    gang.processes["lead"].kill()
    assert gang.processes["follow"].wait(90) == 0


def test_the_others_end_when_node_0_is_killed_with_a_command_on_its_way(
    meet: Callable[..., Meeting],
) -> None:
    """Its connection is then reset, since it has not read all."""
    gang = meet()
    leading, following = gang.processes["lead"], gang.processes["follow"]
    leading.send_signal(signal.SIGSTOP)

    def has_unread() -> bool:
        rows = (line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:])
        return any(
            row[2].endswith(f":{gang.port:04X}") and not row[4].endswith(":00000000")
            for row in rows
        )

    with gang.place(1).dial("call", node=0).network:
        eventually(has_unread)
    leading.kill()
    assert following.wait(90) == 0


def test_a_signal_to_a_node_reaches_what_runs_there(
    meet: Callable[..., Meeting], tmp_path: Path
) -> None:
    gang = meet()
    note = tmp_path / "got"
    ssh = str(gang.directory(0) / "bin" / "ssh")
    # No loop of a shell: dash at times waits for ever where a signal comes as its child ends.
    program = tmp_path / "told.py"
    program.write_text(
        "import signal, sys\n"
        "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])\n"
        "print('ready', flush=True)\n"
        "signal.sigwait([signal.SIGTERM])\n"
        f"open({str(note)!r}, 'w').write('TERM\\n')\n"
    )
    text = f"exec {sys.executable} {program}"
    with subprocess.Popen(
        [ssh, "flow-node-1", text],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
    ) as caller:
        assert caller.stdout is not None
        assert caller.stdout.readline() == "ready\n"
        gang.processes["follow"].terminate()
        assert caller.wait(90) == 0
    assert note.read_text() == "TERM\n"
    gang.processes["lead"].terminate()
    assert gang.processes["follow"].wait(90) == 128 + 15
