"""The reaper: the parent of one node's workers, through which the agent starts and stops them.

The reaper is forked from the fork server when the agent connects. It adopts every orphan that its workers leave. When
the agent's connection ends, it stops the workers and exits. The connection carries lines of JSON:

    from the agent   {"do": "hello", "node", "stop_signal", "grace", "scene", "workdir", "log"}      answered by "ready"
                     {"do": "prepare", "call"}                           verify the call, extract its code; "prepared"
                     {"do": "probe", "paths", "write", "token"}          write or read probe files; "probed"
                     {"do": "forget", "paths", "token"}                  remove these probe files
                     {"do": "start", "orders": [...]}                    start workers; orders are as in worker.main
                     {"do": "stop", "signal", "grace"}                   stop all workers; "stopped" when none is left
                     {"do": "dismiss"}                                   end the fork server after its last agent
                     "trace" in "hello" is the file where this process records what it does, if it does
    to the agent     {"event": "ready" | "prepared" | "probed" | "started" | "exited" | "stopped", ...}

A worker is reported as exited only when all its processes are gone. After its main process has ended, the processes
that it left get SIGTERM, and SIGKILL a short time later.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import time

from ..mount_namespace import hosts_file, worker_view
from ..system import atomic_files, processes, retrying, signals, stack_dump, trace
from ..worker import script, worker

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    from collections.abc import Iterable, Mapping, Sequence
    from typing import Any

    from .worker_choice import WorkerChoice

LEFTOVER_SECONDS = 5.0
"""The longest grace period for processes that a worker left after success; `LEFTOVER_SECONDS_FAILED` after failure."""
LEFTOVER_SECONDS_FAILED = 1.0
STUCK_SECONDS = 20.0
"""How long after SIGKILL a process that still exists is reported as stuck: it waits for a device or a file system."""
_LOOK_AGAIN = 0.02
# poll() takes no more than 24.8 days.
_LONGEST_LOOK = 86400.0


class _WorkerRecord:
    """The reaper's record of one worker."""

    def __init__(self, pid: int, order: Mapping[str, Any]) -> None:
        self.pid = pid
        self.order = order
        self.rank = int(order["rank"])
        self.local_rank = int(order["local_rank"])
        self.streams = (str(order["out"]), str(order["err"]))
        self.started = time.time()
        self.status: int | None = None
        self.ended = 0.0
        self.asked_to_stop = False
        self.stopped = False
        self.kill_at = 0.0
        self.killed_at = 0.0

    @property
    def marker(self) -> bytes:
        return f"RANK={self.rank}".encode()


