"""The workers of one node, as the agent controls them through the reaper: started, stopped and reported."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..config.agent_config import AttemptPaths
from ..log_stream import output_tail
from ..protocol.messages import STREAMS
from ..system import caught_signals, processes, trace
from ..system.byte_sizes import room_on_disk
from ..system.oom import OomWatch
from ..system.signals import signal_name
from . import client

KEEPER_SECONDS = 30.0
"""How long the reaper may take to end the workers after their grace period; a worker that cannot be killed takes 20."""

_LOST = (
    "the process that holds this node's workers is gone (killed from outside, or out of memory?)"
)
# A disk with fewer bytes free is full: no more output fits.
_LEAST_FREE = 64 << 10

Report = Callable[[dict[str, Any]], None]


class WorkersLost(Exception):
    """The reaper, the parent of the workers, is gone.

    Attributes:
        passing: Whether another attempt may succeed.
    """

    passing = True


class Workers:
    """The workers of one node.

    Every worker that was ordered is reported through `report` exactly once, even if the worker or its reaper
    crashes or is killed for lack of memory.

    Args:
        spec: The spec of the fork server (`client.make_spec`).
        paths: Where the attempt's files are.
        node: This node's rank.
        task: Task id.
        attempt: Number of the attempt.
        stop_signal: The signal that asks workers to stop.
        grace: Seconds from the stop signal to SIGKILL.
        workdir: The directory in which the workers start, if it is to be checked when they are connected.
        report: Called with the body of the worker event of each worker that has ended.
        not_forked: Called once with the reason why a command that could have been forked was started anew.
    """

    def __init__(
        self,
        spec: dict[str, Any],
        paths: AttemptPaths,
        *,
        node: int,
        task: str,
        attempt: int,
        stop_signal: int,
        grace: float,
        report: Report,
        workdir: str | None = None,
        not_forked: Callable[[str], None] | None = None,
    ) -> None:
        self._spec = spec
        self._workdir = workdir
        self._paths = paths
        self._node = node
        self._markers = {
            "FLOW_TASK_ID": task,
            "FLOW_NODE_RANK": str(node),
            "FLOW_ATTEMPT": str(attempt),
        }
        self._stop_signal = stop_signal
        self._grace = grace
        self._report = report
        self._not_forked = not_forked
        self._orders: dict[int, Mapping[str, Any]] = {}
        self._pids: dict[int, tuple[int, float]] = {}
        self._memory: dict[int, OomWatch] = {}
        self._stopping = False
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._answers: dict[str, asyncio.Future[dict[str, Any]]] = {}
        self._follower: asyncio.Task[None] | None = None
        self._none_left = asyncio.Event()
        self._none_left.set()
        self.warm: dict[str, Any] = {}

    @property
    def running(self) -> int:
        """Returns how many workers were ordered and are not reported yet."""
        return len(self._orders)

    def use_python(self, python: str) -> None:
        """Sets the Python that the fork server is started with. Call this before `connect`."""
        self._spec["python"] = python

    def use(self, spec: dict[str, Any]) -> None:
        """Replaces the spec of the fork server. Call this before `connect`."""
        self._spec = spec

    async def connect(self, scene: Awaitable[Mapping[str, Any]] | None = None) -> dict[str, Any]:
        """Starts or finds the fork server and gets a reaper from it. Returns the reaper's "ready" event.

        `scene`, the mounts that the workers see (mount_namespace/worker_view.py), may be ready later than the fork
        server, which imports meanwhile.

        A fork server that dies while it imports is started again without imports, so that the error appears in the
        worker. A fork server that is kept from an earlier task may be exiting just now; then another one is started.

        Raises:
            ForkServerError: There is no fork server.
        """
        shown = asyncio.ensure_future(scene) if scene is not None else None
        full, bare = self._spec, {**self._spec, "imports": []}
        for spec in (full, full, bare) if full["key"] else (full, bare):
            connection = client.join(spec)
            connection.setblocking(False)
            self._reader, self._writer = await asyncio.open_unix_connection(
                sock=connection, limit=1 << 20
            )
            self._follower = asyncio.create_task(self._follow(self._reader))
            try:
                self.warm = await self._ask(
                    "ready",
                    do="hello",
                    node=self._node,
                    stop_signal=self._stop_signal,
                    grace=self._grace,
                    scene=await shown if shown is not None else {},
                    workdir=self._workdir,
                    log=str(self._paths.directory / "warm.log"),
                    trace=str(self._paths.trace) if trace.recording() else None,
                )
                return self.warm
            except WorkersLost:
                self._writer.close()
        raise client.ForkServerError(
            f"the fork server died again while it started; see {self._spec['log']} on this node"
        )

    async def prepare(self, call: Mapping[str, Any]) -> str | None:
        """Verifies the call and extracts its source. Returns the error, or None."""
        answer = await self._ask("prepared", do="prepare", call=dict(call))
        return answer["error"]  # type: ignore[no-any-return]

    async def probe(self, paths: Sequence[str], token: str, *, write: bool) -> dict[str, Any]:
        """Writes or checks the probe files of volumes in the workers' view of the file system."""
        return await self._ask("probed", do="probe", paths=list(paths), token=token, write=write)

    def forget_probe(self, paths: Sequence[str], token: str) -> None:
        """Removes the probe files."""
        self._send(do="forget", paths=list(paths), token=token)

    def start(self, orders: Sequence[Mapping[str, Any]]) -> None:
        """Starts workers. A worker that cannot be started is reported as ended.

        Raises:
            WorkersLost: The workers were told to stop already.
        """
        if self._stopping:
            raise WorkersLost("the workers were told to stop before they started")
        self._orders.update({int(order["rank"]): order for order in orders})
        self._none_left.clear()
        if self._reader is None:
            self._report_lost()
            return
        self._send(do="start", orders=list(orders))

    async def stop(self, grace: float | None = None) -> None:
        """Stops every worker. Returns when none is left and each was reported."""
        self._stopping = True
        grace = self._grace if grace is None else grace
        if self._orders and self._reader is not None:
            order = self._ask("stopped", do="stop", signal=self._stop_signal, grace=grace)
            try:
                async with asyncio.timeout(grace + KEEPER_SECONDS):
                    await order
            except WorkersLost:
                pass
            except TimeoutError:
                # The reaper hangs. When it is killed, its workers die with it, and `_sweep` ends their children.
                processes.send(int(self.warm["reaper"]), signal.SIGKILL)
        await self._none_left.wait()

    async def wait(self) -> None:
        """Waits until every worker has ended and was reported."""
        await self._none_left.wait()

    def listeners(self, number: int) -> list[int]:
        """Returns every process of the workers that has a handler for a signal."""
        reaper = self.warm.get("reaper")
        return caught_signals.listeners([int(reaper)], number) if reaper and self._orders else []

    def listening_ranks(self, number: int) -> list[int]:
        """Returns the processes of the ranks, without those they started, that ask for a signal."""
        pids = [self._pids[rank][0] for rank in self._orders if rank in self._pids]
        return [pid for pid in pids if caught_signals.asks_for(pid, number)]

    def dismiss(self) -> None:
        """Lets the fork server exit as soon as no agent uses it."""
        self._send(do="dismiss")

    async def close(self) -> None:
        """Closes the connection to the reaper, which then exits."""
        if self._writer is not None:
            self._writer.close()
        if self._follower is not None:
            self._follower.cancel()

    # The connection

    def _send(self, **request: Any) -> None:
        if self._writer is not None and not self._writer.is_closing():
            self._writer.write(json.dumps(request).encode() + b"\n")

    async def _ask(self, event: str, **request: Any) -> dict[str, Any]:
        """Sends a request, and waits for the event of that name. Raises WorkersLost if it will not come."""
        waiting = self._answers.get(event)
        if waiting is None:
            if self._reader is None:
                raise WorkersLost(_LOST)
            waiting = self._answers[event] = asyncio.get_running_loop().create_future()
            self._send(**request)
        return await asyncio.shield(waiting)

    async def _follow(self, reader: asyncio.StreamReader) -> None:
        try:
            while line := await reader.readline():
                event = json.loads(line)
                if event["event"] == "stale":
                    break
                self._on_event(event)
        except (OSError, ValueError):
            pass
        # Known to be gone from now on, and not only once `_sweep` has ended what it left.
        self._reader = None
        for waiting in self._answers.values():
            if not waiting.done():
                waiting.set_exception(WorkersLost(_LOST))
                # Retrieved, so that asyncio does not log it if no caller waits.
                waiting.exception()
        self._answers.clear()
        if self._orders:
            await asyncio.to_thread(self._sweep)
            self._report_lost()

    def _on_event(self, event: dict[str, Any]) -> None:
        what = event["event"]
        if what == "started":
            self._pids[event["rank"]] = (event["pid"], event["time"])
            self._memory[event["rank"]] = OomWatch(int(event["pid"]))
            if event["why"] and self._not_forked is not None:
                self._not_forked(event["why"])
                self._not_forked = None
        elif what == "exited":
            self._on_exit(event)
        else:
            waiting = self._answers.pop(what, None)
            if waiting is not None and not waiting.done():
                waiting.set_result(event)

    def _on_exit(self, event: Mapping[str, Any]) -> None:
        order = self._orders.pop(event["rank"], None)
        if order is not None:
            self._report(describe_end(order, event, self._memory.get(event["rank"])))
        if not self._orders:
            self._none_left.set()

    # When the reaper is gone

    def _sweep(self) -> None:
        """Ends the processes that a lost reaper left.

        Where the kernel supports it, its workers died with it, but not their children.
        """
        streams = [str(order[each]) for order in self._orders.values() for each in ("out", "err")]

        def left() -> set[int]:
            return processes.marked(self._markers) | processes.writers(streams)

        processes.kill_all(left)

    def _report_lost(self) -> None:
        now = time.time()
        for rank in list(self._orders):
            _, started = self._pids.get(rank, (0, now))
            self._on_exit(
                {
                    "rank": rank,
                    "code": None,
                    "signal": int(signal.SIGKILL),
                    "started": started,
                    "ended": now,
                    "stopped": self._stopping,
                    "stuck": False,
                    "lost": True,
                }
            )


