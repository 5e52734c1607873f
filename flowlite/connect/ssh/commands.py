"""Commands on a host: a small POSIX shell script on one channel, whatever the user's login shell is.

The login shell gets one line that any shell understands: it starts `sh`, which says a marker and its process id, then
evaluates the script. What the login shell's own files print comes before the marker and is dropped. A script is on
the command line, encoded, or, where it holds what `ps` must not show, the first line of standard input.
"""

from __future__ import annotations

import re
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Any

from flowlite.connect.base import Completed
from flowlite.connect.bounded import MOST_SAID, Output, too_long
from flowlite.connect.ssh.library import paramiko
from flowlite.connect.ssh.link import Link
from flowlite.connect.ssh.quoting import encode, readable
from flowlite.errors import AnswerTooLong, NodeUnreachable

_MARK = "flowlite-begins"
_SAY = f"echo {_MARK} $$;echo {_MARK} >&2;"
_BY_LINE = f"exec sh -c '{_SAY}" + """eval "$(printf %b "$1")"' sh """
_BY_STDIN = f"exec sh -c '{_SAY}" + """IFS= read -r s&&eval "$(printf %b "$s")"'"""
# Longer ones go through standard input: a command line has limits.
_LONGEST_LINE = 16 * 1024
_BLOCK = 256 * 1024
# What does not fill any buffer is sent without a thread of its own.
_SMALL = 16 * 1024
_MOST_NOISE = 1024 * 1024
_KILL_SECONDS = 5.0
# A login shell that has run nothing for so long will not do so soon.
_SHELL_SECONDS = 20.0

Feed = Iterable[bytes | memoryview]


class Run:
    """One script while it runs, on its channel."""

    def __init__(self, link: Link, channel: paramiko.Channel) -> None:
        self._link = link
        self._channel: Any = channel
        self._heard = _Heard()
        self._moved = time.monotonic()
        noise = f"host {link.target.label}: what its login shell says before a command"
        self._out = _AfterMark(rb" (\d+)\n", noise)
        self._err = _AfterMark(rb"()\n", noise)
        channel.in_buffer.set_event(self._heard)
        channel.in_stderr_buffer.set_event(self._heard)

    # Sending

    def begin(self, text: bytes, private: bool) -> None:
        """Sends the script."""
        encoded = encode(text)
        if private or len(encoded) > _LONGEST_LINE:
            self._request(_BY_STDIN.encode())
            self.send((encoded + b"\n",))
        else:
            self._request(_BY_LINE.encode() + b"'" + encoded + b"'")

    def _request(self, command: bytes) -> None:
        """Asks for a command; a refusal closes the channel. Waiting for the answer would cost a round trip."""
        message = paramiko.Message()
        message.add_byte(paramiko.common.cMSG_CHANNEL_REQUEST)
        message.add_int(self._channel.remote_chanid)
        message.add_string("exec")
        message.add_boolean(True)
        message.add_string(command)
        self._channel.transport._send_user_message(message)

    def send(self, feed: Feed) -> bool:
        """Sends to its standard input. Stops without an error if it does not listen; False then."""
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
        """Whether something could be sent without waiting."""
        return bool(self._channel.send_ready())

    def ended(self) -> bool:
        """Whether it has ended, and all that it said is here."""
        return bool(self._channel.closed)

    def end_input(self) -> None:
        """Nothing more will be sent."""
        with suppress(OSError, EOFError, paramiko.SSHException):
            self._channel.shutdown_write()

    def feed(self, feed: Feed | None, small: bool) -> None:
        """Sends all input and its end; in a thread, unless it is so small that nothing can wait for it."""
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
        """Output as it comes, to its end: "out" or "err", and the bytes.

        Raises:
            TimeoutError: It did not end before the deadline, or nothing came or went for `stall` seconds.
            NodeUnreachable: The connection broke, or the login shell did not run the script.
            AnswerTooLong: The login shell says too much before it runs the script.
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
                # Also of one that says something all the time.
                raise TimeoutError
            if idle:
                self._heard.wait(left)

    def _confirm(self) -> None:
        """Makes sure that it came to an end of its own. Raises NodeUnreachable."""
        self.code()
        if self._out.begun:
            return
        said = readable((self._out.before + self._err.before)[-MOST_SAID:])
        target, code = self._link.target, self.code()
        raise NodeUnreachable(
            f"host {target.label}: its login shell did not run a command (exit status {code})"
            + (f"; it said: {said}" if said else "")
            + f". Look at the shell of {target.user!r} there, and whether its sshd forces another command",
            host=target.name,
            # A signal comes when a host goes down; and one that is short of something cannot start a shell for a while.
            patience=None if code < 0 else _SHELL_SECONDS,
        )

    def code(self) -> int:
        """Its exit status, negative for a signal. Raises NodeUnreachable."""
        name = getattr(self._channel, "exit_signal", None)
        if name is not None:
            return -int(getattr(signal, f"SIG{name}", signal.SIGKILL))
        status = int(self._channel.exit_status)
        if status < 0:
            raise self._link.lost(self._channel.transport)
        return status

    def kill(self) -> None:
        """Ends it and what it started, through another channel."""
        if self._out.said is None:
            return
        pid = int(self._out.said)
        text = f"kill -KILL -{pid} 2>/dev/null||kill -KILL {pid}".encode()
        with suppress(NodeUnreachable, TimeoutError, OSError):
            execute(self._link, text, timeout=_KILL_SECONDS, kill=False)


class _AfterMark:
    """Lets through what comes after the line that begins with the marker."""

    def __init__(self, rest_of_line: bytes, whose: str) -> None:
        self._line = re.compile(_MARK.encode() + rest_of_line)
        self._whose = whose
        self.said: bytes | None = None
        self.before = b""

    @property
    def begun(self) -> bool:
        """Whether the marker was there."""
        return self.said is not None

    def take(self, block: bytes) -> bytes:
        """What of the next block is output. Raises AnswerTooLong."""
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


class _Heard(threading.Event):
    """An event for two buffers. That one of them is empty says nothing of the other: only the reader clears it."""

    def clear(self) -> None:
        """What a buffer calls when it is empty."""

    def rest(self) -> None:
        """What the reader calls before it looks."""
        super().clear()


def execute(
    link: Link,
    text: bytes,
    *,
    feed: bytes | None = None,
    timeout: float | None = None,
    private: bool = False,
    kill: bool = True,
) -> Completed:
    """Runs a script to its end.

    Raises:
        TimeoutError: It took longer; it was killed.
        AnswerTooLong: It says too much; it was killed.
        NodeUnreachable: The host does not answer.
    """
    deadline = None if timeout is None else time.monotonic() + timeout
    output = Output(f"host {link.target.label}: the output of a command")
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
        # Its channel is given back by now, since killing takes one, too.
        if run is not None and kill:
            run.kill()
        raise


def follow(link: Link, text: bytes, take: Callable[[str, bytes], None]) -> int:
    """Runs a script, handing over its output as it comes: `take("out" or "err", bytes)`. Returns its exit status."""
    with link.session() as channel:
        run = Run(link, channel)
        run.begin(text, False)
        run.end_input()
        for stream, block in run.pieces():
            take(stream, block)
        return run.code()
