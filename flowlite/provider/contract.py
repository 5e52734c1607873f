"""The contract of a provider: what an adapter has to do. `optional.py` has what it may do besides."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from flowlite.provider.instance import Instance, NodeSettings
from flowlite.provider.optional import OptionalMethods
from flowlite.provider.plan import LaunchIntent, Plan
from flowlite.settings.provider_settings import ProviderSettings

if TYPE_CHECKING:
    from flowlite.connect.base import Connection
    from flowlite.settings.settings import Settings
    from flowlite.spec import TaskConfig


class Provider(OptionalMethods, ABC):
    """Where nodes come from. Every method may be called again after a crash, and must then do no harm.

    An adapter is created with its settings. It reads no configuration of flowlite and no environment variable that
    stands for a setting, because its process may have been started from another directory, by another shell. Only
    `freeze` reads such variables, once, at submission.

    Attributes:
        name: The name of the provider, as in its entry point.
        local_files: Keys of settings whose values are paths on this machine. `freeze` makes relative ones absolute.
        account_settings: Keys of settings that select the account and its location. With the same values for these,
            an adapter sees and ends the same instances, whatever its other settings are.
        listing_is_proof: Whether an instance that `list_instances` does not return any more is known to have ended. If
            not, as for hosts that may only be unreachable, a lost node is replaced once it has certainly stopped its
            workers by itself.
        may_take_away: Whether instances may be taken away for another user before their time, even if nothing is
            charged for them.
        avoids: Whether `avoid` keeps a broken machine from being launched again.
        no_spares: Why a task cannot have spares here, in words; "" if it can.
        spot_choices: The values of `spot` that make a difference: (True, False) for a provider that has machines on
            spot and on demand, (True,) for one that has no others than on spot, and () for one without a market.
        caps_spot_price: Whether `launch` has the provider enforce `Plan.price_cap` for machines on spot. The cap of a
            plan may then be lowered, though not below `Plan.price_per_hour`.
        needs_volume_size: Whether a volume that a task names and that is not there is only made if its size is given,
            since it is charged.
        elastic: Whether `launch` respects `LaunchIntent.least`. Without it, tasks with a minimum and a maximum of nodes
            are refused.
        arrays: Whether the tasks of one sweep may be launched together. Plans then have options["array"].
        keeps_gangs: Whether a launch costs so much time that the tasks of a sweep take over one another's machines
            (`keep`) even if the user does not ask for that. Plans of such tasks have options["pool"], the same for one
            sweep: only tasks with the same value may take over a machine. No machine is kept after a cancelled task:
            others wait for it, or it is charged.
        teardown_seconds: Seconds for which instances are still charged while they are given back. Reserved below
            `max_cost`.
    """

    name: str
    local_files: ClassVar[Collection[str]] = frozenset()
    account_settings: ClassVar[Collection[str]] = frozenset()
    listing_is_proof: bool = True
    may_take_away: bool = False
    avoids: bool = False
    no_spares: ClassVar[str] = ""
    spot_choices: ClassVar[tuple[bool, ...]] = ()
    caps_spot_price: bool = False
    needs_volume_size: ClassVar[bool] = False
    elastic: bool = False
    arrays: bool = False
    keeps_gangs: bool = False
    teardown_seconds: float = 30.0

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
        """
        return settings.of_provider(cls.name).with_absolute_paths(cls.local_files)

    @abstractmethod
    def plan(self, config: TaskConfig) -> Plan:
        """Returns what would be launched for a request. Pure: no instance, no money, no side effect.

        Raises:
            ConfigError: An option cannot be honoured here. The message names it.
            CapExceeded: No machine fits under the caps.
        """

    @abstractmethod
    def launch(self, intent: LaunchIntent) -> list[Instance]:
        """Launches all instances or none. For the same token, returns the same instances again.

        If the intent has `least` and the provider is `elastic`, a launch without room for all instances brings as many
        as there is room for, but at least `least`. A later launch for more has another token.

        Does not block while machines boot or a job is queued, so that a cancellation takes effect.

        Raises:
            LaunchPending: The launch is under way, or its outcome is not known; to be called again.
            CapacityUnavailable: There is no room now. Nothing of this token exists but what is listed as ending, and
                nothing comes unless it is called again.
            ProviderError: The provider refused, likewise.
        """

    @abstractmethod
    def list_instances(self, task_id: str | None = None) -> list[Instance]:
        """Returns the existing instances with the tag of this FLOW_HOME, of one task or of all.

        Ended instances may be listed as "ended" or left out. `flow gc` ends listed instances of tasks that have ended.
        Whatever a launch may still bring is listed too, in state "starting", until it is certain that it cannot come:
        a request without an answer (`Instance.unconfirmed`), an open bid, a queued job. An empty listing of a task
        therefore proves that it has nothing, and the supervisor asks another place only then.
        """

    @abstractmethod
    def terminate(self, instances: Sequence[Instance]) -> None:
        """Requests the end of these instances, and withdraws what may still come. Unknown and ended ones are no error.

        `list_instances` shows when they have ended. An instance in state "unreachable" is known not to answer. An
        adapter that can end it only by asking the machine itself gives it up at once, and must not list it for its
        task again. An adapter that can end it without asking the machine does so.
        """

    @abstractmethod
    def connect(self, instance: Instance) -> Connection:
        """Returns a connection to the node. Raises NodeUnreachable."""

    @abstractmethod
    def node_settings(self, plan: Plan, instance: Instance) -> NodeSettings:
        """Returns how the agent runs on that instance. Pure."""
