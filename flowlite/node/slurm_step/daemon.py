"""The step daemon: one process per node in the one step of a Slurm job, and the parent of a task's processes there.

    PYTHON -I -S PROGRAM step-daemon --dir NODE_DIR --lease SECONDS --deadline SECONDS
        [--signal-seconds SECONDS] [--grace SECONDS] [--shared DIR --nonce TEXT] [--cancel yes] [ROOM]

Processes that are started through another step of the job (`helper/mux_server.py`) become children of the step daemon.
Agents and workers therefore belong to its step: they have its cgroup, GPUs and accounting, and end with it. The node
home is NODE_DIR/<instance>. The step daemon writes `step-daemon.json` and `step-daemon.pid` there, and answers lines of
JSON on its socket (`helper/daemon_client.py`):

    {"do": "hello"}                                  -> the facts of the node
    {"do": "renew"}                                  -> no answer; renews the lease
    {"do": "start", "argv", "log", "environment"}    -> {"pid"}
    {"do": "keep", "seconds"}                        -> {}; ends the task, and waits for another one
    {"do": "take"}                                   -> {}; runs another task, after `keep`
    {"do": "end"}                                    -> {}; ends all processes that it started, and itself

Kept, it ends all of the task but the fork servers that are kept, and itself if no other task takes it over in time. It
also ends at its deadline, and when its lease expires: without a request from a client and without a process that it
started, apart from fork servers. In the latter case it cancels its job with `--cancel`: that may have lost the node of
its script, and would not end. SIGUSR2 (which the batch script passes on from `--signal=B:USR2@…`) and SIGTERM become a
notice, which agents read (`preemption/notices.py`, kind "slurm"). After SIGTERM it ends.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import json
import os
import re
import select
import signal
import socket
import sys
import time

from ..forkserver import registry
from ..helper import courier, daemon_client
from ..helper.daemon_client import home_of, instance_id
from ..host_lease import cleanup, secret_files, tmpfiles_lock, unused_files
from ..system import atomic_files, daemonize, peer_credentials, processes, runtime_dir
from ..system.accepting import accept
from ..system.signals import watch_signals
from .notices import Clock, Notices

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

GRACE = 20.0
"""Seconds from SIGTERM to SIGKILL for the processes that it started; Slurm's own KillWait may be shorter."""
TOLD = "it was told to"
_TICK = 1.0
_REQUEST_SECONDS = 5.0
_CANCEL_SECONDS = 20.0
_LARGEST_REQUEST = 4 << 20
_BACKLOG = 64
# What the step daemon itself has in its home, besides a notice of Slurm, with which it is not kept.
_OWN_FILES = frozenset({"python", "step-daemon.json", "step-daemon.pid"})
_INSTANCE = re.compile(r".+\.\d{2}\.\d+", re.ASCII)


def main(arguments: list[str]) -> int:
    """Runs the step daemon until it ends. Returns the exit status."""
    gc.disable()
    options = dict(zip(arguments[::2], arguments[1::2], strict=False))
    job, restart, nodeid = (
        int(os.environ.get(name) or 0)
        for name in ("SLURM_JOB_ID", "SLURM_RESTART_COUNT", "SLURM_NODEID")
    )
    home = home_of(os.path.abspath(options["--dir"]), instance_id(job, restart, nodeid))
    atomic_files.make(home)
    os.chmod(home, 0o700)
    tmpfiles_lock.keep_from_cleaners(os.path.dirname(home))
    facts = {
        "instance": os.path.basename(home),
        "job": job,
        "restart": restart,
        "nodeid": nodeid,
        **processes.identity(os.getpid()),
        "host": os.uname().nodename,
        # Of the start of the step: the job may have lost some since then.
        "hosts": os.environ.get("SLURM_JOB_NODELIST", ""),
        "python": sys.version.split()[0],
        "executable": sys.executable,
        "shared": _is_shared(options.get("--shared"), options.get("--nonce")),
    }
    _forget_others(os.path.dirname(home))
    forget_unused(os.path.dirname(home), home)
    clock = Clock(float(options["--lease"]), float(options["--deadline"]))
    notices = Notices(home, job, float(options.get("--signal-seconds") or 0))
    daemon = StepDaemon(home, facts, clock, notices, float(options.get("--grace") or GRACE))
    _announce(home, facts, options.get("--shared"))
    code = daemon.serve()
    if options.get("--cancel") and clock.is_left_alone:
        _cancel(job)
    return code


