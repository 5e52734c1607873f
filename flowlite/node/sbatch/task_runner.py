"""Runs the tasks of one worker as the router instructs: start, input, output and end.

Output through srun is limited by a window for each stream (back-pressure): a task that prints faster than srun can
write has to wait, and nothing accumulates. In the same way srun waits for a task that does not read its input.
"""

from __future__ import annotations

import asyncio
import fcntl
import functools
import os
import signal
import stat
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import field
from pathlib import Path
from shutil import which
from typing import Any

from ..config.agent_config import AgentConfig, AttemptPaths
from ..quick_dataclass import dataclass
from ..system import processes
from . import process_limits, slurm_environment
from .filename_patterns import Names, fill, is_of_one_task
from .layout import Placement
from .rendezvous_file import JobFacts, programs

BLOCK = 64 * 1024
WINDOW = 4 * BLOCK
"""Bytes of one stream of a task that may be in flight to srun, and bytes of input from srun to a task."""
END_SECONDS = 5.0
"""Seconds from SIGTERM to SIGKILL, for tasks still running when the script has ended."""

Tell = Callable[..., None]


@dataclass(eq=False, slots=True)
class _Task:
    """A running task.

    Attributes:
        room: How many bytes may be sent of each stream.
        input: What its standard input is still to be given; b"" is the end.
    """

    step: int
    id: int
    process: asyncio.subprocess.Process
    room: dict[int, int] = field(default_factory=lambda: {1: WINDOW, 2: WINDOW})
    freed: asyncio.Event = field(default_factory=asyncio.Event)
    input: asyncio.Queue[bytes] = field(default_factory=asyncio.Queue)


class TaskProtocol(asyncio.subprocess.SubprocessStreamProtocol):
    """Knows when the process has ended. Up to Python 3.12.4, `Process.wait` also waits for all that hold its pipes."""

    def __init__(self) -> None:
        super().__init__(limit=BLOCK, loop=asyncio.get_running_loop())
        self.ended = asyncio.Event()

    def process_exited(self) -> None:
        super().process_exited()
        self.ended.set()

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        # A task need not read all of its input. The asyncio of Python 3.11.2 prints the error later.
        super().pipe_connection_lost(fd, None if fd == 0 else exc)


