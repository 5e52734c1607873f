"""The fork server: the process that imports everything once, and from which every reaper is forked.

`client.py` starts it. It runs no user code except imports, and stays single-threaded. The first line that arrives on a
connection is the request:

    {"do": "import", "imports"}                  import these modules; there is no answer
    {"do": "join", "imports", "keep", "marks"}   fork a reaper, which gets all further lines. "keep" is how many seconds
                                                 the fork server stays after that reaper has ended, "marks" names the
                                                 owner of the reaper (system/process_title.py)
    {"do": "ask"}                                answered by {"event": "here"}, as long as this process runs
    {"do": "retire"}                             accept no new agents, and exit with the last reaper

Any other first line is passed to a new reaper, too. If a file has changed on disk since the fork server imported it,
the fork server answers {"event": "stale"} and retires; the client then starts another one.
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
from ..system import peer_credentials, process_title, processes, signals, trace
from ..system.accepting import accept
from ..worker import script
from . import active_tracers, observed_imports, pth_files, registry, staleness

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from typing import Any, NoReturn

IDLE_BEFORE_FIRST = 60.0
"""Seconds to wait for the first agent. After the last agent has left, the idle time of the spec applies."""
_LONGEST_LINE = 1 << 20
_PAUSED = 2_000_000_011
"""A threshold of the garbage collector. No import reaches it, and no other program sets this value."""


def main(arguments: list[str]) -> NoReturn:
    """`warm SPEC.json [LISTENING_DESCRIPTOR]`: runs the fork server."""
    with open(arguments[0], encoding="utf-8") as file:
        spec = json.load(file)
    if spec.get("inside"):
        # The path of Python inside a container is known only there (containers/container.py).
        spec["python"] = sys.executable
    if len(arguments) > 1:
        listener = socket.socket(fileno=int(arguments[1]))
    else:
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        # A socket that does not listen yet looks like that of a fork server that was killed.
        with registry.alone(spec["socket"]):
            listener.bind(spec["socket"])
            listener.listen(1024)
    serve(spec, listener)


def serve(
    spec: Mapping[str, Any], listener: socket.socket, customize: Callable[[], None] | None = None
) -> NoReturn:
    """Runs the fork server of a spec, then exits.

    Args:
        customize: In a Python that is held before its script, what it imports first (paused_python.py).

    Raises:
        script.Begin: This process is a worker, forked from a held Python, and is to run the script.
    """
    os.set_inheritable(listener.fileno(), False)
    os._exit(ForkServer(spec, listener, customize).serve())


class _Caller:
    """A connection whose first line is not complete yet."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.received = b""