class Reaper:
    """Serves one agent until its connection ends. Single-threaded, one poll loop."""

    def __init__(
        self,
        connection: socket.socket,
        state: Mapping[str, Any],
        choice: WorkerChoice,
        received: bytes = b"",
    ) -> None:
        """`received` is the data that the fork server has already read from the connection."""
        self._connection = connection
        self._state = dict(state)
        self._choice = choice
        self._hosts = f"{state['socket']}.{os.getpid()}.hosts"
        self._held: dict[int, _WorkerRecord] = {}
        self._received = received
        self._connected = True
        self._ending = False
        self._stop_signal: int = signal.SIGTERM
        self._grace = 10.0
        self._stop_reply = False
        self._kill_strays_at = 0.0
        self._asked_strays: set[int] = set()

    def serve(self, unblock: Iterable[int] = ()) -> int:
        """Serves the agent, then stops the workers that are left. Returns the exit status."""
        self._wake_reader, self._wake_writer = os.pipe()
        os.set_blocking(self._wake_reader, False)
        signals.watch_signals(self._wake_writer, (signal.SIGCHLD, signal.SIGTERM))
        signal.pthread_sigmask(signal.SIG_SETMASK, unblock)
        processes.adopt_orphans()
        poll = select.poll()
        poll.register(self._connection.fileno(), select.POLLIN)
        poll.register(self._wake_reader, select.POLLIN)
        self._obey_all()
        while self._connected or self._held or self._strays_left():
            wait = self._next_look()
            ready = {each for each, _ in poll.poll(None if wait is None else wait * 1000)}
            if self._wake_reader in ready:
                self._on_signals()
            if self._connected and self._connection.fileno() in ready:
                self._receive()
                if not self._connected:
                    poll.unregister(self._connection.fileno())
                    self._connection.close()
                    self._stop(self._stop_signal, self._grace)
            self._reap()
            self._look_after()
        worker_view.leave(self._hosts)
        return 0

    # Incoming requests and signals

    def _on_signals(self) -> None:
        if signal.SIGTERM in os.read(self._wake_reader, 4096):
            self._stop(self._stop_signal, self._grace)

    def _receive(self) -> None:
        try:
            data = self._connection.recv(1 << 16)
        except OSError:
            data = b""
        if not data:
            self._connected = False
            return
        self._received += data
        self._obey_all()

    def _obey_all(self) -> None:
        *lines, self._received = self._received.split(b"\n")
        for line in lines:
            self._obey(json.loads(line))

    def _obey(self, request: Mapping[str, Any]) -> None:
        what = request["do"]
        if what == "hello":
            self._stop_signal = int(request["stop_signal"])
            self._grace = float(request["grace"])
            if request.get("log"):
                _write_to(request["log"])
            spans = self._state.pop("spans", ())
            if request.get("trace"):
                trace.begin(f"reaper of node {request['node']}", request["trace"])
                trace.add_of_other("fork server", int(self._state["fork_server"]), spans)
            with trace.span("mount"):
                self._state.update(worker_view.enter(request.get("scene", {}), self._hosts))
            self._state["workdir_error"] = _why_no_workdir(request.get("workdir"))
            self._send("ready", reaper=os.getpid(), **self._state)
        elif what == "prepare":
            with trace.span("verify the call"):
                self._send("prepared", **_prepare(request["call"]))
        elif what == "probe":
            self._send("probed", **probe(request["paths"], request["token"], request["write"]))
        elif what == "forget":
            forget_probe(request["paths"], request["token"])
        elif what == "start":
            self._name_peers(request["orders"])
            for order in request["orders"]:
                self._start(order)
        elif what == "stop":
            self._stop_reply = True
            self._stop(int(request["signal"]), float(request["grace"]))
        elif what == "dismiss":
            processes.send(int(self._state["fork_server"]), signal.SIGTERM)

    def _send(self, event: str, **body: Any) -> None:
        try:
            self._connection.sendall(json.dumps({"event": event, **body}).encode() + b"\n")
        except OSError:
            # The connection is closed; the next read from it notices.
            return

    # Starting

    def _start(self, order: Mapping[str, Any]) -> None:
        reaper = os.getpid()
        start = self._choice.start_of(order)
        watched = (signal.SIGCHLD, signal.SIGTERM)
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, watched)
        try:
            pid = os.fork()
        except OSError as error:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
            self._report_not_started(order, error)
            return
        if pid == 0:
            try:
                self._connection.close()
                os.close(self._wake_reader)
                for number in watched:
                    signal.signal(number, signal.SIG_DFL)
                signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
                trace.be(f"rank {order['rank']}")
                if start.begin is not None:
                    trace.mark("script")
                    signal.set_wakeup_fd(-1)
                    os.close(self._wake_writer)
                    raise start.begin
                if start.afresh:
                    _become_afresh(order, str(self._state["python"]), reaper)
                worker.main(order, reaper, forked=True)
            except script.Begin:
                raise
            except BaseException:
                sys.excepthook(*sys.exc_info())
                os._exit(worker.EXIT_FAILED)
        held = self._held[pid] = _WorkerRecord(pid, order)
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        self._send("started", rank=held.rank, pid=pid, time=held.started, why=start.why)
        if self._ending:
            self._stop_one(held, self._stop_signal, self._grace)

    def _report_not_started(self, order: Mapping[str, Any], error: OSError) -> None:
        look = "Look at the memory of this node, `ulimit -u` and pids.max of its control group"
        message = f"the worker cannot be started: {error.strerror}. {look}"
        failure = {"kind": "load", "type": type(error).__name__, "message": message}
        worker.note_failure(order, failure)
        now = time.time()
        self._send(
            "exited",
            rank=int(order["rank"]),
            code=worker.EXIT_CANNOT_RUN,
            signal=None,
            started=now,
            ended=now,
            stopped=False,
            stuck=False,
        )

    def _name_peers(self, orders: Sequence[Mapping[str, Any]]) -> None:
        hosts = self._state.get("hosts")
        addresses = orders[0]["environment"].get("FLOW_NODE_IPS", "") if orders else ""
        if hosts is None or not addresses:
            return
        try:
            hosts_file.add_gang(hosts, addresses.split(","))
        except OSError as error:
            sys.stderr.write(f"flowlite: the names of the nodes cannot be noted: {error}\n")

    # Stopping

    def _stop(self, number: int, grace: float) -> None:
        self._ending = True
        self._kill_strays_at = time.monotonic() + grace
        for held in self._held.values():
            self._stop_one(held, number, grace)

    def _stop_one(self, held: _WorkerRecord, number: int, grace: float) -> None:
        if held.status is None:
            held.stopped = True
            self._signal(held, number)
            # A process that is suspended (SIGSTOP) cannot handle the signal.
            self._signal(held, signal.SIGCONT)
            held.asked_to_stop = True
            if not held.kill_at or held.kill_at > time.monotonic() + grace:
                held.kill_at = time.monotonic() + grace

    def _signal(self, held: _WorkerRecord, number: int) -> None:
        """Sends a signal to a worker that was not reaped, and to its group, which it creates after its fork."""
        if not processes.send_group(held.pid, number):
            processes.send(held.pid, number)

    def _reap(self) -> None:
        for pid, status in processes.ended_children():
            held = self._held.get(pid)
            if held is not None and held.status is None:
                held.status = status
                stack_dump.tell_crash(held.order)
                held.ended = time.time()
                failed = status != 0
                allowed = LEFTOVER_SECONDS_FAILED if failed else LEFTOVER_SECONDS
                held.kill_at = time.monotonic() + min(self._grace, allowed)
                held.killed_at = 0.0
                held.asked_to_stop = False

    def _look_after(self) -> None:
        """Takes the next step with every worker that is ending: signals it, kills it, or reports it."""
        now = time.monotonic()
        for held in list(self._held.values()):
            if held.status is None:
                if held.kill_at and now >= held.kill_at and not held.killed_at:
                    held.killed_at = now
                    for pid in processes.descendants([held.pid]):
                        processes.send(pid, signal.SIGKILL)
                    self._signal(held, signal.SIGKILL)
                if held.killed_at and now > held.killed_at + STUCK_SECONDS:
                    self._report(held, stuck=True)
                continue
            left = self._left_by(held)
            if not left:
                self._report(held)
            elif now >= held.kill_at:
                held.killed_at = held.killed_at or now
                for pid in left:
                    processes.send(pid, signal.SIGKILL)
                if now > held.killed_at + STUCK_SECONDS:
                    self._report(held, stuck=True)
            elif not held.asked_to_stop:
                held.asked_to_stop = True
                for pid in left:
                    processes.send(pid, signal.SIGTERM)
                    processes.send(pid, signal.SIGCONT)
        if self._stop_reply and not self._held and not self._strays_left():
            self._stop_reply = False
            self._send("stopped")

    def _report(self, held: _WorkerRecord, stuck: bool = False) -> None:
        del self._held[held.pid]
        status = held.status if held.status is not None else int(signal.SIGKILL)
        code = os.waitstatus_to_exitcode(status)
        self._send(
            "exited",
            rank=held.rank,
            code=code if code >= 0 else None,
            signal=-code if code < 0 else None,
            started=held.started,
            ended=held.ended or time.time(),
            stopped=held.stopped,
            stuck=stuck,
        )

    # Processes that workers leave

    def _running(self) -> set[int]:
        return {held.pid for held in self._held.values() if held.status is None}

    def _left_by(self, held: _WorkerRecord) -> set[int]:
        """Returns the processes that are left of a worker whose main process has ended."""
        if not processes.LINUX:
            rows = processes.table()
            return {pid for pid, each in rows.items() if each.group == held.pid and not each.dead}
        orphans = processes.orphans(self._running())
        if not orphans or not self._running():
            return orphans
        rows = processes.table()
        found = {
            pid
            for pid in orphans
            if pid in rows
            and (held.pid in (rows[pid].session, rows[pid].group) or self._bears(pid, held))
        }
        return found | processes.writers(held.streams, orphans - found)

    def _bears(self, pid: int, held: _WorkerRecord) -> bool:
        try:
            with open(f"/proc/{pid}/environ", "rb") as file:
                return held.marker in file.read().split(b"\0")
        except OSError:
            return False

    def _strays_left(self) -> bool:
        """While ending: whether descendants that belong to no worker are alive. They are killed after the grace."""
        if self._held or not self._ending:
            return False
        strays = processes.orphans(self._running())
        killing = time.monotonic() >= self._kill_strays_at
        for pid in strays if killing else strays - self._asked_strays:
            processes.send(pid, signal.SIGKILL if killing else signal.SIGTERM)
        self._asked_strays |= strays
        return bool(strays) and time.monotonic() < self._kill_strays_at + STUCK_SECONDS

    def _next_look(self) -> float | None:
        """Returns how many seconds to sleep at most, or None to wait for an event."""
        waits = [
            _LOOK_AGAIN if held.status is not None else max(0.0, held.kill_at - time.monotonic())
            for held in self._held.values()
            if held.status is not None or (held.kill_at and not held.killed_at)
        ]
        if any(held.killed_at for held in self._held.values()):
            waits.append(_LOOK_AGAIN)
        if not self._held and (self._stop_reply or not self._connected):
            waits.append(_LOOK_AGAIN)
        return min(*waits, _LONGEST_LOOK) if waits else None


