"""`look NODE_HOME`: reports the stacks of a node's workers and the state of the node, for `flow doctor`."""

from __future__ import annotations

import json
import os
import sys
import time

from ..config.agent_config import AgentConfig
from ..system import atomic_files, processes
from ..system.stack_dump import stack_of
from . import disks, metrics, rank_processes, torch_probe
from .exec import latest_attempt, latest_entry, reaper_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .rank_processes import RankProcess


def main(arguments: list[str]) -> int:
    """Prints the report as one line of JSON."""
    home = arguments[0]
    attempt = latest_attempt(home)
    if attempt is None:
        sys.stdout.write(json.dumps({"workers": [], "time": time.time()}) + "\n")
        return 0
    config = AgentConfig.from_json(atomic_files.read_small(os.path.join(attempt, "agent.json")))
    python = config.python or sys.executable
    entry = latest_entry(home)
    ranks = rank_processes.of_node(attempt, entry, config)
    volumes = [str(each["path"]) for each in config.volumes]
    room, silent = disks.look([home, "/tmp", "/dev/shm", *volumes], seen_by=reaper_of(entry))
    answer = {
        "workers": [_worker(found, python) for found in ranks],
        "gpus": metrics.gpus(config.visible_gpus),
        "disks": room,
        "silent_disks": silent,
        "load": list(os.getloadavg()),
        "cores": os.cpu_count(),
        "time": time.time(),
    }
    sys.stdout.write(json.dumps(answer) + "\n")
    return 0


def _worker(found: RankProcess, python: str) -> dict[str, Any]:
    note = found.note or {"pid": found.pid, "signal": None}
    now = processes.row(found.pid)
    return {
        "rank": found.rank,
        "pid": found.pid,
        "state": now.state if now is not None else "?",
        **stack_of(note, python),
        **torch_probe.of_process(found.pid, found.environment),
        "variables": torch_probe.telling(found.environment),
    }
