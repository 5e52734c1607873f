"""The contract between flowlite and its providers, and the registry of adapters.

An adapter is one class derived from `Provider`, announced as an entry point of the group `flowlite.providers`. The
values that cross the contract are plain frozen dataclasses, so that the supervisor can store them as JSON without
importing the validation of specs.
"""

from __future__ import annotations

import dataclasses
import importlib
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

from flowlite.errors import NotFound
from flowlite.settings.provider_settings import ProviderSettings
from flowlite.settings.suggest import did_you_mean

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    from flowlite.connect.base import Connection
    from flowlite.settings.settings import Settings
    from flowlite.spec import TaskConfig
    from flowlite.state.records import TaskRecord

PRICES = "prices"
"""Key in an instance's `data`: [[from when, US dollars per hour], ...] if its price has changed."""
ENTRY_POINT_GROUP = "flowlite.providers"

# A source checkout that is not installed has no entry points, so the adapters shipped beside this package are listed
# here.
SHIPPED = {
    "local": "provider_adapters.local:LocalProvider",
    "ssh": "provider_adapters.ssh:SshProvider",
    "slurm": "provider_adapters.slurm:SlurmProvider",
    "aws": "provider_adapters.aws:AwsProvider",
    "mithril": "provider_adapters.mithril:MithrilProvider",
}


