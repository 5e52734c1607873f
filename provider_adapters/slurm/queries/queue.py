"""The answers of `squeue`, asked for all jobs and all supervisors of a FLOW_HOME at once, at a limited rate.

The answer is stored in a file beside a lock, and shared while it is fresh. A job that an answer does not name is not
necessarily gone: answers may be empty because Slurm was restarted, or is overloaded. It is gone once several
consecutive answers did not name it, and Slurm reports of the job itself that it has ended, or is unknown.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flowlite.errors import AnswerTooLong, NodeUnreachable, ProviderError
from flowlite.node.quick_dataclass import dataclass
from flowlite.node.system import file_lock
from flowlite.node.system.atomic_files import write_atomically
from provider_adapters.slurm.login import SlurmUnreachable, ToolMissing, last_line
from provider_adapters.slurm.queries import parse, state_words
from provider_adapters.slurm.queries.parse import Job

if TYPE_CHECKING:
    from provider_adapters.slurm.login import SlurmLogin

HURRY, USUAL, QUIET = 0.3, 2.0, 10.0
"""Seconds between two queries: just after an action, by default, and when nothing has changed for long."""
HURRY_SECONDS = 10.0
_QUIET_AFTER = 60.0
# How many answers must lack a job, and their distance in seconds, before the job itself is queried.
_MISSED, _MISSED_EVERY = 3, 2.0
# A job that is running in the accounting but unknown to Slurm is given up after this many seconds.
_ORPHANED_SECONDS = 60.0
# A job that is unknown to Slurm is given up after this many seconds if the accounting does not answer how it ended.
_SPEECHLESS_SECONDS = 120.0
# A job that is missing in the answers, and was not looked up for a week, is forgotten.
_FORGOTTEN_SECONDS = 7 * 86400.0
_PREFIX = "flowlite:"
_PATIENCE = 90.0


@dataclass(slots=True)
class QueueAnswer:
    """One answer, and its history.

    Attributes:
        at: Unix time of the answer.
        changed_at: Since when the answer has been the same.
        hurry_until: Until when changes are expected.
        missed: For jobs that answers did not name: how often, since when, and when last.
        many: Whether the user has so many jobs that only ours are asked for.
        trouble: Why the last query got no answer, and when; "" if it got one.
    """

    at: float = 0.0
    changed_at: float = 0.0
    hurry_until: float = 0.0
    jobs: list[Job] = field(default_factory=list)
    missed: dict[str, list[float]] = field(default_factory=dict)
    many: bool = False
    trouble: str = ""
    trouble_at: float = 0.0

    def pause(self, now: float) -> float:
        """Seconds for which the answer may be used."""
        if now < self.hurry_until:
            return HURRY
        # A job that has ended stays among them, and is not looked up any more.
        doubted = any(now - last <= _QUIET_AFTER for _, _, last in self.missed.values())
        quiet = now - self.changed_at > _QUIET_AFTER and not doubted
        return QUIET if quiet else USUAL


class Queue:
    """The jobs of this FLOW_HOME at one cluster.

    Args:
        clock: Unix time, replaced in tests.
    """

    def __init__(
        self, login: SlurmLogin, directory: Path, clock: Callable[[], float] = time.time
    ) -> None:
        self._login = login
        self._directory = directory
        self._file = directory / f"queue-{login.key}.json"
        self._clock = clock

    def jobs(self) -> list[Job]:
        """All of our jobs that Slurm lists, including those that ended within the last minutes. Raises Silent."""
        with self._locked():
            return self._look(()).jobs

    def find(self, ids: Collection[str], within: float = QUIET) -> dict[str, Job | None]:
        """The present state of these jobs; None for a job whose state is uncertain.

        Args:
            within: Maximum age of the answer, in seconds.

        Raises:
            Silent: Slurm does not answer.
        """
        with self._locked():
            look = self._look(ids, within)
            named = {job.id: job for job in look.jobs}
            found: dict[str, Job | None] = {each: named.get(each) for each in ids}
            for each in [each for each in ids if each not in named]:
                count, since, _ = look.missed.get(each, [0, 0.0, 0.0])
                if count >= _MISSED:
                    job = found[each] = self._second_source(each, self._clock() - since)
                    if job is not None and job.state not in state_words.ENDED:
                        look.missed.pop(each, None)
                        self._write(look)
            return found

    def pause(self) -> float:
        """Seconds until it makes sense to ask again."""
        look = self._read()
        now = self._clock()
        return max(0.1, look.at + look.pause(now) - now)

    def hurry(self) -> None:
        """Shortens the interval between queries for a while, after an action."""
        with self._locked():
            look = self._read()
            look.hurry_until = max(look.hurry_until, self._clock() + HURRY_SECONDS)
            self._write(look)

    def fresh(self) -> list[Job]:
        """Like `jobs`, from a new answer. Raises Silent."""
        with self._locked():
            return self._ask(self._read(), ()).jobs

    def by_comment(self, comment: str, name: str) -> list[Job]:
        """Jobs with that comment, or elements of an array with it, the first number first.

        They include those that ended long ago, as far as the cluster keeps them and tells.

        Only the queue has to answer, which has every job that may still have nodes.

        Args:
            name: The job's name, by which the accounting is queried.
        """
        found = {job.id: job for job in self.fresh() if job.comment == comment}
        for job in self._accounting("--name", name, "-S", "now-7days") or ():
            if job.comment == comment:
                found.setdefault(job.id, job)
        return sorted(found.values(), key=lambda job: int(parse.number_of(job)))

    def shown(self, job_id: str) -> tuple[Job, dict[str, str]] | None:
        """The job and all its fields from `scontrol show job`; None if Slurm does not know it. Raises Silent."""
        done = self._login.try_("scontrol", "-o", "show", "job", job_id)
        said = last_line(done)
        # An array element that was cancelled before it began leaves nothing: `Job 7_2 not found`.
        if done.code and ("invalid job id" in said.lower() or said.endswith("not found")):
            return None
        if done.code:
            raise SlurmUnreachable(f"scontrol failed on {self._login.name}: {said}", 5.0)
        return parse.shown_job(done.stdout.decode("utf-8", "replace"))

    # Helpers

    def _look(self, ids: Collection[str], within: float = QUIET) -> QueueAnswer:
        look = self._read()
        now = self._clock()
        if look.trouble and 0 <= now - look.trouble_at < USUAL:
            raise SlurmUnreachable(look.trouble, USUAL)
        if 0 <= now - look.at < min(within, look.pause(now)):
            self._note_missed(look, ids)
            return look
        return self._ask(look, ids)

    def _ask(self, look: QueueAnswer, ids: Collection[str]) -> QueueAnswer:
        try:
            text = self._answer(look)
            listed = [job for job in parse.queue(text) if job.comment.startswith(_PREFIX)]
        except NodeUnreachable:
            raise
        except (ProviderError, ValueError) as error:
            look.trouble, look.trouble_at = str(error), self._clock()
            self._write(look)
            raise SlurmUnreachable(str(error), USUAL) from error
        now = self._clock()
        if _shape(listed) != _shape(look.jobs):
            look.changed_at = now
        look.at, look.jobs, look.trouble = now, listed, ""
        self._note_missed(look, ids)
        self._write(look)
        return look

    def _answer(self, look: QueueAnswer) -> str:
        """The output of `squeue`. Other jobs of the user may be too many, such as the elements of an array."""
        asked = (
            *("squeue", "-h", "-a", "-r", "--states=all"),
            *("--user", self._login.facts.user, "-O", parse.QUEUE_FORMAT),
        )
        if not look.many:
            with suppress(AnswerTooLong):
                return self._login.ask(*asked)
            look.many = True
        return self._login.ask(*asked, only=_PREFIX)

    def _note_missed(self, look: QueueAnswer, ids: Collection[str]) -> None:
        """Counts answers without a job. The same answer counts once."""
        named = {job.id for job in look.jobs}
        before = json.dumps(look.missed)
        for each in list(look.missed):
            if each in named or look.at - look.missed[each][2] > _FORGOTTEN_SECONDS:
                del look.missed[each]
        for each in ids:
            if each not in named:
                count, since, last = look.missed.get(each, [0, look.at, 0.0])
                if look.at - last >= _MISSED_EVERY:
                    look.missed[each] = [count + 1, since, look.at]
        if json.dumps(look.missed) != before:
            self._write(look)

    def _second_source(self, job_id: str, missing_for: float) -> Job | None:
        shown = self.shown(job_id)
        if shown is not None:
            return shown[0]
        told = self._accounting("-j", job_id)
        if told is None:
            known = missing_for >= _SPEECHLESS_SECONDS
        else:
            if told and told[-1].state in state_words.ENDED:
                return told[-1]
            known = not told or missing_for >= _ORPHANED_SECONDS
        if not known:
            return None
        return Job(job_id, "COMPLETED", reason="and Slurm does not know it any more")

    def _accounting(self, *which: str) -> list[Job] | None:
        """Jobs from `sacct`; none if the cluster keeps no accounts, and None if they do not answer now.

        The accounting is a program of its own (slurmdbd), which may be down, or out of the login node's reach, while
        the cluster works.
        """
        try:
            done = self._login.try_(
                "sacct", "-n", "-P", "-X", "-D", "-o", parse.ACCOUNTING_FORMAT, *which
            )
        except SlurmUnreachable:
            return None
        except ToolMissing:
            return []
        return parse.accounting(done.stdout.decode("utf-8", "replace")) if not done.code else []

    def _read(self) -> QueueAnswer:
        with suppress(OSError, ValueError, TypeError, KeyError):
            data: dict[str, Any] = json.loads(self._file.read_bytes())
            return QueueAnswer(**{**data, "jobs": [Job(**each) for each in data["jobs"]]})
        return QueueAnswer()

    def _write(self, look: QueueAnswer) -> None:
        try:
            write_atomically(self._file, json.dumps(asdict(look)))
        except OSError as error:
            raise ProviderError(
                f"{self._file} cannot be written: {error.strerror or error}"
            ) from error

    @contextmanager
    def _locked(self) -> Iterator[None]:
        path = self._file.with_suffix(".lock")
        try:
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise ProviderError(f"{path} cannot be made: {error.strerror or error}") from error
        try:
            if not file_lock.wait(lambda: file_lock.take(descriptor), _PATIENCE):
                raise SlurmUnreachable(
                    f"another process has been asking Slurm for {_PATIENCE:.0f} s", USUAL
                )
            yield
        finally:
            os.close(descriptor)


def _shape(jobs: list[Job]) -> list[tuple[str, str, int, int]]:
    """The parts of an answer whose change counts."""
    return sorted((job.id, job.state, job.restarts, job.nodes) for job in jobs)
