"""Runs a command twice below one fork server: in a forked process, and as a Python of its own."""

from __future__ import annotations

import ast
import json
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flowlite.bundle.script import script_call
from flowlite.node.forkserver import client
from flowlite.node.worker.environment import import_environment, without_launchers
from flowlite.spec import TaskConfig

SECONDS = 90.0


@dataclass
class Seen:
    """What can be seen of a process from outside, and why it was not forked."""

    out: str
    err: str
    code: int | None
    signal: int | None
    why: str

    @property
    def told(self) -> tuple[str, str, int | None, int | None]:
        return self.out, self.err, self.code, self.signal

    @property
    def value(self) -> Any:
        """What the program has printed, as Python's data."""
        return ast.literal_eval(self.out)


class Server:
    """The fork server of one command. `call` is what the client has read from its source."""

    def __init__(
        self,
        directory: Path,
        argv: Sequence[str],
        task: str,
        environment: dict[str, str] | None = None,
        call: dict[str, Any] | None = None,
        kept: float = 0.0,
        python: str = sys.executable,
    ) -> None:
        self.directory, self.argv, self.task = directory, list(argv), task
        self._environment = {**import_environment(python), **(environment or {})}
        self._inherited = without_launchers(os.environ)
        self.call = script_call(TaskConfig(command=self.argv), Path.cwd()) if call is None else call
        options: dict[str, Any] = {
            "task": task,
            "python": python,
            "imports": self.call.get("imports", ()),
            "environment": self._environment,
            "argv": self.argv,
        }
        if kept:
            self.spec = client.make_kept_spec(**options, seconds=kept)
        else:
            name = client.socket_path(f"{task}/{directory}/{argv}")
            log = str(directory.parent / f"{os.path.basename(name)}.log")
            self.spec = client.make_spec(**options, socket=name, log=log, function=False, idle=0.1)
        self.state = self._join() or self._join()

    def _join(self) -> dict[str, Any]:
        """The answer of a new reaper; empty if the fork server has become stale, and has retired."""
        self._connection = client.join(self.spec)
        self._lines = self._connection.makefile("r", encoding="utf-8")
        self._connection.settimeout(SECONDS)
        hello = {"do": "hello", "node": 0, "stop_signal": 15, "grace": 0.5, "scene": {}}
        # What a fork server has said before it retired is still to be read.
        with suppress(BrokenPipeError):
            self._connection.sendall(json.dumps(hello).encode() + b"\n")
        answer: dict[str, Any] = json.loads(self._lines.readline() or "{}")
        return answer if answer.get("event") == "ready" else {}

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self._lines.close()
        self._connection.close()

    def run(
        self, *, forked: bool, environment: dict[str, str] | None = None, rank: int = 0
    ) -> Seen:
        """Runs the command once, and waits for its end."""
        order = self.order(forked=forked, environment=environment, rank=rank)
        started = self._ask("started", do="start", orders=[order])
        exited = self._ask("exited")
        return Seen(
            Path(order["out"]).read_text(errors="surrogateescape"),
            Path(order["err"]).read_text(errors="surrogateescape"),
            exited["code"],
            exited["signal"],
            started["why"],
        )

    def start(self, **options: Any) -> int:
        """Starts the command; returns its process id."""
        return int(self._ask("started", do="start", orders=[self.order(**options)])["pid"])

    def end(self) -> dict[str, Any]:
        return self._ask("exited")

    def order(
        self, *, forked: bool, environment: dict[str, str] | None = None, rank: int = 0
    ) -> dict[str, Any]:
        files = self.directory.parent / f"r{rank}"
        paths = {each: f"{files}.{each}" for each in ("out", "err", "result", "failure")}
        for path in paths.values():
            Path(path).unlink(missing_ok=True)
        given = {
            **self._inherited,
            **self._environment,
            "FLOW_TASK_ID": self.task,
            "RANK": str(rank),
            **(environment or {}),
        }
        order = {"rank": rank, "local_rank": rank, "node": 0, "name": "test", **paths}
        order |= {"environment": given, "workdir": str(self.directory), "argv": self.argv}
        if forked:
            order["ahead"] = {
                each: self.call.get(each, []) for each in ("imports", "late", "writes")
            }
        return order

    def _ask(self, event: str, **request: Any) -> dict[str, Any]:
        if request:
            self._connection.sendall(json.dumps(request).encode() + b"\n")
        while line := self._lines.readline():
            heard: dict[str, Any] = json.loads(line)
            if heard["event"] == event:
                return heard
        raise AssertionError(f"the reaper hung up; see {self.spec['log']}")