class ForkServer:
    """The process from which reapers are forked. It is single-threaded, and runs no user code except imports."""

    def __init__(
        self,
        spec: Mapping[str, Any],
        listener: socket.socket,
        customize: Callable[[], None] | None = None,
    ) -> None:
        self._spec = spec
        self._customize = customize
        self._pid = os.getpid()
        self._listener = listener
        self._imports = Imports(spec, held=customize is not None)
        self._reapers: dict[int, float] = {}
        self._callers: dict[int, _Caller] = {}
        self._ending = False
        self._listening = True
        self._used = False
        self._spans: list[tuple[str, float, float]] = []
        self._idle_until = time.monotonic() + IDLE_BEFORE_FIRST
        self._wake_reader, self._wake_writer = os.pipe()
        self._poll = select.poll()

    def serve(self) -> int:
        """Imports, then forks a reaper for each agent until the idle time has passed. Returns the exit status."""
        for each in (signal.SIGHUP, signal.SIGINT, signal.SIGPIPE):
            signal.signal(each, signal.SIG_IGN)
        signals.watch_signals(self._wake_writer, (signal.SIGCHLD, signal.SIGTERM))
        processes.adopt_orphans()
        self._note(0)
        started, began = trace.started_at(), time.time()
        if self._customize is not None:
            self._imports.customize(self._customize)
        self._imports.take(self._spec["imports"])
        imported = time.time()
        if self._spec["function"] or self._spec["argv"]:
            with _collector_paused():
                preload(function=self._spec["function"])
                if self._customize is None:
                    gc.freeze()
        self._spans = [
            ("start", started or began, began),
            ("import what the call needs", began, imported),
            ("import what workers need", imported, time.time()),
        ]
        self._note(0)
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

    # Incoming requests and signals

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
                # A reaper that was killed has not removed its hosts file.
                worker_view.leave(f"{self._spec['socket']}.{pid}.hosts")
                crashed = crashed or status != 0
                self._idle_until = max(self._idle_until, time.monotonic() + keep)
                if not self._reapers:
                    self._imports.seconds = 0.0
                    self._spans.clear()
                self._note(len(self._reapers))
        if crashed:
            # Orphans of a killed reaper are reparented to this process. Its workers died with it.
            processes.kill_all(lambda: processes.orphans(set(self._reapers)))

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
        """Reads from a connection, and carries out the request once the first line is complete."""
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
        elif what == "ask":
            with contextlib.suppress(OSError):
                connection.sendall(b'{"event": "here"}\n')
        elif what == "retire":
            self._retire()
        elif what != "join":
            self._fork(connection, {}, whole)
        elif self._stale():
            with contextlib.suppress(OSError):
                connection.sendall(b'{"event": "stale"}\n')
        else:
            self._imports.take(request["imports"])
            self._fork(connection, request, rest)

    # Forking

    def _fork(self, connection: socket.socket, request: Mapping[str, Any], received: bytes) -> None:
        """Forks a reaper for the agent at the other end of the connection."""
        # Recorded before the agent learns of its reaper, so that no other task retires this process as unused.
        self._note(len(self._reapers) + 1)
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGCHLD, signal.SIGTERM))
        try:
            pid = os.fork()
        except OSError as error:
            # The agent learns it from the end of its connection. Other agents still need this process.
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
            sys.stderr.write(f"flowlite: no process can be forked for an agent: {error.strerror}\n")
            self._note(len(self._reapers))
            return
        if pid:
            if not self._used:
                self._used, self._idle_until = True, 0.0
            # A process from which workers cannot be forked is not kept for the next task.
            useful = self._imports.hazard is None
            keep = float(request.get("keep", self._spec["idle"])) if useful else 0.0
            self._reapers[pid] = keep
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
            return
        status = 1
        try:
            from . import reaper, worker_choice

            if self._spec.get("inside"):
                # The processes of a container must not outlive its first process.
                processes.die_with_parent(self._pid)
            self._listener.close()
            for other in self._callers.values():
                other.connection.close()
            os.close(self._wake_reader)
            os.close(self._wake_writer)
            if request.get("marks") and not process_title.mark(request["marks"]):
                raise OSError("this process cannot be marked as one of the task")
            state = {**self._state(), "failed_imports": self._imports.failed_of(request)}
            choice = worker_choice.WorkerChoice(
                self._spec, self._imports.hazard, self._imports.observed
            )
            status = reaper.Reaper(connection, state, choice, received).serve(blocked)
        except script.Begin:
            # A worker that runs a script in this very Python.
            raise
        except BaseException:
            sys.excepthook(*sys.exc_info())
        os._exit(status)

    def _state(self) -> dict[str, Any]:
        """Returns the facts that every reaper reports in its "ready" event."""
        return {
            "fork_server": self._pid,
            "python": self._spec["python"],
            "socket": self._spec["socket"],
            "hazard": self._imports.hazard,
            "environment": dict(os.environ) if self._spec.get("inside") else None,
            "prepare_seconds": self._imports.seconds,
            "spans": self._spans,
        }

    def _stale(self) -> bool:
        """Whether an imported file has changed since; if so, this also retires the fork server."""
        if self._spec["key"] and (path := self._imports.changed()) is not None:
            sys.stderr.write(f"flowlite: {path} has changed; the next worker takes it anew\n")
            self._retire()
            return True
        return False

    # Shutting down

    def _retire(self) -> None:
        """Releases the socket's name for another fork server, and exits with the last reaper."""
        with registry.alone(self._spec["socket"]):
            self._give_up_name()
        self._ending = True

    def _leave(self) -> bool:
        """Removes the socket, so that the next client starts a new fork server. False if a client is connecting."""
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
            # Pending connections get EOF, and their clients start another fork server.
            self._listener.close()

    def _note(self, agents: int) -> None:
        """Writes the state of this process to the file that others read (registry.py)."""
        if self._spec["key"] and self._listening:
            until = None if agents else self._idle_until - time.monotonic() + time.time()
            registry.note(self._spec["socket"], agents, until)


