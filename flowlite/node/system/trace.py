"""Records what the processes of a task do and when, if FLOW_TRACE is set, in Chrome's trace format.

Every process appends its spans to a file: those of the client and the supervisor to `trace.json` of the task, those of
a node's processes to a file of the attempt, which the supervisor fetches at the end and adds to the other. Each span is
one line, written when it ends, so a killed process loses only what it was doing. The file is a JSON array whose last
bracket is missing, which the format allows.

While nothing is recorded, `span` returns a context that does nothing.
"""

from __future__ import annotations

import contextlib
import json
import os
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from contextlib import AbstractContextManager
    from typing import Any

VARIABLE = "FLOW_TRACE"
MOST_OF_A_NODE = 2 << 20
"""The most bytes that are fetched of a node's file. Many nodes are asked at a time."""
_MOST_OF_A_FILE = 256 << 20
# What is longer was not written by `_put`. A parsed line takes up to 30 times as much memory.
_LONGEST_LINE = 16 << 10
_LONGEST_NAME = 200
# Process ids of a node are raised by a multiple of this, since those of two machines may be the same. Linux has less.
_PIDS = 1 << 22

_NOTHING: AbstractContextManager[None] = contextlib.nullcontext()
_process = ""
_path: str | None = None
# Lines of a client that has no task yet; None once they are written, or if nothing is recorded.
_early: list[str] | None = None
_named: set[int] = set()


def wanted() -> bool:
    """Whether FLOW_TRACE asks for a trace."""
    return os.environ.get(VARIABLE, "0") not in ("", "0")


def begin(process: str, path: str | os.PathLike[str]) -> None:
    """Begins to record in a file what this process, and those forked from it, do.

    Args:
        process: What the process is, for people.
        path: The file.
    """
    global _process, _path, _early
    _process, _path, _early = process, os.fspath(path), None
    _named.discard(os.getpid())


def begin_client() -> None:
    """Begins to record what a client does for a task that it has not made yet, if FLOW_TRACE asks for it."""
    global _process, _path, _early
    if wanted():
        first, _process = not _process, "client"
        _path, _early = None, []
        _named.discard(os.getpid())
        if first:
            add_start(started_at())


def write_to(path: str | os.PathLike[str]) -> None:
    """Sets the file of the task that a client has made, and writes what was recorded until now."""
    global _path, _early
    if _early is not None:
        lines, _early, _path = _early, None, os.fspath(path)
        _write("[\n" + "".join(lines), _path)


def end() -> None:
    """Records nothing more in this process."""
    global _path, _early
    _path = _early = None


def recording() -> bool:
    """Whether this process records."""
    return _path is not None or _early is not None


def file() -> str | None:
    """Returns the file that this process records in, for `begin` of a program that replaces it."""
    return _path


def be(process: str) -> None:
    """Gives a forked process another name than its parent's."""
    global _process
    _process = process


def span(name: str, **facts: Any) -> AbstractContextManager[None]:
    """Records how long the block takes."""
    return _span(name, facts) if recording() else _NOTHING


@contextlib.contextmanager
def _span(name: str, facts: Mapping[str, Any]) -> Iterator[None]:
    began = time.time()
    try:
        yield
    finally:
        add(name, began, time.time(), **facts)


def add(name: str, began: float, ended: float, **facts: Any) -> None:
    """Records a span with these Unix times."""
    if recording():
        _put(name, "X", began, {"dur": _microseconds(ended - began), "args": facts})


def add_of_other(process: str, pid: int, spans: Iterable[tuple[str, float, float]]) -> None:
    """Records spans of another process, which does not write to this file: name, and Unix times."""
    if recording():
        _line(_naming(process, pid))
        for name, began, ended in spans:
            at, taken = _microseconds(began), _microseconds(ended - began)
            _line({"name": name, "ph": "X", "pid": pid, "tid": pid, "ts": at, "dur": taken})


def mark(name: str, **facts: Any) -> None:
    """Records that something happens now."""
    if recording():
        _put(name, "i", time.time(), {"s": "p", "args": facts})


def add_start(began: float | None) -> None:
    """Records the time from the start of this program (`started_at`) until now: the interpreter's own, and imports."""
    if recording() and began is not None:
        add("start and imports", began, time.time())


def _put(name: str, kind: str, at: float, more: Mapping[str, Any]) -> None:
    import threading

    pid, thread = os.getpid(), threading.get_native_id()
    if pid not in _named:
        _named.add(pid)
        _line(_naming(_process, pid))
    _line({"name": name, "ph": kind, "pid": pid, "tid": thread, "ts": _microseconds(at), **more})


def _naming(process: str, pid: int) -> dict[str, Any]:
    named = {"name": f"{process} ({os.uname().nodename}, {pid})"}
    return {"name": "process_name", "ph": "M", "pid": pid, "tid": 0, "ts": 0, "args": named}


def _line(event: Mapping[str, Any]) -> None:
    line = json.dumps(event) + ",\n"
    if _early is not None:
        _early.append(line)
    elif _path is not None:
        _write(line, _path)


def _write(text: str, path: str) -> None:
    # Opened for each line: a descriptor would be closed or inherited by forks and by the program of the user. A trace
    # that cannot be written, on a full disk for example, must not affect the task.
    with contextlib.suppress(OSError):
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        file = os.open(path, flags, 0o600)
        try:
            # Nodes decide how much there is to record.
            if os.fstat(file).st_size < _MOST_OF_A_FILE:
                os.write(file, text.encode())
        finally:
            os.close(file)


def _microseconds(seconds: float) -> int:
    return round(seconds * 1e6)


def started_at() -> float | None:
    """Unix time at which this process was started, to 10 ms; None where the kernel does not tell."""
    try:
        with open("/proc/self/stat", "rb") as file:
            ticks = int(file.read().rpartition(b")")[2].split()[19])
        running = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError, AttributeError):
        return None
    return time.time() - running


def add_of_node(path: str | os.PathLike[str], received: bytes, rank: int) -> None:
    """Adds the lines of a node's file to the trace of the task.

    Args:
        path: The trace of the task.
        received: The node's file. What is not as `_put` writes it is left out, since nodes may run other software.
        rank: The node.
    """
    lines, at = [], 0
    while at < len(received):
        end = received.find(b"\n", at) + 1 or len(received)
        line, at = received[at : min(end, at + _LONGEST_LINE)], end
        try:
            event = json.loads(line.rstrip(b",\n"))
            event["pid"] = int(event["pid"]) % _PIDS + (rank + 1) * _PIDS
            facts = {
                str(key)[:_LONGEST_NAME]: str(value)[:_LONGEST_NAME]
                for key, value in event.get("args", {}).items()
            }
            if event["ph"] == "M":
                facts["name"] = f"node {rank}: {facts['name']}"
            kept = {
                "name": str(event["name"])[:_LONGEST_NAME],
                "ph": {"X": "X", "i": "i", "M": "M"}[event["ph"]],
                **{key: int(event[key]) for key in ("pid", "tid", "ts", "dur") if key in event},
                "args": facts,
            }
        except (ValueError, KeyError, TypeError, AttributeError, ArithmeticError, RecursionError):
            continue
        lines.append(json.dumps(kept) + ",\n")
    _write("".join(lines), os.fspath(path))
