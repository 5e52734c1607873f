"""The exec server of a node, which starts commands for other nodes of the gang.

It is a process below the node's reaper (`processes.py`), so everything that it starts ends with the task: the reaper
adopts and ends the processes that a command leaves behind. As with ssh, a command ends when its process has ended and
no process holds its output any more. Processes in the background with other output continue.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from typing import IO

from ..protocol.framing import WireError
from ..protocol.mux_framing import BLOCK, DONE, END, ERR, IN, OPEN, OUT
from ..system.accepting import start_thread
from .context import GangContext, Unreachable
from .exec_framing import Broken, Frames, frames_through

STOP_SECONDS = 5.0
"""Seconds from SIGTERM to SIGKILL, for a command whose caller is gone."""
_AGAIN = 0.5
_LOOK_AGAIN = 0.05
_MOST_FAILURES = 60


class ExecServer:
    """Runs commands until the relay reports the end, or this process is told to end."""

    def __init__(self, place: GangContext) -> None:
        self._place = place
        self._running: dict[int, subprocess.Popen[bytes]] = {}
        self._lock = threading.Lock()
        self.over = threading.Event()
        self.lost = ""
        self._failures = 0

    def serve(self) -> None:
        """Returns at the end. `lost` then says why, if the connection was lost."""
        while not self.over.is_set():
            try:
                self._attend()
            except (OSError, WireError) as error:
                self._failures += 1
                if self._failures > _MOST_FAILURES:
                    self.lost = str(error)
                    self.over.set()
            self.over.wait(_AGAIN)

    def stop(self, number: int) -> None:
        """Sends a signal to all running commands."""
        with self._lock:
            running = list(self._running.values())
        for process in running:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, number)

    @property
    def leads(self) -> bool:
        """Whether this is the exec server of node 0."""
        return self._place.config.is_leader

    @property
    def busy(self) -> bool:
        """Whether a command runs."""
        with self._lock:
            return bool(self._running)

    def _attend(self) -> None:
        """Serves one connection to the relay, until it ends."""
        stream = self._place.dial("exec", node=self._place.rank)
        with stream.network:
            self._failures = 0
            stream.go_on()
            while not self.over.is_set():
                try:
                    told = json.loads(stream.read_line())
                except ValueError as error:
                    raise WireError(f"node 0 said something else: {error}") from None
                if told.get("over"):
                    self.over.set()
                else:
                    number = int(told["take"])
                    if not start_thread(self._take, number):
                        sys.stderr.write("a command could not be taken: no thread can be started\n")

    def _take(self, number: int) -> None:
        try:
            stream = self._place.dial("take", id=number)
        except Unreachable as error:
            sys.stderr.write(f"a command could not be taken: {error}\n")
            return
        with stream.network:
            try:
                with frames_through(stream) as frames:
                    self._run(frames)
            except (OSError, ValueError, KeyError, TypeError) as error:
                sys.stderr.write(f"a command was given up: {type(error).__name__}: {error}\n")

    def _run(self, frames: Frames) -> None:
        first = frames.read()
        if first is None or first[0] != OPEN:
            raise Broken("no command came")
        argv = json.loads(first[1])["argv"]
        try:
            process = subprocess.Popen(
                argv,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        except OSError as error:
            text = f"node {self._place.rank} cannot run {argv[0]!r}: {error.strerror}"
            frames.send(DONE, json.dumps({"text": text}).encode())
            frames.read()
            return
        with self._lock:
            self._running[process.pid] = process
        hearing = threading.Thread(target=_hear, args=(frames, process), daemon=True)
        hearing.start()
        try:
            assert process.stdout is not None
            assert process.stderr is not None
            out = threading.Thread(target=_pass_on, args=(process.stdout, frames, OUT), daemon=True)
            err = threading.Thread(target=_pass_on, args=(process.stderr, frames, ERR), daemon=True)
            for each in (out, err):
                each.start()
            code = process.wait()
            while hearing.is_alive() and (out.is_alive() or err.is_alive()):
                (out if out.is_alive() else err).join(_LOOK_AGAIN)
        finally:
            with self._lock:
                del self._running[process.pid]
        if hearing.is_alive():
            frames.send(DONE, json.dumps({"code": code}).encode())
            # The caller hangs up once it has received everything.
            hearing.join()


def _hear(frames: Frames, process: subprocess.Popen[bytes]) -> None:
    """Feeds the caller's input to a command. When the caller is gone, the command is ended."""
    assert process.stdin is not None
    try:
        for kind, body in frames:
            with suppress(BrokenPipeError, ValueError):
                if kind == IN:
                    process.stdin.write(body)
                    process.stdin.flush()
                elif kind == END:
                    process.stdin.close()
    except Broken as error:
        sys.stderr.write(f"a caller was lost: {error}\n")
    with suppress(OSError, ValueError):
        process.stdin.close()
    if process.poll() is None:
        _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    for number, seconds in ((signal.SIGTERM, STOP_SECONDS), (signal.SIGKILL, STOP_SECONDS)):
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(seconds)
            return


def _pass_on(source: IO[bytes], frames: Frames, kind: int) -> None:
    with source:
        while data := os.read(source.fileno(), BLOCK):
            try:
                frames.send(kind, data)
            except OSError:
                return
