"""What `flow` commands show of hostile nodes and hosts, and what that costs this machine."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

MOST_MB = 150.0
"""Commands and the supervisor stay below."""
_SECONDS = 240
"""A command that looks at what has no end never ends; on a busy machine, one that ends may take minutes."""
OF_A_NODE = (
    ("status",),
    ("logs", "attacked"),
    ("result", "--no-pickle", "attacked"),
    ("doctor", "attacked"),
)
"""What people ask of a task, one of whose nodes was hostile."""
OF_A_HOST = (("hosts", "check"), ("hosts", "list"))
"""What they ask while a host of the pool is."""
OF_WHAT_IS_KEPT = (("result", "--no-pickle", "attacked"), ("logs", "attacked"))
"""What they ask of a task that has ended, while a host lies about what it keeps."""
_MOST_READ = 1 << 20


def ask(words: tuple[str, ...]) -> tuple[list[str], float]:
    """Runs `flow` with these words: what is wrong, and the most memory that it had, in MB."""
    name = f"`flow {' '.join(words)}`"
    with tempfile.TemporaryFile() as shown:
        command = subprocess.Popen(
            [sys.executable, "-m", "flowlite.cli", *words],
            stdin=subprocess.DEVNULL,
            stdout=shown,
            stderr=shown,
        )
        deadline, peak = time.monotonic() + _SECONDS, 0.0
        while command.poll() is None and time.monotonic() < deadline:
            peak = max(peak, peak_mb(command.pid))
            time.sleep(0.02)
        late = command.poll() is None
        command.kill()
        command.wait()
        shown.seek(0)
        text = shown.read(_MOST_READ)
    wrong = []
    if late:
        wrong.append(f"{name} did not end within {_SECONDS} s")
    if b"\x1b" in text or b"\x07" in text:
        wrong.append(f"{name} shows control sequences of a node")
    if b"not meant to happen" in text:
        wrong.append(f"{name} breaks: {text[-300:].decode(errors='replace')}")
    if peak > MOST_MB:
        wrong.append(f"{name} took {peak:.0f} MB")
    return wrong, peak


def peak_mb(pid: int) -> float:
    """The most memory that a process has had since it began; 0 if it is gone."""
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmHWM"):
                return int(line.split()[1]) / 1024
    return 0.0
