"""`SlurmProvider`: nodes are the nodes of a Slurm job, submitted on this machine or on a login node.

A gang of one size has one job; one that shrinks and grows may have several.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from flowlite import python_request
from flowlite.errors import ConfigError, FlowError, ProviderError
from flowlite.node.preflight.master_port import PREFERRED
from flowlite.provider import (
    Finding,
    Instance,
    LaunchIntent,
    LaunchPending,
    NodeSettings,
    Offer,
    Plan,
    Provider,
    VolumeInfo,
    VolumePlace,
)
from provider_adapters.rented.kept_gangs import KeptGangs
from provider_adapters.slurm.arrays import Arrays
from provider_adapters.slurm.context import SlurmContext
from provider_adapters.slurm.ending import Ending
from provider_adapters.slurm.job_submission import JobSubmission
from provider_adapters.slurm.kept_jobs import JobNodes
from provider_adapters.slurm.launching import Launching
from provider_adapters.slurm.listing import Listing
from provider_adapters.slurm.login import last_line
from provider_adapters.slurm.queries import state_words
from provider_adapters.slurm.settings import from_environment

if TYPE_CHECKING:
    from flowlite.connect.base import Connection
    from flowlite.settings.provider_settings import ProviderSettings
    from flowlite.settings.settings import Settings
    from flowlite.spec import TaskConfig
    from provider_adapters.slurm.volumes import Volumes

_PORTS = 1000
_JUST_NOW = 1.0
_REMOVAL_SECONDS = 300.0


class SlurmProvider(Provider):
    """Nodes of a job on a Slurm cluster.

    Args:
        home: FLOW_HOME.
        settings: As returned by `freeze`.
        connection: The connection to the login node, in tests.
    """

    name = "slurm"
    no_spares = (
        "Slurm ends the whole job of a gang of one size when one of its nodes fails, and a spare in it with them. "
        "A gang of several sizes goes on without the node"
    )
    local_files = frozenset({"ssh_config"})
    may_take_away = True
    elastic = True
    arrays = True
    keeps_gangs = True

    def __init__(
        self, home: Path, settings: ProviderSettings, connection: Connection | None = None
    ) -> None:
        super().__init__(home, settings)
        self._connection = connection
        # When slurmctld has last said how the jobs of nodes are that do not answer.
        self._answered_at = -math.inf
        # When it has last been asked that in vain.
        self._speechless_at = -math.inf

    @classmethod
    def freeze(cls, settings: Settings, environment: Mapping[str, str]) -> ProviderSettings:
        found = from_environment(super().freeze(settings, environment), environment)
        return found.with_absolute_paths(cls.local_files)

    def plan(self, config: TaskConfig) -> Plan:
        from provider_adapters.slurm.planning import make_plan

        return make_plan(config, self._place.settings, self._place.cluster())

    def launch(self, intent: LaunchIntent) -> list[Instance]:
        with _refused():
            return self._launching.run(intent)

    def list_instances(self, task_id: str | None = None) -> list[Instance]:
        with _refused():
            found = self._listing.of_all() if task_id is None else self._listing.of_task(task_id)
        return sorted(found, key=lambda each: each.id)

    def others(self) -> list[Instance]:
        return self._listing.of_others()

    def terminate(self, instances: Sequence[Instance]) -> None:
        with _refused():
            self._ending.terminate(instances)

    def keep(self, instances: Sequence[Instance], seconds: float) -> list[Instance]:
        with _refused():
            return self._kept.keep(instances, seconds)

    def still_warm(self, instances: Sequence[Instance]) -> list[Instance]:
        return self._kept.still(instances)

    def answers_beside(self, instances: Sequence[Instance]) -> str:
        if time.monotonic() - self._answered_at < _JUST_NOW:
            return "slurmctld"
        if time.monotonic() - self._speechless_at < _JUST_NOW:
            # One that is overloaded still answers a ping, and does not tell suspended nodes from lost ones.
            return ""
        where = next((str(each.data["login"]) for each in instances if "login" in each.data), None)
        try:
            told = self._place.login(where).ask("scontrol", "ping", seconds=10.0)
        except FlowError:
            return ""
        return "slurmctld" if "UP" in told else ""

    def is_suspended(self, instances: Sequence[Instance]) -> bool:
        where = next((str(each.data["login"]) for each in instances if "login" in each.data), None)
        jobs = ",".join(sorted({str(each.data["job"]) for each in instances}))
        try:
            told = self._place.login(where).ask(
                "squeue", "-h", "-o", "%T", "-j", jobs, seconds=10.0
            )
        except LaunchPending:
            self._speechless_at = time.monotonic()
            return False
        except FlowError:
            return False
        # `answers_beside` is asked next, and a slurmctld that is busy takes a second for each answer.
        self._answered_at = time.monotonic()
        return not state_words.SUSPENDED.isdisjoint(told.split())

    def connect(self, instance: Instance) -> Connection:
        from provider_adapters.slurm import nodes

        login = self._place.login(str(instance.data["login"]))
        if self._ending.has_ended(instance):
            return nodes.connect_afterwards(login, instance.data, instance.data["way_back"])
        return nodes.connect(login, instance.data)

    def retain(self, instances: Sequence[Instance]) -> list[Instance]:
        with _refused():
            return self._ending.retain(instances)

    def forget(self, instances: Sequence[Instance]) -> None:
        with _refused():
            for instance in instances:
                home = str(instance.data["home"])
                with self.connect(instance) as connection:
                    done = connection.run(["rm", "-rf", "--", home], timeout=_REMOVAL_SECONDS)
                if done.code:
                    raise ProviderError(
                        f"{instance.id}: {home} cannot be removed: {last_line(done)}"
                    )
            self._ending.forget(instances)

    def node_settings(self, plan: Plan, instance: Instance) -> NodeSettings:
        data, options = instance.data, plan.options
        shared, home = str(data["shared"]), str(data["home"])
        return NodeSettings(
            home=home,
            python=str(data["python"]),
            bind=instance.address,
            workdir=options.get("workdir"),
            environment={"FLOW_TASK_ID": instance.task_id},
            # Other users may have jobs on the same nodes and use the default port.
            master_port=PREFERRED + int(data["raw"]) % _PORTS,
            volumes=tuple(
                {**each, "source": f"{shared}/volumes/{each['name']}"}
                for each in options["volumes"]
            ),
            cache=f"{shared or data['node_dir']}/blobs",
            python_spec=python_request.for_node(options.get("python_spec"), str(data["version"])),
            preemption={"kind": "slurm", "file": f"{home}/notice.json"},
        )

    def configured(self) -> bool:
        return self._place.configured

    def check(self) -> list[Finding]:
        from provider_adapters.slurm.checking import check

        return check(self._place)

    def offers(
        self,
        gpu: str | None = None,
        num_instances: int = 1,
        *,
        spot: bool | None = None,
        region: str | None = None,
    ) -> list[Offer]:
        from provider_adapters.slurm.queries.offers import offers_of

        found = self._place.cluster().partitions()
        wanted = [each for each in found if region in (None, each.name)]
        return offers_of(wanted, gpu, num_instances)

    def create_volume(
        self, name: str, size_gb: float | None, interface: str, region: str | None = None
    ) -> VolumeInfo:
        return self._volumes().create(name, interface)

    def list_volumes(self) -> list[VolumeInfo]:
        return self._volumes().list()

    @contextmanager
    def volume_place(self, name: str) -> Iterator[VolumePlace | None]:
        yield self._volumes().place(name)

    def delete_volume(self, name: str) -> None:
        self._volumes().delete(name)

    # Helpers

    def _volumes(self) -> Volumes:
        from provider_adapters.slurm.volumes import Volumes

        return Volumes(self._place.login(), self._place.settings.shared_dir)

    @cached_property
    def _place(self) -> SlurmContext:
        return SlurmContext(self.home, self.settings, self._connection)

    @cached_property
    def _arrays(self) -> Arrays:
        return Arrays(self._place)

    @cached_property
    def _submission(self) -> JobSubmission:
        return JobSubmission(self._place)

    @cached_property
    def _nodes(self) -> JobNodes:
        return JobNodes(self._place)

    @cached_property
    def _kept(self) -> KeptGangs:
        return KeptGangs(self._place.ledger, self._nodes)

    @cached_property
    def _ending(self) -> Ending:
        return Ending(self._place, self._submission, self._arrays, self._kept)

    @cached_property
    def _launching(self) -> Launching:
        return Launching(
            self._place, self._submission, self._ending, self._arrays, self._nodes, self._kept
        )

    @cached_property
    def _listing(self) -> Listing:
        return Listing(self._place, self._submission, self._ending, self._arrays)


@contextmanager
def _refused() -> Iterator[None]:
    """Reports settings that have become invalid since the plan as a refusal by the provider."""
    try:
        yield
    except ConfigError as error:
        raise ProviderError(str(error)) from error
