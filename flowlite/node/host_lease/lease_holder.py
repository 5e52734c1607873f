"""The holder: the process that has a host's lease, from launch to release.

It gives the host back when it is told to, when the task's agent has shown no activity for `ttl` seconds, or when the
time for which the host was kept without a task is over. Before that, it ends every process of the lease. A second
process, the guard, does this if the holder itself is killed. The name becomes free when both have exited.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import json
import os
import selectors
import signal
import socket
import sys
import time

from ..forkserver import registry
from ..system import peer_credentials, processes, runtime_dir
from ..system.accepting import accept
from . import cleanup, requests, secret_files, tmpfiles_lock

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Any

_BACKLOG = 128
_REQUEST_SECONDS = 5.0
_LONGEST_TICK = 2.0


def start(request: Mapping[str, Any], name: str) -> dict[str, Any] | None:
    """Forks a holder. Returns its answer to the request, or None if another process has the name."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        code = 1
        try:
            code = _be_holder(request, name, writing)
        finally:
            os._exit(code)
    os.close(writing)
    with open(reading, "rb") as pipe:
        answer = pipe.read()
    return json.loads(answer) if answer else None


def _be_holder(request: Mapping[str, Any], name: str, answer: int) -> int:
    with open(answer, "wb") as pipe:
        try:
            begun = _begin(request, name, answer)
        except OSError as error:
            # Such as a limit of processes. The name is free again when this process has exited.
            why = f"a lease cannot be held there: {error.strerror or error}"
            told = {"ok": False, "held": {"state": "unclear"}, "error": why}
            pipe.write(json.dumps(told).encode())
            return 1
        if begun is None:
            return 0
        holder, listener, guarded = begun
        pipe.write(json.dumps({"ok": True, "lease": holder.describe()}).encode())
    holder.serve(listener)
    # This byte makes the guard exit, which frees the name.
    os.write(guarded, b"x")
    return 0


def _begin(
    request: Mapping[str, Any], name: str, answer: int
) -> tuple[Holder, socket.socket, int] | None:
    """Takes the name and starts the guard. Returns holder, listener and a pipe to the guard; None if it is taken."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(requests.address(name))
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            return None
        raise
    os.setsid()
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    # The parent may ignore SIGCHLD and have disabled the collector.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    gc.enable()
    os.chdir("/")
    holder = Holder(request, name)
    _detach(holder.root, keep=(listener.fileno(), answer))
    tmpfiles_lock.keep_from_cleaners(holder.root)
    listener.listen(_BACKLOG)
    guarded = _start_guard(holder, listener, answer)
    holder.sweep()
    return holder, listener, guarded


def _detach(root: str, keep: tuple[int, ...]) -> None:
    """Closes all descriptors of the parent: an SSH session ends only when its last output is closed."""
    os.umask(0o077)
    null = os.open(os.devnull, os.O_RDWR)
    try:
        os.makedirs(root, mode=0o700, exist_ok=True)
        # Hosts may share their home directories.
        path = os.path.join(root, f"holder-{os.uname().nodename}.log")
        log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    except OSError:
        log = null
    for target, source in ((0, null), (1, log), (2, log)):
        os.dup2(source, target)
    processes.close_others(*keep)


def _start_guard(holder: Holder, listener: socket.socket, answer: int) -> int:
    """Forks the guard, which ends the lease's processes if the holder dies. It has the listening socket, too."""
    reading, writing = os.pipe()
    if os.fork() != 0:
        os.close(reading)
        return writing
    code = 1
    try:
        os.close(writing)
        os.close(answer)
        while True:
            with contextlib.suppress(InterruptedError):
                if os.read(reading, 1) == b"":
                    _say("the holder was killed; ending what it held")
                    holder.end_alone()
                break
        listener.close()
        code = 0
    finally:
        os._exit(code)


