"""The SSH connection to a host, used by every provider whose nodes are other machines.

Connections to one host share one authenticated transport per process (`ssh/link.py`); each command has its own channel.
Import this module only to connect: paramiko takes 0.2 s to import, and reading a configuration does not need it.
"""

from __future__ import annotations

import posixpath
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flowlite.connect.base import Connection
from flowlite.connect.bounded import MOST_OUTPUT, process_id
from flowlite.connect.pipe import Pipe
from flowlite.connect.ssh import commands, courier, system
from flowlite.connect.ssh import files as ssh_files
from flowlite.connect.ssh.link import Link, acquire, release
from flowlite.connect.ssh.pipe import SshPipe
from flowlite.connect.ssh.quoting import command, quote, readable
from flowlite.connect.ssh.targets import SshTarget, resolve_target
from flowlite.connect.values import Completed, File
from flowlite.errors import NodeUnreachable

if TYPE_CHECKING:
    import asyncio

_START_SECONDS = 60.0
_AT_ONCE_SECONDS = 10.0
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class SshConnection(Connection):
    """A connection to one host. Nothing is sent before the first use, or `open`."""

    def __init__(self, target: SshTarget) -> None:
        self.target = target
        self._held: Link | None = None
        self._closed = False
        self._lock = threading.Lock()

    @property
    def _link(self) -> Link:
        with self._lock:
            if self._closed:
                raise NodeUnreachable(f"host {self.target.label}: this connection was closed")
            if self._held is None:
                self._held = acquire(self.target)
            return self._held

    def open(self) -> None:
        """Connects and logs in now, rather than on the first use. Raises NodeUnreachable."""
        self._link.transport()

    def ask(
        self, request: Mapping[str, Any], *, timeout: float, start: Sequence[str] | None = None
    ) -> dict[str, Any] | None:
        answer = courier.ask(self._link, request, timeout=timeout, start=start)
        return answer[0] if answer is not None else None

    def run(
        self,
        argv: Sequence[str],
        *,
        input: bytes | None = None,
        timeout: float | None = None,
        most: int = MOST_OUTPUT,
    ) -> Completed:
        return self._execute(self._link, argv, input, timeout, most)

    def run_program(self, argv: Sequence[str], *, input: bytes, timeout: float) -> Completed:
        request = {"do": "run", "argv": list(argv)}
        try:
            answer = courier.ask(self._link, request, input, timeout=timeout)
        except TimeoutError:
            raise self._late(argv, timeout) from None
        if answer is not None:
            return Completed(0, answer[1], b"")
        return self.run(argv, input=input, timeout=timeout)

    def run_afresh(self, argv: Sequence[str], *, timeout: float) -> Completed:
        own = Link(self.target)
        try:
            return self._execute(own, argv, None, timeout)
        finally:
            own.shut()

    def _execute(
        self,
        link: Link,
        argv: Sequence[str],
        input: bytes | None,
        timeout: float | None,
        most: int = MOST_OUTPUT,
    ) -> Completed:
        try:
            text = b"exec " + command(argv)
            return commands.execute(link, text, feed=input, timeout=timeout, most=most)
        except TimeoutError:
            raise self._late(argv, timeout) from None

    def _late(self, argv: Sequence[str], timeout: float | None) -> TimeoutError:
        what = f"{argv[0]} did not end within {timeout} s"
        return TimeoutError(f"host {self.target.label}: {what}")

    @contextmanager
    def _begin(self, argv: Sequence[str], seconds: float) -> Iterator[commands.Run]:
        """Runs a command whose standard input stays open, in an SSH session of its own, until the context is left.

        Raises:
            NodeUnreachable: The host does not answer.
            TimeoutError: No session was free within `seconds`.
        """
        with self._link.session(time.monotonic() + seconds) as channel:
            run = commands.Run(self._link, channel)
            run.begin(b"exec " + command(argv), False)
            yield run

    def pipe(self, argv: Sequence[str], seconds: float) -> Pipe:
        return SshPipe(self._begin(argv, seconds))

    def start(self, argv: Sequence[str], *, log: str, environment: Mapping[str, str]) -> int:
        order = {"argv": list(argv), "log": log, "environment": dict(environment)}
        answer = courier.ask(self._link, {"do": "start", **order}, timeout=_START_SECONDS)
        if answer is not None and "pid" in answer[0]:
            return process_id(answer[0]["pid"], f"{self._link.target.label}: starting {argv[0]}")
        text = _start_script(argv, log, environment)
        done = commands.execute(self._link, text, timeout=_START_SECONDS, private=True)
        if done.code:
            said = readable(done.stderr)
            what = f"cannot start {argv[0]}"
            raise ssh_files.os_error(
                self._link, what, said or f"exit status {done.code}", done.code
            )
        return process_id(readable(done.stdout), f"{self._link.target.label}: starting {argv[0]}")

    def put_many(self, files: Sequence[File]) -> None:
        ssh_files.put_files(self._link, files)

    def read(self, path: str, offset: int = 0) -> Iterator[bytes]:
        return ssh_files.read_file(self._link, path, offset)

    def read_at_once(self, path: str) -> bytes | None:
        return ssh_files.read_by_courier(self._link, path, timeout=_AT_ONCE_SECONDS)

    def follow(self, argv: Sequence[str], take: Callable[[str, bytes], None]) -> int:
        return commands.follow(self._link, b"exec " + command(argv), take)

    def stream(self, argv: Sequence[str], *, terminal: bool) -> int:
        return system.stream(self.target, argv, terminal=terminal)

    def ssh_entry(self, alias: str, known_hosts: Path) -> tuple[str, str] | None:
        system.require_known(self.target)
        return system.entries(alias, self.target, known_hosts)

    async def open_tcp(
        self, address: str, port: int
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        from flowlite.connect.ssh import tcp

        return await tcp.open_stream(self._link, address, port)

    def received(self) -> int:
        held = self._held
        return 0 if held is None else held.received

    def close(self) -> None:
        with self._lock:
            self._closed = True
            held, self._held = self._held, None
        if held is not None:
            release(held)


def _start_script(argv: Sequence[str], log: str, environment: Mapping[str, str]) -> bytes:
    """A script that starts a command in a session of its own and prints its process id."""
    exports = []
    for name, value in environment.items():
        if not _NAME.fullmatch(name):
            raise ValueError(f"{name!r} is not the name of a variable that a shell can set")
        exports.append(b"export %s=%s\n" % (name.encode(), quote(value)))
    words, program = command(argv), quote(argv[0])
    at, directory = quote(log), quote(posixpath.dirname(log) or "/")
    return b"".join(
        (
            *exports,
            b"absent(){ printf '%s is not there\\n' \"$1\" >&2;exit 44;}\n",
            b"[ -d %s ]||absent %s\n" % (directory, directory),
            b"cd /;u=$(umask);umask 077;: >>%s||exit 74;umask $u\n" % at,
            b"command -v %s >/dev/null||absent %s\n" % (program, program),
            b"if command -v setsid >/dev/null;then setsid %s </dev/null >>%s 2>&1 &\n"
            % (words, at),
            b"else set -m;%s </dev/null >>%s 2>&1 &\nfi\necho $!" % (words, at),
        )
    )


__all__ = ["SshConnection", "SshTarget", "resolve_target"]
