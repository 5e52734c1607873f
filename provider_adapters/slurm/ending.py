"""Ends jobs: a job is asked to end, and cancelled if it does not. All its nodes are released together. Only a job that
outlives its nodes (`launch_notes.outlives_nodes`) does not end when one of them that has failed is given up.

Step daemons that are asked to end remove the task's directories on their nodes. If some of them hold files that were
not fetched, the job is cancelled instead: step daemons then keep the outputs of the ranks until they are fetched
(`nodes.connect_afterwards`), or for two weeks (`script.py`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from flowlite.errors import ProviderError
from flowlite.provider import Instance
from flowlite.state import clock
from provider_adapters.rented.ledger import Launch, over_of
from provider_adapters.slurm.launch_notes import (
    given,
    given_up,
    has_lost_its_script,
    lost_nodes,
    outlives_nodes,
    retained,
    run_of,
    taken_out,
)
from provider_adapters.slurm.queries import state_words

if TYPE_CHECKING:
    from provider_adapters.rented.kept_gangs import KeptGangs
    from provider_adapters.slurm.arrays import Arrays
    from provider_adapters.slurm.context import SlurmContext
    from provider_adapters.slurm.job_submission import JobSubmission
    from provider_adapters.slurm.queries.parse import Job

# A job whose step daemons were asked to end has ended within this time, with the state of a successful job.
_GENTLE_SECONDS = 5.0
AGAIN = "again"
"""Key in the data of a job that somebody has queued again after its end."""
# Content in the shared directory that was not used for this long is removed.
_UNUSED_DAYS = 30


class Ending:
    """Ends the jobs of one FLOW_HOME."""

    def __init__(
        self, place: SlurmContext, submission: JobSubmission, arrays: Arrays, kept: KeptGangs
    ) -> None:
        self._kept = kept
        self._place = place
        self._submission = submission
        self._arrays = arrays

    def terminate(self, instances: Sequence[Instance]) -> None:
        """Asks Slurm to end the jobs of these instances, but none that another task has taken over.

        Raises:
            ProviderError: Slurm did not obey.
        """
        instances = self._kept.to_end(instances)
        launches = {each.token: each for each in self._place.ledger.live()}
        by_job: dict[str, list[Launch]] = {}
        for each in launches.values():
            for job in each.ids:
                by_job.setdefault(job, []).append(each)
        tokens: dict[str, list[Instance]] = {}
        foreign: dict[str, None] = {}
        for instance in instances:
            job = str(instance.data.get("job") or "")
            mine = by_job.get(job, [])
            token = str(instance.data.get("token") or "")
            if token in launches:
                tokens.setdefault(token, []).append(instance)
            elif mine:
                for each in mine:
                    if _is_there(each, instance) and self._ends(each, instance):
                        tokens.setdefault(each.token, []).append(instance)
            elif job and (instance.data.get(AGAIN) or not self._known_to_have_ended(job)):
                foreign[job] = None
        for token, doomed in tokens.items():
            if not self._is_left_to_slurm(launches[token], doomed):
                self.end(launches[token])
        if foreign:
            self._place.login().cancel(*foreign)

    def end(self, launch: Launch) -> None:
        """Ends the job of a launch. The listing shows when it is gone. Raises ProviderError."""
        ledger = self._place.ledger
        with ledger.hold(launch.token):
            known = ledger.read(launch.token) or launch
            since = float(known.notes.get("ending") or 0.0)
            if not since:
                since = clock.now()
                ledger.note(launch.token, ending=since)
            self._arrays.expects(known)
            known = ledger.read(launch.token) or known
            self._submission.settle(known, repeat=False)
            known = ledger.read(launch.token) or known
            self._submission.confirm(known)
            if not known.ids or known.ended:
                return
            login = self._place.login(known.frozen["login"])
            if (
                not retained(known)
                and self._may_end_gently(known)
                and clock.now() - since < _GENTLE_SECONDS
            ):
                if not known.notes.get("told"):
                    ledger.note(launch.token, told=True)
                    login.cancel("--signal=HUP", known.ids[-1])
            else:
                if numbers := self._place.still_of(known):
                    login.cancel(*numbers)
            self._place.queue(known.frozen["login"]).hurry()

    def cancel(self, launch: Launch) -> None:
        """Cancels a job that has lost its script, as Slurm does with other jobs of which a node fails."""
        if not launch.notes.get("ending"):
            self._place.ledger.note(launch.token, ending=clock.now() - _GENTLE_SECONDS)
        self.end(launch)

    def drop(self, launch: Launch) -> None:
        """Removes all of a launch whose submissions Slurm has refused."""
        with suppress(ProviderError, OSError):
            self._clear(launch)
        self._place.ledger.drop(launch.token)

    def retain(self, instances: Sequence[Instance]) -> list[Instance]:
        """Notes that not all files of the ranks on these nodes were fetched. Returns the nodes that keep them."""
        return [each for each in instances if self._note_retained(each, True)]

    def forget(self, instances: Sequence[Instance]) -> None:
        """Notes that all files on these nodes were fetched."""
        for each in instances:
            self._note_retained(each, False)

    def has_ended(self, instance: Instance) -> bool:
        """Whether the job of a node that keeps files has ended, or ends now."""
        launch = self._launch_of(instance)
        if launch is None or instance.id not in retained(launch):
            return False
        return launch.ended or bool(launch.notes.get("ending"))

    def conclude(self, launch: Launch, jobs: dict[str, Job | None]) -> list[Instance] | None:
        """Closes a launch whose jobs have all ended, once its nodes were handed out or it was given up.

        Returns:
            The nodes that were handed out, marked as ended; None if the launch stays open.
        """
        ledger = self._place.ledger
        if launch.open_call is not None or not (given(launch) or launch.notes.get("ending")):
            return None
        if any(each is None or each.state not in state_words.ENDED for each in jobs.values()):
            return None
        with ledger.hold(launch.token):
            known = ledger.read(launch.token) or launch
            if known.ended:
                # Another process, or thread, has closed it meanwhile.
                return over_of(known)
            over = [gone(known, each, jobs.get(str(each.data["job"]))) for each in given(known)]
            ledger.note(launch.token, over=[each.to_json() for each in over])
            with suppress(ProviderError, OSError):
                self._clear(launch)
            ledger.end(launch.token)
        return over

    # Helpers

    def _launch_of(self, instance: Instance) -> Launch | None:
        token = str(instance.data.get("launched_by") or "")
        return self._place.ledger.read(token) if token else None

    def _note_retained(self, instance: Instance, keeps: bool) -> bool:
        launch = self._launch_of(instance)
        if launch is None or "way_back" not in instance.data:
            return False
        ledger = self._place.ledger
        with ledger.hold(launch.token):
            known = ledger.read(launch.token) or launch
            names = {name for name in retained(known) if name != instance.id}
            ledger.note(launch.token, retained=sorted(names | ({instance.id} if keeps else set())))
        return True

    def _ends(self, launch: Launch, instance: Instance) -> bool:
        """Whether ending this node ends that launch. A node of an earlier run of the job has nothing to end."""
        job_id, run = str(instance.data["job"]), instance.data.get("restart")
        if launch.notes.get("passed_on") or instance.id in lost_nodes(launch):
            return False
        if run is None:
            return True
        job = self._place.find(launch, [job_id])[job_id]
        over = state_words.ENDING | state_words.ENDED
        if job and (job.restarts > int(run) or job.state in over or job.taken_at):
            # Slurm is ending it already, and may requeue the job, which is handled elsewhere.
            return False
        return int(run) >= run_of(launch)

    def _is_left_to_slurm(self, launch: Launch, doomed: Sequence[Instance]) -> bool:
        """Whether a job goes on without these nodes.

        That is so for nodes that do not answer. Without its first node a job would have no script. They are listed as
        ending until Slurm notices that they have failed, or until they have certainly stopped their workers.
        """
        ledger = self._place.ledger
        with ledger.hold(launch.token):
            launch = ledger.read(launch.token) or launch
            now, names = clock.now(), {each.id for each in doomed}
            silent = [each.id for each in doomed if each.state == "unreachable"]
            since = {**dict.fromkeys(silent, now), **given_up(launch)}
            lost = since.keys() | taken_out(launch).keys()
            stays = any(not each.data["nodeid"] and each.id not in lost for each in given(launch))
            if (
                not outlives_nodes(launch)
                or launch.notes.get("ending")
                or not (stays and names <= since.keys())
            ):
                return False
            ledger.note(launch.token, given_up=since)
        return True

    def _may_end_gently(self, launch: Launch) -> bool:
        """Whether there are step daemons to ask: the job runs, and they were reached before."""
        job_id = launch.ids[-1]
        job = self._place.find(launch, [job_id])[job_id]
        runs = (
            job is not None and job.state in state_words.RUNNING and job.restarts == run_of(launch)
        )
        return bool(given(launch)) and runs

    def _known_to_have_ended(self, job: str) -> bool:
        return any(each.ended and job in each.ids for each in self._place.ledger.launches())

    def _clear(self, launch: Launch) -> None:
        """Removes files on the login node that belong to this job only."""
        frozen = launch.frozen
        login = self._place.login(frozen["login"])
        daemons = [f"{frozen['login_dir']}/step-daemons/{each.id}.json" for each in given(launch)]
        outputs = [f"{frozen['login_dir']}/output/{job}.txt" for job in launch.ids]
        probe = f"{frozen['login_dir']}/probe-{frozen['nonce']}"
        login.run(["rm", "-f", "--", probe, *daemons, *outputs])
        blobs = [f"{frozen['login_dir']}/blobs", "-type", "f", "-mtime", f"+{_UNUSED_DAYS}"]
        login.run(["find", *blobs, "!", "-name", frozen["program"], "-delete"])


def _is_there(launch: Launch, instance: Instance) -> bool:
    """Whether a launch is at the cluster of an instance. Another cluster may have a job of the same number."""
    return instance.data.get("login") in (None, launch.frozen.get("login"))


def gone(launch: Launch, instance: Instance, job: Job | None) -> Instance:
    """A node as ended: its job has ended or was requeued."""
    if (told := lost_nodes(launch).get(instance.id)) is not None:
        why, since = told
        return dataclasses.replace(instance, state="ended", why=why, failed=True, ended_at=since)
    if job is None:
        return dataclasses.replace(instance, state="ended")
    now, host = clock.now(), str(instance.data["host"])
    down = list(launch.notes.get("down", ()))
    if job.restarts > int(instance.data.get("restart", 0)):
        # A failed node is no preemption.
        what, taken, at = "Slurm has queued the job again", not down, now
    elif has_lost_its_script(launch):
        what, taken = "the job was ended, since the host of its script failed", False
        at = min(job.end or now, now)
    else:
        what, taken = state_words.end(job.state, None, job.reason), job.state == "PREEMPTED"
        at = min(job.end or now, now)
    return dataclasses.replace(
        instance,
        state="ended",
        why=state_words.because_of(host, down, what),
        preempted=taken,
        failed=host in down,
        ended_at=at,
    )
