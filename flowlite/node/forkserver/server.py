"""The fork server: the process in which everything is imported once, and from which every reaper is forked.

See client.py for how it is started. It runs no code of the user but imports, and stays single-threaded. The first line
that comes over a connection says what is wanted:

    {"do": "import", "imports"}                  these will be needed soon; nobody waits
    {"do": "join", "imports", "keep", "marks"}   a reaper; all further lines are for it. "keep" is how long to stay
                                                 after it has gone, "marks" whose it is (system/process_title.py)
    {"do": "retire"}                             take no new agents, and end with the last one there is
    {"do": "dismiss"}                            end when nobody is there any more, without waiting

Anything else is for a reaper, too. What the fork server has imported may have been changed on the disk since: then it
answers {"event": "stale"} and retires, and whoever asked starts another one.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import select
import signal
import socket
import sys
import time

from ..mount_namespace import worker_view
from ..system import peer_credentials, process_title, processes, signals
from ..system.accepting import accept
from . import registry, staleness

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Any, NoReturn

IDLE_BEFORE_FIRST = 60.0
"""Seconds it waits for its first agent; after the last one has gone it is `idle` of its spec."""
_LONGEST_LINE = 1 << 20


def main(arguments: list[str]) -> NoReturn:
    """`warm SPEC.json [LISTENING_DESCRIPTOR]`: be the fork server."""
    with open(arguments[0], encoding="utf-8") as file:
        spec = json.load(file)
    if spec.get("inside"):
        # In a container, only we know which Python there is (containers/container.py).
        spec["python"] = sys.executable
    if len(arguments) > 1:
        listener = socket.socket(fileno=int(arguments[1]))
    else:
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind(spec["socket"])
        listener.listen(1024)
    serve(spec, listener)


def serve(spec: Mapping[str, Any], listener: socket.socket) -> NoReturn:
    """Be the fork server of a spec."""
    os.set_inheritable(listener.fileno(), False)
    os._exit(ForkServer(spec, listener).serve())


class _Caller:
    """Somebody who has not yet said what is wanted."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.received = b""


