"""`look NODE_HOME`: reports the stacks of a node's workers and the state of the node, for `flow doctor`."""

from __future__ import annotations

import json
import os
import sys
import time

from ..config.agent_config import AgentConfig
from ..system import atomic_files, processes
from ..system.stack_dump import living_workers, stack_of
from . import metrics, torch_probe
from .exec import latest_attempt, latest_entry

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any


def main(arguments: list[str]) -> int:
    """Prints the report as one line of JSON."""
    home = arguments[0]
    attempt = latest_attempt(home)
    if attempt is None:
        sys.stdout.write(json.dumps({"workers": [], "time": time.time()}) + "\n")
        return 0
    config = AgentConfig.from_json(atomic_files.read_small(os.path.join(attempt, "agent.json")))
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
    """Returns the processes to inspect for one worker, with their ranks: itself, or those that its launcher started."""
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
