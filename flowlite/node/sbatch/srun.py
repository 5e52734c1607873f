"""`srun` inside a batch script, for nodes without Slurm: one process per task, across the gang.

It parses its options, requests the step from the router, and collects the step's output and exit codes. It reports
every option that it cannot honour. Its exit status is the highest of its tasks.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import stat
import sys
import threading
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..config.agent_config import AgentConfig, AttemptPaths
from ..protocol.channel import Channel
from ..protocol.framing import Frame, Session, encode
from . import process_limits, slurm_environment, slurm_programs
from .filename_patterns import Names, fill, is_of_a_task
from .getopt import OptionError
from .layout import Placement
from .rendezvous_file import JobFacts, dial
from .srun_options import SrunStep, parse
from .task_runner import WINDOW

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..protocol.tls import TlsSession

EXIT_USAGE = 1
_BLOCK = 64 * 1024
_KILL_AFTER = 10.0
"""Seconds from SIGTERM to SIGKILL for the tasks of a step in which one has failed."""
_PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP)


def main(arguments: list[str]) -> int:
    """Runs `srun ATTEMPT_DIR [OPTIONS] COMMAND`."""
    paths = AttemptPaths(Path(arguments[0]))
    words = arguments[1:]
    if words[:1] in (["--version"], ["-V"]):
        sys.stdout.write("slurm 22.05.0 (the srun of flowlite)\n")
        return 0
    try:
        ground = JobFacts.read(paths.directory)
        if theirs := slurm_programs.of_another_job("srun", paths.directory, ground):
            os.execv(theirs, ["srun", *words])
        config = AgentConfig.from_json(paths.config.read_bytes())
        step = parse(words, ground.names, ground.job, os.environ)
    except OptionError as error:
        _say(f"error: {error}")
        return EXIT_USAGE
    except (OSError, ValueError, TypeError) as error:
        _say(f"error: the gang of this script is gone: {error}")
        return EXIT_USAGE
    for note in step.notes:
        _say(note)
    return asyncio.run(_run(config, paths, ground, step))


async def _run(config: AgentConfig, paths: AttemptPaths, ground: JobFacts, step: SrunStep) -> int:
    try:
        connected, session, tls_session = dial(config, paths, "srun")
    except (OSError, KeyError, ValueError) as error:
        _say(f"error: node 0, which brings the tasks together, does not answer: {error}")
        return EXIT_USAGE
    return await _Client(session, tls_session, paths, ground, step).run(connected)


class _Client(Channel):
    """The client of one step: its connection to the router."""

    def __init__(
        self,
        session: Session,
        tls_session: TlsSession | None,
        paths: AttemptPaths,
        ground: JobFacts,
        step: SrunStep,
    ) -> None:
        super().__init__(session, tls_session)
        self._paths = paths
        self._ground = ground
        self._step = step
        self._ended = asyncio.Event()
        self._left: set[int] = set()
        self._nodes: dict[int, str] = {}
        self._worst = 0
        self._ending = False
        self._sinks = {1: 1, 2: 2}
        self._opened: set[str] = set()
        self._partial: dict[tuple[int, int], bytes] = {}
        self._unread: dict[int, int] = {}
        self._fed = asyncio.Event()

    async def run(self, connected: socket.socket) -> int:
        loop = asyncio.get_running_loop()
        self.begin(connected)
        for number in _PASSED_ON:
            loop.add_signal_handler(number, self._signal, number)
        await self._ended.wait()
        self._write_rest()
        self.close()
        await asyncio.sleep(0)
        return min(self._worst, 255)

    def on_opened(self) -> None:
        self._tell(self._request())

    def on_frame(self, frame: Frame) -> None:
        message, kind = frame.message, frame.message["type"]
        if kind == "refused":
            _say(f"error: {message['text']}")
            self._worst = EXIT_USAGE
            self._ended.set()
        elif kind == "placed":
            self._placed(message)
        elif kind == "data":
            self._print(int(message["task"]), int(message["stream"]), frame.blob)
        elif kind == "fed":
            self._was_fed(int(message["task"]), message["size"])
        elif kind == "exit":
            self._exited(message)

    def on_closed(self, error: Exception | None) -> None:
        if not self._ended.is_set():
            _say("error: the connection to the gang broke; the tasks of this step are ended")
            self._worst = self._worst or EXIT_USAGE
            self._ended.set()

    # The request

    def _request(self) -> dict[str, Any]:
        step, ground = self._step, self._ground
        changed, removed = _exported(step.export, ground.environment)
        self._has_input = step.input != "none" and _has_input()
        here = os.getcwd()
        directory = step.directory and os.path.join(here, step.directory)
        return {
            "type": "step",
            "argv": step.argv,
            "wish": asdict(step.wish),
            "per_node": step.wish.per_node,
            "changed": changed,
            "removed": removed,
            "limits": process_limits.changes(ground.limits),
            "from": [str(self._paths.directory / "slurm"), ground.directory],
            "directory": directory or (None if here == ground.directory else here),
            "streams": [self._stream(1, step.output), self._stream(2, step.error or step.output)],
            "append": step.append,
            "input": self._input_task(),
            "has_input": self._has_input,
        }

    def _stream(self, number: int, pattern: str | None) -> Any:
        if pattern is not None and is_of_a_task(pattern):
            return {"file": pattern}
        if pattern is None and not self._step.label and self._is_of_a_worker(number):
            return "worker"
        return "srun"

    def _is_of_a_worker(self, number: int) -> bool:
        """Whether our output is that of a worker. Then each task can write to its own worker's output."""
        try:
            mine = os.fstat(number)
        except OSError:
            return False
        if not stat.S_ISREG(mine.st_mode):
            return False
        kind = "out" if number == 1 else "err"
        for path in self._paths.directory.glob(f"r*.{kind}"):
            found = path.stat()
            if (found.st_dev, found.st_ino) == (mine.st_dev, mine.st_ino):
                return True
        return False

    # While the step runs

    def _placed(self, message: dict[str, Any]) -> None:
        found = Placement(message["nodes"], message["counts"])
        self._nodes = {task.id: self._ground.names[task.node] for task in found.tasks()}
        self._left = set(self._nodes)
        names = Names(self._ground.job, str(message["step"]), "", "", "", self._ground.environment)
        try:
            for stream, pattern in (
                (1, self._step.output),
                (2, self._step.error or self._step.output),
            ):
                if pattern is not None and not is_of_a_task(pattern):
                    self._sinks[stream] = self._open(fill(pattern, names))
        except OSError as error:
            _say(f"error: {error.filename}: {error.strerror}")
            self._worst = EXIT_USAGE
            self._ended.set()
            return
        loop = asyncio.get_running_loop()
        if self._step.limit is not None:
            loop.call_later(self._step.limit, self._stop, "the time limit of the step is over")
        if self._has_input:
            self._unread = {task: 0 for task in self._nodes if self._input_task() in (None, task)}
            self._feeding = loop.create_task(self._feed())

    def _open(self, path: str) -> int:
        # Both streams may have the same file. Each writes at its end.
        append = self._step.append or path in self._opened
        self._opened.add(path)
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | (0 if append else os.O_TRUNC)
        return os.open(path, flags, 0o644)

    def _print(self, task: int, stream: int, data: bytes) -> None:
        self._tell({"type": "taken", "task": task, "stream": stream, "size": len(data)})
        if self._step.label:
            *lines, rest = (self._partial.pop((task, stream), b"") + data).split(b"\n")
            if len(rest) >= _BLOCK:
                # A progress bar may have no end of a line for hours.
                lines, rest = [*lines, rest], b""
            self._partial[task, stream] = rest
            data = b"".join(b"%d: %s\n" % (task, line) for line in lines)
        self._put(stream, data)

    def _write_rest(self) -> None:
        for (task, stream), rest in self._partial.items():
            if rest:
                self._put(stream, b"%d: %s\n" % (task, rest))

    def _put(self, stream: int, data: bytes) -> None:
        view = memoryview(data)
        try:
            while view:
                view = view[os.write(self._sinks[stream], view) :]
        except BrokenPipeError:
            self._stop("nobody reads its output any more")
        except OSError as error:
            self._stop(f"its output cannot be written: {error.strerror}")

    async def _feed(self) -> None:
        """Forwards standard input, no faster than the slowest of the tasks that it is for reads it."""
        standard_input = _Input()
        while self._unread and (data := await standard_input.next()):
            self._tell({"type": "input", "task": self._input_task()}, data)
            for task in self._unread:
                self._unread[task] += len(data)
            while any(unread >= WINDOW for unread in self._unread.values()):
                self._fed.clear()
                await self._fed.wait()
        self._tell({"type": "input-ends", "task": self._input_task()})

    def _was_fed(self, task: int, size: int | None) -> None:
        """Notes that a task has been given its input up to here; None if it takes no more."""
        if size is None:
            self._unread.pop(task, None)
        elif task in self._unread:
            self._unread[task] -= size
        self._fed.set()

    def _input_task(self) -> int | None:
        return int(self._step.input) if self._step.input.isdecimal() else None

    def _exited(self, message: dict[str, Any]) -> None:
        task, number = int(message["task"]), message.get("signal")
        code = 128 + int(number) if number else int(message.get("code", 1))
        first = len(self._left) == len(self._nodes)
        self._left.discard(task)
        self._was_fed(task, None)
        # Other tasks may fail at the same time as the one for which the rest is ended.
        if code and not (self._ending and number in (signal.SIGTERM, signal.SIGKILL)):
            self._worst = max(self._worst, code)
            name = self._nodes[task]
            how = message.get("text") or (
                f"{signal.strsignal(int(number)) or number}"
                if number
                else f"Exited with exit code {code}"
            )
            _say(f"error: {name}: task {task}: {how}")
        if not self._left:
            self._ended.set()
        elif code and self._step.kill_on_bad_exit:
            self._stop("one task has failed")
        elif first and self._step.wait is not None:
            why = f"the first task has ended {self._step.wait:g} s ago (--wait)"
            asyncio.get_running_loop().call_later(self._step.wait, self._stop, why)

    def _stop(self, why: str) -> None:
        """Stops the remaining tasks of the step."""
        if self._ending or not self._left:
            return
        self._ending = True
        self._worst = self._worst or EXIT_USAGE
        count = len(self._left)
        left = (
            "1 other task of this step is"
            if count == 1
            else f"{count} other tasks of this step are"
        )
        _say(f"error: {why}: {left} ended")
        self._tell({"type": "signal", "number": int(signal.SIGTERM)})
        asyncio.get_running_loop().call_later(
            _KILL_AFTER, self._tell, {"type": "signal", "number": int(signal.SIGKILL)}
        )

    def _signal(self, number: signal.Signals) -> None:
        self._tell({"type": "signal", "number": int(number)})

    def _tell(self, message: dict[str, Any], blob: bytes = b"") -> None:
        self.send(encode(message), blob)