def _become_afresh(order: Mapping[str, Any], python: str, reaper: int) -> None:
    """Replaces this forked child by a new Python interpreter, which runs the same worker."""
    os.setsid()
    processes.die_with_parent(reaper)
    path = f"{order['failure']}.order"
    atomic_files.write_atomically(path, json.dumps({**order, "trace": trace.file()}))
    worker.redirect(order)
    command = processes.own_command(python, "worker", path, str(reaper))
    os.execve(command[0], command, order["environment"])


def _write_to(log: str) -> None:
    """Redirects this process's output to the task's log, since all tasks share the fork server's own log."""
    try:
        processes.redirect(log, 1, 2)
    except OSError as error:
        sys.stderr.write(f"flowlite: {log} cannot be written: {error.strerror}\n")


def _why_no_workdir(path: str | None) -> str | None:
    """Returns why workers cannot start in a directory, as they see it; None if they can."""
    if path is None:
        return None
    try:
        os.stat(os.path.join(path, "."))
    except OSError as error:
        return f"{path}: {error.strerror}"
    return None


def _prepare(call: dict[str, Any]) -> dict[str, Any]:
    from ..worker import load_call

    try:
        load_call.prepare_call(call)
    except Exception as error:
        return {"error": f"{error}"}
    return {"error": None}


def probe(paths: Iterable[str], token: str, write: bool) -> dict[str, Any]:
    """Writes a probe file into each volume, or checks that it is there.

    Returns:
        {"missing": paths where the file is not there (yet), "errors": {path: reason}, "passing": paths whose error may
        be temporary}.
    """
    missing, errors, passing = [], {}, []
    for path in paths:
        name = os.path.join(path, f".flowlite-probe-{token}")
        try:
            if write:
                with open(name, "w", encoding="utf-8") as file:
                    file.write(token)
            else:
                # Listing the directory first makes a network file system refresh its cache.
                os.listdir(path)
                with open(name, encoding="utf-8") as file:
                    if file.read() != token:
                        missing.append(path)
        except FileNotFoundError:
            missing.append(path)
        except OSError as error:
            errors[path] = str(error)
            if retrying.is_passing(error):
                passing.append(path)
    return {"missing": missing, "errors": errors, "passing": passing}


def forget_probe(paths: Iterable[str], token: str) -> None:
    """Removes the probe files."""
    for path in paths:
        try:
            os.unlink(os.path.join(path, f".flowlite-probe-{token}"))
        except OSError as error:
            sys.stderr.write(f"flowlite: a probe file stays in {path}: {error}\n")