class Holder:
    """One lease, and its requests."""

    def __init__(self, request: Mapping[str, Any], name: str) -> None:
        self._name = name
        self._uid = os.getuid()
        self.root = str(request["root"])
        self._id = str(request.get("lease") or os.urandom(8).hex())
        self._state = "leased"
        self._request: dict[str, Any] = {}
        self._seen: dict[str, tuple[int, int]] = {}
        self._since = self._alive_at = self._until = time.monotonic()
        self._over = False
        self._take(request)

    @property
    def _marker(self) -> str:
        return f"{self._name}/{self._id}"

    def describe(self) -> dict[str, Any]:
        """Returns the lease, for its owner."""
        now = time.monotonic()
        told: dict[str, Any] = {
            **self._request,
            "lease": self._id,
            "marker": self._marker,
            "uid": self._uid,
            "user": requests.user_name(self._uid),
            "state": self._state,
        }
        told["seconds"] = round(now - self._since, 1)
        if self._state == "warm":
            told["left"] = round(max(0.0, self._until - now), 1)
        return told

    # Serving

    def serve(self, listener: socket.socket) -> None:
        """Answers requests and watches the task until the lease is over."""
        listener.setblocking(False)
        with selectors.DefaultSelector() as selector:
            selector.register(listener, selectors.EVENT_READ)
            while not self._over:
                tick = min(_LONGEST_TICK, float(self._request.get("ttl", 120.0)) / 4)
                if selector.select(tick):
                    try:
                        if accepted := accept(listener):
                            self._serve_one(accepted[0])
                    except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
                        # Processes of this user may send anything.
                        _say(f"a request was not understood: {type(error).__name__}")
                self._look()
        listener.close()
        cleanup.by_age(self.root)

    def _serve_one(self, connection: socket.socket) -> None:
        with connection:
            if not peer_credentials.is_ours(connection):
                # The kernel has already told other users who holds the host. They cannot delay the owner's requests.
                return
            connection.settimeout(_REQUEST_SECONDS)
            line = requests.read_line(connection)
            if not line:
                return
            answer = self._answer(dict(json.loads(line)))
            connection.sendall(json.dumps(answer).encode() + b"\n")

    def _answer(self, request: dict[str, Any]) -> dict[str, Any]:
        what = request.pop("do", "")
        if what == "take":
            if self._state == "leased" and self._is_meant(request):
                return {"ok": True, "lease": self.describe()}
            if self._state == "warm" and request.get("client") == self._request.get("client"):
                self._take(request)
                return {"ok": True, "lease": self.describe()}
        if what == "release" and self._is_meant(request):
            return self._release(retain=bool(request.get("retain")))
        if what == "keep" and self._is_meant(request):
            return self._keep(request)
        held = {"held": self.describe()}
        return {"ok": True, **held} if what == "show" else {"ok": False, "other": True, **held}

    def _is_meant(self, request: Mapping[str, Any]) -> bool:
        """Whether a request is about this lease: by token, or by task and owner."""
        if request.get("token"):
            return bool(request["token"] == self._request.get("token"))
        same = ("task", "client")
        return all(request.get(key) and request[key] == self._request.get(key) for key in same)

    # Requests

    def _take(self, request: Mapping[str, Any]) -> None:
        kept = {"warm": self._request["warm"]} if "warm" in self._request else {}
        self._request = {**kept, **{k: v for k, v in request.items() if k not in ("do", "lease")}}
        self._state = "leased"
        self._since = self._alive_at = time.monotonic()
        self._seen = {}

    def _release(self, *, retain: bool) -> dict[str, Any]:
        left = self.end(forget=not retain)
        if left:
            return {
                "ok": False,
                "error": f"processes {sorted(left)} do not end, not even by SIGKILL; they wait for a device "
                "or a file system",
            }
        if retain:
            cleanup.keep_outputs(self.root, self._home)
        self._over = True
        return {"ok": True, "gone": True}

    def _keep(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Ends the task, but keeps the host and the spared processes for the same owner's next task."""
        left = self._kill(request.get("spare", ()))
        if left:
            return {"ok": False, "error": f"processes {sorted(left)} do not end"}
        cleanup.remove_home(self.root, self._home)
        self._state = "warm"
        self._since = time.monotonic()
        self._until = self._since + float(request["seconds"])
        self._request["warm"] = request.get("data", {})
        return {"ok": True, "lease": self.describe()}

    # Watching

    def _look(self) -> None:
        """Ends the lease when it has expired."""
        if self._over:
            return
        now = time.monotonic()
        if self._state == "warm":
            if now < self._until:
                return
            _say("the time is over for which the host was kept")
        elif self._shows_life():
            self._alive_at = now
            return
        elif now - self._alive_at < float(self._request.get("ttl", 120.0)):
            return
        else:
            _say(f"no agent of {self._request.get('task')} lives; its lease lapses")
        self._over = not self.end_alone()

    def _shows_life(self) -> bool:
        """Whether an agent of the task runs, or files are being written for it."""
        if cleanup.agent_lives(self._home):
            return True
        seen = cleanup.facts(self._home, os.path.join(self.root, "blobs"))
        before, self._seen = self._seen, seen
        return seen != before

    # Ending

    def end(self, *, forget: bool) -> set[int]:
        """Ends every process of the lease. Returns those that could not be killed."""
        self._state = "ending"
        left = self._kill(())
        if forget and not left:
            cleanup.remove_home(self.root, self._home)
        return left

    def end_alone(self) -> set[int]:
        """Ends the lease without the owner. Removes secrets, but keeps outputs, which the owner may collect later."""
        left = self.end(forget=False)
        secret_files.forget(self._home)
        return left

    def sweep(self) -> None:
        """Ends processes of earlier leases whose holder and guard were killed, and removes their secrets."""
        processes.kill_all(lambda: cleanup.strays(self._name, self._marker))
        cleanup.forget_secrets(self.root, self._home)

    def _kill(self, spare: Iterable[Mapping[str, Any]]) -> set[int]:
        spared = cleanup.living(spare)
        left = processes.kill_all(lambda: cleanup.members(self._marker) - spared)
        # Fork servers that were killed have not removed their sockets.
        with contextlib.suppress(OSError):
            registry.tidy_alone(runtime_dir.find())
        return left

    @property
    def _home(self) -> str:
        return str(self._request["home"])


def _say(text: str) -> None:
    sys.stderr.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}\n")
    sys.stderr.flush()
