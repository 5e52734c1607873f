"""Commands on a host, each a small POSIX shell script on its own channel, independent of the user's login shell.

The login shell is given one line that any shell understands. It starts `sh`, which prints a marker and its process id
and then evaluates the script. Output of the login shell's startup files comes before the marker and is dropped. The
script is encoded on the command line or, if it holds values that `ps` must not show, is the first line of standard
input.
"""

from __future__ import annotations

import functools
import re
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Any

from flowlite.connect.bounded import MOST_OUTPUT, MOST_SAID, Output, too_long
from flowlite.connect.ssh.library import paramiko
from flowlite.connect.ssh.link import Link
from flowlite.connect.ssh.quoting import encode, readable
from flowlite.connect.values import Completed
from flowlite.errors import AnswerTooLong, NodeUnreachable

_MARK = "flowlite-begins"
_SAY = f"echo {_MARK} $$;echo {_MARK} >&2;"
_BY_LINE = f"exec sh -c '{_SAY}" + """eval "$(printf %b "$1")"' sh """
_BY_STDIN = f"exec sh -c '{_SAY}" + """IFS= read -r s&&eval "$(printf %b "$s")"'"""
# Longer scripts are sent through standard input, since the length of a command line is limited.
_LONGEST_LINE = 16 * 1024
_BLOCK = 256 * 1024
# Input that cannot fill a buffer is sent without a thread of its own.
_SMALL = 16 * 1024
_MOST_NOISE = 1024 * 1024
_KILL_SECONDS = 5.0
# A login shell that has not run the script by then will not do so soon.
_SHELL_SECONDS = 20.0

Feed = Iterable[bytes | memoryview]


class Run:
    """One running script on its channel."""

    def __init__(self, link: Link, channel: paramiko.Channel) -> None:
        self._link = link
        self._channel: Any = channel
        self._heard = _DataEvent()
        self._moved = time.monotonic()
        noise = f"host {link.target.label}: what its login shell says before a command"
        self._out = _AfterMark(rb" (\d{1,10})\n", noise)
        self._err = _AfterMark(rb"()\n", noise)
        channel.in_buffer.set_event(self._heard)
        channel.in_stderr_buffer.set_event(self._heard)

    # Sending

    def begin(self, text: bytes, private: bool) -> None:
        """Sends the script."""
        encoded = encode(text) if private else _encoded(text)
        if private or len(encoded) > _LONGEST_LINE:
            self._request(_BY_STDIN.encode())
            self.send((encoded + b"\n",))
        else:
            self._request(_BY_LINE.encode() + b"'" + encoded + b"'")

    def _request(self, command: bytes) -> None:
        """Sends the exec request without waiting for the reply, to save a round trip. A refusal closes the channel."""
        message = paramiko.Message()
        message.add_byte(paramiko.common.cMSG_CHANNEL_REQUEST)
        message.add_int(self._channel.remote_chanid)
        message.add_string("exec")
        message.add_boolean(True)
        message.add_string(command)
        self._channel.transport._send_user_message(message)

    def send(self, feed: Feed) -> bool:
        """Sends to the script's standard input. Returns False, without an error, if the script no longer reads."""
        with suppress(OSError, EOFError, paramiko.SSHException):
            for block in feed:
                view = memoryview(block)
                while view:
                    sent = self._channel.send(view[:_BLOCK])
                    if sent == 0:
                        return False
                    view = view[sent:]
                    self._moved = time.monotonic()
            return True
        return False

    def ready(self) -> bool:
        """Whether something can be sent without waiting."""
        return bool(self._channel.send_ready())

    def ended(self) -> bool:
        """Whether the script has ended and all of its output has arrived."""
        return bool(self._channel.closed)

    def end_input(self) -> None:
        """Ends the script's standard input."""
        with suppress(OSError, EOFError, paramiko.SSHException):
            self._channel.shutdown_write()

    def feed(self, feed: Feed | None, small: bool) -> None:
        """Sends all input, then EOF; in a thread, unless the input is so small that sending cannot block."""
        if feed is None:
            self.end_input()
            return

        def all_of_it() -> None:
            self.send(feed)
            self.end_input()

        if small:
            all_of_it()
        else:
            threading.Thread(target=all_of_it, name="flowlite-ssh-feed", daemon=True).start()

    # Receiving

    def pieces(
        self, deadline: float | None = None, *, stall: float | None = None
    ) -> Iterator[tuple[str, bytes]]:
        """Yields output as it arrives, to its end: "out" or "err", and the bytes.

        Raises:
            TimeoutError: The script did not end before the deadline, or nothing was sent or received for `stall`
                seconds.
            NodeUnreachable: The connection broke, or the login shell did not run the script.
            AnswerTooLong: The login shell prints too much before it runs the script.
        """
        channel = self._channel
        while True:
            self._heard.rest()
            closed = channel.closed
            idle = True
            while channel.recv_stderr_ready():
                idle = False
                if block := self._err.take(channel.recv_stderr(_BLOCK)):
                    yield "err", block
            while channel.recv_ready():
                idle = False
                if block := self._out.take(channel.recv(_BLOCK)):
                    yield "out", block
            if closed and idle:
                self._confirm()
                return
            if not idle:
                self._moved = time.monotonic()
            until = deadline if stall is None else self._moved + stall
            left = None if until is None else until - time.monotonic()
            if left is not None and left <= 0:
                # Also for a script that writes without pause.
                raise TimeoutError
            if idle:
                self._heard.wait(left)

    def _confirm(self) -> None:
        """Checks that the script ended by itself. Raises NodeUnreachable."""
        self.code()
        if self._out.begun:
            return
        said = readable((self._out.before + self._err.before)[-MOST_SAID:])
        target, code = self._link.target, self.code()
        raise NodeUnreachable(
            f"host {target.label}: its login shell did not run a command (exit status {code})"
            + (f"; it said: {said}" if said else "")
            + f". Look at the shell of {target.user!r} there, at an `exit` or `exec` in its start-up files "
            "(~/.bashrc), and whether its sshd forces another command",
            host=target.name,
            # A host that shuts down kills the shell by a signal; a host short of memory or processes cannot start a
            # shell for a while.
            patience=None if code < 0 else _SHELL_SECONDS,
        )

    def code(self) -> int:
        """The exit status, negative for a signal. Raises NodeUnreachable: not all of its output may have come."""
        if not getattr(self._channel, "closed_by_host", False):
            raise self._link.lost(self._channel.transport)
        name = getattr(self._channel, "exit_signal", None)
        if name is not None:
            return -int(getattr(signal, f"SIG{name}", signal.SIGKILL))
        status = int(self._channel.exit_status)
        if status < 0:
            raise self._link.lost(self._channel.transport)
        return status

    def kill(self) -> None:
        """Kills the script and what it started, through another channel."""
        if self._out.said is None:
            return
        pid = int(self._out.said)
        text = f"kill -KILL -{pid} 2>/dev/null||kill -KILL {pid}".encode()
        with suppress(NodeUnreachable, TimeoutError, OSError):
            execute(self._link, text, timeout=_KILL_SECONDS, kill=False)


