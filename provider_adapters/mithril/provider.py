"""`MithrilProvider`: nodes are the machines of spot bids, placed through Mithril's API."""

from __future__ import annotations

import fnmatch
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from flowlite.errors import ConfigError, FlowError, ProviderError
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
from provider_adapters.mithril.bid_submission import BidSubmission
from provider_adapters.mithril.context import ACCOUNT_SETTINGS, MithrilContext
from provider_adapters.mithril.costs import as_kept
from provider_adapters.mithril.ending import Ending
from provider_adapters.mithril.launching import Launching
from provider_adapters.mithril.listing import Listing
from provider_adapters.mithril.settings import from_environment
from provider_adapters.mithril.several_bids import SeveralBids
from provider_adapters.rented import ledger

if TYPE_CHECKING:
    import httpx

    from flowlite.connect.base import Connection
    from flowlite.settings.settings import Settings
    from flowlite.spec import TaskConfig


class MithrilProvider(Provider):
    """Mithril instances, by auction.

    Args:
        home: FLOW_HOME.
        settings: As returned by `freeze`.
        transport: Replaces the network in tests.
    """

    name = "mithril"

    local_files = frozenset({"api_key_file", "ssh_config"})
    account_settings = ACCOUNT_SETTINGS
    spot_choices = (True,)
    needs_volume_size = True
    elastic = True
    keeps_gangs = True

    def __init__(
        self,
        home: Path,
        settings: ProviderSettings,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        super().__init__(home, settings)
        self._transport = transport

    @classmethod
    def freeze(cls, settings: Settings, environment: Mapping[str, str]) -> ProviderSettings:
        found = from_environment(super().freeze(settings, environment), environment)
        return found.with_absolute_paths(cls.local_files)

    @classmethod
    def remembered(cls, home: Path) -> list[ProviderSettings]:
        return ledger.accounts(home / cls.name / "launches", cls.name)

    def plan(self, config: TaskConfig) -> Plan:
        from provider_adapters.mithril.markets import price_now
        from provider_adapters.mithril.planning import make_plan

        account = self._place.account
        return make_plan(
            config,
            account.settings,
            account.project,
            account.catalogue.markets(),
            self._place.volumes.listed() if config.volumes else [],
            lambda market, count: price_now(account.api, market, count),
            self._place.volumes.regions_without,
            self._place.volumes.users,
        )

    def regions(self, pattern: str | None = None) -> list[str]:
        account = self._place.account
        if pattern is None:
            return [account.settings.region] if account.settings.region else []
        known = {market.region for market in account.catalogue.markets()}
        return sorted(fnmatch.filter(known, pattern))

    def launch(self, intent: LaunchIntent) -> list[Instance]:
        several = intent.fewest < intent.count or intent.beside
        launching = self._several if several else self._launching
        with _refused():
            return launching.run(intent)

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
        return [as_kept(each) for each in self._place.kept.keep(instances, seconds)]

    def still_warm(self, instances: Sequence[Instance]) -> list[Instance]:
        return self._place.kept.still(instances)

    def answers_beside(self, instances: Sequence[Instance]) -> str:
        try:
            self._place.account.api.get("/v2/me")
        except FlowError:
            return ""
        return "Mithril's API"

    def connect(self, instance: Instance) -> Connection:
        return self._place.contact.connect(instance.data)

    def node_settings(self, plan: Plan, instance: Instance) -> NodeSettings:
        from provider_adapters.mithril.volumes import on_node
        from provider_adapters.rented import node

        lease = self._place.account.settings.lease
        return node.node_settings(
            plan,
            instance,
            preemption={"kind": "mithril"},
            lease_seconds=node.lease_seconds(float(plan.options["retry_pause"]), lease),
            volumes=tuple(
                on_node(each, instance.data.get("disks", {})) for each in plan.options["volumes"]
            ),
        )

    def configured(self) -> bool:
        return self._place.account.has_key or bool(self._place.ledger.launches())

    def sweep(self, live: Collection[str], *, dry_run: bool = False) -> list[str]:
        from provider_adapters.mithril.sweeping import sweep

        return sweep(self._place, live, dry_run=dry_run)

    def sweep_others(self, *, dry_run: bool = False) -> list[str]:
        from provider_adapters.mithril.sweeping import sweep_others

        return sweep_others(self._place, dry_run=dry_run)

    def check(self) -> list[Finding]:
        from provider_adapters.mithril.checking import check

        return check(self._place.account)

    def offers(
        self,
        gpu: str | None = None,
        num_instances: int = 1,
        *,
        spot: bool | None = None,
        region: str | None = None,
    ) -> list[Offer]:
        from provider_adapters.mithril.offers import offers_of

        account = self._place.account
        where = region or account.settings.region or None
        markets = account.catalogue.markets()
        return offers_of(markets, gpu, num_instances, spot=spot, region=where)

    def create_volume(
        self, name: str, size_gb: float | None, interface: str, region: str | None = None
    ) -> VolumeInfo:
        return self._place.volumes.create(name, size_gb, interface, region)

    def list_volumes(self) -> list[VolumeInfo]:
        return self._place.volumes.infos()

    def delete_volume(self, name: str) -> None:
        self._place.volumes.delete(name)

    # Helpers

    @cached_property
    def _place(self) -> MithrilContext:
        return MithrilContext(self.home, self.settings, self._transport)

    @cached_property
    def _submission(self) -> BidSubmission:
        return BidSubmission(self._place)

    @cached_property
    def _ending(self) -> Ending:
        return Ending(self._place, self._submission)

    @cached_property
    def _launching(self) -> Launching:
        return Launching(self._place, self._submission, self._ending)

    @cached_property
    def _several(self) -> SeveralBids:
        return SeveralBids(self._place, self._launching, self._ending)

    @cached_property
    def _listing(self) -> Listing:
        return Listing(self._place, self._submission, self._ending)


@contextmanager
def _refused() -> Iterator[None]:
    """Reports settings that have become invalid since the plan as a refusal by the provider."""
    try:
        yield
    except ConfigError as error:
        raise ProviderError(str(error)) from error
