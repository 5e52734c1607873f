"""A node that is reached through a command: every request is carried by the command `PREFIX PYTHON PROGRAM`.

    login = LocalConnection()                                        # on a login node
    login = StepConnection(SshConnection(target), [], label=…, python=…, program=…)     # or from elsewhere
    node = StepConnection(
        login,
        ["srun", "--overlap", "--quiet", "--jobid=7", "--nodes=1", "--ntasks=1", "--nodelist=n3"],
        label="node n3 of job 7", python="/usr/bin/python3", program="/shared/blobs/<sha256>",
        daemon="/node_dir/7.00.00002",
    )

There is one such command per node and process. Its standard input and output carry commands, files and TCP streams side
by side. A step connection may be the base of others and then carries their commands in the same way, so that one SSH
session is enough for all nodes of a cluster.
"""

from __future__ import annotations

import asyncio
import os
import selectors
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from flowlite.connect import programs
from flowlite.connect.base import Connection
from flowlite.connect.bounded import MOST_OUTPUT, Output, process_id
from flowlite.connect.pipe import Pipe
from flowlite.connect.step import files as step_files
from flowlite.connect.step import pool, tcp
from flowlite.connect.step.carried import CarriedPipe
from flowlite.connect.step.channel import Lost
from flowlite.connect.step.errors import srun_lost
from flowlite.connect.step.stream import Stream
from flowlite.connect.values import Completed, File
from flowlite.errors import ConfigError, NodeUnreachable

_SMALL = 256 * 1024
_START_SECONDS = 60.0
# A direct connection that is not established within this time counts as blocked.
_DIRECT_SECONDS = 3.0


