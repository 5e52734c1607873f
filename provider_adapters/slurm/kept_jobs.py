"""The nodes of jobs that are kept for another task, as `KeptGangs` asks for them.

The step daemons of a kept job end by themselves when its time is over, and the job with them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from flowlite.errors import ProviderError
from flowlite.state import clock
from provider_adapters.slurm import nodes
from provider_adapters.slurm.launch_notes import given, run_of
from provider_adapters.slurm.login import last_line
from provider_adapters.slurm.queries import parse, state_words
from provider_adapters.ssh.hosts import everywhere

if TYPE_CHECKING:
    from flowlite.provider import Instance, LaunchIntent
    from provider_adapters.rented.ledger import Launch
    from provider_adapters.slurm.context import SlurmContext
    from provider_adapters.slurm.queries.parse import Job

PATIENCE_SECONDS = 60.0
"""Seconds for which a job that was taken over is asked again if Slurm does not answer."""
_REACH_SECONDS, _ANSWER_SECONDS = 30.0, 40.0
# A job is not kept until the very end of its time.
_BEFORE_END = 30.0


class JobNodes:
    """The nodes of the jobs of one FLOW_HOME: as `GangMachines`."""

    def __init__(self, place: SlurmContext) -> None:
        self._place = place

    def token_of(self, instance: Instance) -> str:
        """As `GangMachines.token_of`."""
        return str(instance.data.get("launched_by") or instance.data.get("token") or "")

    def names_of(self, launch: Launch) -> set[str]:
        """As `GangMachines.names_of`."""
        return {each.id for each in given(launch)}

    def keep(self, launch: Launch, instances: Sequence[Instance], seconds: float) -> None:
        """As `GangMachines.keep`."""
        # Slurm would queue it again if it is preempted, and no task would wait for it.
        self._set_requeue(launch, False)
        self._tell(launch, instances, {"do": "keep", "seconds": seconds})

    def take(self, launch: Launch, instances: Sequence[Instance], _: LaunchIntent) -> None:
        """As `GangMachines.take`."""
        self._tell(launch, instances, {"do": "take"})
        self._set_requeue(launch, True)

    def running(self, launch: Launch) -> list[Instance]:
        """The nodes of a launch whose job runs."""
        return given(launch) if self._runs(launch, self._job(launch)) else []

    def time_left(self, launch: Launch) -> tuple[float, float] | None:
        """Seconds until the end of a job's time, and those that it has had; None if it has no limit.

        Both are 0 for a job that does not run.
        """
        job = self._job(launch)
        if job is None or not self._runs(launch, job):
            return 0.0, 0.0
        if not job.end:
            return None
        return job.end - _BEFORE_END - clock.now(), clock.now() - job.start

    def are_wanted(self, launch: Launch) -> bool:
        """Whether Slurm would place another job on the nodes of a launch, if they were free.

        It does not once they are drained, for example by a check of their health that has found a broken GPU.
        """
        login = self._place.login(launch.frozen["login"])
        hosts = ",".join(str(each.data["host"]) for each in given(launch))
        shown = login.try_("scontrol", "-o", "show", "node", hosts).stdout
        return not parse.unwanted_nodes(shown.decode("utf-8", "replace"))

    # Helpers

    def _job(self, launch: Launch) -> Job | None:
        number = launch.ids[-1]
        return self._place.find(launch, [number])[number]

    def _runs(self, launch: Launch, job: Job | None) -> bool:
        """Whether the job still has the nodes that were handed out."""
        same = job is not None and job.restarts == run_of(launch) and not job.taken_at
        return same and job is not None and job.state in state_words.RUNNING

    def _set_requeue(self, launch: Launch, on: bool) -> None:
        if launch.frozen["requeue"]:
            login = self._place.login(launch.frozen["login"])
            update = ("update", f"jobid={launch.ids[-1]}", f"requeue={int(on)}")
            if (done := login.try_("scontrol", *update)).code:
                raise ProviderError(f"scontrol failed on {login.name}: {last_line(done)}")

    def _tell(
        self, launch: Launch, instances: Sequence[Instance], request: Mapping[str, Any]
    ) -> None:
        login = self._place.login(launch.frozen["login"])

        def tell(instance: Instance) -> None:
            with nodes.connect(login, instance.data) as connection:
                connection.open(_REACH_SECONDS)
                connection.ask_daemon(request, _ANSWER_SECONDS)

        everywhere(instances, tell)
