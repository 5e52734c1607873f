"""Who is at the other end of a Unix socket: every place where a process of another user may listen."""

from __future__ import annotations

import ast
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from flowlite.connect import programs
from flowlite.node.forkserver import client, registry
from flowlite.node.helper import daemon_client
from flowlite.node.system import peer_credentials
from flowlite.supervise.process import standby
from provider_adapters.ssh import hosts

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells who it is"),
    pytest.mark.needs("root"),
]

NOBODY = 65534
# It binds as root, so that it may lie anywhere, and listens as another user. What it hears, it prints.
LISTENER = f"""
import os, socket, sys
listener = socket.socket(socket.AF_UNIX)
address = bytes.fromhex(sys.argv[1])
if sys.argv[2] == "listen":
    listener.bind(address)
os.setgid({NOBODY})
os.setuid({NOBODY})
if sys.argv[2] == "listen":
    listener.listen()
else:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(address)
print("ready", flush=True)
if sys.argv[2] == "bind":
    sys.stdin.read()
while True:
    line, _ = listener.accept()
    line.settimeout(60)
    try:
        heard = line.recv(65536)
        line.sendall(b'{{"pid": 1, "start": "1"}}\\n')
    except OSError:
        pass
    print(heard, flush=True)
    line.close()
"""
Listen = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture
def listen() -> Iterator[Listen]:
    """Has another user listen at an address, or only bind it."""
    with ExitStack() as stack:

        def start(address: str, how: str = "listen") -> subprocess.Popen[bytes]:
            argv = [sys.executable, "-c", LISTENER, os.fsencode(address).hex(), how]
            child = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            stack.enter_context(child)
            stack.callback(child.kill)
            assert child.stdout is not None
            assert child.stdout.readline() == b"ready\n"
            return child

        yield start


def heard(child: subprocess.Popen[bytes]) -> bytes:
    assert child.stdout is not None
    return child.stdout.readline()


@pytest.fixture
def name() -> str:
    return f"\0flowlite-test-{os.getpid()}-{os.urandom(4).hex()}"


def test_the_kernel_tells_who_listens(listen: Listen, name: str) -> None:
    listen(name)
    with socket.socket(socket.AF_UNIX) as line:
        line.connect(name)
        assert peer_credentials.uid_of(line) == NOBODY
        assert not peer_credentials.is_ours(line)
        assert not peer_credentials.may_be_trusted(line)


@pytest.mark.parametrize("how", ["listen", "bind"])
def test_the_kernel_tells_whose_a_name_is(listen: Listen, name: str, how: str) -> None:
    assert peer_credentials.owner_of_name(name) == -1
    listen(name, how)
    # Whoever bound it has made it.
    assert peer_credentials.owner_of_name(name) == (0 if how == "listen" else NOBODY)


def test_a_process_of_ours_is_ours(name: str) -> None:
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as line:
        listener.bind(name)
        listener.listen()
        line.connect(name)
        assert peer_credentials.is_ours(line)
        assert peer_credentials.may_be_trusted(line)
        assert peer_credentials.owner_of_name(name) == os.getuid()


def test_nothing_is_said_to_a_step_daemon_of_another_user(listen: Listen, tmp_path: Path) -> None:
    child = listen(daemon_client.address(str(tmp_path)))
    with pytest.raises(PermissionError, match="another user listens as the step daemon"):
        daemon_client.Line(str(tmp_path)).ask({"do": "start", "argv": ["secret"]})
    assert heard(child) == b"b''\n"


def test_a_step_daemon_whose_name_is_taken_says_by_whom(listen: Listen, tmp_path: Path) -> None:
    ours = {"SLURM_JOB_ID": "7", "SLURM_RESTART_COUNT": "1", "SLURM_NODEID": "2"}
    listen(daemon_client.address(str(tmp_path / "7.01.00002")), "bind")
    code = "import sys; from flowlite.node.__main__ import main; sys.exit(main(sys.argv[1:]))"
    words = ["step-daemon", "--dir", str(tmp_path), "--lease", "5", "--deadline", "0"]
    done = subprocess.run(
        [sys.executable, "-c", code, *words],
        env={**os.environ, **ours},
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert f"is held by uid {NOBODY}, another user of this node" in done.stderr
    assert "Traceback" not in done.stderr


def test_nothing_is_said_to_a_warm_process_of_another_user(listen: Listen, tmp_path: Path) -> None:
    path = str(tmp_path / "socket")
    child = listen(path)
    python, log = sys.executable, str(tmp_path / "log")
    spec = client.make_spec(task="t", socket=path, python=python, log=log)
    with pytest.raises(client.ForkServerError, match=f"is held by uid {NOBODY}"):
        client.join(spec)
    assert heard(child) == b"b''\n"
    registry.retire(path)
    assert heard(child) == b"b''\n"


def test_no_task_and_no_environment_is_handed_to_another_user(
    listen: Listen, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(tmp_path / "socket")
    child = listen(path)
    monkeypatch.setattr(standby, "_path", lambda _: path)
    assert standby.hand_over(tmp_path, "t1", {"TOKEN": "hunter2"}) is None
    assert heard(child) == b"b''\n"


def test_what_is_sent_to_hosts_can_be_read_by_an_old_python() -> None:
    text = programs.sent(hosts._PROBE, *hosts._PROBE_NEEDS).decode()
    ast.parse(text, feature_version=(3, 6))
    for name in hosts._PROBE_NEEDS:
        module = programs.NODE.joinpath(*name.split(".")).with_suffix(".py").read_text()
        tree = ast.parse(module, feature_version=(3, 6))
        assert not any(
            isinstance(e, ast.ImportFrom) and e.module == "__future__" for e in tree.body
        )
