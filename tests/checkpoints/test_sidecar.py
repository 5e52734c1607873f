"""The process that copies checkpoints, driven as its agent drives it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from flowlite.node.system import processes


class Driven:
    """A sidecar that copies `root` to `remote`."""

    def __init__(self, tmp_path: Path) -> None:
        self.root, self.memory = tmp_path / "root", tmp_path / "memory.json"
        self.root.mkdir()
        (tmp_path / "storage").mkdir()
        order = {
            "root": str(self.root), "shown_at": "/ckpt",
            "sync": str(tmp_path / "remote"), "storage": str(tmp_path / "storage"),
            "memory": str(self.memory), "every": 0.04, "keep": 3, "node": 0, "nodes": 1, "source": True,
            "others_write": False, "outage": 30.0, "writer": "t1.1", "facts": {},
        }  # fmt: skip
        (tmp_path / "order.json").write_text(json.dumps(order))
        command = processes.own_command(
            sys.executable, "checkpoints", str(tmp_path / "order.json"), str(os.getpid())
        )
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )

    def ask(self, event: str, **request: Any) -> dict[str, Any]:
        """Sends a request, and returns the answer to it."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(request) + "\n")
        for line in self.process.stdout:
            told: dict[str, Any] = json.loads(line)
            if told["event"] == event:
                return told
        raise AssertionError(f"it ended without {event}")

    def end(self) -> int:
        self.process.communicate(timeout=90)
        return self.process.returncode


def test_what_the_user_changes_after_the_end_is_not_called_incomplete(tmp_path: Path) -> None:
    driven = Driven(tmp_path)
    driven.ask("checked", do="check")
    driven.ask("restored", do="restore", aside=True)
    driven.ask("started", do="start", reaper=None)
    (driven.root / "a.pt").write_bytes(b"1")
    assert driven.ask("finished", do="finish")["files"] == 1
    # The agent may take its time to end it, and scans would be due meanwhile.
    for _ in range(3):
        driven.ask("checked", do="check")
    assert driven.end() == 0
    assert json.loads(driven.memory.read_bytes())["clean"]
