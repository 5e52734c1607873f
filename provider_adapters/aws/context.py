"""The objects that all parts of the adapter share: settings, clients, the ledger, and our identity."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flowlite.errors import FlowError
from flowlite.node.quick_dataclass import dataclass
from provider_adapters import identity
from provider_adapters.aws.catalog.regions import Catalog
from provider_adapters.aws.session import Clients
from provider_adapters.aws.settings import AwsSettings
from provider_adapters.rented.cloud_polls import CloudPolls
from provider_adapters.rented.ledger import Call, Ledger
from provider_adapters.rented.suspends import Suspends

if TYPE_CHECKING:
    from flowlite.provider import Instance, Plan
    from provider_adapters.aws.storage.volumes import Volumes
    from provider_adapters.rented.first_contact import Contact
    from provider_adapters.rented.kept_gangs import KeptGangs

TASK, HOME, OWNER = "flowlite:task", "flowlite:home", "flowlite:owner"
TOKEN, DEADLINE, PRICE = "flowlite:token", "flowlite:deadline", "flowlite:price"
EXTRAS = "flowlite:extras"
"""US dollars per hour for the disk and the public address of an instance."""
MACHINES_GONE = "machines_gone"
"""Note in the ledger: only groups are left of this launch."""


@dataclass(eq=False, repr=False)
class Context:
    """The shared objects of one provider object.

    Attributes:
        account: The settings that identify the account.
        left_out: Regions that could not be asked, with the reason: the account's organisation denies them, or they do
            not answer; and launches in another account.
        in_other_accounts: Tokens of launches in another account than that of the credentials.
    """

    home: Path
    settings: AwsSettings
    account: Mapping[str, Any] = field(default_factory=dict)
    clients: Clients = field(init=False)
    ledger: Ledger = field(init=False)
    looks: CloudPolls = field(default_factory=CloudPolls)
    left_out: dict[str, str] = field(default_factory=dict)
    in_other_accounts: set[str] = field(default_factory=set)
    # When this process last checked whether its own address has changed.
    own_address_at: float = -math.inf
    # By launch token: when this process last listed the launch, and the result.
    seen: dict[str, tuple[float, dict[str, Instance]]] = field(default_factory=dict)
    suspends: Suspends = field(default_factory=Suspends)
    _catalogs: dict[str, Catalog] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.clients = Clients(self.settings)
        self.ledger = Ledger(self.home / "aws" / "launches", self.account)

    def forget(self, token: str) -> None:
        """Drops the state of a launch that is over."""
        self.looks.forget(token)
        self.seen.pop(token, None)

    @functools.cached_property
    def home_id(self) -> str:
        """The id of this FLOW_HOME. Raises ProviderError."""
        return identity.home_id(self.home)

    @functools.cached_property
    def contact(self) -> Contact:
        """First contact with machines."""
        from provider_adapters.rented.first_contact import Contact

        return Contact(self.home, "aws", self.settings.ssh_config)

    @functools.cached_property
    def kept(self) -> KeptGangs:
        """The machines that are kept for another task, or were handed over."""
        from provider_adapters.rented.kept_gangs import KeptGangs
        from provider_adapters.rented.machine_hand_over import RentedMachines

        machines = RentedMachines(
            self.home,
            lambda data: self.contact.connect(data),
            lambda launch: launch.ids,
            lambda plan: (float(plan.options["lease"]), longest_life(plan)),
        )
        return KeptGangs(self.ledger, machines)

    def catalog(self, region: str) -> Catalog:
        """The catalog of a region."""
        if region not in self._catalogs:
            self._catalogs[region] = Catalog(self.home, self.clients, self.settings, region)
        return self._catalogs[region]

    @property
    def volumes_directory(self) -> Path:
        """Where creations of volumes are recorded."""
        return self.home / "aws" / "volumes"

    def volumes(self, region: str) -> Volumes:
        """The volumes of a region."""
        from provider_adapters.aws.storage.volumes import Volumes

        def price(kind: str) -> float | None:
            # A listing does not fail for lack of a price.
            with suppress(FlowError):
                return self.catalog(region).storage_price(kind)
            return None

        return Volumes(
            region,
            lambda service: self.clients(service, region),
            self.volumes_directory,
            self.whose(),
            price,
        )

    def whose(self) -> dict[str, str]:
        """The tags that identify the owner."""
        return {HOME: self.home_id, OWNER: identity.owner()}


def region_of(call: Call) -> str:
    """The region of a call."""
    return call.where.partition("/")[0]


def zone_of(call: Call) -> str:
    """The zone of a call."""
    return call.where.partition("/")[2]


def longest_life(plan: Plan) -> float | None:
    """Seconds of running after which a machine ends itself; None for no limit."""
    bounds = []
    if plan.max_run_seconds is not None:
        bounds.append(plan.max_run_seconds + plan.warm_seconds + plan.start_seconds)
    if plan.paid_seconds is not None:
        bounds.append(plan.paid_seconds)
    return min(bounds, default=None)
