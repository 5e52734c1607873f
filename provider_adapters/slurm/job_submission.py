"""Submits each job, and each array of jobs, exactly once, even if the answer of `sbatch` is lost.

Each has a unique comment, which is in the ledger before it is submitted. One whose number got lost is found by its
comment, in the queue and in the accounting. If a submission was repeated, jobs are searched for by comment until the
launch has ended, and all but the first with the same comment are cancelled.
"""

from __future__ import annotations

import re
from contextlib import suppress
from typing import TYPE_CHECKING

from flowlite.errors import ProviderError
from flowlite.provider import LaunchPending
from flowlite.state import clock
from provider_adapters.rented.ledger import MADE, Call, Launch
from provider_adapters.slurm.context import job_name
from provider_adapters.slurm.login import SlurmUnreachable, last_line
from provider_adapters.slurm.queries import parse, refusals, state_words

if TYPE_CHECKING:
    from provider_adapters.slurm.context import SlurmContext
    from provider_adapters.slurm.queries.parse import Job

# A submission whose connection broke may still be in progress.
_UNDERWAY_SECONDS = 10.0
_LOOKS = 3
_NEVER_SECONDS = 30.0
_PAUSE = 2.0
SAID = "said"
"""Key in the detail of a call: what `sbatch` has told the user, besides the number of the job."""


class JobSubmission:
    """Submits jobs, and finds the outcome of submissions."""

    def __init__(self, place: SlurmContext) -> None:
        self._place = place

    def submit(self, launch: Launch, call: Call, script: str) -> Call:
        """Submits the job of a call that is in the ledger.

        Raises:
            LaunchPending: It is not known whether the job was submitted.
            ProviderError: The job was refused.
        """
        ledger, frozen = self._place.ledger, launch.frozen
        login = self._place.login(frozen["login"])
        try:
            # On the command line, too: the accounting may keep only the command.
            comment = f"--comment={self._place.comment(launch.task, call.name)}"
            done = login.try_("sbatch", "--parsable", comment, input=script.encode())
        except SlurmUnreachable as error:
            with suppress(ProviderError):
                ledger.note(launch.token, unanswered=clock.now())
            raise LaunchPending(
                f"whether the job was submitted is not known yet, it is looked up: {error}", _PAUSE
            ) from error
        numbers = _numbers(done.stdout.decode("utf-8", "replace"))
        if len(numbers) != 1 and not done.code and not launch.notes.get("doubtful"):
            raise LaunchPending(
                f"sbatch has not printed a number of a job: {last_line(done)}; it is looked up",
                _PAUSE,
            )
        if len(numbers) != 1:
            said = done.stderr.decode("utf-8", "replace")
            ledger.refused(launch.token, call.name, {"why": last_line(done)})
            raise refusals.explained(said, frozen["asked"])
        self._place.queue(frozen["login"]).hurry()
        # Such as that the site has set a time limit, by job_submit/lua.
        said = refusals.remarks(done.stderr.decode("utf-8", "replace"))
        made = ledger.made(launch.token, call.name, numbers, {SAID: said} if said else None)
        return made.call(call.name)

    def settle(self, launch: Launch, *, repeat: bool) -> bool:
        """Finds out whether the job of an open call was submitted. Returns whether that is known now.

        Args:
            repeat: Whether the caller will submit again if this returns False.

        Raises:
            LaunchPending: It is still not known.
        """
        ledger = self._place.ledger
        with ledger.hold(launch.token):
            found = ledger.read(launch.token)
            call = found.open_call if found else None
            if found is None or call is None:
                return True
            if call.parameters.get("adopt"):
                ledger.made(launch.token, call.name, [str(call.parameters["adopt"])])
                return True
            if self._adopt(found, call):
                return True
            age = clock.now() - call.at
            looks = int(found.notes.get("looks", 0)) + 1
            ledger.note(launch.token, looks=looks)
            if repeat and age >= _UNDERWAY_SECONDS and looks >= _LOOKS:
                ledger.note(launch.token, doubtful=True, looks=None, unanswered=clock.now())
                return False
            # `sbatch` may have run for a minute, or once more. Others may wait for the job that is given up.
            silent = clock.now() - max(call.at, float(found.notes.get("unanswered", 0.0)))
            if not repeat and silent > _NEVER_SECONDS and looks >= _LOOKS:
                ledger.refused(launch.token, call.name, {"why": "Slurm never had it"})
                return True
            if repeat:
                raise LaunchPending(
                    "whether the job was submitted is not known yet, it is looked up", _PAUSE
                )
            return True

    def confirm(self, launch: Launch) -> None:
        """Finds jobs that were submitted twice, and cancels all but the first of a comment."""
        if not launch.notes.get("doubtful") or launch.ended:
            return
        # From the answer that is shared, since a launch may last for weeks.
        jobs = self._place.queue(launch.frozen["login"]).jobs()
        for call in launch.calls:
            if call.state == MADE and not call.parameters.get("adopt"):
                comment = self._place.comment(launch.task, call.name)
                same = [job for job in jobs if job.comment == comment]
                self._cancel_others(launch, call.ids[0], same)

    # Helpers

    def _adopt(self, launch: Launch, call: Call) -> bool:
        """Records the job that has the comment of a call as the call's; returns whether there is one."""
        queue = self._place.queue(launch.frozen["login"])
        comment = self._place.comment(launch.task, call.name)
        found = queue.by_comment(comment, job_name(launch.task))
        if not found:
            return False
        kept = parse.number_of(_first(found))
        self._place.ledger.made(launch.token, call.name, [kept])
        self._cancel_others(launch, kept, found)
        return True

    def _cancel_others(self, launch: Launch, kept: str, found: list[Job]) -> None:
        """Cancels those of some jobs that have another number. The elements of an array have one number."""
        live = [job for job in found if job.state not in state_words.ENDED]
        others = dict.fromkeys(parse.number_of(job) for job in live)
        others.pop(kept, None)
        if others:
            self._place.login(launch.frozen["login"]).cancel(*others)


def _numbers(said: str) -> list[str]:
    """The numbers of jobs in what `sbatch --parsable` has printed, where a site may print lines of its own."""
    found = (re.fullmatch(r"(\d+)(?:;\S*)?", line.strip(), re.ASCII) for line in said.splitlines())
    return list(dict.fromkeys(each[1] for each in found if each))


def _first(found: list[Job]) -> Job:
    """The job to keep: the first that has not ended."""
    return next((job for job in found if job.state not in state_words.ENDED), found[0])
