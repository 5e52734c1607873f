"""One request of a mux server's client while it is carried out, as a child process with pipes or a socket."""

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
        """The mux server as a job sees it: sends frames, and watches descriptors."""

        def send(self, kind: int, stream: int, payload: bytes = b"") -> None:
            """Sends a frame."""

        def watch(self, descriptor: int, events: int, job: Job) -> None:
            """Calls the job on these events of one of its descriptors; 0 for none."""


GENTLE_SECONDS = 10.0
"""How long a command that carries another pipe (`gently`) may take to end after its input has ended."""
_READ, _WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE


class Job:
    """One request and its stream.

    Attributes:
        pid: Its child process, 0 if it has none.
        done: Whether no more frames are sent for it.
        kill_at: When an abandoned command that may end by itself is killed; None if it was not abandoned.
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

    # Starting

    def fork(self, request: dict[str, Any], daemon: str | None) -> None:
        """Forks a child that runs a command or works with files. Raises OSError."""
        server = os.getpid()
        self._gently = bool(request.get("gently"))
        with contextlib.ExitStack() as made:
            (theirs, sink), (out, out_end), (err, err_end) = (_pipe(made) for _ in range(3))
            self.pid = os.fork()
            if self.pid == 0:
                _be_child(request, daemon, server, theirs, out_end, err_end)
            made.pop_all()
        self._sink = sink
        for each in (theirs, out_end, err_end):
            os.close(each)
        self._sources = {out: mux_framing.OUT, err: mux_framing.ERR}
        for each in (self._sink, out, err):
            os.set_blocking(each, False)
        self._watch()

    def connect(self, address: str, port: int) -> None:
        """Opens a TCP stream. Raises OSError."""
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
            self.fail(OSError(failed, os.strerror(failed)))
            return
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._connecting = False
        self._code = 0
        self._sources = {os.dup(self._socket.fileno()): mux_framing.OUT}
        self._outlet.send(mux_framing.READY, self._stream)
        self._watch()

    # From the client

    def give(self, data: bytes) -> None:
        """Passes bytes to its input."""
        if self._sink < 0:
            # Its input is closed. The bytes are acknowledged, so that the client can continue.
            self._outlet.send(mux_framing.ACK, self._stream, mux_framing.count(len(data)))
            return
        self._waiting += data
        self._pour()

    def end_input(self) -> None:
        """Closes its input after the bytes that are queued."""
        self._input_ended = True
        self._pour()

    def taken(self, count: int) -> None:
        """Notes that the client has consumed `count` bytes."""
        self._under_way -= count
        self._watch()

    def abandon(self) -> None:
        """Abandons the request without further frames. A `gently` command may still end by itself, for a short time."""
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
        """Kills the child now, and closes all descriptors."""
        if self.pid and self._code is None:
            for target in (-self.pid, self.pid):
                try:
                    os.kill(target, signal.SIGKILL)
                except OSError:
                    continue
        self._close()
        self.done = True

    # Events

    def on_event(self, descriptor: int) -> None:
        """Handles a descriptor that can be read from or written to."""
        if self._connecting:
            self._connected()
        elif descriptor == self._sink:
            self._pour()
        else:
            self._draw(descriptor)

    def exited(self, code: int) -> None:
        """Notes that its child has exited."""
        self._code = code
        self._finish()

    def fail(self, error: OSError) -> None:
        """Reports that the request failed."""
        self._close()
        self._tell({"errno": error.errno or errno.EIO, "text": error.strerror or str(error)})

    def _pour(self) -> None:
        """Writes queued bytes to the child's input or the socket."""
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
        """Sends the output that can be read."""
        kind = self._sources[descriptor]
        try:
            data = os.read(descriptor, mux_framing.BLOCK)
        except BlockingIOError:
            return
        except OSError as error:
            if self._socket is not None:
                self.fail(error)
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
        """Reads output only while the client's window has space (back-pressure)."""
        wanted = _READ if self._under_way < mux_framing.WINDOW else 0
        for descriptor in self._sources:
            self._outlet.watch(descriptor, wanted, self)

    # Ending

    def _finish(self) -> None:
        if self.done or self._code is None or self._sources:
            return
        if self._socket is not None and self._sink >= 0:
            # The far side has ended its stream; the client may still send.
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


def _pipe(made: contextlib.ExitStack) -> tuple[int, int]:
    """A pipe whose ends are closed with the stack."""
    ends = os.pipe()
    for each in ends:
        made.callback(os.close, each)
    return ends


def _be_child(
    request: dict[str, Any], daemon: str | None, server: int, stdin: int, stdout: int, stderr: int
) -> None:
    """Becomes the child of a request. Does not return."""
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
        # A group of its own, so that it can be killed as a whole.
        os.setsid()
        processes.die_with_parent(server, signal.SIGTERM if "gently" in request else signal.SIGKILL)
        for target, source in enumerate((stdin, stdout, stderr)):
            os.dup2(source, target)
        # Pipes of other children must be closed here, or their input would never end.
        processes.close_others()
        if request["do"] == "run":
            code = _execute(request["argv"])
        else:
            from . import files

            code = files.obey(request, daemon)
    except BaseException as error:
        os.write(2, f"{type(error).__name__}: {error}\n".encode(errors="replace"))
    finally:
        os._exit(code)


def _execute(argv: list[str]) -> int:
    """Replaces this process by a command. If it cannot be run, returns the exit status that a shell would use."""
    try:
        os.execvp(argv[0], argv)
    except OSError as error:
        text = f"{argv[0]}: {error.strerror}\n"
        os.write(2, text.encode(errors="surrogateescape"))
        return 127 if isinstance(error, FileNotFoundError) else 126
    return 126
