"""The mux server: a process at the far end of a pipe that runs commands, moves files and opens TCP streams.

`agent.pyz mux-server [--daemon HOME]` serves nodes that are reached through a command (`srun`), where every further
command would be one more step of the job. Both directions carry frames (`protocol/mux_framing.py`). Each request
becomes a child process or a socket:

    {"do": "run", "argv"}                        -> OUT, ERR, then DONE {"code"}; its input arrives as IN and END
    {"do": "put", "files"} | "read" | "start"    -> the same, done by a fork of this process (files.py)
    {"do": "tcp", "address", "port"}             -> READY, then bytes both ways; or DONE {"errno", "text"}

The mux server ends with its pipe, or after `SILENCE` seconds without data from the client. Running commands end with
it; started processes stay. If there is a step daemon (`slurm_step/daemon.py`), the mux server renews its lease as long
as the client lives.
"""

from __future__ import annotations

import gc
import json
import os
import selectors
import signal
import sys
import time

from ..protocol import mux_framing
from ..system import processes
from . import daemon_client
from .jobs import Job

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

SILENCE = 180.0
"""Seconds without data after which the client is taken for gone; it sends a ping every few seconds."""


def main(arguments: list[str]) -> int:
    """Serves until the client is gone."""
    # This process makes hardly any garbage, and imports are faster without the collector.
    gc.disable()
    daemon = arguments[1] if arguments[:1] == ["--daemon"] else None
    incoming, outgoing = os.dup(0), os.dup(1)
    # Stray output must not get between the frames.
    os.dup2(2, 1)
    processes.redirect(os.devnull, 0)
    os.chdir(_home())
    for number in (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        # Slurm sends these signals to every process of a step if the user asks for them.
        signal.signal(number, signal.SIG_IGN)
    MuxServer(incoming, outgoing, daemon).serve()
    return 0


def _home() -> str:
    home = os.path.expanduser("~")
    return home if os.path.isdir(home) else "/"


class MuxServer:
    """Serves one client. Single-threaded: child processes do what may take long."""

    def __init__(self, incoming: int, outgoing: int, daemon: str | None) -> None:
        self._incoming = incoming
        self._outgoing = outgoing
        self._daemon = daemon
        self._line = daemon_client.Line(daemon) if daemon else None
        self._parser = mux_framing.Parser()
        self._jobs: dict[int, Job] = {}
        self._out = bytearray()
        self._heard = time.monotonic()
        self._open = True
        self._selector = selectors.DefaultSelector()
        self._wake, waker = os.pipe()
        for each in (incoming, outgoing, self._wake, waker):
            os.set_blocking(each, False)
        for number in (signal.SIGCHLD, signal.SIGTERM):
            signal.signal(number, lambda *_: None)
        signal.set_wakeup_fd(waker, warn_on_full_buffer=False)

    # Called by jobs

    def send(self, kind: int, stream: int, payload: bytes = b"") -> None:
        """Queues a frame. It is sent as soon as the pipe accepts it."""
        self._out += mux_framing.frame(kind, stream, payload)

    def watch(self, descriptor: int, events: int, job: Job) -> None:
        """Sets the events that a job waits for on one of its descriptors; 0 for none."""
        known = self._selector.get_map().get(descriptor)
        if known is None and events:
            self._selector.register(descriptor, events, job)
        elif known is not None and not events:
            self._selector.unregister(descriptor)
        elif known is not None and known.events != events:
            self._selector.modify(descriptor, events, job)

    # The loop

    def serve(self) -> None:
        """Serves until the pipe ends."""
        self._selector.register(self._incoming, selectors.EVENT_READ)
        self._selector.register(self._wake, selectors.EVENT_READ)
        self._out += mux_framing.GREETING
        self.send(mux_framing.DONE, 0, json.dumps(self._facts()).encode())
        self._flush()
        # Imported while the client reads the greeting, so that no child has to import these.
        import ctypes

        from . import files

        _ = ctypes, files
        while self._open:
            self._flush()
            self._turn()
            if time.monotonic() - self._heard > SILENCE:
                break
        for each in (self._incoming, self._outgoing):
            if each in self._selector.get_map():
                self._selector.unregister(each)
        for job in self._jobs.values():
            job.abandon()
        while any(not job.done for job in self._jobs.values()):
            self._turn()

    def _turn(self) -> None:
        """Waits for events, and handles them."""
        leaving = any(job.kill_at is not None for job in self._jobs.values())
        for key, _ in self._selector.select(0.5 if leaving else 30.0):
            if key.data is not None:
                # An earlier event may have closed this descriptor, and a new one may have its number.
                known = self._selector.get_map().get(key.fd)
                if known is not None and known.data is key.data:
                    key.data.on_event(key.fd)
            elif key.fd == self._incoming:
                self._receive()
            elif key.fd == self._wake and signal.SIGTERM in os.read(self._wake, 4096):
                self._open = False
        self._reap()
        for job in self._jobs.values():
            if job.kill_at is not None and time.monotonic() > job.kill_at:
                job.kill()

    def _facts(self) -> dict[str, Any]:
        return {
            "host": os.uname().nodename,
            "pid": os.getpid(),
            "python": sys.version.split()[0],
            "daemon": self._line.hello() if self._line is not None else None,
        }

    def _flush(self) -> None:
        try:
            while self._out:
                del self._out[: os.write(self._outgoing, self._out)]
        except BlockingIOError:
            pass
        except OSError:
            self._open = False
            return
        known = self._selector.get_map().get(self._outgoing)
        if self._out and known is None:
            self._selector.register(self._outgoing, selectors.EVENT_WRITE)
        elif not self._out and known is not None:
            self._selector.unregister(self._outgoing)

    def _receive(self) -> None:
        try:
            data = os.read(self._incoming, 4 * mux_framing.BLOCK)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._open = False
            return
        self._heard = time.monotonic()
        try:
            for kind, stream, payload in self._parser.take(data):
                self._obey(kind, stream, payload)
        except ValueError as error:
            sys.stderr.write(f"flowlite: the mux server does not understand its client: {error}\n")
            self._open = False

    def _obey(self, kind: int, stream: int, payload: bytes) -> None:
        if kind == mux_framing.PING:
            if self._line is not None:
                self._line.renew()
            self.send(mux_framing.PONG, 0)
        elif kind == mux_framing.OPEN:
            self._begin(stream, json.loads(payload))
        elif (job := self._jobs.get(stream)) is not None:
            if kind == mux_framing.IN:
                job.give(payload)
            elif kind == mux_framing.END:
                job.end_input()
            elif kind == mux_framing.ACK:
                job.taken(mux_framing.count_of(payload))
            elif kind == mux_framing.CLOSE:
                job.abandon()

    def _begin(self, stream: int, request: dict[str, Any]) -> None:
        job = self._jobs[stream] = Job(self, stream)
        try:
            if request["do"] == "tcp":
                job.connect(request["address"], int(request["port"]))
            else:
                job.fork(request, self._daemon)
        except OSError as error:
            job.fail(error)

    def _reap(self) -> None:
        for pid, status in processes.ended_children():
            for job in self._jobs.values():
                if job.pid == pid:
                    job.exited(os.waitstatus_to_exitcode(status))
        for stream in [stream for stream, job in self._jobs.items() if job.done]:
            del self._jobs[stream]
