"""The time limits of a step daemon, and the meaning of the signals that it gets from Slurm."""

from __future__ import annotations

import json
import math
import os
import re
import signal
import sys
import time
from datetime import datetime

from ..system import atomic_files, processes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

USUAL = 30.0
"""Seconds left if Slurm does not say: its default KillWait."""
_ASK_SECONDS = 3.0
# A kept node that would end within so many seconds is not taken over.
_NEAR = 3.0
_TIME_LIMIT, _PREEMPTED = "deadline", "preempted"


class Clock:
    """The deadline and the lease of a node, or for how long it is kept, in monotonic time of this machine.

    A deadline of 0 means none.
    """

    def __init__(self, lease: float, deadline: float) -> None:
        self._lease = lease
        self._until = time.monotonic() + (deadline or math.inf)
        self._deadline = deadline
        self._contact = time.monotonic()
        self._kept = 0.0
        self._kept_until = math.inf

    def keep(self, seconds: float) -> None:
        """The node waits for another task for so long, whether or not there is contact."""
        self._kept, self._kept_until = seconds, time.monotonic() + seconds

    def take(self) -> bool:
        """Whether another task uses the kept node from now on, or does already."""
        if self._kept_until - time.monotonic() < _NEAR:
            return False
        self._kept_until = math.inf
        self.contact()
        return True

    @property
    def is_kept(self) -> bool:
        """Whether the node waits for another task."""
        return self._kept_until < math.inf

    def contact(self) -> None:
        """Renews the lease."""
        self._contact = time.monotonic()

    @property
    def is_left_alone(self) -> bool:
        """Whether the lease is over. A node that is kept has none."""
        return not self.is_kept and time.monotonic() - self._contact > self._lease

    def over(self) -> str:
        """Returns why the node must be given back; "" if it need not."""
        now = time.monotonic()
        if now > self._until:
            return f"its deadline of {self._deadline:.0f} s is over"
        if now > self._kept_until:
            return f"it was kept for {self._kept:.0f} s, and no task has taken it over"
        if self.is_left_alone:
            return f"nobody was there for {self._lease:.0f} s"
        return ""


class Notices:
    """Turns Slurm's signals into `notice.json`: {"kind", "reason", "seconds", "at"}, `at` on this machine's clock.

    `scontrol show job` tells the reason of a signal, if it answers in time. A node may have no `scontrol`.

    Attributes:
        asking: Process id of a running `scontrol`, or 0.
        in_grace: Whether the job is being preempted, and still runs in its grace period.
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

    @property
    def is_told(self) -> bool:
        """Whether Slurm has said that it ends the job."""
        return self._told or bool(self.asking)

    def ask(self, number: int) -> None:
        """Handles a signal: asks `scontrol` for its reason."""
        if self.asking or (self._told and number != signal.SIGTERM):
            self._number = max(self._number, number)
            return
        self._number, self._since, self._text = number, time.monotonic(), b""
        self._reading, writing = os.pipe()
        os.set_blocking(self._reading, False)
        self.asking = os.fork()
        if self.asking == 0:
            try:
                os.setsid()
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
        """Writes the notice once the reason is known, or the time for the answer is over."""
        if self._reading < 0:
            return
        late = time.monotonic() - self._since > _ASK_SECONDS
        ended = False
        try:
            while data := os.read(self._reading, 1 << 16):
                self._text += data
            ended = True
        except BlockingIOError:
            pass
        if late and not ended:
            # As a child of this process, a `scontrol` that hangs would also keep the node from being given back.
            processes.send_group(self.asking, signal.SIGKILL)
        if ended or late:
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
        sys.stderr.write(
            f"flowlite step daemon: {notice['reason']}, {notice['seconds']:.0f} s left\n"
        )
        notice["at"] = self._since
        atomic_files.place(json.dumps(notice).encode(), self._file, 0o600)


def is_in_grace(job: str) -> bool:
    """Whether a job, as `scontrol show job` prints it, is being preempted but still runs."""
    fields = dict(re.findall(r"(?:^|\s)(\w+)=(\S*)", job))
    return fields.get("JobState") == "RUNNING" and _time(fields.get("PreemptTime", "")) is not None


def notice_of(job: str, number: int, now: float) -> dict[str, Any]:
    """Returns the meaning of a signal, from one line of `scontrol show job`. "known" tells if that has the end time.

    Both times are on the cluster's clock. Its nodes agree on the time, since munge rejects larger differences.
    """
    fields = dict(re.findall(r"(?:^|\s)(\w+)=(\S*)", job))
    end = _time(fields.get("EndTime", ""))
    known = end is not None and end >= now - 1.0
    seconds = max(0.0, end - now) if end is not None and known else USUAL
    kind, reason = _PREEMPTED, "Slurm ends the job"
    if _time(fields.get("PreemptTime", "")) is not None or fields.get("JobState") == "PREEMPTED":
        reason = "preempted by Slurm"
    elif number == signal.SIGUSR2:
        # Without an end time from Slurm this makes no statement about the job's end. Slurm announces a preemption.
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
