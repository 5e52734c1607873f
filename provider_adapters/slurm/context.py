"""The objects that launching, listing and ending of one FLOW_HOME share: the login, the queue, the ledger."""

from __future__ import annotations

import os
import shutil
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from provider_adapters import identity
from provider_adapters.rented.ledger import Ledger
from provider_adapters.slurm.login import SlurmLogin
from provider_adapters.slurm.queries.parse import Job
from provider_adapters.slurm.queries.partitions import Cluster
from provider_adapters.slurm.queries.queue import QUIET, Queue
from provider_adapters.slurm.settings import SlurmSettings, read_settings
from provider_adapters.slurm.shared import SharedDirectoryEvidence

if TYPE_CHECKING:
    from collections.abc import Collection

    from flowlite.connect.base import Connection
    from flowlite.settings.provider_settings import ProviderSettings
    from provider_adapters.rented.ledger import Launch

_CONFIGURATIONS = tuple(
    Path(each) / "slurm.conf"
    for each in ("/etc/slurm", "/etc/slurm-llnl", "/run/slurm/conf", "/run/slurm", "/usr/local/etc")
)


_NAME = "flow-"


class SlurmContext:
    """One FLOW_HOME at Slurm.

    Args:
        home: FLOW_HOME.
        settings: As given to the adapter.
        connection: The connection to the login node, in tests.
    """

    def __init__(
        self, home: Path, settings: ProviderSettings, connection: Connection | None = None
    ) -> None:
        self.home = home
        self._given = settings
        self.directory = self.home / "slurm"
        self.ledger = Ledger(self.directory / "launches")
        self._connection = connection
        self._logins: dict[str, SlurmLogin] = {}
        self._queues: dict[str, Queue] = {}

    @cached_property
    def settings(self) -> SlurmSettings:
        """The checked settings. Raises ConfigError."""
        return read_settings(self._given)

    @property
    def configured(self) -> bool:
        """Whether the user has configured Slurm, or Slurm is on this machine."""
        # A variable that names a cluster does not say that there is one.
        if self._given.only(self._given.values.keys() - {"cluster"}).names_provider:
            return True
        return self.ledger.is_used or _is_login_node()

    @property
    def home_id(self) -> str:
        """The id of this FLOW_HOME."""
        return identity.home_id(self.home)

    def login(self, written: str | None = None) -> SlurmLogin:
        """The login: that of the settings, or of an earlier launch."""
        where = self.settings.place if written is None else written
        if where not in self._logins:
            python = self.settings.python
            self._logins[where] = SlurmLogin(
                where, self.directory, self._connection, python, self.settings.ssh_config
            )
        return self._logins[where]

    def queue(self, written: str | None = None) -> Queue:
        """The queue of that cluster."""
        login = self.login(written)
        if login.written not in self._queues:
            self._queues[login.written] = Queue(login, self.directory)
        return self._queues[login.written]

    def find(
        self, launch: Launch, ids: Collection[str], within: float = QUIET
    ) -> dict[str, Job | None]:
        """As `Queue.find`, for jobs of a launch. A job that is another one by now has ended.

        Slurm counts from the beginning again when a cluster is made anew under its old name, as is usual in clouds.
        """
        found = self.queue(launch.frozen["login"]).find(ids, within)
        return {
            number: job
            if job is None or is_of(launch, job)
            else Job(number, "COMPLETED", reason="and its number is that of another job now")
            for number, job in found.items()
        }

    def still_of(self, launch: Launch) -> list[str]:
        """The numbers of the jobs of a launch, without those that are known to be other jobs' by now."""
        queue = self.queue(launch.frozen["login"])
        found = queue.find(launch.ids)
        for number in launch.ids:
            if found[number] is None and (shown := queue.shown(number)) is not None:
                found[number] = shown[0]
        return [
            number for number in launch.ids if (job := found[number]) is None or is_of(launch, job)
        ]

    def cluster(self) -> Cluster:
        """The partitions of the cluster."""
        return Cluster(self.login(), self.directory)

    def proof(self, written: str | None = None) -> SharedDirectoryEvidence:
        """What is known about the cluster's shared directory."""
        return SharedDirectoryEvidence(self.login(written), self.directory)

    def comment(self, task: str, name: str) -> str:
        """The comment of a job, by which it is found again."""
        return f"flowlite:{self.home_id}:{task}:{name}"


def _is_login_node() -> bool:
    """Whether this machine belongs to a cluster: Slurm's commands are here and configured for one."""
    sbatch = shutil.which("sbatch")
    if sbatch is None:
        return False
    beside = Path(sbatch).resolve().parent.parent / "etc" / "slurm.conf"
    named = {"SLURM_CONF", "SLURM_CONF_SERVER"} & os.environ.keys()
    return bool(named) or any(each.exists() for each in (beside, *_CONFIGURATIONS))


def job_name(task: str) -> str:
    """The name of a task's jobs."""
    return f"{_NAME}{task}"


def is_of(launch: Launch, job: Job) -> bool:
    """Whether a job with the number of a launch's job is that job, as far as its comment or its name tell."""
    parts = parts_of(job.comment)
    if parts is None:
        return not job.name or job.name.startswith(_NAME)
    # A job that was queued again, or an element of an array, was submitted by another launch.
    return any(each.name == parts[2] or each.parameters.get("adopt") for each in launch.calls)


def parts_of(comment: str) -> tuple[str, str, str] | None:
    """FLOW_HOME, task and call in a comment of ours; None for any other comment."""
    words = comment.split(":")
    if len(words) != 4 or words[0] != "flowlite":
        return None
    return words[1], words[2], words[3]
