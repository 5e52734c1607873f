"""Forks the processes that run commands of `flow`. `run.py` starts this as a program of its own.

A forked process imports what its command needs and is not there yet, and names it when it ends. The server then imports
the same, in the same order, for the commands to come. It calls none of it, and imports no module of a user.

A request is a JSON object with `words`, `environment` and `cwd`, together with the descriptors of a socket for the
replies, of the three standard streams, and of the network namespace that the command runs in. The first reply has the
`pid` of the process. The second one, at its end, has its `status`, and the number of modules that it has `imported`.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import importlib
import json
import os
import runpy
import selectors
import signal
import socket
import sys
from typing import Any

MOST = 1 << 20
_NEWNET = 0x40000000
# Of the modules that a command has imported, those of flowlite, of what it depends on, and of Python are imported here.
_TOP_LEVEL = sys.stdlib_module_names | {
    *("flowlite", "provider_adapters", "botocore", "boto3", "cloudpickle", "cryptography", "httpx"),
    *("paramiko", "pydantic", "rich", "typer", "yaml"),
}


def serve(requests: socket.socket) -> dict[str, Any]:
    """Forks a process for each request. Returns in the forked ones, with the request; ends when nobody can ask."""
    selector = selectors.DefaultSelector()
    selector.register(requests, selectors.EVENT_READ)
    while True:
        for key, _ in selector.select():
            if key.fileobj is not requests:
                selector.unregister(key.fd)
                _report(key.fd, *key.data)
                continue
            text, descriptors, _, _ = socket.recv_fds(requests, MOST, 5)
            if not text:
                os._exit(0)
            reply = socket.socket(fileno=descriptors[0])
            read, write = os.pipe()
            pid = os.fork()
            if pid == 0:
                # The garbage collector would close these later, when their numbers are those of other files.
                others = [each.data[1] for each in selector.get_map().values() if each.data]
                for each in (selector, requests, reply, *others):
                    each.close()
                asked: dict[str, Any] = json.loads(text)
                _become(asked, descriptors[1:], write)
                return asked
            os.close(write)
            for each in descriptors[1:]:
                os.close(each)
            reply.send(json.dumps({"pid": pid}).encode())
            selector.register(os.pidfd_open(pid), selectors.EVENT_READ, (pid, reply, read))


def _report(pidfd: int, pid: int, reply: socket.socket, read: int) -> None:
    """Tells how a process has ended, and imports what it has imported."""
    os.close(pidfd)
    _, status = os.waitpid(pid, 0)
    # Whoever the command has forked may still have the other end.
    os.set_blocking(read, False)
    names = b""
    with contextlib.suppress(BlockingIOError), open(read, "rb", buffering=0) as file:
        while part := file.read(MOST):
            names += part
    imported = names.decode().split()
    with contextlib.suppress(OSError), reply:
        reply.send(json.dumps({"status": status, "imported": len(imported)}).encode())
    gc.disable()
    for name in imported:
        with contextlib.suppress(Exception):
            importlib.import_module(name)
    # The processes to come copy no page only since the garbage collector has looked at it.
    gc.collect()
    gc.freeze()
    gc.enable()


def _become(asked: dict[str, Any], descriptors: list[int], write: int) -> None:
    """Gives this process what the request says, and no descriptor of others."""
    *streams, network = descriptors
    if not os.path.sameopenfile(network, own := os.open("/proc/self/ns/net", os.O_RDONLY)):
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.setns(network, _NEWNET) != 0:
            raise OSError(ctypes.get_errno(), "cannot enter the network namespace")
    os.close(own)
    for number, each in enumerate(streams):
        os.dup2(each, number)
    for each in map(int, os.listdir("/proc/self/fd")):
        if each > 2 and each != write:
            with contextlib.suppress(OSError):
                os.close(each)
    os.environ.clear()
    os.environ.update(asked["environment"])
    os.chdir(asked["cwd"])
    if not sys.flags.safe_path:
        sys.path.insert(0, asked["cwd"])
    sys.argv = ["-m", *asked["words"]]
    sys.orig_argv = [sys.executable, "-m", "flowlite.cli", *asked["words"]]
    signal.signal(signal.SIGINT, signal.default_int_handler)
    known = set(sys.modules)

    def tell() -> None:
        new = [each for each in sys.modules if each not in known]
        ours = [each for each in new if each.partition(".")[0] in _TOP_LEVEL]
        os.set_blocking(write, False)
        os.write(write, "\n".join(ours).encode())

    # The last of the handlers, which run in reverse order.
    atexit.register(tell)


if __name__ == "__main__":
    if not sys.flags.safe_path:
        # The directory of this program. Each command has its own there.
        del sys.path[0]
    # Ctrl-C is for the tests, which then leave nobody who asks.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    serve(socket.socket(fileno=int(sys.argv[1])))
    runpy.run_module("flowlite.cli", run_name="__main__", alter_sys=True)