def describe_end(
    order: Mapping[str, Any], event: Mapping[str, Any], memory: OomWatch | None = None
) -> dict[str, Any]:
    """Returns the body of the worker event: exit code, failure, last lines of output, and final sizes of its files."""
    files = {name: Path(order[name]) for name in STREAMS if name in order}
    failure = None if event["stopped"] else _failure(order, event, memory)
    return {
        "rank": int(order["rank"]),
        "local_rank": int(order["local_rank"]),
        "node": int(order["node"]),
        "code": event["code"],
        "signal": event["signal"],
        "failure": failure,
        "stopped": event["stopped"],
        "tail": output_tail.last_words(files),
        "sizes": output_tail.sizes(files),
        "started": event["started"],
        "ended": event["ended"],
    }


def _failure(
    order: Mapping[str, Any], event: Mapping[str, Any], memory: OomWatch | None
) -> dict[str, str] | None:
    found = _end(order, event)
    if found is None or event["stuck"]:
        return found
    killed = found["kind"] == "signal" and found["type"] == "SIGKILL"
    why = memory.why() if memory is not None and (killed or memory.starved()) else ""
    why = why or ("out of memory?" if killed else "")
    disk = _full_disk(Path(order["out"]).parent)
    why = "; ".join(filter(None, (why, disk)))
    if why:
        found["why"] = why
    if killed or (disk and found["kind"] == "result"):
        found["message"] += f" ({why})"
    return found


