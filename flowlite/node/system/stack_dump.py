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
import sys
import time

from . import processes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
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


# The subcommand


def main(arguments: list[str]) -> int:
    """`look NODE_HOME`: what `flow doctor` asks of a node, as one line of JSON."""
    from ..config.agent_config import AgentConfig
    from ..inspect import metrics, torch_probe
    from ..inspect.exec import latest_attempt, latest_entry

    home = arguments[0]
    attempt = latest_attempt(home)
    if attempt is None:
        sys.stdout.write(json.dumps({"workers": [], "time": time.time()}) + "\n")
        return 0
    with open(os.path.join(attempt, "agent.json"), encoding="utf-8") as file:
        config = AgentConfig.from_json(file.read())
    variables = {**os.environ, **latest_entry(home).get("environment", {})}
    volumes = [str(each["path"]) for each in config.volumes]
    answer = {
        "workers": list(_workers(attempt, config.python or sys.executable, variables)),
        "variables": torch_probe.telling(variables),
        "gpus": metrics.gpus(config.visible_gpus),
        "disks": metrics.disks([home, "/tmp", "/dev/shm", *volumes]),
        "load": list(os.getloadavg()),
        "cores": os.cpu_count(),
        "time": time.time(),
    }
    sys.stdout.write(json.dumps(answer) + "\n")
    return 0


def _workers(attempt: str, python: str, given: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    from ..inspect import torch_probe

    rows = processes.table()
    for note in living_workers(attempt):
        for pid, rank in _python_processes(note, rows):
            each = {**note, "pid": pid}
            if pid != note["pid"]:
                each["signal"] = None
            stack = stack_of(each, python)
            state = rows[pid].state if pid in rows else "?"
            yield {
                "rank": rank,
                "pid": pid,
                "state": state,
                **stack,
                **torch_probe.of_process(pid, given),
            }


def _python_processes(
    note: Mapping[str, Any], rows: Mapping[int, processes.Row]
) -> list[tuple[int, int]]:
    """The processes to look at for one worker, each with its rank: itself, or what its own launcher started."""
    ranked = []
    for pid in processes.descendants([int(note["pid"])], rows):
        rank = processes.environment_of(pid).get("RANK", "")
        local = processes.environment_of(pid).get("LOCAL_WORLD_SIZE", "1")
        if rank.isdigit() and local.isdigit() and int(local) > 1 and _is_python(pid):
            ranked.append((pid, int(rank)))
    first = {rank: pid for pid, rank in sorted(ranked, reverse=True)}
    if note.get("signal") is None and len(first) > 1:
        return sorted((pid, rank) for rank, pid in first.items())
    return [(int(note["pid"]), int(note["rank"]))]


def _is_python(pid: int) -> bool:
    try:
        return "python" in os.path.basename(os.readlink(f"/proc/{pid}/exe"))
    except OSError:
        return False
