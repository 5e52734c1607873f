"""The sidecar that copies the checkpoints of one node, started by the agent (`agent_side.py`) and ended with it.

A copy that takes too long can be killed with it. It exchanges lines of JSON on standard input and output:

    from the agent   {"do": "check"}                        can the target be used?           "checked"
                     {"do": "prove", "token", "write"}      is it the same on all nodes?      "proved"
                     {"do": "restore", "aside"}             restore the newest set            "restored"
                     {"do": "start", "reaper": pid}         copy from now on                  "started"
                       "again": {"since", "cut"}: in the place of a sidecar that was killed. The workers were started
                       so many seconds ago; "cut": a worker was killed or failed since
                     {"do": "cut"}                          a worker was killed or failed
                     {"do": "hurry"}                        copy now, the end is near
                     {"do": "finish"}                       all have ended; copy once more    "finished"
    to the agent     {"event": as above, ...}, "copied" after each set, "trouble" with an error after a copy that
                     failed, and "failed" with the reason instead of the reply, and "passing": whether that may pass
"""

from __future__ import annotations

import json
import os
import select
import threading
import time

from ..sidecar.process_side import report
from ..system import processes, retrying
from .copier import SETTLE_SECONDS, Copier, CopiesRemoved, Replaced
from .rename_watch import RenameWatch

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

FINAL = 999_999
"""The number of the last set of an attempt, on every node."""
_QUIET_SECONDS = 60.0
"""How long a copy that is due waits for a moment in which no file is being written."""
_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.5, 30.0
_RENAMES_EVERY = 0.02
_LOOKING_SHARE = 20
"""Scans take at most one part in this many of the time."""


