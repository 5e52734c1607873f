"""The contract between flowlite and a place where nodes come from, and the registry of those who fulfil it.

An adapter is one class derived from `Provider`, announced as an entry point of the group `flowlite.providers`. The
values that cross the contract are plain frozen dataclasses, so that the supervisor carries them through the store as
JSON and never imports the specs' machinery.
"""

from __future__ import annotations

import dataclasses
import importlib
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
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
"""In an instance's `data`: [[from when, US dollars per hour], ...] where its price has changed."""
ENTRY_POINT_GROUP = "flowlite.providers"

# A source checkout that is not installed has no entry points; the adapters shipped beside this package are found here.
SHIPPED = {
    "local": "provider_adapters.local:LocalProvider",
    "ssh": "provider_adapters.ssh:SshProvider",
    "slurm": "provider_adapters.slurm:SlurmProvider",
    "aws": "provider_adapters.aws:AwsProvider",
    "mithril": "provider_adapters.mithril:MithrilProvider",
}


class _Json:
    """JSON both ways for the flat dataclasses below."""

    def to_json(self) -> dict[str, Any]:
        """A dict of plain JSON values."""
        return dataclasses.asdict(self)  # type: ignore[call-overload, no-any-return]

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Rebuilds from `to_json`; fields of a newer version are ignored."""
        names = {f.name for f in dataclasses.fields(cls)}  # type: ignore[arg-type]
        values = {k: tuple(v) if isinstance(v, list) else v for k, v in data.items() if k in names}
        return cls(**values)


@dataclass(frozen=True, slots=True)
class Plan(_Json):
    """What will be launched, shown before money is spent, and then launched exactly so.

    Attributes:
        provider: Name of the adapter that made it.
        instance_type: The provider's word for the machine, "this machine" locally.
        region: Region or zone, "" where there is none.
        num_instances: Nodes in the gang.
        processes_per_node: Workers on each node.
        gpu: Canonical GPU kind ("h100"), or "" for CPU.
        gpus_per_node: GPUs that each node really has; 0 when the gang is rehearsed on CPU.
        price_per_hour: US dollars per instance and hour as it is now, 0 where nothing is charged.
        extras_per_hour: US dollars per instance and hour for what comes with it: its disk, its public address.
        least_seconds: Each instance is charged for at least so long.
        start_seconds: How long instances are charged before GO at most: their boot, and the bring-up of the gang.
        spot: Whether the machines may be taken away, at a price that may change.
        price_cap: US dollars per instance and hour that must never be exceeded; sent along where the provider takes it.
        max_run_seconds: Longest run after GO, from the time and cost caps; None for no limit.
        max_cost: US dollars in all, or None.
        reserved_seconds: Time before `max_cost` is used up that is kept free for stopping and giving nodes back.
        warm_seconds: How long the nodes are kept after the run for the next task, and charged.
        may_exceed: When the cost may exceed the caps all the same, in words; "" if they are bounds.
        notes: Sentences the user should read before launch (an option without effect here, a rehearsal on CPU).
        options: The adapter's own values, JSON only.
        settings: The provider's settings that it was made with (`ProviderSettings` as JSON): all that anybody who
            leads, reaches or ends the task's instances knows of settings.
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
    notes: tuple[str, ...] = ()
    options: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def highest_price(self) -> float:
        """US dollars per instance and hour that it can come to while the price moves."""
        return max(self.price_per_hour, self.price_cap or 0.0) if self.spot else self.price_per_hour

    @property
    def highest_rate(self) -> float:
        """US dollars per instance and hour with what comes with it, that it can come to."""
        return self.highest_price + self.extras_per_hour

    @property
    def paid_seconds(self) -> float | None:
        """Seconds for which `max_cost` pays the whole gang; None where it sets no end."""
        rate = self.highest_rate * self.num_instances
        return self.max_cost / rate * 3600 if self.max_cost is not None and rate > 0 else None

    @property
    def longest_charge_seconds(self) -> float | None:
        """How long each instance is charged at most, from its launch to its end; None without a cap on time."""
        if self.max_run_seconds is None:
            return None
        run = self.max_run_seconds + self.warm_seconds
        return max(self.least_seconds, self.start_seconds + run + self.reserved_seconds)

    @property
    def worst_case_cost(self) -> float | None:
        """US dollars if the gang runs until its cap; None without a cap on a priced plan."""
        if self.price_per_hour == 0:
            return 0.0
        bounds = [self.max_cost] if self.max_cost is not None else []
        if (seconds := self.longest_charge_seconds) is not None:
            bounds.append(self.highest_rate * self.num_instances * seconds / 3600)
        return min(bounds) if bounds else None


