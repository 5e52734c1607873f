"""The box's side of an API server: starts its process and controls it."""

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
    """The controls that all clouds share. A subclass sets `module` and adds those of its cloud."""

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
        """Waits until the API answers. Raises RuntimeError if its process has ended."""
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
        """The process id of the API."""
        return self._process.pid

    @property
    def url(self) -> str:
        """The URL of the API on the laptop."""
        return f"http://127.0.0.1:{self.port}"

    def environment(self) -> dict[str, str]:
        """The environment variables that point a client to this API."""
        return {}

    def ask(self, what: str, **arguments: Any) -> Any:
        """Calls an operation in the API's process. Raises RuntimeError with the reason if it fails."""
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
        """Every call since the last reset, as its action and its parameters."""
        return [(action, parameters) for action, parameters in self.ask("calls")]

    def instances(self) -> list[dict[str, Any]]:
        """All instances with `id`, `state`, `address` and more. Unlike listings, it is not affected by lag."""
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
        late: float = 0.0,
        match: Mapping[str, Any] | None = None,
    ) -> None:
        """Injects faults into the next calls of an action ("*": any), with the arguments of `Fault`."""
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
            late=late,
            match=dict(match or {}),
        )

    def kill_client(
        self, action: str, when: str = "before", pid: int | None = None, skip: int = 0
    ) -> None:
        """Kills the process that makes the next such call, or `pid`, before the call's effect or after it."""
        self.ask("fault", action=action, when=when, kill=True, pid=pid, skip=skip)

    def clear_faults(self) -> None:
        """Removes all faults set with `fault` and `kill_client`."""
        self.ask("clear_faults")

    def preempt(self, ids: list[str], seconds: float) -> None:
        """Preempts instances, with `seconds` of notice."""
        self.ask("preempt", ids=ids, seconds=seconds)

    def die(self, id: str) -> None:
        """Ends an instance at once, as in a power failure."""
        self.ask("die", id=id)

    def lag(self, seconds: float) -> None:
        """Makes listings show the state of `seconds` ago."""
        self.ask("lag", seconds=seconds)

    def unkind(self, seed: int | None) -> None:
        """Injects random faults, from a seed, until the next reset. None stops them."""
        self.ask("unkind", seed=seed)

    def reset(self) -> None:
        """Removes all instances, faults and recorded calls."""
        self.ask("reset")

    def close(self) -> None:
        """Ends the process. Idempotent."""
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