class CheckpointSidecar:
    """Serves the agent until it ends. Scans and commands run in the main thread, copies in another."""

    def __init__(self, copier: Copier) -> None:
        self._copier = copier
        self._renames: RenameWatch | None = None
        self._read_renames_at = 0.0
        self._every = float(copier.order["every"])
        self._received = b""
        self._reaper: int | None = None
        self._began: float | None = None
        self._due = 0.0
        self._next_look = 0.0
        self._failures = 0
        self._copying: threading.Thread | None = None
        self._claimed = False
        self._hurried = False
        self._replaced = False

    def serve(self) -> int:
        while True:
            if 0 in self._wait():
                data = os.read(0, 65536)
                if not data:
                    return 0
                *lines, self._received = (self._received + data).split(b"\n")
                for line in lines:
                    self._obey(json.loads(line))
            if self._began is not None:
                self._look_if_due()
                self._copy_if_due()

    def _obey(self, request: Mapping[str, Any]) -> None:
        what = request["do"]
        try:
            if what == "check":
                self._copier.check()
                report("checked")
            elif what == "prove":
                self._copier.prove(str(request["token"]), bool(request["write"]))
                report("proved")
            elif what == "restore":
                report("restored", **self._copier.restore(bool(request["aside"])))
            elif what == "start":
                self._start(request["reaper"], request.get("again"))
            elif what == "cut" and self._began is not None and self._renames is not None:
                self._renames.read()
                self._copier.cut(self._reaper, self._renames.renamed, self._renames.brought)
            elif what == "hurry":
                self._hurried = True
                self._due = min(self._due, time.monotonic())
            elif what == "finish":
                self._finish()
        except OSError as error:
            report("failed", why=str(error), passing=retrying.passing_cause(error) is not None)

    def _start(self, reaper: int | None, again: Mapping[str, Any] | None = None) -> None:
        self._reaper = reaper
        self._renames = RenameWatch(self._copier.root)
        self._began = time.monotonic()
        if again is None:
            self._copier.begin()
        else:
            self._copier.go_on(cut=bool(again["cut"]))
            # The parts of all nodes are numbered by the intervals since the workers were started.
            self._began -= float(again["since"])
        passed = int((time.monotonic() - self._began) / self._every)
        self._due = self._began + (passed + 1) * self._every
        self._copying = threading.Thread(target=self._claim_aside, daemon=True)
        self._copying.start()
        report("started")

    def _finish(self) -> None:
        copier = self._copier
        if self._copying is not None:
            # A copy in progress is not aborted here; the agent kills this process if it takes too long.
            self._copying.join()
        copier.end()
        if copier.order["others_write"]:
            self._wait_for_rest()
        while not self._replaced and not self._copy(FINAL if copier.nodes > 1 else None):
            time.sleep(self._retry_pause())
        # A later scan would take what the user changes from now on for a file that its writer left incomplete.
        self._began = None
        if self._renames is not None:
            self._renames.close()
        report("finished", replaced=self._replaced, **copier.told())

    def _wait_for_rest(self) -> None:
        """Waits until files that other nodes have written do not change any more.

        What their workers wrote last may still be on its way through a network file system, and workers of a lost node
        may still write.
        """
        until = time.monotonic() + 5 * SETTLE_SECONDS
        self._copier.look(None)
        while self._copier.watch.busy and time.monotonic() < until:
            time.sleep(SETTLE_SECONDS / 4)
            self._copier.look(None)

    # Scans and copies when they are due

    def _wait(self) -> list[int]:
        """Waits until something is due or has come. Returns 0, the descriptor of the requests, if some have come.

        Renames are noted soon, so that no new directory is watched too late, but not after each of many writes.
        """
        pause, renames = self._pause(), self._renames
        if renames is None or renames.fileno() < 0:
            return select.select([0], [], [], pause)[0]
        until_read = max(0.0, self._read_renames_at - time.monotonic())
        if until_read:
            pause = until_read if pause is None else min(pause, until_read)
        awaited = [0] if until_read else [0, renames.fileno()]
        ready = select.select(awaited, [], [], pause)[0]
        if renames.fileno() in ready:
            renames.read()
            self._read_renames_at = time.monotonic() + _RENAMES_EVERY
        return ready

    def _pause(self) -> float | None:
        if self._began is None:
            return None
        return max(0.0, min(self._next_look - time.monotonic(), SETTLE_SECONDS))

    def _look_if_due(self) -> None:
        began = time.monotonic()
        if began < self._next_look:
            return
        try:
            self._copier.look(self._reaper)
        except OSError as error:
            report("trouble", error=f"{self._copier.root} cannot be read: {error.strerror}")
        took = time.monotonic() - began
        interval = min(SETTLE_SECONDS, self._every) / 4
        self._next_look = time.monotonic() + max(interval, _LOOKING_SHARE * took)

    def _copy_if_due(self) -> None:
        now = time.monotonic()
        if now < self._due or self._replaced:
            return
        if self._copying is not None and self._copying.is_alive():
            return
        patience = 0.0 if self._hurried else min(_QUIET_SECONDS, self._every / 2)
        if self._copier.watch.busy and now < self._due + patience:
            return
        assert self._began is not None
        passed = int((now - self._began) / self._every)
        # All nodes start at the same time, so a copy that is late or repeated has the number of the interval it is in.
        number = passed if self._copier.nodes > 1 else None
        self._due = self._began + (passed + 1) * self._every
        self._copying = threading.Thread(target=self._copy_aside, args=(number,), daemon=True)
        self._copying.start()

    def _claim_aside(self) -> None:
        try:
            self._copier.claim()
            self._claimed = True
        except OSError as error:
            report("trouble", error=str(error))

    def _copy_aside(self, number: int | None) -> None:
        if not self._copy(number) and not self._replaced:
            self._due = min(self._due, time.monotonic() + self._retry_pause())

    def _copy(self, number: int | None) -> bool:
        """Makes one copy. Returns False if it failed; the error was reported."""
        try:
            if not self._claimed:
                self._copier.claim()
                self._claimed = True
            anything_new = self._copier.copy(number)
            self._failures = 0
        except OSError as error:
            self._replaced = isinstance(error, Replaced)
            self._claimed = self._claimed and not isinstance(error, CopiesRemoved)
            self._failures += 1
            report("trouble", error=str(error))
            return False
        if anything_new:
            report("copied", **self._copier.told())
            self._prune()
        return True

    def _prune(self) -> None:
        try:
            self._copier.prune()
        except OSError as error:
            report("trouble", error=f"old sets stay for now: {error}")

    def _retry_pause(self) -> float:
        return min(_LONGEST_PAUSE, _SHORTEST_PAUSE * 2.0 ** min(self._failures, 10))


def main(arguments: list[str]) -> int:
    """`checkpoints ORDER.json PID`: runs the sidecar of the agent with that process id."""
    processes.die_with_parent(int(arguments[1]))
    with open(arguments[0], encoding="utf-8") as file:
        order = json.load(file)
    try:
        copier = Copier(order)
    except OSError as error:
        report("failed", why=str(error), passing=False)
        return 1
    code = CheckpointSidecar(copier).serve()
    os._exit(code)