def _full_disk(directory: Path) -> str:
    """Returns that the disk of a worker's output is full; "" if it is not. What was printed since is nowhere."""
    try:
        free, _ = room_on_disk(directory)
    except OSError:
        return ""
    if free >= _LEAST_FREE:
        return ""
    return f"the disk of {directory} is full, and what it printed since then is lost"


def _end(order: Mapping[str, Any], event: Mapping[str, Any]) -> dict[str, str] | None:
    if event.get("lost"):
        return {
            "kind": "signal",
            "type": "SIGKILL",
            "message": "died with the process that holds this node's workers",
        }
    if event["stuck"]:
        return {
            "kind": "signal",
            "type": "SIGKILL",
            "message": "does not end, not even by SIGKILL; it waits for a device or a file system",
        }
    if event["signal"] is not None:
        return {
            "kind": "signal",
            "type": signal_name(event["signal"]),
            "message": f"was killed by {signal_name(event['signal'])}",
        }
    told = _told_failure(Path(order["failure"]))
    if event["code"] != 0:
        return told or {"kind": "exit", "type": "", "message": _exit_text(event["code"])}
    if "call" in order and not Path(order["result"]).exists():
        return {
            "kind": "result",
            "type": "",
            "message": "ended without handing over a result (os._exit, or a replaced process?)",
        }
    return None


def _told_failure(path: Path) -> dict[str, str] | None:
    try:
        told = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    return {name: str(told.get(name, "")) for name in ("kind", "type", "message")}


def _exit_text(code: int) -> str:
    if code > 128 and code - 128 in set(signal.Signals):
        return f"exited with {code} (a child killed by {signal_name(code - 128)}?)"
    return f"exited with {code}"
