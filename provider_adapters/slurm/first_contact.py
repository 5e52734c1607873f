"""First contact with the nodes of a job that has started. A job that outlives its nodes may begin without some of them.

Slurm takes a node that fails out of such a job. The others keep the numbers that they had when the job started, so the
hosts of that moment are noted: those that the job had when it was looked at first, or what its first node says, if the
job had lost some before.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from flowlite.errors import ProviderError
from flowlite.node.sbatch import hostlist
from flowlite.provider import Instance, LaunchPending
from flowlite.state import clock
from provider_adapters.slurm import nodes
from provider_adapters.slurm.job_submission import SAID
from provider_adapters.slurm.launch_notes import frozen_of, outlives_nodes
from provider_adapters.slurm.queries import state_words

if TYPE_CHECKING:
    from provider_adapters.rented.ledger import Call, Launch
    from provider_adapters.slurm.context import SlurmContext
    from provider_adapters.slurm.ending import Ending
    from provider_adapters.slurm.queries.parse import Job

CONTACT_SECONDS = 240.0
"""Seconds from the start of a job within which its nodes have to answer."""
_PAUSE = 0.5


class FirstContact:
    """First contact with the nodes of the jobs of one FLOW_HOME."""

    def __init__(self, place: SlurmContext, ending: Ending) -> None:
        self._place = place
        self._ending = ending

    def run(self, launch: Launch, call: Call, job: Job) -> list[Instance]:
        """The nodes of a job that runs, once they answer.

        Raises:
            LaunchPending: Some do not answer yet.
            ProviderError: The job cannot go on, and was ended.
        """
        frozen, ledger = frozen_of(launch, call), self._place.ledger
        login, queue = self._place.login(frozen["login"]), self._place.queue(frozen["login"])
        told = queue.shown(job.id)
        if told is None or told[0].state not in state_words.RUNNING:
            raise LaunchPending(f"job {job.id} begins", queue.pause())
        hosts = nodes.hosts_of(*told)
        at_start = self._hosts_at_start(launch, *told, hosts)
        lost = [each for each in at_start if each not in hosts]
        if lost:
            self._check_left(launch, job, lost, at_start)
        try:
            places = nodes.places_of(
                login, told[0], hosts, at_start, frozen["node_dir"], frozen["program"]
            )
        except LaunchPending:
            raise
        except ProviderError as error:
            # The names of nodes that have just booted may not be known yet.
            self._not_met(launch, told[0], [str(error)], [str(error)] * len(hosts))
            raise
        data = {
            "login": frozen["login"],
            "shared": frozen["shared"],
            "node_dir": frozen["node_dir"],
            "login_program": f"{frozen['login_dir']}/blobs/{frozen['program']}",
            "launched_by": launch.token,
            "way_back": nodes.way_back(frozen),
        }
        met = nodes.meet(login, places, data)
        silent = {
            place.host: why for place, why in zip(places, met, strict=True) if isinstance(why, str)
        }
        if silent:
            self._check_start(launch, told[0], at_start, met[0])
            self._not_met(launch, told[0], list(silent.values()), met)
        found = [
            Instance(
                id=place.instance,
                task_id=launch.task,
                state="running",
                address=place.address,
                launched_at=told[0].start or time.time(),
                # An element of an array also has a job number of its own, which `srun` needs.
                data={
                    **{name: value for name, value in each.items() if name != nodes.AT_START},
                    "job": call.ids[0],
                    "raw": place.job,
                },
            )
            for place, each in zip(places, met, strict=True)
            if isinstance(each, dict)
        ]
        notes = [f"sbatch says: {said}"] if (said := call.detail.get(SAID)) else []
        notes += [_passed_over(job, lost, [*silent])] if lost or silent else []
        if notes:
            found[0] = dataclasses.replace(found[0], note="; ".join(notes))
        self._note_shared(launch, frozen, found)
        ledger.note(
            launch.token,
            begun=None,
            unmet=[*silent],
            given=[each.to_json() for each in found],
            restart=told[0].restarts,
        )
        return found

    def _hosts_at_start(
        self, launch: Launch, job: Job, told: dict[str, str], hosts: list[str]
    ) -> list[str]:
        """The hosts that this run of a job had at its start, as far as it is known."""
        if not outlives_nodes(launch):
            return hosts
        run, known = launch.notes.get("hosts") or [-1, []]
        if run == job.restarts and set(hosts) <= set(known):
            return list(known)
        # Slurm still names the host of the script if that has failed.
        script = told.get("BatchHost", "")
        return (
            [script, *hosts]
            if script and script not in hosts
            else self._note_hosts(launch, job, hosts)
        )

    def _note_hosts(self, launch: Launch, job: Job, hosts: list[str]) -> list[str]:
        self._place.ledger.note(launch.token, hosts=[job.restarts, hosts])
        return hosts

    def _check_start(
        self, launch: Launch, job: Job, at_start: list[str], first: dict[str, Any] | str
    ) -> None:
        """Raises LaunchPending if the job had other hosts at its start, as its first node says. They are noted."""
        if not outlives_nodes(launch) or isinstance(first, str):
            return
        with suppress(ValueError):
            said = hostlist.expand(str(first.get(nodes.AT_START, "")))
            if set(at_start) < set(said):
                self._note_hosts(launch, job, said)
                raise LaunchPending(f"job {job.id} has lost nodes since it started", _PAUSE)

    def _check_left(
        self, launch: Launch, job: Job, lost: Sequence[str], at_start: Sequence[str]
    ) -> None:
        """Ends a job that has lost nodes before they were met, and cannot go on without them. Raises ProviderError."""
        left, least = len(at_start) - len(lost), int(launch.frozen["least"])
        why = f"of {len(at_start)} nodes it has {left} left, and needs {least}"
        if at_start[0] in lost:
            why = f"{at_start[0]} had its script"
        elif left >= least:
            return
        self._ending.end(launch)
        raise ProviderError(f"{_passed_over(job, lost)}. The job is cancelled: {why}")

    def _not_met(
        self, launch: Launch, job: Job, silent: list[str], met: Sequence[dict[str, Any] | str]
    ) -> None:
        """Raises for nodes that do not answer yet, or will not. Returns if the job goes on without them.

        Nothing of the task has been started on such a node, so that nothing has to be waited for there.
        """
        began = launch.notes.get("begun") or [job.restarts, clock.now()]
        if began[0] != job.restarts:
            began = [job.restarts, clock.now()]
        self._place.ledger.note(launch.token, begun=began)
        some = f"{silent[0]}{f'; and {len(silent) - 1} more' if len(silent) > 1 else ''}"
        if clock.now() - began[1] <= CONTACT_SECONDS:
            raise LaunchPending(f"job {job.id} begins: {some}", _PAUSE)
        may_go_on = outlives_nodes(launch) and isinstance(met[0], dict)
        if may_go_on and len(met) - len(silent) >= int(launch.frozen["least"]):
            return
        self._ending.end(launch)
        raise ProviderError(
            f"job {job.id} runs, and {len(silent)} of its {len(met)} nodes did not answer within "
            f"{CONTACT_SECONDS:.0f} s: {some}"
        )

    def _note_shared(self, launch: Launch, frozen: dict[str, Any], found: list[Instance]) -> None:
        if not frozen["shared"]:
            return
        blind = [str(each.data["host"]) for each in found if not each.data["shared"]]
        self._place.proof(frozen["login"]).keep(frozen["shared"], not blind)
        if blind and frozen["volumes"]:
            self._ending.end(launch)
            raise ProviderError(
                f"the task has volumes, and {frozen['shared']} of {self._place.login(frozen['login']).name} is not "
                f"the same place on {', '.join(blind[:5])}: set shared_dir under [slurm] to a directory that all "
                "nodes see"
            )


def _passed_over(job: Job, lost: Sequence[str], silent: Sequence[str] = ()) -> str:
    """Which nodes a job began without, for the user."""
    found = [f"{', '.join(lost)}: down, and taken out of the job by Slurm"] if lost else []
    found += [f"{', '.join(silent)}: no answer within {CONTACT_SECONDS:.0f} s"] if silent else []
    return f"job {job.id} began without {'; '.join(found)}"