class _Json:
    """Conversion to and from JSON for the flat dataclasses below."""

    def to_json(self) -> dict[str, Any]:
        """Returns a dict of plain JSON values."""
        return dataclasses.asdict(self)  # type: ignore[call-overload, no-any-return]

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Rebuilds the value from `to_json`. Fields of a newer version are ignored."""
        names = {f.name for f in dataclasses.fields(cls)}  # type: ignore[arg-type]
        values = {k: tuple(v) if isinstance(v, list) else v for k, v in data.items() if k in names}
        return cls(**values)


@dataclass(frozen=True, slots=True)
class Plan(_Json):
    """What will be launched. It is shown before money is spent, and then launched exactly as shown.

    Attributes:
        provider: Name of the adapter that made the plan.
        instance_type: The provider's name of the machine type; "this machine" for the local provider.
        region: Region or zone; "" if there is none.
        num_instances: Nodes in the gang.
        processes_per_node: Workers on each node.
        gpu: Canonical GPU kind ("h100"), or "" for CPU.
        gpus_per_node: GPUs that each node really has; 0 when the gang is rehearsed on CPU.
        price_per_hour: Present price in US dollars per instance and hour; 0 where nothing is charged.
        extras_per_hour: US dollars per instance and hour for its disk and public address.
        least_seconds: Minimum time for which each instance is charged.
        start_seconds: Longest time for which instances are charged before GO: their boot, and the bring-up of the gang.
        spot: Whether the machines may be taken away, at a price that may change.
        price_cap: US dollars per instance and hour that must never be exceeded. Passed on to providers that support it.
        max_run_seconds: Longest run after GO, from the time and cost caps; None for no limit.
        max_cost: US dollars in all, or None.
        reserved_seconds: Time before `max_cost` is used up that is reserved for stopping and giving nodes back.
        warm_seconds: How long the nodes are kept, and charged, after the run for the next task.
        may_exceed: When the cost may exceed the caps, in words; "" if they are strict bounds.
        not_included: What the provider charges besides, in words, which is in no figure of the task and under no cap:
            volumes, which are charged by the month until they are deleted, and traffic.
        notes: Sentences the user should read before launch (an option without effect here, a rehearsal on CPU).
        options: The adapter's own values, JSON only.
        settings: The provider's settings that the plan was made with (`ProviderSettings` as JSON). Every process that
            supervises, reaches or ends the task's instances uses these settings and no others.
    """

    provider: str
    instance_type: str
    num_instances: int
    processes_per_node: int
    region: str = ""
    gpu: str = ""
    gpus_per_node: int = 0
    price_per_hour: float = 0.0
    extras_per_hour: float = 0.0
    least_seconds: float = 0.0
    start_seconds: float = 0.0
    spot: bool = False
    price_cap: float | None = None
    max_run_seconds: float | None = None
    max_cost: float | None = None
    reserved_seconds: float = 0.0
    warm_seconds: float = 0.0
    may_exceed: str = ""
    not_included: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    options: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def highest_price(self) -> float:
        """US dollars per instance and hour that the price can rise to."""
        return max(self.price_per_hour, self.price_cap or 0.0) if self.spot else self.price_per_hour

    @property
    def highest_rate(self) -> float:
        """US dollars per instance and hour, extras included, that it can cost at most."""
        return self.highest_price + self.extras_per_hour

    @property
    def is_paid(self) -> bool:
        """Whether the instances cost anything. Those of a capacity block do for their disks, at a price of zero."""
        return self.highest_rate > 0

    @property
    def paid_seconds(self) -> float | None:
        """Seconds for which `max_cost` pays the whole gang; None if it sets no limit."""
        rate = self.highest_rate * self.num_instances
        return self.max_cost / rate * 3600 if self.max_cost is not None and rate > 0 else None

    @property
    def longest_charge_seconds(self) -> float | None:
        """The longest time for which each instance is charged, from launch to end; None without a cap on time."""
        if self.max_run_seconds is None:
            return None
        run = self.max_run_seconds + self.warm_seconds
        return max(self.least_seconds, self.start_seconds + run + self.reserved_seconds)

    @property
    def worst_case_cost(self) -> float | None:
        """US dollars if the gang runs until its cap; None without a cap on a priced plan."""
        if not self.is_paid:
            return 0.0
        bounds = [self.max_cost] if self.max_cost is not None else []
        if (seconds := self.longest_charge_seconds) is not None:
            bounds.append(self.highest_rate * self.num_instances * seconds / 3600)
        return min(bounds) if bounds else None


@dataclass(frozen=True, slots=True)
class LaunchIntent(_Json):
    """An intent to launch, durable in the store before the provider is called.

    Attributes:
        token: Idempotency token. The same token never launches twice.
        task_id: Task the instances belong to. Written into their tags.
        count: Instances to launch, all or none.
        plan: The plan being launched, as JSON.
        preload: What an adapter may use to prepare nodes before an agent is there: {"agent": path of the agent's
            zipapp on this machine, "call": what workers will run, "environment": the user's variables, "secrets":
            names of the secret ones, "processes_per_node", "warm_seconds", "setup": whether there is one}. Without it,
            the start only takes longer.
    """

    token: str
    task_id: str
    count: int
    plan: dict[str, Any]
    preload: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Instance(_Json):
    """One machine as the provider lists it.

    Attributes:
        id: The provider's id. Node ranks follow from the sorted ids.
        task_id: Task it was launched for.
        state: "starting"; "running"; "ending" while it still exists but nothing keeps it any more; "ended"; "warm"
            while it is kept without a task; "returning" if it was taken away and the provider brings it back for the
            task's next launch; or "unreachable" if the provider cannot say whether it still runs.
        address: Address at which the other nodes of the gang reach it; "" until known.
        price_per_hour: US dollars.
        extras_per_hour: As in `Plan`.
        least_seconds: As in `Plan`.
        ends_by: Unix time by which it has certainly ended by itself; 0 if there is none.
        launched_at: Unix time from which it is charged; 0 if unknown.
        data: The adapter's own values, JSON only.
        continues: Id of the warm instance that it reuses; "" if it is new.
        ended_at: Unix time until which it is charged, according to the provider; 0 while it runs, or if unknown.
        why: The provider's reason for its end; "" if there is none.
        preempted: Whether it was taken away for another customer or user.
        failed: Whether the provider says that this machine itself failed, and not another one of its launch.
        note: What the user is told when it is launched, such as what was passed over for it; "" for nothing.
    """

    id: str
    task_id: str
    state: str = "running"
    address: str = ""
    price_per_hour: float = 0.0
    extras_per_hour: float = 0.0
    least_seconds: float = 0.0
    ends_by: float = 0.0
    launched_at: float = 0.0
    data: dict[str, Any] = field(default_factory=dict)
    continues: str = ""
    ended_at: float = 0.0
    why: str = ""
    preempted: bool = False
    note: str = ""
    failed: bool = False


@dataclass(frozen=True, slots=True)
class NodeSettings(_Json):
    """How the agent must run on one instance.

    Attributes:
        home: Absolute path of the task's directory on the node.
        python: Interpreter for agent and workers.
        bind: The one address the leader's rendezvous listens on; "" for the instance's own `address`.
        workdir: Directory workers start in; None for the task's directory.
        environment: Variables for every process of the node.
        visible_gpus: GPU indices of this node when it shares a machine ("0,1"); None for no restriction.
        warm_socket: Path of the fork server's socket when several nodes share one; None for one per node.
        ports_dir: Directory of port locks when several leaders share a machine.
        master_port: The port to try first as MASTER_PORT; None for 29500.
        volumes: For each file volume `{"name", "path", "source", "interface"}`.
        cache: Directory on the node with files by their hash, shared by all tasks; None if nothing is shared.
        python_spec: The Python environment the node makes for the workers; None uses `python` as it is.
        container: The image the workers run in, and how it is started; None for none.
        lease: {"file", "seconds"}: the machine ends itself if the agent does not renew this file; None for none.
        preemption: {"kind"}: how the node learns that it is taken away (`node/preemption/notices.py`); None if it
            never is.
    """

    home: str
    python: str
    bind: str = ""
    workdir: str | None = None
    environment: dict[str, str] = field(default_factory=dict)
    visible_gpus: str | None = None
    warm_socket: str | None = None
    ports_dir: str | None = None
    master_port: int | None = None
    volumes: tuple[dict[str, Any], ...] = ()
    cache: str | None = None
    python_spec: dict[str, Any] | None = None
    container: dict[str, Any] | None = None
    lease: dict[str, Any] | None = None
    preemption: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class VolumeInfo(_Json):
    """A named volume at the provider.

    Attributes:
        used_by: Tasks or instances that have it mounted.
        price_per_month: US dollars for its present size; None if nothing is charged or known.
        created_at: Unix time from which it is charged; 0 if unknown.
        by_use: Whether it is charged by what is stored on it at the time, so that its past cost is not known.
    """

    name: str
    provider: str
    interface: str
    size_gb: float | None
    location: str
    used_bytes: int | None = None
    region: str = ""
    used_by: tuple[str, ...] = ()
    price_per_month: float | None = None
    created_at: float = 0.0
    by_use: bool = False


@dataclass(frozen=True, slots=True)
class VolumePlace:
    """Where the files of a volume can be reached without a task.

    Attributes:
        connection: A connection to a machine that has the volume. Whoever returns the place closes it.
        command: The words that run Python there.
        directory: The volume's directory there.
    """

    connection: Connection
    command: tuple[str, ...]
    directory: str


@dataclass(frozen=True, slots=True)
class Finding(_Json):
    """The result of one check before a launch, such as of credentials.

    Attributes:
        what: What was checked, in a few words.
        ok: Whether it is as it should be.
        detail: What was found and, if that is not enough, what to do. Never a secret.
    """

    what: str
    ok: bool
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Offer(_Json):
    """One way to get a gang, with its price.

    Attributes:
        spot: Whether the machines may be taken away.
        fits: Whether it meets the request. If not, `note` says why it was left out.
    """

    provider: str
    instance_type: str
    region: str
    gpu: str
    gpus_per_node: int
    price_per_hour: float
    available: bool
    note: str = ""
    spot: bool = False
    fits: bool = True


class Provider(ABC):
    """Where nodes come from. Every method may be called again after a crash, and must then do no harm.

    An adapter is created with its settings. It reads no configuration of flowlite and no environment variable that
    stands for a setting, because its process may have been started from another directory, by another shell. Only
    `freeze` reads such variables, once, at submission.
    """

    name: str

    local_files: ClassVar[Collection[str]] = frozenset()
    """Keys of settings whose values are paths on this machine. `freeze` makes relative ones absolute."""

    account_settings: ClassVar[Collection[str]] = frozenset()
    """Keys of settings that select the account and its location.

    With the same values for these, an adapter sees and ends the same instances, whatever its other settings are.
    """

    listing_is_proof: bool = True
    """Whether an instance that `list_instances` does not return any more is known to have ended.

    If not, as for hosts that may only be unreachable, a lost node is replaced once it has certainly stopped its
    workers by itself.
    """

    may_take_away: bool = False
    """Whether instances may be taken away for another user before their time, even if nothing is charged for them."""

    arrays: bool = False
    """Whether the tasks of one sweep may be launched together. Plans then have options["array"] (`api/sweep.py`)."""

    teardown_seconds: float = 30.0
    """Seconds for which instances are still charged while they are given back. Reserved below `max_cost`."""

    def __init__(self, home: Path, settings: ProviderSettings) -> None:
        """
        Args:
            home: FLOW_HOME.
            settings: From `freeze`, possibly called by a process that has ended long ago.
        """
        self.home = home
        self.settings = settings

    @classmethod
    def freeze(cls, settings: Settings, environment: Mapping[str, str]) -> ProviderSettings:
        """Returns the adapter's present settings in a form that has the same meaning anywhere and later.

        Variables that stand for settings are read, and paths are made absolute. The result is stored with the task, so
        it must not contain a secret, only where to find one, such as the path of a file.

        Args:
            settings: All settings from flowlite's files and variables.
            environment: The environment variables.
        """
        return settings.of_provider(cls.name).with_absolute_paths(cls.local_files)

    @classmethod
    def remembered(cls, home: Path) -> list[ProviderSettings]:
        """Returns the settings needed to end what was launched from this FLOW_HOME, from the adapter's own records.

        Called by the cleanup, for launches of tasks that the store does not know any more.
        """
        return []

    @abstractmethod
    def plan(self, config: TaskConfig) -> Plan:
        """Returns what would be launched for a request. Pure: no instance, no money, no side effect.

        Raises:
            ConfigError: An option cannot be honoured here. The message names it.
            CapExceeded: No machine fits under the caps.
        """

    def price_to_launch(self, plan: Plan) -> float:
        """US dollars per instance and hour that a launch of this plan would be charged now, with the present settings.

        Called by the supervisor before it launches a plan whose price is zero. Raises ProviderError.
        """
        return plan.price_per_hour

    @abstractmethod
    def launch(self, intent: LaunchIntent) -> list[Instance]:
        """Launches all instances or none. For the same token, returns the same instances again.

        Raises:
            CapacityUnavailable: There is no capacity now. Nothing was launched.
            ProviderError: The provider refused. Nothing was launched.
        """

    @abstractmethod
    def list_instances(self, task_id: str | None = None) -> list[Instance]:
        """Returns the existing instances with the tag of this FLOW_HOME, of one task or of all.

        Ended instances may be listed as "ended" or left out. `flow gc` ends listed instances of tasks that have ended.
        """

    @abstractmethod
    def terminate(self, instances: Sequence[Instance]) -> None:
        """Requests the end of these instances. Unknown and ended ones are no error.

        `list_instances` shows when they have ended. An instance in state "unreachable" is known not to answer. An
        adapter that can end it only by asking the machine itself gives it up at once, and must not list it for its
        task again. An adapter that can end it without asking the machine does so.
        """

    def has_left(self) -> bool:
        """Whether instances on which something may still run were given up because they did not answer.

        Reads only files. Makes no network call.
        """
        return False

    def revisit(self) -> None:  # noqa: B027 - nothing was given up
        """Ends those of the instances given up that answer now."""

    def retain(self, instances: Sequence[Instance]) -> list[Instance]:
        """Marks instances from which not all files of the ranks were fetched.

        After that, `terminate` and every other way to give these instances back leave the files in place until
        `forget`, or until files that were unused for a long time are removed there. `connect` and `node_settings`
        still work for them. The mark is durable before the method returns, also for instances that do not answer.

        Returns:
            The instances for which this is possible, which are those where it costs nothing.
        """
        return []

    def forget(self, instances: Sequence[Instance]) -> None:  # noqa: B027 - nothing is retained
        """Removes the files retained on these instances, which were given back."""

    def keep(self, instances: Sequence[Instance], seconds: float) -> list[Instance]:
        """Keeps instances for the owner's next task, for the given time at most, without anything the last task left.

        They end by themselves after that time, even if no process of flowlite runs. `launch` uses fitting ones first,
        and names them in `Instance.continues`. `terminate` ends them at once. `list_instances` lists them as "warm"
        until then.

        Returns:
            The instances that are kept, in state "warm". The others are unchanged, and have to be terminated.
        """
        return []

    def still_warm(self, instances: Sequence[Instance]) -> list[Instance]:
        """Returns those of some warm instances that are known to exist still.

        Must answer at once, so an instance may be gone without that being known yet.
        """
        return list(instances)

    def answers_beside(self, instances: Sequence[Instance]) -> str:
        """Returns the name of something else, not these instances, that answers from here now; "" if nothing does.

        Called when none of a task's nodes can be reached. If another host or the provider's own service answers, the
        nodes are gone; if nothing does, our own network may be down. Called often, in a thread. Takes some seconds at
        most.
        """
        return ""

    @abstractmethod
    def connect(self, instance: Instance) -> Connection:
        """Returns a connection to the node. Raises NodeUnreachable."""

    @abstractmethod
    def node_settings(self, plan: Plan, instance: Instance) -> NodeSettings:
        """Returns how the agent runs on that instance. Pure."""

    def others(self) -> list[Instance]:
        """Returns instances with flowlite's tag that were launched from other FLOW_HOMEs, on this or another machine.

        Their `data` has {"home", "owner", "deadline"}: whose they are, and the Unix time by which they should have
        ended (None for no limit).
        """
        return []

    def sweep(self, live: Collection[str], *, dry_run: bool = False) -> list[str]:
        """Removes what was created beside instances and serves none of the `live` tasks: groups, requests, keys.

        Never removes a volume. Called by `flow gc`.

        Returns:
            What was removed or, with `dry_run`, would be removed, in words.
        """
        return []

    def not_looked_at(self) -> list[str]:
        """Returns what listings and `sweep` left out, such as an inaccessible region; a line each."""
        return []

    def configured(self) -> bool:
        """Whether the user has set up the provider, with settings or credentials. Looks at this machine only."""
        return True

    def check(self) -> list[Finding]:
        """Checks whether credentials and permissions exist and suffice, without launching anything."""
        return []

    def offers(
        self,
        gpu: str | None = None,
        num_instances: int = 1,
        *,
        spot: bool | None = None,
        region: str | None = None,
    ) -> list[Offer]:
        """Returns possible gangs, cheapest first. If nothing fits, returns the nearest, with the reasons."""
        return []

    def create_volume(self, name: str, size_gb: float | None, interface: str) -> VolumeInfo:
        """Creates a volume, or returns the existing one of that name."""
        raise NotFound(f"the provider {self.name!r} has no volumes")

    def list_volumes(self) -> list[VolumeInfo]:
        """Returns all volumes created through this provider."""
        return []

    @contextmanager
    def volume_place(self, name: str) -> Iterator[VolumePlace | None]:
        """Yields where a volume's files can be reached; None if only a machine of a task can reach them.

        Raises:
            NotFound: There is no such volume.
            ProviderError: No machine that has it answers.
        """
        yield None

    def delete_volume(self, name: str) -> None:
        """Deletes a volume with its contents. Raises NotFound."""
        raise NotFound(f"no volume {name!r} at the provider {self.name!r}")


def provider_names() -> list[str]:
    """Returns the names of all adapters that can be loaded, sorted."""
    return sorted({*SHIPPED, *(e.name for e in _entry_points())})


def adapter_class(name: str) -> type[Provider]:
    """Returns the adapter of that name.

    Raises:
        NotFound: No adapter is announced under the name. The message lists the known ones.
    """
    target = SHIPPED.get(name)
    if target is None:
        target = next((e.value for e in _entry_points() if e.name == name), None)
    if target is None:
        known = provider_names()
        raise NotFound(
            f"no provider {name!r}{did_you_mean(name, known, 0.7)}; known: {', '.join(known)}"
        )
    module, _, attribute = target.partition(":")
    adapter: type[Provider] = getattr(importlib.import_module(module), attribute)
    return adapter


def get_provider(home: Path, settings: ProviderSettings) -> Provider:
    """Creates the adapter for these settings. Raises NotFound."""
    return adapter_class(settings.provider)(home, settings)


def settings_of_task(record: TaskRecord) -> ProviderSettings:
    """Returns the settings of its provider that a task was submitted with."""
    frozen = record.plan.get("settings")
    return ProviderSettings.from_json(frozen) if frozen else ProviderSettings(record.provider)


def provider_of_task(record: TaskRecord, home: Path) -> Provider:
    """Creates the adapter for an existing task, with the settings the task was submitted with. Raises NotFound."""
    return get_provider(home, settings_of_task(record))


def _entry_points() -> Sequence[EntryPoint]:
    # Imported here because it is slow, and not needed for the adapters that are shipped.
    import importlib.metadata

    return tuple(importlib.metadata.entry_points(group=ENTRY_POINT_GROUP))
