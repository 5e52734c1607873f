"""`agent.pyz keep-machine`: ends a task on a rented machine that is kept for the owner's next task.

Reads {"task", "root", "home", "lease", "seconds", "notice"} as JSON from standard input, and writes {"ok": true}, or
{"ok": false, "error"}. A machine has one owner, so there is no holder as on a host. It ends itself when the lease ends,
a file that its watchdog reads (preemption/lease_file.py) and that no agent renews any more.

A cloud may write a notice of preemption into a file, and replace the machines that it takes away, when no client is
left to end the new ones. The machine therefore ends itself as soon as there is a notice, until it is handed over. The
file KEPT, beside the lease, exists until then.
"""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
from pathlib import Path

from ..preemption import lease_file
from ..system import processes
from . import cleanup
from .client import templates

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

KEPT = "kept"
"""The file beside the lease that a hand-over removes."""
_TASK = "FLOW_TASK_ID"
_WATCH = """\
while [ "$(cat "$1" 2>/dev/null)" = "$2" ]; do
  if [ -e "$3" ]; then echo 0 >"$4.part" && mv -f "$4.part" "$4"; exit; fi
  sleep 2
done
"""


def keep(request: Mapping[str, Any]) -> dict[str, Any]:
    """Ends all processes of the task but fork servers, sets the lease, and removes the task's directory."""
    left = processes.kill_all(lambda: _members(str(request["task"])))
    if left:
        return {"ok": False, "error": f"processes {sorted(left)} do not end"}
    try:
        lease_file.renew(Path(request["lease"]), float(request["seconds"]))
    except OSError as error:
        return {"ok": False, "error": f"its lease cannot be written: {error}"}
    if request["notice"]:
        _watch(Path(request["lease"]), str(request["notice"]))
    if not cleanup.remove_home(str(request["root"]), str(request["home"])):
        return {"ok": False, "error": f"{request['home']} cannot be removed"}
    return {"ok": True}


def _watch(lease: Path, notice: str) -> None:
    """Ends the lease when there is a notice, in the background."""
    kept, mark = lease.with_name(KEPT), secrets.token_hex(8)
    kept.write_text(mark)
    subprocess.Popen(
        ["sh", "-c", _WATCH, "sh", str(kept), mark, notice, str(lease)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd="/",
        start_new_session=True,
    )


def _members(task: str) -> set[int]:
    """The task's processes and their descendants, without the fork servers that are kept."""
    found = processes.marked({_TASK: task})
    return (found | processes.descendants(found)) - cleanup.living(templates()) - {os.getpid()}


def main(_: list[str]) -> int:
    """The exit status is 0 even if the answer is no."""
    answer = keep(json.load(sys.stdin))
    sys.stdout.write(json.dumps(answer) + "\n")
    return 0
