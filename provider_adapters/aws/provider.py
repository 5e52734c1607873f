"""`AwsProvider`: nodes are EC2 instances, those of one launch in one zone; they end even without a client."""

from __future__ import annotations

import fnmatch
import functools
import importlib.util
import os
import socket
import urllib.parse
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flowlite.errors import ConfigError, FlowError, NodeUnreachable, PermissionRefused
from flowlite.provider import (
    Finding,
    Instance,
    LaunchIntent,
    NodeSettings,
    Offer,
    Plan,
    Provider,
    VolumeInfo,
)
from flowlite.settings.provider_settings import ProviderSettings
from flowlite.state import clock
from provider_adapters.aws.catalog.regions import price_problem
from provider_adapters.aws.context import Context
from provider_adapters.aws.settings import AwsSettings, from_environment, zones_of
from provider_adapters.rented import ledger

if TYPE_CHECKING:
    from flowlite.connect.base import Connection
    from flowlite.settings.settings import Settings
    from flowlite.spec import TaskConfig
    from provider_adapters.aws.ending import Ending
    from provider_adapters.aws.listing import Listing
    from provider_adapters.aws.planning import Planner

_BESIDE_SECONDS = 3.0
_WORDS_OF_AWS = ("AWS_PROFILE", "AWS_ACCESS_KEY_ID", "AWS_ROLE_ARN", "AWS_ENDPOINT_URL")


