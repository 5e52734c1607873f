"""No loop that accepts connections spins or ends when this process is out of file descriptors, or of threads."""

from __future__ import annotations

import ast
import socket
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

import flowlite
import provider_adapters
from flowlite.node.protocol.framing import Hello
from flowlite.node.protocol.listener import Listener
from flowlite.node.protocol.stream import Stream, ask
from tests.helpers import eventually

# The one place that accepts, the one with its own pause, and a script that any old Python on a host must run.
ALLOWED = {"node/system/accepting.py", "node/rendezvous/server.py", "ssh/on_hosts/links_script.py"}

PROGRAM = """
import asyncio, os, resource, socket, sys, tempfile, threading, time
from pathlib import Path
from types import SimpleNamespace

SECONDS = 1.0


def measure(port, rest):
    '''How much of a core this process takes while a connection waits that cannot be accepted.'''
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard))
    held = []
    client = socket.socket()
    client.settimeout(30)
    while True:
        try:
            held.append(os.open(os.devnull, os.O_RDONLY))
        except OSError:
            break
    client.connect(("127.0.0.1", port))
    before = time.process_time()
    rest(SECONDS)
    used = time.process_time() - before
    for each in held:
        os.close(each)
    return used, client


def door():
    from flowlite.node.protocol.listener import Listener

    with tempfile.NamedTemporaryFile() as secret:
        paths = SimpleNamespace(secret=Path(secret.name))
        paths.secret.write_bytes(bytes(32))
        config = SimpleNamespace(tls=False, bind="127.0.0.1", task="t", attempt=1, roster=[])
        port = Listener(config, paths, "volume", lambda what: True).open(lambda *_: None)
        used, client = measure(port, time.sleep)
        # Once there is room, the peer that waited is accepted, and turned away for what it sends.
        client.sendall(b"nonsense" * 100)
        try:
            while client.recv(1000):
                pass
        except ConnectionResetError:
            pass
        return used


def in_loop(start):
    async def body():
        port, answered = await start()
        used, client = await asyncio.to_thread(measure, port, time.sleep)
        async with asyncio.timeout(90):
            while not answered():
                await asyncio.sleep(0.05)
        return used

    # Made before descriptors run out.
    return asyncio.run(body())


def router():
    from flowlite.node.sbatch.router import Router

    async def start():
        config = SimpleNamespace(tls=False, bind="127.0.0.1", task="t", attempt=1, roster=[])
        router = Router.__new__(Router)
        router._config, router._new_tls, router._secret, router._guests = config, None, bytes(32), set()
        return router.start(), lambda: router._guests

    return in_loop(start)


def ports():
    from flowlite.node.preflight.master_port import MasterPort

    async def start():
        master = MasterPort("127.0.0.1")
        return master.prove(), lambda: master._probes

    return in_loop(start)


def polled():
    from flowlite.node.system.accepting import accept
    import select

    listener = socket.create_server(("127.0.0.1", 0))
    poll = select.poll()
    poll.register(listener, select.POLLIN)
    taken = []

    def loop():
        while not taken:
            poll.poll()
            if accepted := accept(listener):
                taken.append(accepted)

    thread = threading.Thread(target=loop)
    thread.start()
    used, client = measure(listener.getsockname()[1], time.sleep)
    thread.join(90)
    assert taken
    return used


print(globals()[sys.argv[1]]())
"""


@pytest.mark.parametrize("loop", ["door", "router", "ports", "polled"])
def test_out_of_descriptors(loop: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, loop],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    # Of one second; a loop that spins takes all of it that it gets.
    assert float(done.stdout) < 0.3


def test_out_of_threads_one_is_turned_away_and_the_next_is_served(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "secret").write_bytes(bytes(32))
    config = SimpleNamespace(tls=False, bind="127.0.0.1", task="t", attempt=1, roster=["i"])
    paths = SimpleNamespace(secret=tmp_path / "secret")
    port = Listener(config, paths, "volume", lambda what: True).open(lambda *_: None)  # type: ignore[arg-type]
    start, refused = threading.Thread.start, [True]

    def start_or_not(thread: threading.Thread) -> None:
        if refused and refused.pop():
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_or_not)
    with socket.create_connection(("127.0.0.1", port), timeout=90) as client:
        assert client.recv(100) == b""
    said: list[str] = []

    def told() -> bool:
        # It hangs up first, so that the client need not wait for a log.
        said.append(capfd.readouterr().err)
        return "can start no more threads" in "".join(said)

    eventually(told)
    with socket.create_connection(("127.0.0.1", port), timeout=90) as client:
        ask(Stream(client, None), bytes(32), Hello("t", "volume", "i", 1))


def test_nobody_accepts_in_another_way() -> None:
    found = set()
    for package in (flowlite, provider_adapters):
        root = Path(str(package.__file__)).parent
        for file in root.rglob("*.py"):
            for node in ast.walk(ast.parse(file.read_text())):
                if isinstance(node, ast.Attribute) and node.attr == "accept":
                    found.add(file.relative_to(root).as_posix())
    found = {each for each in found if not each.startswith("testing/")}
    assert found == ALLOWED
