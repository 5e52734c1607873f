"""The listing of nodes of this FLOW_HOME at Slurm, and of jobs that may get nodes at any time.

A job without nodes is listed as one instance in state "starting" under its number. A job whose submission is uncertain
is listed under the name of its call.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from flowlite.node.sbatch import hostlist
from flowlite.provider import Instance
from flowlite.state import clock
from provider_adapters.rented.kept_gangs import is_kept
from provider_adapters.rented.ledger import Launch, over_of
from provider_adapters.slurm.context import parts_of
from provider_adapters.slurm.ending import AGAIN, gone
from provider_adapters.slurm.launch_notes import (
    given,
    given_up,
    has_lost_its_script,
    lost_nodes,
    outlives_nodes,
    run_of,
    taken_out,
    unmet,
)
from provider_adapters.slurm.queries import parse, state_words
from provider_adapters.slurm.queries.queue import HURRY, QUIET

if TYPE_CHECKING:
    from provider_adapters.slurm.arrays import Arrays
    from provider_adapters.slurm.context import SlurmContext
    from provider_adapters.slurm.ending import Ending
    from provider_adapters.slurm.job_submission import JobSubmission
    from provider_adapters.slurm.queries.parse import Job

_NODES = ("scontrol", "-o", "show", "node")
RETURNING = "returning"
"""State of a job whose nodes were handed out and that Slurm has requeued."""


class Listing:
    """The listing of one FLOW_HOME."""

    def __init__(
        self, place: SlurmContext, submission: JobSubmission, ending: Ending, arrays: Arrays
    ) -> None:
        self._place = place
        self._submission = submission
        self._ending = ending
        self._arrays = arrays

    def of_task(self, task: str) -> list[Instance]:
        """All instances of one task, ended ones included, from a recent answer."""
        launches = self._place.ledger.launches(task)
        over = [each for launch in launches for each in over_of(launch)]
        # A query for one task follows an event, so a fresh answer is needed.
        alive = self._alive([each for each in launches if not each.ended], HURRY)
        return list({each.id: each for each in [*over, *alive]}.values())

    def of_all(self) -> list[Instance]:
        """All instances that may hold nodes, known to the ledger or only to Slurm."""
        self._arrays.forget_old()
        launches = self._place.ledger.launches()
        live = [each for each in launches if not each.ended]
        if not self._place.configured:
            return []
        found = {each.id: each for each in self._alive(live)}
        known = {job for each in launches for job in each.ids}
        ended = _last_runs(launches)
        for job in self._place.queue().jobs():
            parts = parts_of(job.comment)
            mine = parts is not None and parts[0] == self._place.home_id
            # An administrator may have queued a job again that had ended, with its task.
            again = job.restarts > ended.get(job.id, job.restarts)
            if mine and (again or job.id not in known) and job.state not in state_words.ENDED:
                task = self._arrays.task_of(parts[1], job.id) if parts else ""
                listed = _unknown(job, task)
                found.setdefault(
                    job.id, replace(listed, data={**listed.data, AGAIN: True}) if again else listed
                )
        return list(found.values())

    def of_others(self) -> list[Instance]:
        """The jobs that other FLOW_HOMEs of this user have submitted."""
        if not self._place.configured:
            return []
        found = []
        for job in self._place.queue().jobs():
            parts = parts_of(job.comment)
            if parts and parts[0] != self._place.home_id and job.state not in state_words.ENDED:
                owner = self._place.login().facts.user
                about = {"home": parts[0], "owner": owner, "deadline": job.end or None}
                found.append(replace(_unknown(job, parts[1]), data={"job": job.id, **about}))
        return found

    # Helpers

    def _alive(self, launches: list[Launch], within: float = QUIET) -> list[Instance]:
        found: list[Instance] = []
        settled, expecting = [], set()
        for launch in launches:
            waits = self._arrays.expects(launch)
            launch = self._place.ledger.read(launch.token) or launch
            if waits and not launch.calls:
                expecting.add(launch.token)
            if launch.open_call is not None:
                self._submission.settle(launch, repeat=False)
                launch = self._place.ledger.read(launch.token) or launch
            if launch.ended:
                # Another process, or thread, has closed it meanwhile.
                found += over_of(launch)
            else:
                settled.append(launch)
        passed_on = {each.token: str(each.notes.get("passed_on") or "") for each in settled}
        for launch in settled:
            jobs = self._jobs(launch, within)
            self._submission.confirm(launch)
            self._arrays.confirm(launch)
            there = [each for job in launch.ids for each in self._listed(launch, job, jobs[job])]
            if launch.open_call is not None:
                there.append(
                    replace(_placeholder(launch, launch.open_call.name, ""), unconfirmed=True)
                )
            elif launch.token in expecting:
                there.append(_placeholder(launch, launch.token, ""))
            # A task that may still get an element is not over.
            may_end = launch.token not in expecting
            over = self._ending.conclude(launch, jobs) if may_end else None
            token = _bearer(launch.token, passed_on)
            if held := launch.notes.get("held"):
                token = str(held["token"])
            found += [replace(each, launch=token) for each in (there if over is None else over)]
        return found

    def _jobs(self, launch: Launch, within: float) -> dict[str, Job | None]:
        if not launch.ids:
            return {}
        return self._place.find(launch, launch.ids, within)

    def _listed(self, launch: Launch, job_id: str, job: Job | None) -> list[Instance]:
        mine = [each for each in given(launch) if each.data["job"] == job_id]
        if outlives_nodes(launch) and mine and job is not None:
            launch = self._note_taken_out(launch, mine, job)
        lost = lost_nodes(launch)
        out = [gone(launch, each, job) for each in mine if each.id in lost]
        left = [each for each in mine if each.id not in lost]
        return [*out, *self._listed_of(launch, job_id, job, left)]

    def _listed_of(
        self, launch: Launch, job_id: str, job: Job | None, mine: list[Instance]
    ) -> list[Instance]:
        """A job with those of its nodes that it still has."""
        if job is None:
            # The last answer does not name it, which proves nothing.
            return mine or [_placeholder(launch, job_id, job_id)]
        again = bool(mine) and job.restarts > run_of(launch)
        if again or (mine and job.state == state_words.NODE_FAIL):
            launch = self._note_down(launch, mine)
        if job.state in state_words.ENDED:
            return [gone(launch, each, job) for each in mine]
        if again:
            left = [gone(launch, each, job) for each in mine]
            if launch.notes.get("passed_on"):
                return left
            back = _placeholder(launch, job_id, job_id, RETURNING)
            return [*left, replace(back, data={**back.data, "restart": job.restarts})]
        if not mine:
            return [_placeholder(launch, job_id, job_id)]
        if job.taken_at:
            why = "Slurm gives its nodes to another job"
            return [replace(each, state="ending", why=why, preempted=True) for each in mine]
        runs = job.state in state_words.RUNNING and not has_lost_its_script(launch)
        silent, there = given_up(launch), "warm" if is_kept(launch) else "running"
        return [
            replace(each, state=there if runs and each.id not in silent else "ending")
            for each in mine
        ]

    def _note_taken_out(self, launch: Launch, mine: list[Instance], job: Job) -> Launch:
        """Records which nodes have failed without which the job goes on."""
        out = taken_out(launch)
        known = [each for each in mine if each.id not in out]
        same = job.state in state_words.RUNNING and job.restarts == run_of(launch)
        if same and 0 < job.nodes < len(known) + len(unmet(launch)):
            shown = self._place.queue(launch.frozen["login"]).shown(job.id)
            left = _hosts_of(shown[1]) if shown and shown[0].state in state_words.RUNNING else []
            if left:
                failed = [each for each in known if str(each.data["host"]) not in left]
                out |= {each.id: (_failed(each), clock.now()) for each in failed}
                silent = [each for each in unmet(launch) if each in left]
                launch = self._place.ledger.note(launch.token, taken_out=out, unmet=silent)
        if same and has_lost_its_script(launch):
            self._ending.cancel(launch)
        return self._place.ledger.read(launch.token) or launch

    def _note_down(self, launch: Launch, mine: list[Instance]) -> Launch:
        """Records which hosts of the run are down that Slurm has ended, while Slurm still shows it."""
        if "down" in launch.notes:
            return launch
        login = self._place.login(launch.frozen["login"])
        hosts = ",".join(str(each.data["host"]) for each in mine)
        shown = login.try_(*_NODES, hosts).stdout.decode("utf-8", "replace")
        return self._place.ledger.note(launch.token, down=parse.down_nodes(shown))


def _last_runs(launches: Sequence[Launch]) -> dict[str, int]:
    """The last known run of each job whose launches have all ended. One that was queued again may have had several."""
    found: dict[str, int] = {}
    for launch in launches:
        if launch.ended:
            for job in launch.ids:
                found[job] = max(0, run_of(launch), found.get(job, 0))
    for launch in launches:
        if not launch.ended:
            for job in launch.ids:
                found.pop(job, None)
    return found


def _bearer(token: str, passed_on: Mapping[str, str]) -> str:
    """The launch that has the job of this launch now: one that was queued again may have been taken over."""
    while after := passed_on.get(token):
        token = after
    return token


def _hosts_of(told: Mapping[str, str]) -> list[str]:
    """The hosts of a job, from its fields; none if they cannot be read."""
    with suppress(ValueError):
        return hostlist.expand(told.get("NodeList", ""))
    return []


def _failed(instance: Instance) -> str:
    return f"its host {instance.data['host']} is down, and Slurm has taken it out of the job"


def _placeholder(launch: Launch, name: str, job: str, state: str = "starting") -> Instance:
    data = {"job": job, "token": launch.token, "login": launch.frozen.get("login", "")}
    return Instance(id=name, task_id=launch.task, state=state, data=data)


def _unknown(job: Job, task: str) -> Instance:
    return Instance(
        id=job.id, task_id=task, state="starting", launched_at=job.start, data={"job": job.id}
    )