def _cancel(job: int) -> None:
    """Has Slurm end the job, if this node can."""
    import subprocess

    # A node may have no `scancel`, and slurmctld may not answer. The job then ends with its time limit.
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        processes.run_within(_CANCEL_SECONDS, ["scancel", str(job)])


def _is_shared(directory: str | None, nonce: str | None) -> bool:
    """Whether a directory here shows a file that was written into it on the login node."""
    if not directory or not nonce:
        return False
    try:
        # Listing the directory first makes a network file system refresh its cache.
        os.listdir(directory)
        with open(f"{directory}/probe-{nonce}", encoding="utf-8") as file:
            return file.read().strip() == nonce
    except OSError:
        return False


def _announce(home: str, facts: dict[str, Any], shared: str | None) -> None:
    """Writes the files that announce this step daemon. Its socket already listens."""
    text = json.dumps(facts).encode()
    atomic_files.place(str(facts["pid"]).encode(), f"{home}/step-daemon.pid", 0o600)
    atomic_files.place(text, f"{home}/step-daemon.json", 0o600)
    if facts["shared"] and shared:
        try:
            atomic_files.place(text, f"{shared}/step-daemons/{facts['instance']}.json", 0o600)
        except OSError as error:
            _log(f"{shared} is shared, and cannot be written: {error.strerror}")
    _log(f"node {facts['nodeid']} of job {facts['job']} is held on {facts['host']}")


def _log(text: str) -> None:
    sys.stderr.write(f"flowlite step daemon: {text}\n")
    sys.stderr.flush()


def _forget_others(directory: str) -> None:
    """Removes the secrets of this machine's earlier nodes whose step daemons were killed."""
    for name in os.listdir(directory):
        home = os.path.join(directory, name)
        if os.path.exists(f"{home}/step-daemon.json") and not _runs(home):
            secret_files.forget(home)


def forget_unused(directory: str, own: str) -> None:
    """Removes what earlier jobs have left here, kept results included, if it has been unused for 14 days."""
    unused = []
    for name in os.listdir(directory):
        home = os.path.join(directory, name)
        if home != own and _INSTANCE.fullmatch(name) and not _runs(home):
            with contextlib.suppress(OSError):
                unused.append((home, cleanup.last_use(home)))
    for home, seconds in unused_files.look(directory, unused).items():
        if seconds > cleanup.UNUSED_SECONDS:
            with contextlib.suppress(OSError):
                cleanup.remove_tree(home)


def _runs(home: str) -> bool:
    """Whether the step daemon of a node runs, or may run on another machine that sees the directory."""
    try:
        noted = atomic_files.read_small_json(f"{home}/step-daemon.json")
        if noted["host"] != os.uname().nodename or processes.is_alive(
            int(noted["pid"]), str(noted["start"])
        ):
            return True
    except (OSError, ValueError, KeyError, TypeError):
        return False
    # Inside a job, processes of other jobs may be hidden; the socket tells.
    return daemon_client.Line(home).hello() is not None


def _fork_servers() -> set[int]:
    """The fork servers of this user that are kept."""
    with contextlib.suppress(OSError):
        return {each.pid for each in registry.all_of(runtime_dir.find())}
    return set()


def _bind(listener: socket.socket, address: str) -> None:
    try:
        listener.bind(address)
    except OSError as error:
        owner = peer_credentials.owner_of_name(address)
        if error.errno != errno.EADDRINUSE or owner in (-1, os.getuid()):
            raise
        # Any user of the node can take the name.
        raise SystemExit(
            f"flowlite step daemon: the name {address[1:]} is held by uid {owner}, another user of this node; "
            "`sudo ss -xap` there shows the process"
        ) from None