@dataclass(frozen=True, slots=True)
class LaunchIntent(_Json):
    """The wish to launch, durable in the store before the provider is called.

    Attributes:
        token: Idempotency token; the same token never launches twice.
        task_id: Task the instances belong to; goes into their tags.
        count: Instances wanted, all or none.
        plan: The plan being launched, as JSON.
        preload: What an adapter may use to warm nodes up before any agent is there: {"agent": path of the agent's
            zipapp on this machine, "call": what workers will run, "environment": the user's variables, "secrets": names
            of the secret ones, "processes_per_node", "warm_seconds", "setup": whether there is
            one}. Losing it costs time only.
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
        id: The provider's id; node ranks come from these ids sorted.
        task_id: Task it was launched for.
        state: "starting", "running", "ending" when nothing keeps it any more and it is still there, "ended", "warm"
            while it is kept without a task, "returning" while it was taken away and the provider brings it back for
            the task's next launch, or "unreachable" where the provider cannot say whether it still runs.
        address: Where the other nodes of the gang reach it; "" until known.
        price_per_hour: US dollars.
        extras_per_hour: As in `Plan`.
        least_seconds: As in `Plan`.
        ends_by: Unix time by which it has ended by itself, whatever happens; 0 if it has no such end.
        launched_at: Unix time from which it is charged, 0 if unknown.
        data: The adapter's own values, JSON only.
        continues: Id of the warm instance that this one goes on from; "" if it is new.
        ended_at: Unix time until which it is charged, as the provider says; 0 while it runs, or if unknown.
        why: The provider's words for its end, "" if it has none.
        preempted: Whether it was taken away for somebody else.
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
    """What an adapter knows about how the agent must run on one instance.

    Attributes:
        home: Absolute path of the task's directory on the node.
        python: Interpreter for agent and workers.
        bind: The one address the leader's rendezvous listens on; "" for the instance's own `address`.
        workdir: Directory workers start in; None for the task's directory.
        environment: Variables for every process of the node.
        visible_gpus: GPU indices of this node when it shares a machine ("0,1"); None leaves the choice alone.
        warm_socket: Path of the warm process's socket when several nodes share one; None for one per node.
        ports_dir: Directory of port locks when several leaders share a machine.
        master_port: The port to try first as MASTER_PORT; None for 29500.
        volumes: For each file volume `{"name", "path", "source", "interface"}`.
        cache: Directory on the node where files lie by their hash, shared by all tasks; None where nothing is shared.
        python_spec: The Python environment the node makes for the workers; None takes `python` as it is.
        container: The image the workers run in, and with what it is started; None for none.
        lease: {"file", "seconds"}: the machine ends itself if the agent does not renew this file; None for none.
        preemption: {"kind"}: how the node learns that it is taken away (preemption.py); None where it never is.
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
        price_per_month: US dollars for its present size, None where nothing is charged or known.
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


