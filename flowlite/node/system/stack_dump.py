"""Finds a node's workers and their Python stacks.

A worker writes its pid to `r<rank>.pid`. A function worker also installs a signal handler that writes its Python stack
to `r<rank>.stacks`. Its note names the signal only after that, since the signal would kill a process without a handler.
The stacks of other processes are read with py-spy, if the node has it.

If a function worker crashes in native code, faulthandler writes its stacks to `r<rank>.crash`. The reaper appends them
to the stderr of the worker without the frames of flowlite, which are the outermost ones and come last.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import signal
import time

from . import atomic_files, processes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

_DUMP_SECONDS = 3.0
_SETTLED_SECONDS = 0.05
_PY_SPY_SECONDS = 20.0
_FRAME = re.compile(r'  File "(?P<file>.*)", line (?P<line>\d+|\?\?\?) in (?P<function>.*)')
# The agent runs from a zip, where this is a relative path.
_OWN_FILES = os.path.dirname(os.path.dirname((lambda: None).__code__.co_filename))


# In the worker


def note_worker(order: Mapping[str, Any], dumps_on: int | None = None) -> None:
    """Writes the note that identifies this worker. A full disk must not keep the worker from running."""
    path = _beside(order, "pid")
    note = {"rank": order["rank"], **processes.identity(os.getpid()), "signal": dumps_on}
    try:
        atomic_files.place(json.dumps(note).encode(), path, 0o600)
    except OSError as error:
        os.write(2, f"flowlite: cannot write {path}: {error}\n".encode())


def answer_for_stacks(order: Mapping[str, Any], lowest_descriptor: int = 0) -> None:
    """Makes the signal of `dump_signal` write this process's Python stacks to its file.

    Args:
        lowest_descriptor: The least number of the file's descriptor. Programs may expect low ones for their own files.
    """
    import faulthandler

    number = dump_signal()
    if number is None:
        return
    try:
        path = _beside(order, "stacks")
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        if descriptor < lowest_descriptor:
            import fcntl

            low, descriptor = (
                descriptor,
                fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, lowest_descriptor),
            )
            os.close(low)
    except OSError:
        return
    faulthandler.register(number, file=descriptor, all_threads=True, chain=False)
    note_worker(order, number)


def open_crash_file(order: Mapping[str, Any]) -> int:
    """Opens the file for the stacks of a crash of this process. Returns its descriptor, or that of stderr.

    In child processes the descriptor is stderr, since a child may crash long before this process ends.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
    try:
        descriptor = os.open(_beside(order, "crash"), flags, 0o600)
    except OSError:
        return 2
    os.register_at_fork(after_in_child=lambda: os.dup2(2, descriptor, inheritable=False))
    return descriptor


def dump_signal() -> int | None:
    """Returns a signal that trainers do not use. Schedulers and their plugins use SIGUSR1 and SIGUSR2."""
    if hasattr(signal, "SIGRTMIN"):
        return int(signal.SIGRTMIN) + 5
    return int(signal.SIGINFO) if hasattr(signal, "SIGINFO") else None


def _beside(order: Mapping[str, Any], kind: str) -> str:
    return f"{str(order['failure']).removesuffix('.failure')}.{kind}"


# In other processes


def tell_crash(order: Mapping[str, Any]) -> None:
    """Appends the stacks of a crashed worker, if any, to its stderr; without frames of flowlite."""
    path = _beside(order, "crash")
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            lines = without_own_frames(file.readlines())
        os.unlink(path)
        if lines:
            with open(order["err"], "a", encoding="utf-8") as stderr:
                stderr.writelines(lines)
    except OSError:
        # There is no such file for a command, and a full disk has no place for a stack.
        return


def without_own_frames(dump: Sequence[str]) -> list[str]:
    """Returns the lines of faulthandler's output without frames of flowlite and of what it was started by."""
    kept: list[str] = []
    for are_frames, group in itertools.groupby(dump, lambda line: _FRAME.match(line) is not None):
        lines = list(group)
        own = [at for at, line in enumerate(lines) if line.startswith(f'  File "{_OWN_FILES}/')]
        if are_frames and own:
            lines = [line for at, line in enumerate(lines[: own[-1]]) if at not in own]
        kept += lines
    return kept


def living_workers(attempt: str) -> list[dict[str, Any]]:
    """Returns the notes of an attempt's running workers, by rank."""
    found = []
    for name in os.listdir(attempt):
        if re.fullmatch(r"r\d+\.pid", name):
            try:
                note = atomic_files.read_small_json(os.path.join(attempt, name))
                if processes.is_alive(int(note["pid"]), note["start"]):
                    found.append({**note, "note": os.path.join(attempt, name)})
            except (OSError, ValueError, KeyError, TypeError):
                continue
    return sorted(found, key=lambda each: int(each["rank"]))


def stack_of(note: Mapping[str, Any], python: str) -> dict[str, Any]:
    """Returns the stack of one process: {"how": "py-spy" | "faulthandler" | "", "frames": [...], "why"}.

    Frames are {"file", "line", "function"} of the main thread, the innermost first.
    """
    tool = find_py_spy(python)
    why = "py-spy is not installed on this node (pip install py-spy)"
    if tool is not None:
        frames, why = with_py_spy(tool, int(note["pid"]))
        if frames:
            return {"how": "py-spy", "frames": frames, "why": ""}
    if program := _other_program(int(note["pid"])):
        why = f"the rank's process is {program}, which is no Python"
    if note.get("signal"):
        frames = with_signal(note)
        if frames:
            return {"how": "faulthandler", "frames": frames, "why": ""}
        why = f"{why}; and it did not answer signal {note['signal']}"
    return {"how": "", "frames": [], "why": why}


def _other_program(pid: int) -> str:
    """Returns the name of a process's program; "" if it may be a Python, or is not known."""
    try:
        name = os.path.basename(os.readlink(f"/proc/{pid}/exe"))
        with open(f"/proc/{pid}/maps", encoding="utf-8", errors="replace") as file:
            embeds = any("python" in line.lower() for line in file)
    except OSError:
        return ""
    return "" if embeds or "python" in name.lower() else name


def find_py_spy(python: str) -> str | None:
    """Returns the py-spy beside the task's Python or on the PATH, or None."""
    from shutil import which

    beside = os.path.join(os.path.dirname(python), "py-spy")
    return beside if os.access(beside, os.X_OK) else which("py-spy")


def with_py_spy(tool: str, pid: int) -> tuple[list[dict[str, Any]], str]:
    """Returns the frames of a process's main thread as py-spy reports them, or none and the reason."""
    import subprocess

    try:
        dump = [tool, "dump", "--json", "--nonblocking", "--pid", str(pid)]
        done = processes.run_within(_PY_SPY_SECONDS, dump)
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
    """Returns the frames of the main thread of a worker that handles the signal."""
    path = f"{str(note['note']).removesuffix('.pid')}.stacks"
    try:
        before = os.path.getsize(path)
        os.kill(int(note["pid"]), int(note["signal"]))
    except OSError:
        return []
    return main_thread(_new_text(path, before))


def _new_text(path: str, before: int) -> str:
    """Returns the text that was appended to a file, once the file has stopped growing."""
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
    """Returns the main thread's frames in faulthandler's output, which has the oldest thread last."""
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
