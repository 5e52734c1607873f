"""Counters of a node's activity. `flow top` reads them twice and shows the difference."""

from __future__ import annotations

import json
import os
import re
import sys
import time

from ..config.agent_config import AgentConfig, ConfigFault
from ..system import atomic_files, node_facts, processes, stack_dump

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from .rank_processes import RankProcess

_GPU_FIELDS = "index,name,utilization.gpu,memory.used,memory.total"
_GPU_SECONDS = 10.0


def main(arguments: list[str]) -> int:
    """`stats NODE_HOME`: prints the current counters as one line of JSON."""
    from . import rank_processes
    from .exec import latest_attempt, latest_entry

    attempt = latest_attempt(arguments[0])
    config = _config(attempt) if attempt is not None else None
    ranks: list[RankProcess] = []
    if attempt is not None and config is not None:
        ranks = rank_processes.of_node(attempt, latest_entry(arguments[0]), config)
    answer = {
        "monotonic": time.monotonic(),
        "cores": os.cpu_count() or 1,
        "cpu": machine_cpu(),
        "memory": memory(),
        "network": network(),
        "gpus": gpus(config.visible_gpus if config is not None else None),
        "workers": workers_of(attempt, ranks) if attempt else [],
        "ranks": [each.rank for each in ranks],
    }
    sys.stdout.write(json.dumps(answer) + "\n")
    return 0


def workers_of(attempt: str, ranks: Iterable[RankProcess] = ()) -> list[dict[str, Any]]:
    """Returns CPU seconds and resident bytes of each running worker, including its descendants.

    Args:
        ranks: The ranks of the node. One that is no descendant of a worker is added as a worker of its own.
    """
    rows = processes.table()
    roots = [(note["rank"], int(note["pid"])) for note in stack_dump.living_workers(attempt)]
    roots += [(each.rank, each.pid) for each in ranks]
    found = []
    counted: set[int] = set()
    for rank, pid in roots:
        if pid in counted:
            continue
        pids = {pid, *processes.descendants([pid], rows)}
        counted |= pids
        used = [_usage(each) for each in pids]
        found.append(
            {
                "rank": rank,
                "pid": pid,
                "cpu_seconds": round(sum(cpu for cpu, _ in used), 2),
                "rss": sum(rss for _, rss in used),
            }
        )
    return found


def _usage(pid: int) -> tuple[float, int]:
    """Returns CPU seconds and resident bytes of one process; memory shared after a fork counts for each process."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            rest = file.read().rpartition(b")")[2].split()
    except OSError:
        return 0.0, 0
    ticks = os.sysconf("SC_CLK_TCK")
    return (int(rest[11]) + int(rest[12])) / ticks, int(rest[21]) * os.sysconf("SC_PAGE_SIZE")


def machine_cpu() -> dict[str, float] | None:
    """Returns the busy seconds and all seconds of all cores since boot."""
    try:
        with open("/proc/stat", encoding="ascii") as file:
            fields = [int(each) for each in file.readline().split()[1:9]]
    except (OSError, ValueError):
        return None
    ticks = os.sysconf("SC_CLK_TCK")
    idle = fields[3] + fields[4]
    return {"busy": (sum(fields) - idle) / ticks, "total": sum(fields) / ticks}


def memory() -> dict[str, int] | None:
    """Returns the used and the total memory in bytes."""
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            found = dict(re.findall(r"(\w+):\s+(\d+) kB", file.read()))
        total = int(found["MemTotal"]) * 1024
        return {"used": total - int(found["MemAvailable"]) * 1024, "total": total}
    except (OSError, KeyError):
        return None


def network() -> dict[str, int] | None:
    """Returns the bytes received and sent by all interfaces except loopback."""
    try:
        with open("/proc/net/dev", encoding="ascii") as file:
            lines = [line.replace(":", " ").split() for line in file if ":" in line]
    except OSError:
        return None
    outside = [fields for fields in lines if fields[0] != "lo"]
    return {
        "received": sum(int(fields[1]) for fields in outside),
        "sent": sum(int(fields[9]) for fields in outside),
    }


def gpus(visible: str | None) -> list[dict[str, Any]]:
    """Returns the node's GPUs as nvidia-smi reports them now. Values that it does not report are None."""
    if visible == "":
        return []
    return parse_gpus(node_facts.ask_nvidia_smi(_GPU_FIELDS, _GPU_SECONDS), visible)


def parse_gpus(text: str, visible: str | None = None) -> list[dict[str, Any]]:
    """Returns the GPUs in the output of nvidia-smi; memory in bytes, utilisation in percent."""
    found = []
    for line in text.splitlines():
        fields = [each.strip() for each in line.split(",")]
        if len(fields) != 5 or (visible is not None and fields[0] not in visible.split(",")):
            continue
        used, total = (int(each) * 2**20 if each.isdigit() else None for each in fields[3:])
        found.append(
            {
                "index": int(fields[0]),
                "name": fields[1],
                "utilisation": int(fields[2]) if fields[2].isdigit() else None,
                "memory_used": used,
                "memory_total": total,
            }
        )
    return found


def _config(attempt: str) -> AgentConfig | None:
    """Returns the agent's orders, or None if there are none yet."""
    try:
        return AgentConfig.from_json(atomic_files.read_small(os.path.join(attempt, "agent.json")))
    except (OSError, ConfigFault):
        return None
