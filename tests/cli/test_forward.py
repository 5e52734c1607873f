"""`flow forward`: ports of nodes, here and on other machines."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from flowlite import Flow
from flowlite.connect.forwarding import Port, parse_port
from flowlite.errors import ConfigError
from flowlite.spec import TaskConfig
from tests.helpers import eventually
from tests.providers.lab import Lab

if TYPE_CHECKING:
    from flowlite.testing.hosts import Cluster

FLOW = [sys.executable, "-m", "flowlite.cli"]
SERVER = """
import http.server, os, sys
class Say(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(("node " + os.environ["FLOW_NODE_RANK"]).encode())
http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Say).serve_forever()
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def get(port: int) -> str:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}", timeout=90) as answer:
            return str(answer.read().decode())
    except OSError:
        return ""


def serving(tmp_path: Path, port: int, *, wait: str = "") -> list[str]:
    path = tmp_path / "server.py"
    path.write_text(SERVER)
    waits = f"until [ -e {wait} ]; do sleep 0.05; done; " if wait else ""
    return ["sh", "-c", f"{waits}exec {sys.executable} {path} {port}"]


@contextlib.contextmanager
def forwarding(*words: object) -> Iterator[tuple[subprocess.Popen[str], dict[str, Any]]]:
    """The command, with what it has said once it listens."""
    process = subprocess.Popen(
        [*FLOW, "forward", "--json", *(str(each) for each in words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=dict(os.environ),
    )
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        assert line, process.communicate()[1]
        yield process, json.loads(line)["data"]
    finally:
        process.kill()
        process.communicate()


@pytest.mark.usefixtures("flow_home")
def test_two_ports_until_the_task_ends(tmp_path: Path) -> None:
    port, other = free_port(), free_port()
    task = Flow().submit(TaskConfig(command=serving(tmp_path, port), name="serves"))
    eventually(lambda: get(port), what="the server")
    with forwarding("serves", f"0:{port}", f"0:{other}") as (process, said):
        first, second = said["ports"]
        assert (said["task"], said["node"], first["node_port"]) == (task.id, 0, port)
        assert [get(first["port"]), get(first["port"])] == ["node 0", "node 0"]
        assert get(second["port"]) == ""
        task.cancel()
        _, err = process.communicate(timeout=90)
    assert process.returncode == 0
    assert f"nothing listens on port {other} of the node yet" in err
    assert f"task serves ({task.id}) has ended (cancelled)" in err


@pytest.mark.usefixtures("flow_home")
def test_a_server_that_starts_later_and_ctrl_c(tmp_path: Path) -> None:
    port, go = free_port(), tmp_path / "go"
    task = Flow().submit(TaskConfig(command=serving(tmp_path, port, wait=str(go)), name="late"))
    eventually(lambda: task.status == "running", what="the task runs")
    with forwarding("late", f"0:{port}") as (process, said):
        (one,) = said["ports"]
        assert get(one["port"]) == ""
        go.touch()
        eventually(lambda: get(one["port"]) == "node 0", what="the server")
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=90)
    assert process.returncode == 130
    assert err.count("nothing listens") == 1
    assert "Traceback" not in err
    task.cancel()
    task.wait(90)
    ended = subprocess.run(
        [*FLOW, "forward", "late", "1"], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 3
    assert "has ended (cancelled); its ports can be reached only while it runs" in ended.stderr


@pytest.mark.usefixtures("flow_home")
def test_ports_that_cannot_be_had(tmp_path: Path) -> None:
    task = Flow().submit(TaskConfig(command=["sleep", "600"], name="sleeps"))
    eventually(lambda: task.status == "running", what="the task runs")

    def refused(*words: str) -> str:
        ran = subprocess.run(
            [*FLOW, "forward", "sleeps", *words],
            capture_output=True,
            text=True,
            check=False,
            timeout=90,
        )
        assert ran.returncode in (2, 3), ran.stderr
        return ran.stderr

    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        held.listen()
        taken = held.getsockname()[1]
        assert f"port {taken} of this machine (127.0.0.1) is in use; give another one: " in refused(
            f"{taken}:1234"
        )
    assert "is this machine: its port 6006 is 127.0.0.1:6006 already" in refused("6006")
    assert "node 1" in refused("7:6006", "--node", "1")
    assert "'x' is not a port" in refused("x")
    task.cancel()
    task.wait(90)


@pytest.mark.parametrize(
    ("text", "port"),
    [
        ("6006", Port(6006, 6006)),
        ("1:2", Port(1, 2)),
        ("0:80", Port(0, 80)),
        ("65535", Port(65535, 65535)),
    ],
)
def test_ports_are_read(text: str, port: Port) -> None:
    assert parse_port(text) == port


@pytest.mark.parametrize(
    "text", ["", "x", "0", "-1", "65536", "1:0", ":80", "80:", "1:2:3", "٣", "1e3"]
)
def test_what_is_no_port_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="is not a port"):
        parse_port(text)


def test_a_node_that_is_another_machine(hosts: Cluster, flow_home: Path, tmp_path: Path) -> None:
    lab = Lab(hosts, flow_home)
    port = free_port()
    server = [sys.executable, "-c", SERVER, str(port)]
    lab.submit("-N", "2", "--name", "far", "--", *server)
    lab.wait("far", "running")
    with lab.cluster.enter_laptop():
        process = subprocess.Popen(
            [*FLOW, "forward", "--json", "--node", "1", "far", str(port)],
            env=lab.environment,
            cwd=lab.home,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        assert line, process.communicate()[1]

        def answer() -> str:
            with lab.cluster.enter_laptop():
                return get(port)

        eventually(lambda: answer() == "node 1", what="the server of node 1")
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=90)
        assert (process.returncode, "Traceback" in err) == (130, False)
    finally:
        process.kill()
        process.communicate()