class StepConnection(Connection):
    """A connection to one node. Nothing is started before the first use, or `open`."""

    def __init__(
        self,
        base: Connection,
        prefix: Sequence[str],
        *,
        label: str,
        python: str,
        program: str,
        daemon: str | None = None,
        terminal: Sequence[str] | None = None,
        direct: bool = True,
        lost: Lost | None = None,
    ) -> None:
        """
        Args:
            base: Connection to the machine on which `prefix` is a command; closed with this connection.
            prefix: The words before the command to run on the node; if empty, it runs on the base's machine.
            label: The node's name in messages.
            python: Interpreter on the node.
            program: Path of the node's program there; its file name is its hash.
            daemon: Home of the step daemon (`node/slurm_step/daemon.py`), which starts processes that outlive this
                connection.
            terminal: The prefix for a command on a terminal, if it differs.
            direct: Whether TCP streams go from the base to the node's address where that answers.
            lost: Makes the error from the exit status and last words of a command that broke off, or None for the usual
                error. The default is `srun_lost`.
        """
        self._base = base
        self._prefix = tuple(prefix)
        self._terminal = tuple(terminal) if terminal is not None else self._prefix
        self._label = label
        self._direct = direct
        argv = [*self._prefix, *programs.started(python, program, "mux-server")]
        if daemon is not None:
            argv += ["--daemon", daemon]
        self.key = (pool.key_of(base), tuple(argv))
        self._channel = pool.acquire(self.key, label, lost or srun_lost(label))
        self._closed = False

    # The mux server

    def open(self, timeout: float = 120.0) -> dict[str, Any]:
        """Starts the command now, rather than on the first use.

        Returns:
            What the mux server reports about itself: {"host", "pid", "python", "daemon"}. "daemon" comes from the step
                daemon, and is None if there is none.

        Raises:
            NodeUnreachable: It does not start; `JobGone` if the job or step no longer exists.
        """
        try:
            return self._channel.facts(self._usable(), time.monotonic() + timeout)
        except TimeoutError:
            raise self._channel.lost(f"its command did not begin within {timeout:.0f} s") from None

    def pipe(self, argv: Sequence[str], seconds: float) -> Pipe:
        """Starts a command whose standard input stays open. Raises NodeUnreachable, TimeoutError."""
        # The command carries another step connection and exits by itself on EOF.
        request = {"do": "run", "argv": _words(argv), "gently": True}
        return CarriedPipe(self._ask(request, seconds))

    def _usable(self) -> Connection:
        if self._closed:
            raise NodeUnreachable(f"{self._label}: this connection was closed")
        return self._base

    def _ask(self, request: Mapping[str, Any], seconds: float | None = None) -> Stream:
        deadline = None if seconds is None else time.monotonic() + seconds
        return self._channel.stream(self._usable(), request, deadline)

    # Commands

    def run(
        self,
        argv: Sequence[str],
        *,
        input: bytes | None = None,
        timeout: float | None = None,
        most: int = MOST_OUTPUT,
    ) -> Completed:
        deadline = None if timeout is None else time.monotonic() + timeout
        output = Output(f"{self._label}: the output of {argv[0]}", most)
        try:
            # Leaving the context kills the command if it is still running.
            with self._ask({"do": "run", "argv": _words(argv)}, timeout) as stream:
                _feed(stream, input)
                for name, block in stream.pieces(deadline):
                    output.add(name, block)
                return Completed(_code(stream), output.take("out"), output.take("err"))
        except TimeoutError:
            raise TimeoutError(f"{self._label}: {argv[0]} did not end within {timeout} s") from None

    def follow(self, argv: Sequence[str], take: Callable[[str, bytes], None]) -> int:
        with self._ask({"do": "run", "argv": _words(argv)}) as stream:
            stream.end_input()
            for name, block in stream.pieces():
                take(name, block)
            return _code(stream)

    def stream(self, argv: Sequence[str], *, terminal: bool) -> int:
        if terminal:
            # The command that runs the step may not pass TERM on.
            kind = os.environ.get("TERM", "")
            shown = ["env", f"TERM={kind}"] if kind else []
            return self._usable().stream([*self._terminal, *shown, *_words(argv)], terminal=True)
        outputs = {"out": 1, "err": 2}
        sys.stdout.flush()
        with self._ask({"do": "run", "argv": _words(argv)}) as stream:
            ended = threading.Event()
            threading.Thread(target=_pass_input, args=(stream, ended), daemon=True).start()
            try:
                for name, block in stream.pieces():
                    view = memoryview(block)
                    while view:
                        view = view[os.write(outputs[name], view) :]
            except KeyboardInterrupt:
                return 130
            finally:
                ended.set()
            code = _code(stream)
            return 128 - code if code < 0 else code

    def start(self, argv: Sequence[str], *, log: str, environment: Mapping[str, str]) -> int:
        request = {"argv": _words(argv), "log": log, "environment": dict(environment)}
        what = f"{self._label}: cannot start {argv[0]}"
        with self._ask({"do": "start", **request}, _START_SECONDS) as stream:
            stream.end_input()
            return process_id(step_files.answer(stream, what).get("pid"), what)

    def ask_daemon(self, request: Mapping[str, Any], timeout: float) -> dict[str, Any]:
        """Returns the answer of the node's step daemon to a request.

        Raises:
            NodeUnreachable: The node does not answer.
            OSError: The step daemon is gone, or has refused.
        """
        with self._ask({"do": "daemon", "request": dict(request)}, timeout) as stream:
            stream.end_input()
            return step_files.answer(stream, f"{self._label}: its step daemon")

    # Files

    def put_many(self, files: Sequence[File]) -> None:
        if files:
            step_files.put_files(self._ask, self._label, files)

    def read(self, path: str, offset: int = 0) -> Iterator[bytes]:
        return step_files.read_file(self._ask, self._label, path, offset)

    # Everything else

    async def open_tcp(
        self, address: str, port: int
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self._direct and self._channel.direct and _leads_elsewhere(address):
            try:
                async with asyncio.timeout(_DIRECT_SECONDS):
                    return await self._usable().open_tcp(address, port)
            except ConnectionRefusedError:
                # The refusal may come from a host between; the mux server will tell.
                pass
            except (NodeUnreachable, OSError):
                self._channel.direct = False
        ask = self._channel.stream
        base = self._usable()
        return await tcp.open_stream(
            lambda request: ask(base, request, None), self._label, address, port
        )

    def ssh_entry(self, alias: str, known_hosts: Path) -> tuple[str, str] | None:
        raise ConfigError(
            f"{self._label} is reached through a command, not by SSH; `flow ssh` opens a shell there"
        )

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            pool.release(self.key)
            self._base.close()


def _words(argv: Sequence[str]) -> list[str]:
    if not argv:
        raise ValueError("the command is empty")
    for word in argv:
        if "\0" in word:
            raise ValueError(f"an argument holds a NUL character: {word[:80]!r}")
    return list(argv)


def _code(stream: Stream) -> int:
    """The exit status of a command. Raises OSError if it did not start."""
    end = stream.end
    if "code" not in end:
        raise OSError(int(end.get("errno", 5)), str(end.get("text", "it did not begin")))
    return int(end["code"])


def _feed(stream: Stream, content: bytes | None) -> None:
    """Sends all input, then EOF; in a thread, unless the input is so small that sending cannot block."""

    def all_of_it() -> None:
        if content:
            stream.send(content)
        stream.end_input()

    if len(content or b"") <= _SMALL:
        all_of_it()
    else:
        threading.Thread(target=all_of_it, name="flowlite-step-feed", daemon=True).start()


def _pass_input(stream: Stream, ended: threading.Event) -> None:
    """Forwards our own standard input, until either side ends."""
    with suppress(OSError, ValueError), selectors.DefaultSelector() as selector:
        try:
            selector.register(0, selectors.EVENT_READ)
        except PermissionError:
            # Reading a file or /dev/null never blocks.
            while (data := os.read(0, _SMALL)) and stream.send(data):
                pass
            stream.end_input()
            return
        while not ended.is_set():
            if selector.select(0.2):
                data = os.read(0, _SMALL)
                if not data:
                    break
                stream.send(data)
    if not ended.is_set():
        stream.end_input()


def _leads_elsewhere(address: str) -> bool:
    """Whether an address means a different machine depending on where it is used."""
    try:
        return not (ip_address(address).is_loopback or ip_address(address).is_unspecified)
    except ValueError:
        return False
