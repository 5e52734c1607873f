"""What a step daemon knows of its time: how long it may stay, and what Slurm says when it sends a signal."""

from __future__ import annotations

import json
import math
import os
import re
import signal
import sys
import time
from datetime import datetime

from ..system import atomic_files

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

USUAL = 30.0
"""Seconds that are left when Slurm does not say: its usual KillWait."""
_ASK_SECONDS = 3.0
_TIME_LIMIT, _PREEMPTED = "deadline", "preempted"


class Clock:
    """When a node is given back though nobody says so; a deadline of 0 is none. Monotonic time of one machine only."""

    def __init__(self, lease: float, deadline: float) -> None:
        self._lease = lease
        self._until = time.monotonic() + (deadline or math.inf)
        self._deadline = deadline
        self._contact = time.monotonic()

    def contact(self) -> None:
        """Somebody is there."""
        self._contact = time.monotonic()

    def over(self) -> str:
        """Why it is time; "" if it is not."""
        now = time.monotonic()
        if now > self._until:
            return f"its deadline of {self._deadline:.0f} s is over"
        if now - self._contact > self._lease:
            return f"nobody was there for {self._lease:.0f} s"
        return ""


class Notices:
    """Turns Slurm's signals into `notice.json`: {"kind", "reason", "seconds", "at"}, `at` on this machine's clock.

    Which of its reasons it is, `scontrol show job` says, if it answers at once; the node need not have it.

    Attributes:
        asking: The process that asks, 0 if none does.
        in_grace: Whether the job was told that it will be preempted, and runs for some time yet.
    """

    def __init__(self, home: str, job: int, signal_seconds: float) -> None:
        self._file = f"{home}/notice.json"
        self._job = job
        self._signal_seconds = signal_seconds
        self._reading = -1
        self._number = 0
        self._since = 0.0
        self._text = b""
        self._told = False
        self.asking = 0
        self.in_grace = False

    def ask(self, number: int) -> None:
        """A signal came."""
        if self.asking or (self._told and number != signal.SIGTERM):
            self._number = max(self._number, number)
            return
        self._number, self._since, self._text = number, time.monotonic(), b""
        self._reading, writing = os.pipe()
        os.set_blocking(self._reading, False)
        self.asking = os.fork()
        if self.asking == 0:
            try:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
                null = os.open(os.devnull, os.O_RDWR)
                for target, source in ((0, null), (1, writing), (2, null)):
                    os.dup2(source, target)
                os.execvp("scontrol", ["scontrol", "--oneliner", "show", "job", str(self._job)])
            finally:
                os._exit(127)
        os.close(writing)

    def look(self) -> None:
        """Writes the notice once it is known what it is about."""
        if self._reading < 0:
            return
        ended = time.monotonic() - self._since > _ASK_SECONDS
        try:
            while data := os.read(self._reading, 1 << 16):
                self._text += data
            ended = True
        except BlockingIOError:
            pass
        if ended:
            os.close(self._reading)
            self._reading = -1
            self.asking = 0
            text, now = self._text.decode(errors="replace"), time.time()
            self.in_grace = is_in_grace(text)
            if not self._told:
                self._tell(notice_of(text, self._number, now))

    def _tell(self, notice: dict[str, Any]) -> None:
        self._told = True
        if self._number == signal.SIGUSR2 and not notice["known"] and self._signal_seconds:
            notice["seconds"] = self._signal_seconds
        del notice["known"]
        sys.stderr.write(f"flowlite anchor: {notice['reason']}, {notice['seconds']:.0f} s left\n")
        notice["at"] = self._since
        atomic_files.place(json.dumps(notice).encode(), self._file, 0o600)


def is_in_grace(job: str) -> bool:
    """Whether a job, as `scontrol show job` has it, was told to go and has not come to its end yet."""
    fields = dict(re.findall(r"(?:^|\s)(\w+)=(\S*)", job))
    return fields.get("JobState") == "RUNNING" and _time(fields.get("PreemptTime", "")) is not None


def notice_of(job: str, number: int, now: float) -> dict[str, Any]:
    """What a signal means, from `scontrol show job` in one line; "known" is whether that said when the job ends.

    Both times are those of the cluster, whose nodes keep one clock: munge refuses others.
    """
    fields = dict(re.findall(r"(?:^|\s)(\w+)=(\S*)", job))
    end = _time(fields.get("EndTime", ""))
    known = end is not None and end >= now - 1.0
    seconds = max(0.0, end - now) if end is not None and known else USUAL
    kind, reason = _PREEMPTED, "Slurm ends the job"
    if _time(fields.get("PreemptTime", "")) is not None or fields.get("JobState") == "PREEMPTED":
        reason = "preempted by Slurm"
    elif number == signal.SIGUSR2:
        # Nothing is to be said of the job's end by whoever does not know: should it be preemption, Slurm will say so.
        kind = _TIME_LIMIT
        reason = (
            f"Slurm's time limit of {fields['TimeLimit']} is nearly over"
            if known
            else "SIGUSR2 came"
        )
    elif seconds > USUAL:
        seconds, known = USUAL, False
    return {"kind": kind, "reason": reason, "seconds": seconds, "known": known}


def _time(text: str) -> float | None:
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        return None