class Runner:
    """Runs tasks.

    Args:
        tell: Sends a message, with an optional blob, to the router.
    """

    def __init__(
        self, config: AgentConfig, paths: AttemptPaths, ground: JobFacts, tell: Tell
    ) -> None:
        self._config = config
        self._paths = paths
        self._ground = ground
        self.tell = tell
        self._tasks: dict[tuple[int, int], _Task] = {}
        self._early: dict[tuple[int, int], list[tuple[dict[str, Any], bytes]]] = {}
        self._background: set[asyncio.Task[None]] = set()

    def pids(self) -> list[int]:
        """Returns the process ids of the running tasks."""
        return [task.process.pid for task in self._tasks.values()]

    def received(self, message: dict[str, Any], blob: bytes) -> None:
        """Handles one message of the router."""
        kind, step = message["type"], int(message["step"])
        if kind == "start":
            for number in message["mine"]:
                self._early[step, int(number)] = []
                task = asyncio.create_task(self._run(message, int(number)))
                self._background.add(task)
                task.add_done_callback(self._background.discard)
            return
        wanted = message.get("task")
        for running in list(self._tasks.values()):
            if running.step == step and wanted in (None, running.id):
                self._do(running, message, blob)
        # A task that is just starting gets the message once it has started.
        for (of, number), early in self._early.items():
            if of == step and wanted in (None, number):
                early.append((message, blob))

    async def end(self, *, asked: bool = False) -> None:
        """Ends all tasks.

        Args:
            asked: The tasks have been told to stop already, and have the gang's grace period.
        """
        if asked:
            await asyncio.gather(*self._background, return_exceptions=True)
        for number, patience in ((signal.SIGTERM, END_SECONDS), (signal.SIGKILL, END_SECONDS)):
            for pid in processes.descendants(self.pids()) | set(self.pids()):
                processes.send(pid, number)
            with suppress(TimeoutError):
                async with asyncio.timeout(patience):
                    await asyncio.gather(*self._background, return_exceptions=True)
                    return

    def _do(self, task: _Task, message: dict[str, Any], blob: bytes) -> None:
        kind = message["type"]
        if kind == "signal":
            number = int(message["number"])
            pids = {task.process.pid}
            if number == signal.SIGKILL:
                pids |= processes.descendants(pids)
            for pid in pids:
                processes.send(pid, number)
        elif kind == "taken":
            task.room[int(message["stream"])] += int(message["size"])
            task.freed.set()
        elif kind in ("input", "input-ends"):
            task.input.put_nowait(blob)

    # One task

    async def _run(self, request: dict[str, Any], number: int) -> None:
        step = int(request["step"])
        code, ended_by, text = 1, None, ""
        try:
            with _Streams(self, request, number) as streams:
                transport, ending = await self._start(request, number, streams)
                process = asyncio.subprocess.Process(transport, ending, asyncio.get_running_loop())
                task = self._tasks[step, number] = _Task(step, number, process)
                for early in self._early.pop((step, number)):
                    self._do(task, *early)
                self.tell({"type": "started", "step": step, "task": number, "pid": process.pid})
                pumps = [
                    asyncio.create_task(self._pump(task, stream, reader))
                    for stream, reader in ((1, process.stdout), (2, process.stderr))
                    if reader is not None
                ]
                feeding = asyncio.create_task(self._feed(task))
                await ending.ended.wait()
                code = transport.get_returncode() or 0
                feeding.cancel()
                # Processes that the task left running may hold the pipes open forever.
                _, late = await asyncio.wait(pumps, timeout=END_SECONDS) if pumps else (None, ())
                for pump in late:
                    pump.cancel()
                transport.close()
                ended_by = -code if code < 0 else None
        except OSError as error:
            text = f"{request['argv'][0]}: {error.strerror or error}"
            code = 127 if isinstance(error, FileNotFoundError) else 126
        except ValueError as error:
            text = str(error)
        self._tasks.pop((step, number), None)
        self._early.pop((step, number), None)
        end = {"code": code, "signal": ended_by, "text": text}
        self.tell({"type": "exit", "step": step, "task": number, **end})

    async def _start(
        self, request: dict[str, Any], number: int, streams: _Streams
    ) -> tuple[asyncio.SubprocessTransport, TaskProtocol]:
        environment = self._environment(request, number)
        argv = [str(each) for each in request["argv"]]
        wanted = dict(request["limits"])
        limits = process_limits.applied(wanted)
        for name in sorted(name for name in limits if limits[name] != wanted[name]):
            sys.stderr.write(
                f"flowlite: {name} of the script is more than {limits[name]}, which this node allows\n"
            )
        takes_input = request["input"] in (None, number) if request["has_input"] else False
        return await asyncio.get_running_loop().subprocess_exec(
            TaskProtocol,
            _program(argv[0], environment.get("PATH", "")),
            *argv[1:],
            stdin=asyncio.subprocess.PIPE if takes_input else asyncio.subprocess.DEVNULL,
            stdout=streams.targets[1],
            stderr=streams.targets[2],
            cwd=self.directory_of(request),
            env=environment,
            preexec_fn=functools.partial(process_limits.set_here, limits) if limits else None,
        )

    def _environment(self, request: dict[str, Any], number: int) -> dict[str, str]:
        tasks = Placement(request["nodes"], request["counts"]).tasks()
        place = slurm_environment.of_task(
            tasks[number],
            tasks,
            step=int(request["step"]),
            names=self._ground.names,
            pid=os.getpid(),
            per_node=request["per_node"],
        )
        changed = dict(request["changed"])
        first = tasks[0].node
        if first != 0 and "MASTER_ADDR" not in changed:
            place["MASTER_ADDR"] = _address(self._ground, self._config, first)
        moved = {
            there: here
            for there, here in zip(request["from"], self._places(), strict=True)
            if there != here and len(there) > 1
        }
        own = self._ground.environment
        return slurm_environment.of_process(own, changed, request["removed"], place, moved)

    def _places(self) -> list[str]:
        """Returns the directories whose paths differ between nodes, in the order in which srun sends its own."""
        return [str(programs(self._paths.directory)), self._ground.directory]

    def directory_of(self, request: dict[str, Any]) -> str:
        """Returns the directory on this node in which a task starts, and to which its files are relative."""
        wanted: str | None = request["directory"]
        if wanted is None:
            return self._ground.directory
        if os.path.isdir(wanted):
            return wanted
        sys.stderr.write(
            f"flowlite: {wanted}, where srun was called, is not on this node; its tasks start in "
            f"{self._ground.directory}\n"
        )
        return self._ground.directory

    async def _pump(self, task: _Task, stream: int, reader: asyncio.StreamReader) -> None:
        while data := await reader.read(BLOCK):
            while task.room[stream] <= 0:
                task.freed.clear()
                await task.freed.wait()
            task.room[stream] -= len(data)
            where = {"step": task.step, "task": task.id, "stream": stream}
            self.tell({"type": "data", **where}, data)

    async def _feed(self, task: _Task) -> None:
        """Writes to the standard input of a task, and tells srun how much it has taken."""
        stdin, fed = task.process.stdin, {"type": "fed", "step": task.step, "task": task.id}
        if stdin is None:
            return
        # The task has closed its standard input.
        with suppress(ConnectionError):
            while data := await task.input.get():
                stdin.write(data)
                await stdin.drain()
                self.tell({**fed, "size": len(data)})
        stdin.close()
        self.tell({**fed, "size": None})

    def names(self, request: dict[str, Any], number: int) -> Names:
        """Returns the values for the patterns in a file name of this task."""
        tasks = Placement(request["nodes"], request["counts"]).tasks()
        own = self._ground
        return Names(
            job=own.job,
            step=str(request["step"]),
            task=str(number),
            node=str(tasks[number].step_node),
            host=own.names[own.node],
            environment=own.environment,
        )

    def empty(self, opened: int, step: int) -> None:
        """Empties a file of output, once for a step: another of its tasks on this node may have written to it."""
        found = os.fstat(opened)
        if not stat.S_ISREG(found.st_mode):
            return
        marks = programs(self._paths.directory) / f"emptied-{step}"
        with open(marks, "a+", encoding="ascii") as file:
            with suppress(OSError):
                # Some network file systems have no locks.
                fcntl.flock(file, fcntl.LOCK_EX)
            file.seek(0)
            mark = f"{found.st_dev}-{found.st_ino}\n"
            if mark not in file:
                os.ftruncate(opened, 0)
                file.write(mark)