@functools.lru_cache(maxsize=64)
def _encoded(text: bytes) -> bytes:
    """As `encode`. The same program is started on many hosts."""
    return encode(text)


class _AfterMark:
    """Drops output up to and including the line that begins with the marker."""

    def __init__(self, rest_of_line: bytes, whose: str) -> None:
        self._line = re.compile(_MARK.encode() + rest_of_line)
        self._whose = whose
        self.said: bytes | None = None
        self.before = b""

    @property
    def begun(self) -> bool:
        """Whether the marker has arrived."""
        return self.said is not None

    def take(self, block: bytes) -> bytes:
        """The part of the next block that comes after the marker. Raises AnswerTooLong."""
        if self.begun:
            return block
        if len(self.before) > _MOST_NOISE:
            raise too_long(self._whose, _MOST_NOISE)
        self.before += block
        found = self._line.search(self.before)
        if found is None:
            return b""
        self.said = found[1]
        rest, self.before = self.before[found.end() :], b""
        return rest


class _DataEvent(threading.Event):
    """An event shared by two buffers. One empty buffer must not clear it; only the reader does."""

    def clear(self) -> None:
        """Called by a buffer when it is empty; does nothing."""

    def rest(self) -> None:
        """Clears the event; called by the reader before it checks the buffers."""
        super().clear()


def execute(
    link: Link,
    text: bytes,
    *,
    feed: bytes | None = None,
    timeout: float | None = None,
    private: bool = False,
    kill: bool = True,
    most: int = MOST_OUTPUT,
) -> Completed:
    """Runs a script to its end.

    Raises:
        TimeoutError: It took too long and was killed.
        AnswerTooLong: Its output is too long; it was killed.
        NodeUnreachable: The host does not answer.
    """
    deadline = None if timeout is None else time.monotonic() + timeout
    output = Output(f"host {link.target.label}: the output of a command", most)
    run = None
    try:
        with link.session(deadline) as channel:
            run = Run(link, channel)
            run.begin(text, private)
            run.feed(None if feed is None else (feed,), len(feed or b"") <= _SMALL)
            for stream, block in run.pieces(deadline):
                output.add(stream, block)
            return Completed(run.code(), output.take("out"), output.take("err"))
    except (TimeoutError, AnswerTooLong):
        # The script's channel is released by now; killing takes a channel, too.
        if run is not None and kill:
            run.kill()
        raise


def follow(link: Link, text: bytes, take: Callable[[str, bytes], None]) -> int:
    """Runs a script and passes on its output as it arrives: `take("out" or "err", bytes)`. Returns its exit status."""
    with link.session() as channel:
        run = Run(link, channel)
        run.begin(text, False)
        run.end_input()
        for stream, block in run.pieces():
            take(stream, block)
        return run.code()
