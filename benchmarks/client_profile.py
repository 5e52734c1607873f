"""Where the processor time for each further host goes: `python -m benchmarks.client_profile [FEW MANY]`.

The supervisor is profiled with few and with many hosts, each of its threads by its own processor time, and the
difference is divided by the number of further hosts. The profiler makes Python take two to three times as long, so the
shares count and not the milliseconds. A line contains what it calls, so lines overlap where one calls the other.
"""

from __future__ import annotations

import os
import pstats
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

from benchmarks.measure import PROGRAMS, environment, python
from benchmarks.pool import pool

ROUNDS = 2
# What is shown, and the functions that it stands for: the end of the file's name, and the function's.
LINES = {
    "SSH connections: set-up, by those who need one": ("ssh/link.py", "_connect"),
    "SSH connections: their own threads": ("paramiko/transport.py", "run"),
    "  of which key exchange": ("paramiko/transport.py", "_negotiate_keys"),
    "SSH sessions": ("ssh/link.py", "_open_session"),
    "SSH messages sent": ("paramiko/packet.py", "send_message"),
    "SSH messages received": ("paramiko/packet.py", "read_message"),
    "processes started": ("subprocess.py", "__init__"),
    "configuration of a host": ("ssh/targets.py", "resolve_target"),
    "known hosts": ("ssh/host_keys.py", "known"),
    "private key": ("ssh/login.py", "_load"),
    "requests to our program on a host": ("ssh/courier.py", "_ask"),
    "commands on a host": ("ssh/commands.py", "execute"),
    "command that starts our program": ("connect/programs.py", "started"),
    "checks of what hosts answer": ("ssh/host_answers.py", "_checked"),
    "record of the hosts": ("ssh/launching.py", "_note"),
    "files for an agent": ("attempt/node_handle.py", "equip"),
    "rows of the store": ("state/rows.py", "read_row"),
    "snapshots of the store": ("state/store.py", "_write_snapshot"),
    "events of the leader": ("attempt/leader_events.py", "event"),
    "threads started": ("threading.py", "start"),
    "JSON read": ("json/decoder.py", "raw_decode"),
    "JSON written": ("json/encoder.py", "iterencode"),
}


def main() -> int:
    """Prints calls and share for each line."""
    few, many = (int(word) for word in sys.argv[1:] or ("4", "16"))
    before, after = _profiled(few), _profiled(many)
    total = _per_host("total", 1, before, after, many - few)
    print(f"{'for each further host':<50}  calls  share")
    for what, where in LINES.items():
        calls = _per_host(where, 0, before, after, many - few)
        share = _per_host(where, 1, before, after, many - few) / total
        print(f"{what:<50}  {calls:5.1f}  {100 * share:4.0f} %")
    print(f"{'in all, with the profiler':<50}         {1000 * total:.1f} ms")
    return 0


Figures = tuple[Counter[object], Counter[object]]


def _per_host(key: object, which: int, before: Figures, after: Figures, more: int) -> float:
    return float(after[which][key] - before[which][key]) / more / ROUNDS


def _profiled(size: int) -> Figures:
    """The calls of each line, and the seconds in it, in all rounds."""
    calls: Counter[object] = Counter()
    spent: Counter[object] = Counter()
    with pool(size), tempfile.TemporaryDirectory() as directory:
        _run(size, None)
        for _ in range(ROUNDS):
            _run(size, Path(directory))
        for path in Path(directory).iterdir():
            stats = pstats.Stats(str(path)).stats  # type: ignore[attr-defined]
            for (file, _, function), (_, number, own, whole, _) in stats.items():
                spent["total"] += own
                for each in LINES.values():
                    if function == each[1] and file.endswith(each[0]):
                        calls[each] += number
                        spent[each] += whole
    return calls, spent


def _run(size: int, directory: Path | None) -> None:
    own = environment()
    if directory is not None:
        search = [str(PROGRAMS / "profiled"), own["PYTHONPATH"]]
        own |= {"PROFILE_DIRECTORY": str(directory), "PYTHONPATH": os.pathsep.join(search)}
    with tempfile.TemporaryDirectory() as empty:
        # It waits for the supervisor, too, which outlives the command.
        argv = python(PROGRAMS / "processor_time.py", empty)
        argv += python(PROGRAMS / "hosts_flowlite.py", str(size))
        subprocess.run(argv, env=own, cwd=empty, check=True, stderr=subprocess.DEVNULL)


if __name__ == "__main__":
    sys.exit(main())