@contextlib.contextmanager
def _collector_paused() -> Iterator[None]:
    """Lets the garbage collector rest during imports, which make none."""
    # Not `gc.disable()`: an import may call that, and means its process.
    threshold = gc.get_threshold()[0]
    gc.set_threshold(_PAUSED)
    try:
        yield
    finally:
        if gc.get_threshold()[0] == _PAUSED:
            gc.set_threshold(threshold)


class Imports:
    """The modules that the fork server has imported, and the errors of those that failed.

    Attributes:
        observed: What the imports have read and changed.
        hazard: Why workers must not be forked from this process, or None.
        seconds: How long the imports took since the fork server was last without reapers.
    """

    def __init__(self, spec: Mapping[str, Any], *, held: bool = False) -> None:
        self.observed = observed_imports.ObservedImports()
        self._held = held
        self._watched = staleness.Loaded() if spec["key"] else None
        self._failed: dict[str, str] = {}
        self._done: set[str] | None = None
        self.hazard: str | None = None
        self.seconds = 0.0

    def customize(self, customize: Callable[[], None]) -> None:
        """Imports `sitecustomize` and `usercustomize`, before anything else."""
        self.observed.reads[observed_imports.SITE] = pth_files.variables()
        with contextlib.suppress(Exception), self.observed.of("sitecustomize"):
            customize()

    def take(self, names: Iterable[str]) -> None:
        """Imports the modules that are missing. Errors are only recorded: the worker's own import will raise them."""
        done = self._done or set()
        missing = [name for name in names if name not in done]
        if not missing and self._done is not None:
            return
        began = time.perf_counter()
        with _collector_paused():
            if missing:
                from ..worker.renewed_modules import look_anew_at_directories

                look_anew_at_directories()
            with self._watched.importing() if self._watched else contextlib.nullcontext():
                for name in missing:
                    try:
                        with self.observed.of(name):
                            importlib.import_module(name)
                    except BaseException as error:
                        self._failed[name] = f"{type(error).__name__}: {error}"[:500]
            self._done = done | set(missing)
            self.hazard = fork_hazard()
            if self._held:
                _freeze_all_but_main()
            else:
                gc.freeze()
        self.seconds += time.perf_counter() - began

    def failed_of(self, request: Mapping[str, Any]) -> dict[str, str]:
        """Returns the errors of the modules in the request that could not be imported (all modules by default)."""
        asked = request.get("imports", self._failed)
        return {name: self._failed[name] for name in asked if name in self._failed}

    def changed(self) -> str | None:
        """Returns the path of a file that has changed since it was imported, or None."""
        return self._watched.changed() if self._watched is not None else None


def _freeze_all_but_main() -> None:
    """Freezes all objects but the main module for the garbage collector.

    The functions and classes of a script refer to its module. If that were frozen, none of its globals could be
    collected, and the `__del__` of its objects would not run at its end.
    """
    import ctypes

    script.note_what_holds_main()
    main = sys.modules["__main__"]
    seen = [ctypes.py_object(each) for each in (main, vars(main))]
    for each in seen:
        ctypes.pythonapi.PyObject_GC_UnTrack(each)
    gc.freeze()
    for each in seen:
        ctypes.pythonapi.PyObject_GC_Track(each)


def preload(*, function: bool) -> None:
    """Imports the modules of flowlite that reapers and workers use: the zip may be gone when they need them.

    Args:
        function: Whether the workers run a function.
    """
    from ..mount_namespace import hosts_file, namespace
    from ..worker import worker
    from . import reaper, worker_choice

    if function:
        worker.preload()
    _ = reaper, worker_choice, namespace, hosts_file


def fork_hazard() -> str | None:
    """Returns why workers must not be forked from this process, or None."""
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
    return active_tracers.active_tracer() or None
