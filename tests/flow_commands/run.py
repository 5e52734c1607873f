"""Runs commands of `flow` for tests whose subject is what a command does, and not how it starts.

`flow(...)` is `python -m flowlite.cli ...` in a process of its own, with the environment, the directory and the network
that it is given. That process is forked from one that has imported what commands before it have imported
(`server.py`). These imports would take three quarters of a command's processor time.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from tests.flow_commands import server as flow_server

_FLOW = [sys.executable, "-m", "flowlite.cli"]
# What an interpreter reads when it starts: a server serves commands that have the same of these.
_AT_START = (
    "PYTHON",
    "LC_",
    "LANG",
    "LD_",
    "HOME",
    "COVERAGE_",
    "MALLOC_",
    "OPENSSL_",
    "SSL_",
    "TZ",
)
# The servers of this process, by these variables, each with the socket on which it is asked.
_servers: dict[tuple[tuple[str, str], ...], tuple[subprocess.Popen[bytes], socket.socket]] = {}
_lock = threading.Lock()


class Finished(subprocess.CompletedProcess[str]):
    """What a command has said, and how it ended.

    Attributes:
        imported: The number of modules that it had to import after the fork.
    """

    imported = 0


def flow(
    words: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    cwd: str | Path | None = None,
    timeout: float | None = None,
) -> Finished:
    """Runs a command in the network of this thread, without input, and waits for its end.

    Raises:
        subprocess.TimeoutExpired: It was killed, since it took too long.
    """
    environment = dict(os.environ if env is None else env)
    directory = os.path.abspath(cwd or os.getcwd())
    if any("::" in word for word in words):
        # A module of the user is imported, which may ask what is imported already.
        done = subprocess.run(
            [*_FLOW, *words],
            env=environment,
            cwd=directory,
            capture_output=True,
            text=True,
            timeout=timeout,
            stdin=subprocess.DEVNULL,
            check=False,
        )
        return Finished(done.args, done.returncode, done.stdout, done.stderr)
    asked = {"words": list(words), "environment": environment, "cwd": directory}
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    out, err = os.pipe(), os.pipe()
    given = [
        theirs.detach(),
        os.open(os.devnull, os.O_RDONLY),
        out[1],
        err[1],
        _network(),
    ]
    with ours, open(out[0], "rb") as said, open(err[0], "rb") as complained:
        try:
            socket.send_fds(_server(environment), [json.dumps(asked).encode()], given)
        finally:
            for each in given:
                os.close(each)
        pid = json.loads(_received(ours, None))["pid"]
        try:
            output = _read_both(said.fileno(), complained.fileno(), timeout)
            ended = json.loads(_received(ours, timeout))
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            raise subprocess.TimeoutExpired([*_FLOW, *words], timeout or 0.0) from None
    code = os.waitstatus_to_exitcode(ended["status"])
    texts = [each.decode().replace("\r\n", "\n").replace("\r", "\n") for each in output]
    finished = Finished([*_FLOW, *words], code, *texts)
    finished.imported = ended["imported"]
    return finished


def _server(environment: Mapping[str, str]) -> socket.socket:
    """Where a server of this process is asked. It ends with this process."""
    at_start = {k: v for k, v in environment.items() if k.startswith(_AT_START)}
    key = tuple(sorted(at_start.items()))
    with _lock:
        if key not in _servers:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with theirs, _in_first_network():
                server = subprocess.Popen(
                    [sys.executable, flow_server.__file__, str(theirs.fileno())],
                    env={"PATH": os.environ.get("PATH", os.defpath), **at_start},
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    pass_fds=[theirs.fileno()],
                )
            _servers[key] = (server, ours)
        return _servers[key][1]


@contextlib.contextmanager
def _in_first_network() -> Iterator[None]:
    """In the network in which the tests began: what is in that of a laptop ends with the test."""
    here = _network()
    try:
        if os.path.sameopenfile(here, _FIRST_NETWORK):
            yield
        else:
            from flowlite.testing.hosts import system

            with system.inside_network(_FIRST_NETWORK):
                yield
    finally:
        os.close(here)


def _network() -> int:
    return os.open("/proc/thread-self/ns/net", os.O_RDONLY)


def _received(connection: socket.socket, timeout: float | None) -> bytes:
    connection.settimeout(timeout)
    received = connection.recv(flow_server.MOST)
    assert received, "the process that forks commands has ended"
    return received


def _read_both(out: int, err: int, timeout: float | None) -> list[bytes]:
    """All that is written into two pipes until nobody has them any more."""
    read = {out: b"", err: b""}
    until = None if timeout is None else time.monotonic() + timeout
    with selectors.DefaultSelector() as selector:
        for each in read:
            selector.register(each, selectors.EVENT_READ)
        while selector.get_map():
            left = None if until is None else max(0.0, until - time.monotonic())
            if not (ready := selector.select(left)) and left is not None:
                raise TimeoutError
            for key, _ in ready:
                if part := os.read(key.fd, 1 << 16):
                    read[key.fd] += part
                else:
                    selector.unregister(key.fd)
    return list(read.values())


_FIRST_NETWORK = _network() if sys.platform == "linux" else -1
