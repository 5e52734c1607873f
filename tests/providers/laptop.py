"""The `flow` command on the laptop of the box's client."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.flow_commands.run import flow

if TYPE_CHECKING:
    from flowlite.testing.cloud import CloudInABox

ROOT = Path(__file__).resolve().parents[2]


class Laptop:
    """`flow` on the laptop of the box's client."""

    def __init__(self, box: CloudInABox, home: Path, settings: str) -> None:
        (home / "config.toml").write_text(settings)
        variables = {"FLOW_HOME": str(home), "PYTHONPATH": str(ROOT)}
        self.environment = {**box.client_environment(), **variables}

    def flow(self, *words: str, code: int = 0) -> str:
        done = flow(words, env=self.environment, timeout=150)
        assert done.returncode == code, f"{words}\n{done.stdout}\n{done.stderr}"
        return done.stdout + done.stderr

    def code_of(self, *words: str) -> int:
        """The exit code of a command, for one that is tried until it succeeds."""
        return flow(words, env=self.environment, timeout=150).returncode

    def newest(self) -> str:
        """The id of the newest task."""
        return str(self._tasks()[0]["id"])

    def status(self) -> str:
        """The state of the newest task."""
        return str(self._tasks()[0]["status"])

    def _tasks(self) -> list[dict[str, Any]]:
        listed: list[dict[str, Any]] = json.loads(self.flow("status", "--json"))["data"]
        return listed