class AwsProvider(Provider):
    """AWS EC2 instances: on demand, spot or reserved."""

    name = "aws"
    # Charging stops once EC2 has accepted the end, which may take several tries.
    teardown_seconds = 120.0
    spot_choices = (True, False)
    caps_spot_price = True
    needs_volume_size = True
    elastic = True
    keeps_gangs = True
    account_settings = frozenset(
        {"profile", "endpoint_url", "shared_config_file", "shared_credentials_file"}
    )
    local_files = frozenset({"shared_config_file", "shared_credentials_file", "ssh_config"})

    @classmethod
    def freeze(cls, settings: Settings, environment: Mapping[str, str]) -> ProviderSettings:
        found = from_environment(super().freeze(settings, environment), environment)
        return found.with_absolute_paths(cls.local_files)

    @classmethod
    def remembered(cls, home: Path) -> list[ProviderSettings]:
        return ledger.accounts(home / cls.name / "launches", cls.name)

    # Before a launch

    def regions(self, pattern: str | None = None) -> list[str]:
        if pattern is None:
            return self._planner().regions(None)[0]
        from provider_adapters.aws.every_region import regions_to_choose

        return fnmatch.filter(regions_to_choose(self._context), pattern)

    def plan(self, config: TaskConfig) -> Plan:
        return self._planner().plan(config)

    def offers(
        self,
        gpu: str | None = None,
        num_instances: int = 1,
        *,
        spot: bool | None = None,
        region: str | None = None,
    ) -> list[Offer]:
        from provider_adapters.aws.catalog.offers import offers_of

        return offers_of(self._planner(), gpu, num_instances, spot, region)

    def configured(self) -> bool:
        return self._is_used()

    def check(self) -> list[Finding]:
        from provider_adapters.aws.checking import Checking

        if importlib.util.find_spec("boto3") is None:
            return [Finding("boto3", False, "it is not installed: pip install boto3")]
        return Checking(self._context, self._planner()).findings()

    def policy(self) -> dict[str, Any]:
        """The minimal IAM policy for the adapter; `flow aws policy` prints it."""
        from provider_adapters.aws.policy import policy

        # The policy is asked for before anything is set up, perhaps even boto3.
        with suppress(FlowError):
            clients, regions = self._context.clients, self._context.settings.region
            return policy(partition=clients.partition(regions[0] if regions else clients.region))
        return policy()

    # Instances

    def price_to_launch(self, plan: Plan) -> float:
        if plan.price_per_hour or self._context.settings.capacity_block:
            return plan.price_per_hour
        regions = [str(place["region"]) for place in plan.options["places"]]
        kind = plan.instance_type
        known = [self._context.catalog(region).prices([kind]).get(kind) for region in regions]
        if None in known:
            raise price_problem(kind, regions[known.index(None)])
        return max(price for price in known if price is not None)

    def launch(self, intent: LaunchIntent) -> list[Instance]:
        from provider_adapters.aws.launching import Launching

        return Launching(self._context, self._listing, intent).run()

    def list_instances(self, task_id: str | None = None) -> list[Instance]:
        if task_id is None and not self._is_used():
            return []
        listed = self._listing.mine(task_id)
        if task_id is None:
            self._ending.tidy_all(listed)
        else:
            self._ending.tidy(task_id, listed)
        return listed

    def others(self) -> list[Instance]:
        return self._listing.others() if self._is_used() else []

    def clear(self, task_id: str) -> None:
        self._ending.clear(task_id)

    def sweep(self, live: Collection[str], *, dry_run: bool = False) -> list[str]:
        return self._ending.sweep(live, dry_run=dry_run) if self._is_used() else []

    def sweep_others(self, *, dry_run: bool = False) -> list[str]:
        if not self._is_used():
            return []
        return self._ending.sweep_others(self._listing.others(), dry_run=dry_run)

    def not_looked_at(self) -> list[str]:
        return [f"{region}: {why}" for region, why in sorted(self._context.left_out.items())]

    def terminate(self, instances: Sequence[Instance]) -> None:
        self._ending.end(instances)

    def keep(self, instances: Sequence[Instance], seconds: float) -> list[Instance]:
        return self._context.kept.keep(instances, seconds)

    def still_warm(self, instances: Sequence[Instance]) -> list[Instance]:
        return self._context.kept.still(instances)

    def answers_beside(self, instances: Sequence[Instance]) -> str:
        from provider_adapters.aws import network

        # Our own address may have changed since the launch.
        network.let_in_again(self._context, {each.task_id for each in instances})
        with suppress(FlowError, OSError):
            region = str(instances[0].data["region"])
            address = urllib.parse.urlsplit(self._context.clients.endpoint("ec2", region))
            port = address.port or (443 if address.scheme == "https" else 80)
            with socket.create_connection((address.hostname or "", port), _BESIDE_SECONDS):
                return f"EC2 ({address.hostname})"
        return ""

    def connect(self, instance: Instance) -> Connection:
        if "place" not in instance.data:
            raise NodeUnreachable(f"{instance.id} has not answered yet since it was launched")
        return self._context.contact.connect(instance.data)

    def node_settings(self, plan: Plan, instance: Instance) -> NodeSettings:
        from provider_adapters.rented.node import node_settings

        return node_settings(
            plan,
            instance,
            preemption=_preemption(plan),
            lease_seconds=float(plan.options.get("lease", self._context.settings.lease)),
            volumes=tuple(instance.data.get("mounts", ())),
        )

    # Volumes

    def create_volume(
        self, name: str, size_gb: float | None, interface: str, region: str | None = None
    ) -> VolumeInfo:
        regions, zone = self._planner().regions(region)
        if zone and interface != "block":
            raise ConfigError(
                f"region: {zone} is a zone, and a file volume is in all zones of a region; give {regions[0]}"
            )
        zones = [zone] if zone else zones_of(regions[0], self._context.settings.zones)
        return self._context.volumes(regions[0]).create(name, size_gb, interface, zones)

    def list_volumes(self) -> list[VolumeInfo]:
        from provider_adapters.aws.storage.account_volumes import list_volumes

        return list_volumes(self._context) if self._is_used() else []

    def delete_volume(self, name: str) -> None:
        from provider_adapters.aws.storage.account_volumes import delete_volume

        delete_volume(self._context, name)

    # Helpers

    @functools.cached_property
    def _context(self) -> Context:
        account = self.settings.only(self.account_settings)
        return Context(self.home, AwsSettings.read(self.settings), account.values)

    @functools.cached_property
    def _listing(self) -> Listing:
        from provider_adapters.aws.listing import Listing

        return Listing(self._context)

    @functools.cached_property
    def _ending(self) -> Ending:
        from provider_adapters.aws.ending import Ending

        return Ending(self._context)

    def _planner(self) -> Planner:
        from provider_adapters.aws.planning import Planner

        context = self._context
        return Planner(
            settings=context.settings,
            clients=context.clients,
            catalog=context.catalog,
            volumes=lambda region, config: context.volumes(region).plan(config),
        )

    def _is_used(self) -> bool:
        """Whether AWS is in use at all, so that users without an account are spared its delays and errors."""
        if (self.home / "aws" / "launches").is_dir():
            return True
        if importlib.util.find_spec("boto3") is None:
            return False
        files = Path(os.path.expanduser("~/.aws"))
        known = any(os.environ.get(name) for name in _WORDS_OF_AWS) or files.is_dir()
        if not known and not self.settings.names_provider:
            return False
        try:
            return bool(self._planner().regions(None)[0]) and self._has_credentials()
        except FlowError:
            return False

    def _has_credentials(self) -> bool:
        try:
            self._context.clients("ec2", self._planner().regions(None)[0][0])
        except PermissionRefused:
            return False
        return True


def _preemption(plan: Plan) -> dict[str, Any] | None:
    """How the nodes of a plan learn of a preemption; None if they are never preempted."""
    if plan.spot:
        return {"kind": "ec2"}
    ends = plan.options.get("reservation_ends")
    if ends is None:
        return None
    from provider_adapters.aws.catalog import reservations

    return reservations.notice(float(ends), clock.wall())
