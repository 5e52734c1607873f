"""One request of a mux server's client while it is carried out: a child process with its pipes, or a socket."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import selectors
import signal
import socket
import time

from ..protocol import mux_framing
from ..system import processes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Protocol

    class Outlet(Protocol):
        """Where a job sends its frames, and has its descriptors watched."""

        def send(self, kind: int, stream: int, payload: bytes = b"") -> None:
            """Sends a frame."""

        def watch(self, descriptor: int, events: int, job: Job) -> None:
            """Calls the job when this happens at one of its descriptors; 0 for nothing."""


GENTLE_SECONDS = 10.0
"""What carries another pipe has so long to end, once its input has ended."""
_READ, _WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE


class Job:
    """What runs for one stream.

    Attributes:
        pid: Its child process, 0 if it has none.
        done: Whether nothing more is to be said of it.
        kill_at: When a command that nobody wants any more, and that was to end by itself, is killed; None before.
    """

    def __init__(self, outlet: Outlet, stream: int) -> None:
        self._outlet = outlet
        self._stream = stream
        self._sink = -1
        self._sources: dict[int, int] = {}
        self._waiting = bytearray()
        self._input_ended = False
        self._under_way = 0
        self._code: int | None = None
        self._socket: socket.socket | None = None
        self._connecting = False
        self._gently = False
        self.pid = 0
        self.done = False
        self.kill_at: float | None = None

    # Beginnings

    def fork(self, request: dict[str, Any], anchor: str | None) -> None:
        """A child that runs a command, or does something with files."""
        (theirs, self._sink), (out, out_end), (err, err_end) = os.pipe(), os.pipe(), os.pipe()
        porter = os.getpid()
        self._gently = bool(request.get("gently"))
        self.pid = os.fork()
        if self.pid == 0:
            _be_child(request, anchor, porter, theirs, out_end, err_end)
        for each in (theirs, out_end, err_end):
            os.close(each)
        self._sources = {out: mux_framing.OUT, err: mux_framing.ERR}
        for each in (self._sink, out, err):
            os.set_blocking(each, False)
        self._watch()

    def connect(self, address: str, port: int) -> None:
        """A TCP stream. Raises OSError."""
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self._socket = socket.socket(family, socket.SOCK_STREAM)
        self._socket.setblocking(False)
        failed = self._socket.connect_ex((address, port))
        if failed and failed != errno.EINPROGRESS:
            raise OSError(failed, os.strerror(failed))
        self._connecting = True
        self._sink = os.dup(self._socket.fileno())
        self._outlet.watch(self._sink, _WRITE, self)

    def _connected(self) -> None:
        assert self._socket is not None
        failed = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if failed:
            self.fail(failed, os.strerror(failed))
            return
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._connecting = False
        self._code = 0
        self._sources = {os.dup(self._socket.fileno()): mux_framing.OUT}
        self._outlet.send(mux_framing.READY, self._stream)
        self._watch()

    # From the client

    def give(self, data: bytes) -> None:
        """Bytes for its input."""
        if self._sink < 0:
            # Nobody reads them any more, and the client may go on.
            self._outlet.send(mux_framing.ACK, self._stream, mux_framing.count(len(data)))
            return
        self._waiting += data
        self._pour()

    def end_input(self) -> None:
        """No more will come."""
        self._input_ended = True
        self._pour()

    def taken(self, count: int) -> None:
        """The client has taken so many bytes."""
        self._under_way -= count
        self._watch()

    def abandon(self) -> None:
        """Nobody wants it any more, and nothing more is said of it. What ends by itself at the end of its input may."""
        if not self._gently or self._code is not None:
            self.kill()
        elif self.kill_at is None:
            self.kill_at = time.monotonic() + GENTLE_SECONDS
            self._waiting.clear()
            if self._sink >= 0:
                self._end_sink()
            self._under_way = 0
            self._watch()

    def kill(self) -> None:
        """Whatever of it runs ends now."""
        if self.pid and self._code is None:
            for target in (-self.pid, self.pid):
                try:
                    os.kill(target, signal.SIGKILL)
                except OSError:
                    continue
        self._close()
        self.done = True

    # Events

    def on_event(self, descriptor: int, events: int) -> None:
        """Something can be read from, or written to, one of its descriptors."""
        if self._connecting:
            self._connected()
        elif descriptor == self._sink:
            self._pour()
        else:
            self._draw(descriptor)

    def exited(self, code: int) -> None:
        """Its child has ended."""
        self._code = code
        self._finish()

    def fail(self, number: int, text: str) -> None:
        """It cannot be done."""
        self._close()
        self._tell({"errno": number, "text": text})

    def _pour(self) -> None:
        """Gives what waits to whoever reads its input."""
        if self._sink < 0 or self._connecting:
            return
        given = 0
        try:
            while self._waiting:
                count = os.write(self._sink, self._waiting)
                del self._waiting[:count]
                given += count
        except BlockingIOError:
            pass
        except OSError:
            given += len(self._waiting)
            self._waiting.clear()
            self._input_ended = True
        if given:
            self._outlet.send(mux_framing.ACK, self._stream, mux_framing.count(given))
        if self._input_ended and not self._waiting:
            self._end_sink()
        else:
            self._outlet.watch(self._sink, _WRITE if self._waiting else 0, self)

    def _end_sink(self) -> None:
        self._outlet.watch(self._sink, 0, self)
        os.close(self._sink)
        self._sink = -1
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_WR)
            self._finish()

    def _draw(self, descriptor: int) -> None:
        """Sends what it says."""
        kind = self._sources[descriptor]
        try:
            data = os.read(descriptor, mux_framing.BLOCK)
        except BlockingIOError:
            return
        except OSError as error:
            if self._socket is not None:
                self.fail(error.errno or errno.EIO, error.strerror or str(error))
                return
            data = b""
        if data and self.kill_at is not None:
            return
        if data:
            self._under_way += len(data)
            self._outlet.send(kind, self._stream, data)
            if self._under_way >= mux_framing.WINDOW:
                self._watch()
            return
        self._outlet.watch(descriptor, 0, self)
        os.close(descriptor)
        del self._sources[descriptor]
        if self._socket is not None:
            self._outlet.send(mux_framing.END, self._stream)
        self._finish()

    def _watch(self) -> None:
        """Reads as long as the client takes it."""
        wanted = _READ if self._under_way < mux_framing.WINDOW else 0
        for descriptor in self._sources:
            self._outlet.watch(descriptor, wanted, self)

    # The end

    def _finish(self) -> None:
        if self.done or self._code is None or self._sources:
            return
        if self._socket is not None and self._sink >= 0:
            # The far side has said all; ours may go on.
            return
        self._close()
        self._tell({"code": self._code})

    def _tell(self, end: dict[str, Any]) -> None:
        self.done = True
        if self.kill_at is None:
            self._outlet.send(mux_framing.DONE, self._stream, json.dumps(end).encode())

    def _close(self) -> None:
        for each in (self._sink, *self._sources):
            if each >= 0:
                self._outlet.watch(each, 0, self)
                os.close(each)
        self._sink = -1
        self._sources = {}
        if self._socket is not None:
            self._socket.close()


def _be_child(
    request: dict[str, Any], anchor: str | None, porter: int, stdin: int, stdout: int, stderr: int
) -> None:
    """Becomes what a request asks for; does not return."""
    code = 1
    try:
        signal.set_wakeup_fd(-1)
        for number in (
            signal.SIGCHLD,
            signal.SIGPIPE,
            signal.SIGTERM,
            signal.SIGHUP,
            signal.SIGUSR1,
            signal.SIGUSR2,
        ):
            signal.signal(number, signal.SIG_DFL)
        # A group of its own, to be killed as a whole.
        os.setsid()
        processes.die_with_parent(porter, signal.SIGTERM if "gently" in request else signal.SIGKILL)
        for target, source in enumerate((stdin, stdout, stderr)):
            os.dup2(source, target)
        # The input of another child would not end as long as it is open here.
        os.closerange(3, os.sysconf("SC_OPEN_MAX"))
        if request["do"] == "run":
            code = _execute(request["argv"])
        else:
            from . import files

            code = files.obey(request, anchor)
    except BaseException as error:
        os.write(2, f"{type(error).__name__}: {error}\n".encode(errors="replace"))
    finally:
        os._exit(code)


def _execute(argv: list[str]) -> int:
    """Replaces this process by a command; returns what a shell says of one that cannot be run."""
    try:
        os.execvp(argv[0], argv)
    except OSError as error:
        text = f"{argv[0]}: {error.strerror}\n"
        os.write(2, text.encode(errors="surrogateescape"))
        return 127 if isinstance(error, FileNotFoundError) else 126
    return 126
