"""The listing of instances: EC2's, by our tags, combined with what the ledger knows and EC2 does not list yet."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from flowlite.errors import FlowError, PermissionRefused, ProviderError
from flowlite.provider import PRICES, Instance
from flowlite.state import clock
from provider_adapters.aws import account, instances, pages, requests
from provider_adapters.aws.context import HOME, MACHINES_GONE, Context, region_of, zone_of
from provider_adapters.aws.errors import explained
from provider_adapters.aws.every_region import all_regions, ask_regions, known_regions
from provider_adapters.rented.kept_gangs import as_held
from provider_adapters.rented.ledger import Call, Launch

# Another process that is working on a launch now settles it itself.
_PATIENCE = 1.0
PENDING = "pending-"


class Listing:
    """The instances of this FLOW_HOME, and those of others."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._everywhere: list[Instance] | None = None

    def mine(self, task: str | None = None) -> list[Instance]:
        """The instances of this FLOW_HOME: of one task, or of all. Raises ProviderError.

        All are looked for in all regions, since a ledger that was lost, or is an older copy, does not name each.
        """
        recorded = self._context.ledger.launches(task)
        if task is not None and recorded and not any(each.calls for each in recorded):
            # Each call is recorded before it is made, so EC2 was asked for nothing yet.
            return []
        launches = [each for each in recorded if not each.ended]
        regions = known_regions(self._context, launches)
        waiting = self._settle(launches)
        taken_over = [each.token for each in launches if each.notes.get("held")]
        filters: dict[str, str | Sequence[str]] = {"tag__flowlite__home": self._context.home_id}
        if task is not None:
            filters["tag__flowlite__task"] = task
        used = {region_of(call) for launch in launches for call in launch.calls}
        told = self._describe_all(regions, filters, needed=used, awaited=regions)
        if task is not None and taken_over:
            # Their tags name the task that they were launched for.
            filters["tag__flowlite__token"] = taken_over
            del filters["tag__flowlite__task"]
            told += self._describe_all(regions, filters, needed=used, awaited=regions)
        if task is None:
            told += self._in_other_regions(regions)
        found = {each.id: each for each in told}
        self._check_account(task, launches, found)
        known = {each.token: each for each in self._context.ledger.launches()}
        mine = {name: _with_notes(each, known) for name, each in found.items()}
        mine = {name: each for name, each in mine.items() if task in (None, each.task_id)}
        mine = {name: self._with_spot_prices(each) for name, each in mine.items()}
        these = [each for each in known.values() if task in (None, each.task)]
        for each in [*self._not_listed_yet(these, mine), *waiting]:
            mine.setdefault(each.id, each)
        return sorted(mine.values(), key=lambda each: each.id)

    def others(self) -> list[Instance]:
        """The existing instances of other FLOW_HOMEs, in all regions that answer. Raises ProviderError."""
        # A cleanup has just listed those of this one.
        found = self._in_all_regions() if self._everywhere is None else self._everywhere
        self._everywhere = None
        theirs = [each for each in found if each.data["home"] != self._context.home_id]
        return sorted(theirs, key=lambda each: each.id)

    def _in_other_regions(self, regions: Sequence[str]) -> list[Instance]:
        """The existing instances of this FLOW_HOME that are in none of these regions."""
        # `others` asks again, and tells of failures.
        with suppress(ProviderError):
            mine = self._context.home_id
            found = self._in_all_regions()
            return [
                each
                for each in found
                if each.data["home"] == mine and each.data["region"] not in regions
            ]
        return []

    def _in_all_regions(self) -> list[Instance]:
        """The existing instances of all FLOW_HOMEs, in all regions that answer. Raises ProviderError."""
        filters: dict[str, str | Sequence[str]] = {
            "tag_key": HOME,
            "instance_state_name": requests.ALIVE,
        }
        self._everywhere = self._describe_all(all_regions(self._context), filters)
        return self._everywhere

    def of_token(self, region: str, client_token: str) -> list[Instance]:
        """The instances of one call, as far as they are listed. Raises ProviderError."""
        return self._describe(region, {"client_token": client_token})

    def as_noted(self, region: str, launch: Launch) -> list[Instance]:
        """The instances of one launch as they are in `mine`, in one call. Raises ProviderError."""
        listed = self.of_launch(region, launch.token)
        return [_with_notes(each, {launch.token: launch}) for each in listed]

    def of_launch(self, region: str, token: str) -> list[Instance]:
        """The instances of one launch, as far as they are listed, in one call. Raises ProviderError."""
        filters = {"tag__flowlite__token": token, "tag__flowlite__home": self._context.home_id}
        return self._describe(region, filters)

    # Helpers

    def _check_account(
        self, task: str | None, launches: Sequence[Launch], listed: Collection[str]
    ) -> None:
        """Notes launches in another account than that of the credentials. Raises PermissionRefused for one task's."""
        found = account.elsewhere(self._context, launches, listed)
        if found and task is not None:
            raise PermissionRefused(next(iter(found.values())))
        self._context.in_other_accounts |= set(found)
        for token, why in found.items():
            self._context.left_out[f"launch {token}"] = why

    def _with_spot_prices(self, instance: Instance) -> Instance:
        """An instance with its spot prices, which change all the time; the tags have the price at the launch."""
        if not instance.data.get("spot_request") or not instance.launched_at:
            return instance
        kind, zone = str(instance.data["type"]), str(instance.data["zone"])
        with suppress(FlowError):
            catalog = self._context.catalog(str(instance.data["region"]))
            if told := catalog.spot_history(kind, zone, instance.launched_at):
                data = {**instance.data, PRICES: [list(each) for each in told]}
                return dataclasses.replace(instance, price_per_hour=told[-1][1], data=data)
        return instance

    def _describe_all(
        self,
        regions: Sequence[str],
        filters: Mapping[str, str | Sequence[str]],
        needed: Collection[str] = (),
        awaited: Collection[str] = (),
    ) -> list[Instance]:
        """The instances of several regions. One that is denied to us or fails is noted in the context and left out.

        Args:
            needed: Regions without which a listing proves nothing.
            awaited: Regions that are left out only if they are denied.

        Raises:
            ProviderError: One of these has failed, or all regions have.
        """

        def ask(region: str) -> list[Instance]:
            return self._describe(region, filters)

        told = ask_regions(self._context, regions, ask, needed=needed, awaited=awaited)
        return [each for here in told.values() for each in here]

    def _describe(self, region: str, filters: Mapping[str, str | Sequence[str]]) -> list[Instance]:
        ec2 = self._context.clients("ec2", region)
        with explained("ec2:DescribeInstances", region):
            told = pages.pages(
                ec2,
                "describe_instances",
                **requests.describe(**filters),
                PaginationConfig={"PageSize": pages.PAGE},
            )
            return instances.of_reservations(told, region)

    def _settle(self, launches: Iterable[Launch]) -> list[Instance]:
        """Finds what calls without an answer have created. A call that is still uncertain is listed as one instance."""
        waiting = []
        for launch in launches:
            if launch.open_call is None:
                continue
            try:
                with self._context.ledger.hold(launch.token, _PATIENCE):
                    call = self.settle(launch.token)
            except PermissionRefused:
                raise
            except ProviderError:
                call = launch.open_call
            if call is not None:
                waiting.append(
                    Instance(
                        id=f"{PENDING}{call.name}",
                        task_id=launch.task,
                        state="starting",
                        data={"region": region_of(call), "zone": zone_of(call)},
                        unconfirmed=True,
                        certain_from=call.at + self._context.settings.listing_lag,
                        launch=launch.token,
                    )
                )
        return waiting

    def settle(self, token: str) -> Call | None:
        """Looks for the instances of a launch's open call, without creating anything.

        A listing may show some of them before the others. It is believed when it shows all, or after its lag.

        Returns:
            The call, if its outcome is still unknown.
        """
        launch = self._context.ledger.read(token)
        call = launch.open_call if launch is not None else None
        if call is None:
            return None
        found = self.of_token(region_of(call), call.name)
        most = int(call.parameters["request"]["MaxCount"])
        is_certain = clock.now() - call.at > self._context.settings.listing_lag
        if found and (is_certain or len(found) >= most):
            owner = {account.OWNER: str(found[0].data["account"])}
            self._context.ledger.made(token, call.name, [each.id for each in found], owner)
            return None
        if is_certain:
            # It would be listed by now.
            self._context.ledger.refused(token, call.name, {"message": "it was never listed"})
            return None
        return call

    def _not_listed_yet(
        self, launches: Iterable[Launch], listed: dict[str, Instance]
    ) -> list[Instance]:
        """New instances that EC2 may not list yet."""
        lag = self._context.settings.listing_lag
        found = []
        for launch in launches:
            for call in launch.calls:
                gone = launch.ended or launch.notes.get(MACHINES_GONE)
                if gone or clock.now() - call.at > lag:
                    continue
                found += [_unlisted(name, launch, call) for name in call.ids if name not in listed]
        return found


