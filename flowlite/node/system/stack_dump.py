"""Where each worker is: its pid on disk, and the stack it stands in when somebody asks.

A worker notes its pid as `r<rank>.pid`. A function worker also lets a signal write its Python stack to
`r<rank>.stacks`; the note names the signal only once that is so, because an unexpecting process would die of it.
Anything else is looked at with py-spy, where the node has it.
"""

from __future__ import annotations

import json
import os
import re
import signal
import time

from . import processes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

_DUMP_SECONDS = 3.0
_SETTLED_SECONDS = 0.05
_PY_SPY_SECONDS = 20.0
_FRAME = re.compile(r'  File "(?P<file>.*)", line (?P<line>\d+|\?\?\?) in (?P<function>.*)')


# In the worker


def note_worker(order: Mapping[str, Any], dumps_on: int | None = None) -> None:
    """Write down which process this worker is. A full disk must not keep it from running."""
    path = _beside(order, "pid")
    note = {"rank": order["rank"], **processes.identity(os.getpid()), "signal": dumps_on}
    try:
        with open(f"{path}.part", "w", encoding="utf-8") as file:
            json.dump(note, file)
        os.replace(f"{path}.part", path)
    except OSError as error:
        os.write(2, f"flowlite: cannot write {path}: {error}\n".encode())


def answer_for_stacks(order: Mapping[str, Any]) -> None:
    """From now on the signal of `dump_signal` writes this process's Python stacks to its file."""
    import faulthandler

    number = dump_signal()
    if number is None:
        return
    try:
        path = _beside(order, "stacks")
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    except OSError:
        return
    faulthandler.register(number, file=descriptor, all_threads=True, chain=False)
    note_worker(order, number)


def dump_signal() -> int | None:
    """A signal that trainers leave alone: SIGUSR1 and SIGUSR2 are taken by schedulers and their plugins."""
    if hasattr(signal, "SIGRTMIN"):
        return int(signal.SIGRTMIN) + 5
    return int(signal.SIGINFO) if hasattr(signal, "SIGINFO") else None


def _beside(order: Mapping[str, Any], kind: str) -> str:
    return f"{str(order['failure']).removesuffix('.failure')}.{kind}"


# Looking from outside


def living_workers(attempt: str) -> list[dict[str, Any]]:
    """The notes of an attempt's workers that run, by rank."""
    found = []
    for name in os.listdir(attempt):
        if re.fullmatch(r"r\d+\.pid", name):
            try:
                with open(os.path.join(attempt, name), encoding="utf-8") as file:
                    note = json.load(file)
                if processes.is_alive(int(note["pid"]), note["start"]):
                    found.append({**note, "note": os.path.join(attempt, name)})
            except (OSError, ValueError, KeyError, TypeError):
                continue
    return sorted(found, key=lambda each: int(each["rank"]))


def stack_of(note: Mapping[str, Any], python: str) -> dict[str, Any]:
    """The stack of one process: {"how": "py-spy" | "faulthandler" | "", "frames": [...], "why"}.

    Frames are {"file", "line", "function"}, the innermost first, of the main thread.
    """
    tool = find_py_spy(python)
    why = "py-spy is not installed on this node (pip install py-spy)"
    if tool is not None:
        frames, why = with_py_spy(tool, int(note["pid"]))
        if frames:
            return {"how": "py-spy", "frames": frames, "why": ""}
    if note.get("signal"):
        frames = with_signal(note)
        if frames:
            return {"how": "faulthandler", "frames": frames, "why": ""}
        why = f"{why}; and it did not answer signal {note['signal']}"
    return {"how": "", "frames": [], "why": why}


def find_py_spy(python: str) -> str | None:
    """py-spy beside the task's Python or on the PATH."""
    from shutil import which

    beside = os.path.join(os.path.dirname(python), "py-spy")
    return beside if os.access(beside, os.X_OK) else which("py-spy")


def with_py_spy(tool: str, pid: int) -> tuple[list[dict[str, Any]], str]:
    """Frames of a process's main thread by py-spy, and why there are none."""
    import subprocess

    try:
        done = subprocess.run(
            [tool, "dump", "--json", "--nonblocking", "--pid", str(pid)],
            capture_output=True,
            stdin=subprocess.DEVNULL,
            timeout=_PY_SPY_SECONDS,
            check=False,
        )
        threads = json.loads(done.stdout) if done.returncode == 0 else []
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        return [], f"py-spy failed: {error}"
    if not threads:
        said = done.stderr.decode(errors="replace").strip().splitlines()
        return [], f"py-spy: {said[0] if said else f'exit status {done.returncode}'}"
    main = next((each for each in threads if each.get("os_thread_id") == pid), threads[-1])
    return [
        {"file": each["filename"], "line": int(each["line"]), "function": each["name"]}
        for each in main["frames"]
    ], ""


def with_signal(note: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Frames of the main thread of a worker that answers for its stacks."""
    path = f"{str(note['note']).removesuffix('.pid')}.stacks"
    try:
        before = os.path.getsize(path)
        os.kill(int(note["pid"]), int(note["signal"]))
    except OSError:
        return []
    return main_thread(_new_text(path, before))


def _new_text(path: str, before: int) -> str:
    """What was appended to a file, once nothing has come for a moment."""
    until, size, since = time.monotonic() + _DUMP_SECONDS, before, time.monotonic()
    while time.monotonic() < until:
        now = os.path.getsize(path)
        if now != size:
            size, since = now, time.monotonic()
        elif size > before and time.monotonic() - since > _SETTLED_SECONDS:
            break
        time.sleep(0.005)
    with open(path, "rb") as file:
        file.seek(before)
        return file.read().decode(errors="replace")


def main_thread(text: str) -> list[dict[str, Any]]:
    """Frames of the main thread in what faulthandler wrote: it writes the oldest thread last."""
    threads: list[list[dict[str, Any]]] = []
    for line in text.splitlines():
        if "most recent call first" in line:
            threads.append([])
        elif threads and (frame := _FRAME.fullmatch(line)) is not None:
            number = int(frame["line"]) if frame["line"].isdigit() else 0
            threads[-1].append(
                {"file": frame["file"], "line": number, "function": frame["function"]}
            )
    return threads[-1] if threads else []