class _Streams:
    """The destinations of one task's output: the worker's own files, srun, or a file of the task or of its node."""

    def __init__(self, runner: Runner, request: dict[str, Any], number: int) -> None:
        self._open: dict[Path, int] = {}
        self.targets: dict[int, int | None] = {}
        for stream, how in zip((1, 2), request["streams"], strict=True):
            if how == "worker":
                self.targets[stream] = None
            elif how == "srun":
                self.targets[stream] = asyncio.subprocess.PIPE
            else:
                self.targets[stream] = self._file(runner, request, number, how["file"])

    def _file(self, runner: Runner, request: dict[str, Any], number: int, pattern: str) -> int:
        path = Path(runner.directory_of(request), fill(pattern, runner.names(request, number)))
        if path not in self._open:
            # Both streams, and all tasks of a node, may have the same file. Each writes at its end.
            flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_APPEND
            alone = is_of_one_task(pattern)
            if alone and not request["append"]:
                flags |= os.O_TRUNC
            self._open[path] = opened = os.open(path, flags, 0o644)
            if not alone and not request["append"]:
                runner.empty(opened, int(request["step"]))
        return self._open[path]

    def __enter__(self) -> _Streams:
        return self

    def __exit__(self, *_: object) -> None:
        for each in self._open.values():
            os.close(each)


def _address(ground: JobFacts, config: AgentConfig, node: int) -> str:
    """Returns the address at which the other nodes reach a node."""
    addresses = ground.environment.get("FLOW_NODE_IPS", "").split(",")
    return addresses[node] if len(addresses) == config.num_nodes else ground.names[node]


def _program(name: str, path: str) -> str:
    """Finds a program on the PATH of the task, which differs from that of this process."""
    found = name if "/" in name else which(name, path=path)
    if found is None:
        raise FileNotFoundError(2, "not found on the PATH of the script", name)
    return found