def _with_notes(instance: Instance, known: dict[str, Launch]) -> Instance:
    """An instance of the task that has it, with the facts from first contact."""
    launch = known.get(str(instance.data["token"]))
    if launch is None:
        return instance
    data = {**instance.data, **_noted(instance.id, launch)}
    return as_held(dataclasses.replace(instance, data=data), launch)


def _noted(name: str, launch: Launch) -> dict[str, Any]:
    """The facts of an instance from first contact, and its mounts."""
    met = launch.notes.get("met", {}).get(name, {})
    return {**met, "mounts": launch.notes.get("mounts", [])}


def _unlisted(name: str, launch: Launch, call: Call) -> Instance:
    """An instance that EC2 does not list yet, from the ledger; it is running if first contact was made."""
    node = launch.notes.get("nodes", {}).get(name, {})
    instance = Instance(
        id=name,
        task_id=launch.task,
        state="running" if name in launch.notes.get("met", {}) else "starting",
        address=str(node.get("private", "")),
        price_per_hour=float(call.parameters["price"]),
        launched_at=call.at,
        data={
            "region": region_of(call),
            "zone": zone_of(call),
            "token": launch.token,
            **_noted(name, launch),
        },
        launch=launch.token,
        unlisted=True,
    )
    return as_held(instances.charged(instance, call), launch)
