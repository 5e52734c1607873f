"""The template: the process in which everything is imported once, and from which every keeper is forked.

See warm.py for how it is started. It runs no code of the user but imports, and stays single-threaded.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import select
import signal
import socket
import struct
import sys
import time

from . import names, processes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Any, NoReturn

IDLE_BEFORE_FIRST = 60.0
"""Seconds it waits for its first agent; after the last one has gone it is `idle` of its spec."""


def main(arguments: list[str]) -> NoReturn:
    """`warm SPEC.json [LISTENING_DESCRIPTOR]`: be the template."""
    with open(arguments[0], encoding="utf-8") as file:
        spec = json.load(file)
    if len(arguments) > 1:
        listener = socket.socket(fileno=int(arguments[1]))
    else:
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind(spec["socket"])
        listener.listen(1024)
    os.set_inheritable(listener.fileno(), False)
    os._exit(Template(spec, listener).serve())


class Template:
    """The process from which everything is forked. Single-threaded, and it never runs a user's code but imports."""

    def __init__(self, spec: Mapping[str, Any], listener: socket.socket) -> None:
        self._spec = spec
        self._listener = listener
        self._keepers: set[int] = set()
        self._ending = False
        self._wake_reader, self._wake_writer = os.pipe()

    def serve(self) -> int:
        """Prepare, then fork a keeper for each connection until nobody has come for a while."""
        for each in (signal.SIGHUP, signal.SIGINT, signal.SIGPIPE):
            signal.signal(each, signal.SIG_IGN)
        watch_signals(self._wake_writer, (signal.SIGCHLD, signal.SIGTERM))
        processes.adopt_orphans()
        state = prepare(self._spec)
        poll = select.poll()
        poll.register(self._listener.fileno(), select.POLLIN)
        poll.register(self._wake_reader, select.POLLIN)
        idle_until = time.monotonic() + IDLE_BEFORE_FIRST
        while True:
            wait = 0.0 if self._ending else max(0.0, idle_until - time.monotonic())
            ready = {each for each, _ in poll.poll(None if self._keepers else wait * 1000)}
            if self._wake_reader in ready:
                self._on_signals()
                idle_until = time.monotonic() + self._spec["idle"]
            if self._listener.fileno() in ready:
                self._accept(state)
            elif not ready and not self._keepers and self._leave():
                return 0

    def _on_signals(self) -> None:
        for number in os.read(self._wake_reader, 4096):
            if number == signal.SIGTERM:
                self._ending = True
                for keeper in self._keepers:
                    processes.send(keeper, signal.SIGTERM)
        crashed = False
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if pid == 0:
                break
            if pid in self._keepers:
                self._keepers.discard(pid)
                crashed = crashed or status != 0
        if crashed:
            # What a keeper leaves behind when it is killed becomes ours; its workers are dead already.
            processes.end_all(self._strays)

    def _strays(self) -> set[int]:
        rows = processes.table()
        mine = {each.pid for each in rows.values() if each.parent == os.getpid()}
        strays = {pid for pid in mine - self._keepers if not rows[pid].dead}
        return strays | processes.descendants(strays, rows)

    def _accept(self, state: Mapping[str, Any]) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError:
            return
        if not peer_is_me(connection) or _hung_up(connection):
            connection.close()
            return
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGCHLD, signal.SIGTERM))
        pid = os.fork()
        if pid:
            self._keepers.add(pid)
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
            connection.close()
            return
        status = 1
        try:
            from . import keeper

            self._listener.close()
            os.close(self._wake_reader)
            os.close(self._wake_writer)
            status = keeper.Keeper(connection, state).serve(blocked)
        finally:
            os._exit(status)

    def _leave(self) -> bool:
        """Take the socket away so that the next client starts a new template. False if one has just come."""
        import fcntl

        path = self._spec["socket"]
        lock = os.open(os.path.join(os.path.dirname(path), "lock"), os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not self._ending and select.select([self._listener], [], [], 0)[0]:
            os.close(lock)
            return False
        for each in (path, f"{path}.json", hosts_of(path)):
            try:
                os.unlink(each)
            except OSError:
                continue
        return True


def hosts_of(socket_path: str) -> str:
    """Where the hosts file of a template's workers lies."""
    return f"{socket_path}.hosts"


def watch_signals(wake_writer: int, numbers: Iterable[int]) -> None:
    """Let signals become bytes in a pipe, to be read by a poll loop."""
    os.set_blocking(wake_writer, False)
    signal.set_wakeup_fd(wake_writer, warn_on_full_buffer=False)
    for number in numbers:
        signal.signal(number, lambda *_: None)
        signal.siginterrupt(number, False)


def prepare(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Show the volumes, import, and say how it went: what every keeper reports as ready."""
    began = time.perf_counter()
    state: dict[str, Any] = {
        "template": os.getpid(),
        "python": spec["python"],
        "volumes": [],
        "volumes_error": None,
        "hosts": None,
    }
    if spec["volumes"]:
        from . import mounts

        try:
            state["volumes"] = mounts.show(spec["volumes"], spec["keep_visible"])
        except OSError as error:
            state["volumes_error"] = str(error)
    hosts = hosts_of(spec["socket"])
    state["hosts"] = hosts if names.own_hosts(hosts) else None
    gc.disable()
    state["failed_imports"] = _import_all(spec)
    state["hazard"] = fork_hazard()
    gc.freeze()
    gc.enable()
    state["prepare_seconds"] = time.perf_counter() - began
    return state


def _import_all(spec: Mapping[str, Any]) -> dict[str, str]:
    failed = {}
    for name in spec["imports"]:
        try:
            importlib.import_module(name)
        except BaseException as error:
            failed[name] = f"{type(error).__name__}: {error}"[:500]
    if spec["function"]:
        from . import worker

        worker.preload()
    return failed


def fork_hazard() -> str | None:
    """Why workers must not be forked from here, or None."""
    if sys.platform == "darwin":
        return "macOS does not let a forked process use its frameworks"
    torch = sys.modules.get("torch")
    try:
        if torch is not None and torch.cuda.is_initialized():
            return "CUDA was initialised by an import"
    except Exception:
        pass
    try:
        opened = [os.readlink(f"/proc/self/fd/{each}") for each in os.listdir("/proc/self/fd")]
    except OSError:
        opened = []
    for path in opened:
        if path.startswith(("/dev/nvidia", "/dev/kfd")):
            return f"{path} was opened by an import"
    threading = sys.modules.get("threading")
    if threading is not None and threading.active_count() > 1:
        names = ", ".join(sorted(each.name for each in threading.enumerate())[:5])
        return f"threads were started by an import ({names})"
    return None


def _hung_up(connection: socket.socket) -> bool:
    """Whether nobody is there any more: who only wanted this process to be started does not stay."""
    try:
        return not connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except BlockingIOError:
        return False
    except OSError:
        return True


def peer_is_me(connection: socket.socket) -> bool:
    """Whether the process at the other end of a Unix socket is of this user (or root)."""
    if not hasattr(socket, "SO_PEERCRED"):
        return True
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    _, uid, _ = struct.unpack("3i", credentials)
    return uid in (os.getuid(), 0)
