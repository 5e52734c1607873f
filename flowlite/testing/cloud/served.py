"""The box's end of an API server: starts its process and gives it orders."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flowlite.testing.hosts.cluster import ROOT


class Served:
    """What the controls of every cloud have in common. A subclass names its `module` and adds what only it can do."""

    name = ""
    module = ""

    def __init__(self, directory: Path) -> None:
        environment = {
            k: v for k, v in os.environ.items() if not k.startswith(("AWS_", "MITHRIL_"))
        }
        self._process = subprocess.Popen(
            [sys.executable, "-m", self.module, str(directory)],
            cwd=ROOT,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
            text=True,
        )
        self._directory = directory
        self._asking = threading.Lock()
        self._channel: socket.socket | None = None

    def wait_until_up(self) -> None:
        """Returns when the API answers. Raises RuntimeError if it never will."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the {self.name} API of the box ended with {self._process.wait()}")
        self.port: int = json.loads(line)["port"]
        self._channel = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._channel.connect(str(self._directory / f"{self.name}.sock"))
        self._replies = self._channel.makefile("r")

    @property
    def pid(self) -> int:
        """The API's process."""
        return self._process.pid

    @property
    def url(self) -> str:
        """Where the API listens, seen from the laptop."""
        return f"http://127.0.0.1:{self.port}"

    def environment(self) -> dict[str, str]:
        """Variables that lead a client to this API."""
        return {}

    def ask(self, what: str, **arguments: Any) -> Any:
        """Has the API's process do something. Raises RuntimeError with its reason if it cannot."""
        assert self._channel is not None
        with self._asking:
            self._channel.sendall(json.dumps({"do": what, **arguments}).encode() + b"\n")
            line = self._replies.readline()
        if not line:
            raise ConnectionError(f"the {self.name} API of the box is gone")
        reply = json.loads(line)
        if "error" in reply:
            raise RuntimeError(f"{what}: {reply['error']}\n{reply['trace']}")
        return reply["value"]

    @property
    def calls(self) -> list[tuple[str, dict[str, Any]]]:
        """Every call since the last reset: the action and its parameters."""
        return [(action, parameters) for action, parameters in self.ask("calls")]

    def instances(self) -> list[dict[str, Any]]:
        """All instances with their `id`, `state`, `address` and more; the truth, whatever listings say."""
        return list(self.ask("instances"))

    def fault(
        self,
        action: str,
        *,
        code: str = "",
        message: str = "",
        status: int = 0,
        when: str = "before",
        times: int = 1,
        skip: int = 0,
        retry_after: float | None = None,
        hang: float = 0.0,
        match: Mapping[str, Any] | None = None,
    ) -> None:
        """Has the next calls of that action go wrong ("*": of any), as `orders.Fault` says."""
        self.ask(
            "fault",
            action=action,
            code=code,
            message=message,
            status=status,
            when=when,
            times=times,
            skip=skip,
            retry_after=retry_after,
            hang=hang,
            match=dict(match or {}),
        )

    def kill_client(
        self, action: str, when: str = "before", pid: int | None = None, skip: int = 0
    ) -> None:
        """Kills who next asks for that action (or `pid`): before the effect, or after it and unanswered."""
        self.ask("fault", action=action, when=when, kill=True, pid=pid, skip=skip)

    def clear_faults(self) -> None:
        """Ends all that was ordered with `fault` and `kill_client`."""
        self.ask("clear_faults")

    def preempt(self, ids: list[str], seconds: float) -> None:
        """Takes instances back, with so many seconds of notice."""
        self.ask("preempt", ids=ids, seconds=seconds)

    def die(self, id: str) -> None:
        """An instance is gone at once, as if its power had been cut."""
        self.ask("die", id=id)

    def lag(self, seconds: float) -> None:
        """Listings show what was so many seconds ago."""
        self.ask("lag", seconds=seconds)

    def unkind(self, seed: int | None) -> None:
        """Has calls go wrong by chance, drawn from a seed, from now until the next reset; None ends it."""
        self.ask("unkind", seed=seed)

    def reset(self) -> None:
        """As on the first day: no instance, no order, no call."""
        self.ask("reset")

    def close(self) -> None:
        """Ends the process. Again is no error."""
        with contextlib.suppress(OSError):
            if self._process.stdin is not None:
                self._process.stdin.close()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
        if self._channel is not None:
            self._replies.close()
            self._channel.close()