class _Forker(courier.Courier):
    """Forks agents that get SIGTERM when the step daemon is gone."""

    def _become(self, argv: list[str], log: str, environment: dict[str, str]) -> None:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGUSR2, signal.SIG_IGN)
        processes.die_with_parent(os.getppid(), signal.SIGTERM)
        super()._become(argv, log, environment)


class StepDaemon:
    """Serves requests until the node is given back. Single-threaded, so that it may fork."""

    def __init__(
        self, home: str, facts: dict[str, Any], clock: Clock, notices: Notices, grace: float
    ) -> None:
        self._home = home
        self._facts = facts
        self._clock = clock
        self._notices = notices
        self._grace = grace
        self._ending = ""
        self._asked_to_end = False
        self._received: dict[int, bytes] = {}
        self._lines: dict[int, socket.socket] = {}
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        _bind(self._listener, daemon_client.address(home))
        self._listener.listen(_BACKLOG)
        self._listener.setblocking(False)
        self._wake, self._waker = os.pipe()
        os.set_blocking(self._wake, False)
        # Workers get these signals only through an agent, which knows the processes that handle them. Others would die.
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
        numbers = (signal.SIGHUP, signal.SIGCHLD, signal.SIGTERM, signal.SIGUSR2)
        watch_signals(self._waker, numbers)

    def serve(self) -> int:
        """Serves until the end. Returns the exit status."""
        processes.adopt_orphans()
        courier.get_ready(encrypts=True)
        poll = select.poll()
        for each in (self._listener.fileno(), self._wake):
            poll.register(each, select.POLLIN)
        while not self._ending:
            for descriptor, _ in poll.poll(_TICK * 1000):
                if descriptor == self._wake:
                    self._on_signals()
                elif descriptor == self._listener.fileno():
                    self._accept(poll)
                else:
                    self._receive(descriptor, poll)
            self._look_after()
        return self._end()

    # Incoming requests and signals

    def _on_signals(self) -> None:
        came = os.read(self._wake, 4096)
        if signal.SIGUSR2 in came:
            self._notices.ask(signal.SIGUSR2)
        if signal.SIGHUP in came:
            # `scancel --signal=HUP`: the task is over, and the job ends as completed.
            self._ending = TOLD
        if signal.SIGTERM in came:
            # In the grace period of a preemption the job has to stay. If its step ended with success now, Slurm would
            # take the job for completed, and not requeue it.
            if self._notices.in_grace:
                self._ending = "it got SIGTERM again"
            self._notices.ask(signal.SIGTERM)
            self._asked_to_end = True

    def _accept(self, poll: select.poll) -> None:
        accepted = accept(self._listener)
        if accepted is None:
            return
        line, _ = accepted
        if not peer_credentials.is_ours(line):
            line.close()
            return
        line.settimeout(_REQUEST_SECONDS)
        self._lines[line.fileno()] = line
        self._received[line.fileno()] = b""
        poll.register(line.fileno(), select.POLLIN)

    def _receive(self, descriptor: int, poll: select.poll) -> None:
        line = self._lines[descriptor]
        try:
            data = line.recv(1 << 16)
        except OSError:
            data = b""
        *requests, rest = (self._received[descriptor] + data).split(b"\n")
        self._received[descriptor] = rest
        for request in requests:
            self._answer(line, request)
        if not data or len(rest) > _LARGEST_REQUEST:
            poll.unregister(descriptor)
            del self._lines[descriptor], self._received[descriptor]
            line.close()

    def _answer(self, line: socket.socket, text: bytes) -> None:
        self._clock.contact()
        try:
            request = json.loads(text)
            if request["do"] == "renew":
                return
            answer = self._obey(request)
        except OSError as error:
            answer = {"errno": error.errno or 5, "text": error.strerror or str(error)}
        except (ValueError, KeyError, TypeError) as error:
            answer = {"errno": 22, "text": f"not understood: {type(error).__name__}: {error}"}
        try:
            line.sendall(json.dumps(answer).encode() + b"\n")
        except OSError as error:
            _log(f"an answer did not arrive: {error}")

    def _obey(self, request: dict[str, Any]) -> dict[str, Any]:
        what = request["do"]
        if what == "hello":
            return self._facts
        if what == "start":
            return self._start(request)
        if what == "keep":
            return self._keep(float(request["seconds"]))
        if what == "take":
            return self._take()
        if what == "end":
            self._ending = TOLD
            return {}
        raise ValueError(f"{what!r} is not known")

    def _keep(self, seconds: float) -> dict[str, Any]:
        """Ends the task on this node, and removes its files. Its fork servers stay, with what they have imported."""
        self._refuse_at_the_end()
        me, spared = os.getpid(), _fork_servers()
        left = processes.kill_all(lambda: processes.descendants([me]) - spared)
        if left:
            raise OSError(errno.EBUSY, f"processes {sorted(left)} do not end")
        if not cleanup.clear(self._home, _OWN_FILES):
            raise OSError(errno.EBUSY, f"{self._home} cannot be cleared")
        self._clock.keep(seconds)
        _log(f"kept for {seconds:.0f} s")
        return {}

    def _take(self) -> dict[str, Any]:
        """Ends the time for which the node is kept: another task uses it."""
        self._refuse_at_the_end()
        if not self._clock.take():
            raise OSError(errno.ETIMEDOUT, "it ends now, since no task has taken it over in time")
        return {}

    def _refuse_at_the_end(self) -> None:
        if self._ending or self._asked_to_end or self._notices.is_told:
            raise OSError(errno.EBUSY, "Slurm ends its job")

    def _start(self, request: dict[str, Any]) -> dict[str, Any]:
        open_here = (
            self._listener.fileno(),
            self._wake,
            self._waker,
            *(line.fileno() for line in self._lines.values()),
        )
        answer, _ = _Forker(open_here).do(request, b"")
        if "errno" in answer:
            raise OSError(answer["errno"], answer["text"])
        if "unfit" in answer:
            argv, log, environment = (request[each] for each in ("argv", "log", "environment"))
            return {"pid": daemonize.spawn(argv, log, environment, ours=True)}
        return answer

    # Housekeeping

    def _look_after(self) -> None:
        for _ in processes.ended_children():
            # The loop reaps zombies. Agents leave a report, so their exit status is not needed.
            continue
        children = processes.children_of_mine()
        if children and children - _fork_servers():
            self._clock.contact()
        self._notices.look()
        if self._asked_to_end and not self._notices.asking and not self._notices.in_grace:
            self._ending = self._ending or "it got SIGTERM"
        self._ending = self._ending or self._clock.over()

    def _end(self) -> int:
        """Ends all processes that it started. Returns the exit status."""
        _log(f"the end: {self._ending}")
        self._listener.close()
        me = os.getpid()
        until = time.monotonic() + self._grace
        asked: set[int] = set()
        while True:
            self._look_after()
            # Direct children are signalled first. Agents among them end their own processes.
            children = processes.descendants([me]) - {self._notices.asking}
            own = {pid for pid in children if (each := processes.row(pid)) and each.parent == me}
            if not children or time.monotonic() > until:
                break
            # After "end", agents only linger, and are killed at once. Sidecars then end by themselves.
            number = signal.SIGKILL if self._ending == TOLD and not asked else signal.SIGTERM
            for pid in own - asked:
                processes.send(pid, number)
                processes.send(pid, signal.SIGCONT)
            asked |= own
            time.sleep(0.02)
        left = processes.kill_all(lambda: processes.descendants([me]))
        if left:
            _log(f"{len(left)} processes do not end, not even by SIGKILL")
        elif self._ending != TOLD and not self._clock.is_kept:
            # The outputs may be fetched later, by another job on this node.
            secret_files.forget(self._home)
            cleanup.shed(self._home)
        else:
            # Requests to end come after the outputs are collected.
            with contextlib.suppress(OSError):
                cleanup.remove_tree(self._home)
        return 0