@dataclass(frozen=True, slots=True)
class Finding(_Json):
    """One thing that was looked at before anything is launched, such as credentials.

    Attributes:
        what: What was looked at, in a few words.
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
        fits: Whether it is what was asked for; if not, `note` says why it was left out.
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

    An adapter is made with its settings, and reads no configuration of flowlite's and no variable that stands for a
    setting: the process it works in may have been started from another directory, by another shell. `freeze` is the
    one place where such variables are read, once, for whoever submits.
    """

    name: str

    local_files: ClassVar[Collection[str]] = frozenset()
    """Keys of settings whose values are paths on this machine. Relative ones are made absolute by `freeze`."""

    account_settings: ClassVar[Collection[str]] = frozenset()
    """Keys of settings that say whose account is meant, and where. With the same values for these, an adapter sees and
    ends the same instances, whatever else is set."""

    listing_is_proof: bool = True
    """Whether an instance that `list_instances` does not name any more is known to have ended. Where it is not, as with
    hosts that may only be out of reach, a lost node is replaced once it has surely stopped its workers by itself."""

    may_take_away: bool = False
    """Whether instances may be given to somebody else before their time, also where nothing is charged for them."""

    arrays: bool = False
    """Whether the tasks of one sweep may be launched together; plans then have options["array"] (api/sweep.py)."""

    teardown_seconds: float = 30.0
    """Seconds for which instances are still charged while they are given back; kept free below `max_cost`."""

    def __init__(self, home: Path, settings: ProviderSettings) -> None:
        """
        Args:
            home: FLOW_HOME.
            settings: From `freeze`, perhaps by a process that is long gone.
        """
        self.home = home
        self.settings = settings

    @classmethod
    def freeze(cls, settings: Settings, environment: Mapping[str, str]) -> ProviderSettings:
        """The adapter's settings as they hold now, in a form that means the same anywhere and later.

        Variables that stand for settings are taken up, and paths made absolute. The result is stored with the task, so
        it must hold no secret; only where one is found, such as the path of a file.

        Args:
            settings: All that the files and variables of flowlite say.
            environment: The variables.
        """
        return settings.of_provider(cls.name).with_absolute_paths(cls.local_files)

    @classmethod
    def remembered(cls, home: Path) -> list[ProviderSettings]:
        """The settings needed to end what was launched from this FLOW_HOME, from the adapter's own records.

        Asked by whoever cleans up, for launches of tasks that the store does not know any more.
        """
        return []

    @abstractmethod
    def plan(self, config: TaskConfig) -> Plan:
        """Turns what was asked for into what would be launched. Pure: no instance, no money, no side effect.

        Raises:
            ConfigError: An option cannot be honoured here; the message names it.
            CapExceeded: No machine fits under the caps.
        """

    def price_to_launch(self, plan: Plan) -> float:
        """US dollars per instance and hour that a launch of this plan would be charged, with the settings as they are.

        Asked by the supervisor before it launches a plan that says it costs nothing. Raises ProviderError.
        """
        return plan.price_per_hour

    @abstractmethod
    def launch(self, intent: LaunchIntent) -> list[Instance]:
        """Launches all instances or none. Called with the same token again, returns the same instances.

        Raises:
            CapacityUnavailable: Nothing free now; nothing was launched.
            ProviderError: Refused; nothing was launched.
        """

    @abstractmethod
    def list_instances(self, task_id: str | None = None) -> list[Instance]:
        """What exists and bears the tag of this FLOW_HOME: of one task, or of all.

        An ended instance may be listed as "ended" or not. `flow gc` ends what is listed of tasks that have ended.
        """

    @abstractmethod
    def terminate(self, instances: Sequence[Instance]) -> None:
        """Asks for the end of these instances. Unknown and ended ones are no error. `list_instances` tells when.

        One whose state is "unreachable" is known not to answer: whoever could only ask the machine itself gives it up
        at once, and is not to list it for its task again; whoever can end it without asking it does so.
        """

    def has_left(self) -> bool:
        """Whether instances were given up because they did not answer, on which something may run still.

        A look at files; asks nobody.
        """
        return False

    def revisit(self) -> None:  # noqa: B027 - nothing was given up
        """Ends those of them that answer now."""

    def retain(self, instances: Sequence[Instance]) -> list[Instance]:
        """Notes that not all of what ranks wrote on these instances was fetched.

        From then on `terminate`, and whatever else gives these instances back, leaves those files where they are until
        `forget`, or until files are removed there that nobody has used for long; `connect` and `node_settings` still
        lead to them. Durable before it returns, also for instances that do not answer.

        Returns:
            Those on which that is possible: where it costs nothing.
        """
        return []

    def forget(self, instances: Sequence[Instance]) -> None:  # noqa: B027 - nothing is retained
        """Removes what was retained on these instances, which were given back."""

    def keep(self, instances: Sequence[Instance], seconds: float) -> list[Instance]:
        """Keeps instances for the owner's next task, freed of all that the last one left, and so long at most.

        They end by themselves after that time, whoever looks. `launch` takes them first, where they fit, and names
        them in `Instance.continues`; `terminate` ends them at once; `list_instances` has them as "warm" until then.

        Returns:
            Those that are kept, in state "warm". The others are as they were, to be terminated.
        """
        return []

    def still_warm(self, instances: Sequence[Instance]) -> list[Instance]:
        """Those of some kept instances that are known to be there still, as far as that can be told at once."""
        return list(instances)

    def answers_beside(self, instances: Sequence[Instance]) -> str:
        """Something other than these instances that answers from here just now, by name; "" if nothing does.

        Asked when none of a task's nodes can be reached: if another host or the provider's own service answers, it is
        the nodes that are gone, else our own network may be. Called often, in a thread; takes some seconds at most.
        """
        return ""

    @abstractmethod
    def connect(self, instance: Instance) -> Connection:
        """A way to reach the node. Raises NodeUnreachable."""

    @abstractmethod
    def node_settings(self, plan: Plan, instance: Instance) -> NodeSettings:
        """How the agent runs on that instance. Pure."""

    def others(self) -> list[Instance]:
        """What bears flowlite's tag and was launched from another FLOW_HOME, wherever that is.

        Its `data` has {"home", "owner", "deadline"}: whose it is, and the Unix time by which it should have ended
        (None for no limit).
        """
        return []

    def sweep(self, live: Collection[str], *, dry_run: bool = False) -> list[str]:
        """Removes what was made beside instances and serves none of the `live` tasks any more: groups, requests, keys.

        Never a volume. Called by `flow gc`; gives what was removed, or with `dry_run` what would be, in words.
        """
        return []

    def not_looked_at(self) -> list[str]:
        """What `list_instances`, `others` and `sweep` left out, a line each, such as a region that is denied to us."""
        return []

    def configured(self) -> bool:
        """Whether the user has set it up: settings or credentials are there. Looks at this machine only."""
        return True

    def check(self) -> list[Finding]:
        """Whether credentials and rights are there and enough, without launching anything."""
        return []

    def offers(
        self,
        gpu: str | None = None,
        num_instances: int = 1,
        *,
        spot: bool | None = None,
        region: str | None = None,
    ) -> list[Offer]:
        """What could be had, cheapest first; where nothing fits, the nearest with the reasons."""
        return []

    def create_volume(self, name: str, size_gb: float | None, interface: str) -> VolumeInfo:
        """Makes a volume, or returns the one of that name."""
        raise NotFound(f"the provider {self.name!r} has no volumes")

    def list_volumes(self) -> list[VolumeInfo]:
        """All volumes made through this provider."""
        return []

    def delete_volume(self, name: str) -> None:
        """Deletes a volume and what is on it. Raises NotFound."""
        raise NotFound(f"no volume {name!r} at the provider {self.name!r}")


def provider_names() -> list[str]:
    """Names of all adapters that can be loaded, sorted."""
    return sorted({*SHIPPED, *(e.name for e in _entry_points())})


def adapter_class(name: str) -> type[Provider]:
    """The adapter of that name.

    Raises:
        NotFound: No adapter is announced under the name; the message lists the known ones.
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
    """Makes the adapter that these settings are for. Raises NotFound."""
    return adapter_class(settings.provider)(home, settings)


def settings_of_task(record: TaskRecord) -> ProviderSettings:
    """The settings of its provider that a task was submitted with."""
    frozen = record.plan.get("settings")
    return ProviderSettings.from_json(frozen) if frozen else ProviderSettings(record.provider)


def provider_of_task(record: TaskRecord, home: Path) -> Provider:
    """The adapter for a task that exists, with the settings that the task was submitted with. Raises NotFound."""
    return get_provider(home, settings_of_task(record))


def _entry_points() -> Sequence[EntryPoint]:
    # Slow to import, and not needed for the adapters that are shipped.
    import importlib.metadata

    return tuple(importlib.metadata.entry_points(group=ENTRY_POINT_GROUP))