_WORD_OF_EXPORT = re.compile(r"""(?:[^,'"]|'[^']*'|"[^"]*"|['"])+""")
"""What stands between the commas of --export. As in Slurm, those in quotes do not count, and the quotes stay."""


def _exported(export: str, before: dict[str, str]) -> tuple[dict[str, str], list[str]]:
    """Returns the variables that tasks get of our environment, as changes to what they have anyway."""
    changed, removed = slurm_environment.changes(before, os.environ)
    if export.upper() == "ALL":
        return changed, removed
    if export.upper() in ("NONE", "NIL"):
        return {}, []
    named: dict[str, str] = {}
    for word in _WORD_OF_EXPORT.findall(export):
        name, equals, value = word.partition("=")
        if name.upper() == "ALL" and not equals:
            named = {**changed, **named}
        elif equals:
            named[name] = value
        elif name in os.environ:
            named[name] = os.environ[name]
    return named, removed if export.upper().startswith("ALL") else []


def _has_input() -> bool:
    """Whether standard input can have any data."""
    try:
        mine, null = os.fstat(0), os.stat(os.devnull)
    except OSError:
        return False
    return not (stat.S_ISCHR(mine.st_mode) and mine.st_rdev == null.st_rdev)


class _Input:
    """Standard input. It is read in a daemon thread, since a read may block forever, and one block at a time."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._blocks: asyncio.Queue[bytes] = asyncio.Queue()
        self._wanted = threading.Semaphore(0)
        threading.Thread(target=self._read, daemon=True).start()

    async def next(self) -> bytes:
        """Returns the next block; b"" at the end."""
        self._wanted.release()
        return await self._blocks.get()

    def _read(self) -> None:
        data = b"x"
        while data:
            self._wanted.acquire()
            try:
                data = os.read(0, _BLOCK)
            except OSError:
                data = b""
            # The loop is closed once the step is over.
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._blocks.put_nowait, data)


def _say(text: str) -> None:
    # Who reads both streams may have ended, as in `srun … 2>&1 | head`. The step must come to its end nevertheless.
    with suppress(OSError):
        os.write(2, f"srun: {text}\n".encode(errors="backslashreplace"))
