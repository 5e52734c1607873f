"""One case from its beginning to its end, and what was found."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tests.attack import commands, kept, misdeeds, oracle, striking
from tests.attack.cases import BEFORE, NODES, Case
from tests.attack.leftovers import condition, left_over
from tests.attack.stage import Ground, Stage
from tests.helpers import SUPERVISOR, eventually

PHASE_SECONDS = 120.0
END_SECONDS = 360.0
"""So long after the last fault the task must have ended."""
ACKNOWLEDGED_SECONDS = 20.0
"""So long after a cancellation the task must say so; a second where the machine is not busy."""
CLEAN_SECONDS = 60.0
"""So long after its end, and after the last fault, nothing may be left."""
_LINES = 3
_SHOWN = 6


@dataclass
class Finding:
    """What came of one case.

    Attributes:
        seed: Its seed.
        kind: Its kind.
        case: The case in words.
        first: The kind of its first fault.
        longest: Seconds of its longest fault.
        wrong: What must not be, in words; empty where all held.
        state: How the task ended.
        reason: What it said.
        attempt: The last one.
        ended_after: Seconds from the last fault's end to the task's; negative where it ended before.
        clean_after: Seconds until nothing was left.
        supervisor_mb: The most memory its supervisor had.
        command_mb: The most memory that a `flow` command had which looked at a hostile node or host.
        acknowledged_after: Seconds until a cancellation was acknowledged; negative where nobody cancelled.
        seconds: How long the case took.
        load: The machine's load average at its end.
        story: For a case where something is wrong: what the task's journal says.
    """

    seed: int
    kind: str
    case: str
    first: str = ""
    longest: float = 0.0
    wrong: list[str] = field(default_factory=list)
    state: str = ""
    reason: str = ""
    attempt: int = 0
    ended_after: float = 0.0
    clean_after: float = 0.0
    supervisor_mb: float = 0.0
    command_mb: float = 0.0
    acknowledged_after: float = -1.0
    seconds: float = 0.0
    load: float = 0.0
    story: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """As JSON."""
        return asdict(self)


def play(ground: Ground, case: Case) -> Finding:
    """Plays a case. What goes wrong in it is in what comes back."""
    found, began = of(case), time.monotonic()
    with ground.stage(case) as stage:
        play = _Play(stage, found)
        try:
            play.play()
        except Exception as error:
            found.wrong.append(f"the case itself broke: {type(error).__name__}: {error}")
        if found.wrong and stage.task is not None:
            with suppress(Exception):
                found.story = play.story()
    found.seconds = time.monotonic() - began
    found.load = os.getloadavg()[0]
    return found


def of(case: Case) -> Finding:
    """A finding that has yet to be made."""
    return Finding(case.seed, case.kind, str(case), case.faults[0].kind, case.longest)


class _Play:
    def __init__(self, stage: Stage, found: Finding) -> None:
        self.stage = stage
        self.case = stage.case
        self.found = found
        self.touched: set[str] = set()
        self._due: list[tuple[float, Callable[[], None]]] = []
        self._healed_at = 0.0
        self._ended_at = 0.0
        self._running = 0
        self._cancelled_at = 0.0
        self._asking: threading.Thread | None = None

    def play(self) -> None:
        if any(fault.kind == "client-disk" for fault in self.case.faults):
            striking.mount_small_disk(self.stage)
        try:
            self._play()
        finally:
            if os.path.ismount(self.stage.home):
                striking.unmount_small_disk(self.stage)

    def _play(self) -> None:
        if self.case.kind == "clock":
            for host in self.stage.cluster:
                host.skew_clock(0)
        early = self.case.kind in BEFORE
        if early:
            self._plan_faults()
        if self.case.kind == "kept":
            self._play_kept()
            return
        self.stage.submit()
        if not early:
            self._reach(self.case.phase)
            time.sleep(self.case.jitter)
            self._plan_faults()
        self._plan_holds()
        self._live_on()
        self.found.ended_after = self._ended_at - self._healed_at
        record = self.stage.record
        self.found.state, self.found.reason = record.state, record.reason
        self.found.attempt = record.attempt
        self.found.wrong += oracle.judge(self.stage, self.touched)
        if self.case.kind == "hostile":
            self._ask(commands.OF_A_NODE)
            if self.stage.poisoned.exists():
                self.found.wrong.append("something that a node sent was executed here")
            self.found.wrong += misdeeds.not_done(self.stage, *self.touched)
        if self._asking is not None:
            self._asking.join()
        if self.found.supervisor_mb > commands.MOST_MB:
            self.found.wrong.append(f"the supervisor had {self.found.supervisor_mb:.0f} MB")
        self._wait_until_clean()

    def _play_kept(self) -> None:
        """A host is cut off with what the task lacks then, lies about it, and is honest at last."""
        stage, [fault] = self.stage, self.case.faults
        [node] = fault.nodes
        os.environ["PYTHONPATH"] = f"{kept.IMPATIENT}:{os.environ.get('PYTHONPATH', '')}"
        stage.submit()
        stage.open_import()
        stage.until(self._counts, PHASE_SECONDS)
        self.touched.add(stage.host_of(node).name)
        kept.keep(stage, node)
        record = stage.record
        self.found.state, self.found.reason = record.state, record.reason
        self.found.attempt = record.attempt
        undo = kept.lie(stage, node, fault.way)
        self._ask(commands.OF_WHAT_IS_KEPT)
        self.found.wrong += kept.believed(stage, node)
        undo()
        self._healed_at = self._ended_at = time.monotonic()
        self.found.wrong += [*kept.not_brought(stage), *oracle.judge(stage, self.touched)]
        self._wait_until_clean()

    def story(self) -> list[str]:
        """The task's journal and log, and the workers' signs."""
        lines = [f"{kind}: {text}" for kind, text in self.stage.events]
        lines += [str(life) for life in self.stage.lives()]
        shown = 15 if self.stage.record.final else self._have_supervisor_tell()
        if self.stage.paths.supervisor_log.exists():
            lines += self.stage.paths.supervisor_log.read_text().splitlines()[-shown:]
        return [*lines, *condition(self.stage)]

    def _have_supervisor_tell(self) -> int:
        """Ends a supervisor that does not come to an end, with the stacks of its threads in its log."""
        if (pid := self._supervisor()) is not None:
            os.kill(pid, signal.SIGABRT)
            eventually(lambda: self._supervisor() != pid)
        return 400

    # The phases

    def _reach(self, phase: str) -> None:
        """Waits until the task is there; where it never comes to it, the fault comes all the same."""
        stage = self.stage
        if phase == "bring-up":
            return
        if phase == "join":
            stage.until(lambda: any((d / "leader.json").exists() for d in stage.directories(0)))
            return
        if phase in ("prepare", "before GO"):
            stage.until(lambda: stage.on_all("leader.json"))
            if phase == "before GO":
                stage.open_import(*range(NODES - 1))
            return
        stage.open_import()
        stage.until(self._counts, PHASE_SECONDS)
        if phase == "collecting":
            stage.finish()
            stage.until(lambda: stage.on_all("r{node}.result"), PHASE_SECONDS)
        elif phase == "teardown":
            stage.finish()
            stage.until(lambda: stage.record.outcome, PHASE_SECONDS)

    def _counts(self) -> bool:
        """Whether all workers of the current attempt count."""
        attempt = self.stage.record.attempt
        counting = [
            life for life in self.stage.lives() if life.attempt == attempt and life.lines >= _LINES
        ]
        return self.stage.record.state == "running" and len(counting) >= NODES

    # What happens when

    def _plan_faults(self) -> None:
        at = time.monotonic()
        for fault in self.case.faults:
            at += fault.after

            def begin(fault: Any = fault) -> None:
                self.touched |= {self.stage.host_of(node).name for node in fault.nodes}
                end = striking.strike(self.stage, fault)
                if fault.kind == "sshd":
                    self._asking = threading.Thread(target=self._ask, args=(commands.OF_A_HOST,))
                    self._asking.start()
                self._due.append((time.monotonic() + fault.seconds, end))
                self._due.sort(key=lambda due: due[0])

            self._due.append((at, begin))
            at += fault.seconds
        self._do_what_is_due()

    def _plan_holds(self) -> None:
        now, case, stage = time.monotonic(), self.case, self.stage
        opens = case.open_after if case.phase in ("bring-up", "join", "prepare") else 0.0
        self._due.append((now + opens, stage.open_import))
        if case.phase == "last seconds":
            self._due.append((now + case.finish_after, stage.finish))
        if case.cancel_after is not None:
            self._due.append((now + case.cancel_after, self._cancel))
        self._due.sort(key=lambda due: due[0])

    def _cancel(self) -> None:
        assert self.stage.task is not None
        record = self.stage.record
        self.stage.cancelled_in = record.state, record.outcome or "", time.monotonic()
        self.stage.task.cancel()
        self._cancelled_at = time.monotonic()

    def _ask(self, asked: Sequence[tuple[str, ...]]) -> None:
        """Runs `flow` commands while a node or host is hostile."""
        for words in asked:
            wrong, peak = commands.ask(words)
            self.found.wrong += wrong
            self.found.command_mb = max(self.found.command_mb, peak)

    def _watch_cancellation(self) -> None:
        """Notes when the task says that it was cancelled."""
        if not self._cancelled_at or self.found.acknowledged_after >= 0.0:
            return
        record = self.stage.record
        if record.final or record.state == "stopping" or "cancel" in record.reason:
            self.found.acknowledged_after = time.monotonic() - self._cancelled_at
            if self.found.acknowledged_after > ACKNOWLEDGED_SECONDS:
                self.found.wrong.append(
                    f"cancelled, and not told for {self.found.acknowledged_after:.0f} s"
                )

    def _do_what_is_due(self) -> None:
        while self._due and self._due[0][0] <= time.monotonic():
            self._due.pop(0)[1]()

    def _live_on(self) -> None:
        """Until the task is final and all faults are over."""
        deadline = None
        while True:
            self._do_what_is_due()
            self._watch_cancellation()
            now = time.monotonic()
            if not self._due and deadline is None:
                self._healed_at = self.stage.healed_at = now
                deadline = now + END_SECONDS
            final = self.stage.record.final
            if final and not self._ended_at:
                self._ended_at = now
            if final and deadline is not None:
                return
            if deadline is not None and now > deadline:
                raise TimeoutError(
                    f"no end {END_SECONDS:.0f} s after the last fault: "
                    f"{self.stage.record.state}: {self.stage.record.reason}"
                )
            if deadline is not None and self._counts() and not self._may_hear(now):
                self.stage.finish()
            self._watch_memory()
            time.sleep(0.1)

    def _may_hear(self, now: float) -> bool:
        """Whether a cancellation may still be on its way to the workers, which are not to end by themselves then."""
        return (
            self._cancelled_at > 0.0
            and now - self._healed_at < 2 * oracle.HEARD_BEHIND_A_CUT_SECONDS
        )

    def _watch_memory(self) -> None:
        self._running += 1
        if self._running % 10:
            return
        with suppress(OSError, ValueError):
            if (pid := self._supervisor()) is not None:
                peak = commands.peak_mb(pid)
                self.found.supervisor_mb = max(self.found.supervisor_mb, peak)

    def _supervisor(self) -> int | None:
        """The process id of the task's supervisor, if it lives."""
        with suppress(OSError, ValueError):
            pid = int(json.loads(self.stage.paths.supervisor.read_bytes())["pid"])
            if SUPERVISOR.encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
                return pid
        return None

    def _wait_until_clean(self) -> None:
        since = max(self._healed_at, self._ended_at)
        while left := left_over(self.stage):
            if time.monotonic() - since > CLEAN_SECONDS:
                more = f"; and {len(left) - _SHOWN} more" if len(left) > _SHOWN else ""
                self.found.wrong.append(
                    f"left {CLEAN_SECONDS:.0f} s after the end: {'; '.join(left[:_SHOWN])}{more}"
                )
                break
            time.sleep(1.0)
        self.found.clean_after = time.monotonic() - since
