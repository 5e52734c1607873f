"""The courier of this machine: a process that has imported what an agent needs, and forks agents.

The process of a supervisor starts it first of all, and both import at the same time. So the agents of a local task
start within milliseconds. It is the courier of hosts (`node/helper/courier.py`), and ends a minute after its last
request, or with the process that started it. Without it, agents are started by themselves.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from flowlite.connect.courier_answer import CourierAnswer
from flowlite.errors import NodeUnreachable
from flowlite.node.helper.courier import ROOM

# It forks and answers. Only on a machine that is very busy does this take longer than an agent's own start.
_ANSWER_SECONDS = 10.0
_BLOCK = 1 << 16
# It takes 14 MB. Most tasks need it once, at their beginning.
_UNUSED_SECONDS = 60.0
# All agents of a task have one command line, and the paths are long here.
_ROOM = ROOM * 8
# A pipe holds twice as much. So writing a request never waits for the courier to read it.
_LONGEST_REQUEST = 1 << 15

_lock = threading.Lock()
_present: _Courier | None = None


def start_ahead(program: Path) -> None:
    """Starts the courier of this process, which then imports what an agent needs.

    Args:
        program: The node's program, as it will probably be at the nodes.
    """
    global _present
    with _lock:
        if _present is None:
            try:
                _present = _Courier(program)
            except OSError:
                # Agents are then started by themselves, which shows the error if there still is one.
                return


def start_agent(argv: Sequence[str], log: str, environment: Mapping[str, str]) -> int | None:
    """Has the courier fork the agents of a command.

    Args:
        argv: The command that would start them: the node's program, with its Python.

    Returns:
        The process id; None if there is no courier, or the command does something else or runs another program.
    """
    global _present
    with _lock:
        if _present is None:
            return None
        try:
            return _present.start_agent(argv, log, environment)
        except (OSError, NodeUnreachable):
            _present.end()
            _present = None
            return None


class _Courier:
    def __init__(self, program: Path) -> None:
        # The agents have the environment of this process, which is changed between two tasks.
        self._environment = dict(os.environ)
        self._child = subprocess.Popen(
            [sys.executable, "-I", "-S", str(program), "courier", _ROOM],
            cwd="/",
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
            start_new_session=True,
        )
        # Otherwise it would be a zombie from its end until that of this process.
        threading.Thread(target=self._child.wait, name="flowlite-courier", daemon=True).start()
        self._greeted = False
        self._send(_line(do="beat", within=_UNUSED_SECONDS) + _line(do="hello"))

    def start_agent(
        self, argv: Sequence[str], log: str, environment: Mapping[str, str]
    ) -> int | None:
        if self._environment != os.environ:
            raise ChildProcessError(
                "the courier of this machine has the environment of another task"
            )
        request = _line(do="start", argv=list(argv), log=log, environment=dict(environment))
        if len(request) > _LONGEST_REQUEST:
            return None
        deadline = time.monotonic() + _ANSWER_SECONDS
        if not self._greeted:
            self._answer(deadline)
            self._greeted = True
        self._send(request)
        pid = self._answer(deadline).get("pid")
        return pid if isinstance(pid, int) else None

    def _send(self, lines: bytes) -> None:
        assert self._child.stdin is not None
        self._child.stdin.write(lines)

    def _answer(self, deadline: float) -> dict[str, object]:
        answers = self._child.stdout
        assert answers is not None
        answer = CourierAnswer("this machine")
        while True:
            left = max(0.0, deadline - time.monotonic())
            if not select.select([answers], [], [], left)[0]:
                raise TimeoutError("the courier of this machine does not answer")
            block = os.read(answers.fileno(), _BLOCK)
            if not block:
                raise ChildProcessError("the courier of this machine has ended")
            if (found := answer.take(block)) is not None:
                return found[0]

    def end(self) -> None:
        """Ends the process."""
        with self._child as child:
            child.kill()


def _line(**request: object) -> bytes:
    return json.dumps(request).encode() + b"\n"
