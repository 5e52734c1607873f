"""The objects that launching, listing and ending of one FLOW_HOME share: account, ledger and first contact."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

from flowlite.errors import ConfigError
from flowlite.provider import LaunchIntent, Plan
from provider_adapters import identity
from provider_adapters.mithril import nodekey
from provider_adapters.mithril.account import Account
from provider_adapters.mithril.bids import Bid
from provider_adapters.mithril.rest import requests
from provider_adapters.mithril.settings import AROUND_SECONDS, IN_SCRIPT
from provider_adapters.mithril.volumes import Volumes
from provider_adapters.rented.cloud_polls import CloudPolls
from provider_adapters.rented.first_contact import Contact, MachineAccess
from provider_adapters.rented.gang_fit import LONGER_LIFE, fits
from provider_adapters.rented.keys import client_public, new_key
from provider_adapters.rented.ledger import Launch, Ledger
from provider_adapters.rented.node import lease_seconds
from provider_adapters.rented.suspends import Suspends
from provider_adapters.rented.userdata import Boot, boot_script

if TYPE_CHECKING:
    from pathlib import Path

    import httpx

    from flowlite.settings.provider_settings import ProviderSettings
    from provider_adapters.rented.kept_gangs import KeptGangs

# The settings that identify the account: the API, the key, and the project.
ACCOUNT_SETTINGS = frozenset({"api_url", "api_key_file", "project"})
# Seconds between checks of a bid: free capacity is allocated at once; otherwise an auction has to be waited for.
_PAUSES = (0.7, 0.7, 1.0, 1.0, 2.0, 2.0, 4.0, 4.0, 8.0, 8.0, 12.0)
_LONGEST_SECRET = 200
# The same for machines that start: each has an address at a different time, and costs money from then on.
_STARTING = (0.7, 1.0, 1.0, 2.0, 2.0, 3.0)


class MithrilContext:
    """One FLOW_HOME at Mithril.

    Attributes:
        looks: The pace at which this process checks bids, by launch token.
        starting: The same for bids whose machines start.
        seen: The bid of each launch when this process last checked it.
        suspends: Whether this machine was suspended.
    """

    def __init__(
        self,
        home: Path,
        settings: ProviderSettings,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        self.account = Account(home, settings, transport)
        account = settings.only(ACCOUNT_SETTINGS).values
        self.ledger = Ledger(self.account.directory / "launches", account)
        self.looks = CloudPolls(pauses=_PAUSES)
        self.starting = CloudPolls(pauses=_STARTING)
        self.volumes = Volumes(self.account)
        self.seen: dict[str, Bid] = {}
        self.suspends = Suspends()

    @cached_property
    def contact(self) -> Contact:
        """First contact with its machines. Raises ConfigError if the settings are invalid."""
        return Contact(self.account.home, "mithril", self.account.settings.ssh_config)

    @cached_property
    def kept(self) -> KeptGangs:
        """The bids that are kept for another task, or were handed over."""
        from flowlite.node.preemption.notices import SIGNAL_FILE
        from provider_adapters.rented.kept_gangs import KeptGangs
        from provider_adapters.rented.machine_hand_over import RentedMachines

        def bounds(plan: Plan) -> tuple[float, float | None]:
            settings = self.account.settings
            lease = lease_seconds(float(plan.options["retry_pause"]), settings.lease)
            return lease, deadline_seconds(plan, settings.boot_timeout)

        machines = RentedMachines(
            self.account.home,
            lambda data: self.contact.connect(data),
            lambda launch: [str(each["id"]) for each in launch.notes.get("given", ())],
            bounds,
            SIGNAL_FILE,
        )
        return KeptGangs(self.ledger, machines)

    def fits(self, intent: LaunchIntent) -> str:
        """What a bid has to fit so that a task may take it over, or may keep it; "" if it is for one task only."""
        # A machine without a key that ends itself would leave its bid.
        return fits(intent) if self.account.settings.node_key else ""

    @property
    def home_id(self) -> str:
        """The id of this FLOW_HOME."""
        return identity.home_id(self.account.home)

    def forget(self, token: str) -> None:
        """Drops the state of a launch that is over."""
        self.looks.forget(token)
        self.starting.forget(token)

    def where(self, launch: Launch, name: str, host: str, port: int) -> MachineAccess:
        """How a machine of a launch is reached."""
        frozen = launch.frozen
        return MachineAccess(
            id=name,
            address=host,
            host_key=str(frozen["host_key"]),
            user=str(frozen["user"]),
            port=port,
            jump=str(frozen["jump"]),
        )

    def freeze(self, intent: LaunchIntent) -> dict[str, Any]:
        """The values that every bid of a launch is made from, decided once."""
        settings = self.account.settings
        plan = Plan.from_json(intent.plan)
        deadline = deadline_seconds(plan, settings.boot_timeout)
        fitting = self.fits(intent)
        longest = None if deadline is None else deadline + (LONGER_LIFE if fitting else 0.0)
        tags = requests.Tags(intent.task_id, self.home_id, identity.owner(), intent.token, longest)
        public = client_public(self.account.home)
        key = new_key()
        script = boot_script(
            Boot(
                host_key=key,
                authorized=(public,),
                user=settings.user,
                boot_lease=settings.boot_timeout + settings.lease,
                deadline=deadline,
                extra=tags.comment(),
            )
        )
        added = ""
        if settings.node_key == IN_SCRIPT:
            # Placeholders of the lengths of name and key.
            name, secret = "n" * requests.LONGEST_NAME, "k" * _LONGEST_SECRET
            added = nodekey.in_script(settings.api_url, plan.options["project"], name, secret)
        length = len(script) + len(added)
        if length > requests.LONGEST_SCRIPT:
            raise ConfigError(
                f"the start-up script has {length} characters, and Mithril takes {requests.LONGEST_SCRIPT}"
            )
        return {
            "project": plan.options["project"],
            "region": plan.region,
            "type_id": plan.options["type_id"],
            "type_name": plan.instance_type,
            "limit_price": plan.options["limit_price"],
            "volumes": plan.options["volumes"],
            "public_key": public,
            "host_key": key.public,
            "user": settings.user,
            "jump": settings.jump,
            "deadline": deadline,
            "script": script,
            **({"fits": fitting} if fitting else {}),
        }


def deadline_seconds(plan: Plan, boot_timeout: float) -> float | None:
    """Seconds after which the machines end themselves; None if no cap is set.

    A cap on time leaves room for start and end. A cap on money does not: nothing beyond it is paid for.
    """
    bounds = []
    if plan.max_run_seconds is not None:
        bounds.append(plan.max_run_seconds + plan.warm_seconds + boot_timeout + AROUND_SECONDS)
    if plan.paid_seconds is not None:
        bounds.append(max(0.0, plan.paid_seconds - nodekey.ENDING_SECONDS))
    return min(bounds) if bounds else None