class ForkServer:
    """The process from which everything is forked. Single-threaded, and it never runs a user's code but imports."""

    def __init__(self, spec: Mapping[str, Any], listener: socket.socket) -> None:
        self._spec = spec
        self._pid = os.getpid()
        self._listener = listener
        self._imports = Imports(spec)
        self._reapers: dict[int, float] = {}
        self._callers: dict[int, _Caller] = {}
        self._ending = False
        self._listening = True
        self._used = False
        self._idle_until = time.monotonic() + IDLE_BEFORE_FIRST
        self._wake_reader, self._wake_writer = os.pipe()
        self._poll = select.poll()

    def serve(self) -> int:
        """Prepare, then fork a reaper for each agent until nobody has come for a while."""
        for each in (signal.SIGHUP, signal.SIGINT, signal.SIGPIPE):
            signal.signal(each, signal.SIG_IGN)
        signals.watch_signals(self._wake_writer, (signal.SIGCHLD, signal.SIGTERM))
        processes.adopt_orphans()
        self._note()
        self._imports.take(self._spec["imports"])
        if self._spec["function"]:
            preload()
        self._note()
        self._poll.register(self._listener.fileno(), select.POLLIN)
        self._poll.register(self._wake_reader, select.POLLIN)
        while True:
            wait = 0.0 if self._ending else max(0.0, self._idle_until - time.monotonic())
            ready = {each for each, _ in self._poll.poll(None if self._reapers else wait * 1000)}
            if self._wake_reader in ready:
                self._on_signals()
            if self._listening and self._listener.fileno() in ready:
                self._accept()
            for caller in [self._callers[each] for each in ready if each in self._callers]:
                self._hear(caller)
            if not ready and not self._reapers and self._leave():
                return 0

    # What comes in

    def _on_signals(self) -> None:
        for number in os.read(self._wake_reader, 4096):
            if number == signal.SIGTERM:
                self._ending = True
                for reaper in self._reapers:
                    processes.send(reaper, signal.SIGTERM)
        crashed = False
        for pid, status in processes.ended_children():
            keep = self._reapers.pop(pid, None)
            if keep is not None:
                # One that was killed could not tidy up.
                worker_view.leave(f"{self._spec['socket']}.{pid}.hosts")
                crashed = crashed or status != 0
                self._idle_until = max(self._idle_until, time.monotonic() + keep)
                if not self._reapers:
                    self._imports.seconds = 0.0
                self._note()
        if crashed:
            # What a reaper leaves behind when it is killed becomes ours; its workers are dead already.
            processes.end_all(self._strays)

    def _strays(self) -> set[int]:
        rows = processes.table()
        mine = {each.pid for each in rows.values() if each.parent == os.getpid()}
        strays = {pid for pid in mine - set(self._reapers) if not rows[pid].dead}
        return strays | processes.descendants(strays, rows)

    def _accept(self) -> None:
        accepted = accept(self._listener)
        if accepted is None:
            return
        connection, _ = accepted
        if not peer_credentials.may_be_trusted(connection):
            connection.close()
            return
        self._callers[connection.fileno()] = _Caller(connection)
        self._poll.register(connection.fileno(), select.POLLIN)

    def _hear(self, caller: _Caller) -> None:
        """Take in what a caller says, and do it once the first line is complete."""
        try:
            data = caller.connection.recv(1 << 16)
        except OSError:
            data = b""
        caller.received += data
        line, complete, rest = caller.received.partition(b"\n")
        if data and not complete and len(line) < _LONGEST_LINE:
            return
        self._poll.unregister(caller.connection.fileno())
        del self._callers[caller.connection.fileno()]
        with caller.connection as connection:
            if complete:
                try:
                    request = json.loads(line)
                except ValueError:
                    return
                self._obey(connection, request, caller.received, rest)

    def _obey(
        self, connection: socket.socket, request: Mapping[str, Any], whole: bytes, rest: bytes
    ) -> None:
        what = request.get("do")
        if what == "import":
            if not self._stale():
                self._imports.take(request["imports"])
        elif what == "retire":
            self._retire()
        elif what == "dismiss":
            self._ending = True
        elif what != "join":
            self._fork(connection, {}, whole)
        elif self._stale():
            connection.sendall(b'{"event": "stale"}\n')
        else:
            self._imports.take(request["imports"])
            self._fork(connection, request, rest)

    # What is done

    def _fork(self, connection: socket.socket, request: Mapping[str, Any], received: bytes) -> None:
        """Fork a reaper for the agent at the other end."""
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGCHLD, signal.SIGTERM))
        pid = os.fork()
        if pid:
            if not self._used:
                self._used, self._idle_until = True, 0.0
            # A process from which nothing can be forked is of no use to the next task.
            useful = self._imports.hazard is None
            keep = float(request.get("keep", self._spec["idle"])) if useful else 0.0
            self._reapers[pid] = keep
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
            self._note()
            return
        status = 1
        try:
            from . import reaper

            if self._spec.get("inside"):
                # Whatever lives in a container goes with its first process.
                processes.die_with_parent(self._pid)
            self._listener.close()
            for other in self._callers.values():
                other.connection.close()
            os.close(self._wake_reader)
            os.close(self._wake_writer)
            if request.get("marks") and not process_title.mark(request["marks"]):
                raise OSError("this process cannot be marked as one of the task")
            state = {**self._state(), "failed_imports": self._imports.failed_of(request)}
            status = reaper.Reaper(connection, state, received).serve(blocked)
        finally:
            os._exit(status)

    def _state(self) -> dict[str, Any]:
        """What every reaper reports as ready."""
        return {
            "template": self._pid,
            "python": self._spec["python"],
            "socket": self._spec["socket"],
            "hazard": self._imports.hazard,
            "environment": dict(os.environ) if self._spec.get("inside") else None,
            "prepare_seconds": self._imports.seconds,
        }

    def _stale(self) -> bool:
        """Whether it must not be used any more; then it retires."""
        if self._spec["key"] and (path := self._imports.changed()) is not None:
            sys.stderr.write(f"flowlite: {path} has changed; the next worker takes it anew\n")
            self._retire()
            return True
        return False

    # The end

    def _retire(self) -> None:
        """Make room for another fork server under the same name; end with the last reaper."""
        with registry.alone(self._spec["socket"]):
            self._give_up_name()
        self._ending = True

    def _leave(self) -> bool:
        """Take the socket away so that the next client starts a new fork server. False if one has just come."""
        if not self._listening:
            return True
        with registry.alone(self._spec["socket"]):
            if not self._ending and select.select([self._listener], [], [], 0)[0]:
                return False
            self._give_up_name()
        return True

    def _give_up_name(self) -> None:
        if self._listening:
            self._listening = False
            registry.forget(self._spec["socket"])
            self._poll.unregister(self._listener.fileno())
            # Who is in the queue gets an end of file, and starts another one.
            self._listener.close()

    def _note(self) -> None:
        """Say in a file what this process is to others (registry.py)."""
        if self._spec["key"] and self._listening:
            until = None if self._reapers else self._idle_until - time.monotonic() + time.time()
            registry.note(self._spec["socket"], len(self._reapers), until)


class Imports:
    """What has been imported here, and how it went.

    Attributes:
        hazard: Why workers must not be forked from here, or None.
        seconds: What it took, for those who use it now.
    """

    def __init__(self, spec: Mapping[str, Any]) -> None:
        self._watched = staleness.Loaded() if spec["key"] else None
        self._failed: dict[str, str] = {}
        self._done: set[str] | None = None
        self.hazard: str | None = None
        self.seconds = 0.0

    def take(self, names: Iterable[str]) -> None:
        """Import what is not there yet. One that fails is left to the worker to fail on."""
        done = self._done or set()
        missing = [name for name in names if name not in done]
        if not missing and self._done is not None:
            return
        began = time.perf_counter()
        gc.disable()
        importlib.invalidate_caches()
        with self._watched.importing() if self._watched else contextlib.nullcontext():
            for name in missing:
                try:
                    importlib.import_module(name)
                except BaseException as error:
                    self._failed[name] = f"{type(error).__name__}: {error}"[:500]
        self._done = done | set(missing)
        self.hazard = fork_hazard()
        gc.freeze()
        gc.enable()
        self.seconds += time.perf_counter() - began

    def failed_of(self, request: Mapping[str, Any]) -> dict[str, str]:
        """Of what was asked for (by default everything), what could not be imported, and why."""
        asked = request.get("imports", self._failed)
        return {name: self._failed[name] for name in asked if name in self._failed}

    def changed(self) -> str | None:
        """A file that is not any more what was imported from it."""
        return self._watched.changed() if self._watched is not None else None


def preload() -> None:
    """Import what reapers and their workers need of ours: the file it lies in may be gone when they do."""
    from ..mount_namespace import hosts_file, namespace
    from ..worker import worker
    from . import reaper

    worker.preload()
    _ = reaper, namespace, hosts_file


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
