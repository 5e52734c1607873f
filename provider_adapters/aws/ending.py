"""Ends instances, with one call for all machines of a region, and removes what a launch leaves behind."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress

from flowlite.errors import FlowError, PermissionRefused, ProviderError
from flowlite.provider import Instance
from flowlite.state import clock
from provider_adapters.aws import account, network
from provider_adapters.aws.context import (
    DEADLINE,
    HOME,
    MACHINES_GONE,
    TASK,
    Context,
    region_of,
)
from provider_adapters.aws.errors import code_of
from provider_adapters.aws.every_region import all_regions, ask_regions
from provider_adapters.aws.listing import PENDING, Listing
from provider_adapters.aws.service import Service
from provider_adapters.rented.ledger import Call, Launch

_MOST = 1000
# A policy that excepts more machines of a call than these probably excepts all.
_MOST_REFUSED = 8
_GOING = ("shutting-down", "terminated")
_BY_USER = "Client.UserInitiatedShutdown"
_ID = re.compile(r"\bs?i[r]?-[0-9a-z]+")
_UNKNOWN = frozenset({"InvalidInstanceID.NotFound", "InvalidInstanceID.Malformed"})
_UNKNOWN_REQUEST = frozenset({"InvalidSpotInstanceRequestID.NotFound"})
# A launch that created nothing and was not repeated within this time is over.
_FRESH_SECONDS = 10.0
_FORGOTTEN_SECONDS = 7 * 86400.0


class Ending:
    """Ends instances, and removes the groups of tasks."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def end(self, instances: Sequence[Instance]) -> None:
        """Ends instances and their spot requests, but none that another task has taken over. Raises ProviderError."""
        regions: dict[str, list[Instance]] = {}
        for each in self._context.kept.to_end(instances):
            if not each.id.startswith(PENDING) and each.data.get("ec2_state") not in _GOING:
                regions.setdefault(str(each.data.get("region", "")), []).append(each)
        failed: list[ProviderError] = []
        for region, here in regions.items():
            try:
                self._end_in(region, here)
            except ProviderError as error:
                # Those of other regions are charged, too.
                failed.append(error)
        if failed:
            raise failed[0]

    def _end_in(self, region: str, instances: Sequence[Instance]) -> None:
        """Ends instances of one region. Raises ProviderError."""
        names = sorted(each.id for each in instances)
        spot = sorted({r for each in instances if (r := each.data.get("spot_request"))})
        # The requests first: an open one counts against the quota, and would be fulfilled again. If that fails, EC2
        # closes those of machines that end.
        with suppress(ProviderError):
            self._ask("CancelSpotInstanceRequests", "SpotInstanceRequestIds", spot, region)
        self._ask("TerminateInstances", "InstanceIds", names, region)

    def _ask(self, operation: str, key: str, names: Sequence[str], region: str) -> None:
        """Makes a call for some ids; ids that EC2 does not know are left out.

        Those that it refuses by name are left out, too, so that they do not keep the others running: one that somebody
        has protected from termination, or that a policy excepts.

        Raises:
            ProviderError: It refuses some, or all.
        """
        ec2 = Service.of(self._context.clients, "ec2", region)
        refused: list[ProviderError] = []
        for start in range(0, len(names), _MOST):
            left = list(names[start : start + _MOST])
            while left:
                try:
                    ec2.call(operation, **{key: left})
                    break
                except ProviderError as error:
                    cause = error.__cause__
                    code = code_of(cause) if cause is not None else ""
                    named = set(_ID.findall(str(cause)))
                    others = [name for name in left if name not in named]
                    if code in _UNKNOWN | _UNKNOWN_REQUEST:
                        self._check_account(left)
                        # The error may not say which.
                        left = others if len(others) < len(left) else []
                        continue
                    refused.append(error)
                    if len(others) == len(left) or len(refused) == _MOST_REFUSED:
                        raise refused[0] from refused[0].__cause__
                    left = others
        if refused:
            raise refused[0]

    def _check_account(self, names: Collection[str]) -> None:
        """Raises PermissionRefused if machines that EC2 does not know are those of another account."""
        launches = self._context.ledger.launches(everywhere=True)
        mine = [each for each in launches if set(each.ids).intersection(names)]
        for why in account.elsewhere(self._context, mine, ()).values():
            raise PermissionRefused(why)

    # Cleanup

    def tidy(self, task: str, listed: Iterable[Instance]) -> None:
        """Removes the groups of a task of which nothing exists any more, and closes its launches.

        A launch is closed only when its groups are gone: until then only the ledger knows where they are.
        """
        mine = [each for each in listed if each.task_id == task]
        if any(each.state != "ended" for each in mine):
            return
        launches = [each for each in self._context.ledger.launches(task) if not each.ended]
        launches = [each for each in launches if self._is_here(each)]
        for launch in [each for each in launches if self._is_over(each, mine)]:
            if self._remove_groups(launch):
                self._close(launch)
            elif not launch.notes.get(MACHINES_GONE):
                self._context.ledger.note(launch.token, **{MACHINES_GONE: True})

    def _close(self, launch: Launch) -> None:
        for name in launch.ids:
            self._context.contact.forget(name)
        self._context.forget(launch.token)
        self._context.ledger.end(launch.token)

    def _is_over(self, launch: Launch, listed: Sequence[Instance]) -> bool:
        """Whether all machines of a launch have ended, and no supervisor waits for it any more."""
        if launch.notes.get(MACHINES_GONE):
            return True
        call = made_by(launch)
        if call is None or not self._have_ended(launch, listed):
            return False
        if "met" in launch.notes or "failed" in launch.notes:
            return True
        # Machines that died while booting: the supervisor that launches them has to notice it and continue from there.
        ended = [each for each in listed if each.id in call.ids]
        return not ended or any(each.data.get("code") == _BY_USER for each in ended)

    def _have_ended(self, launch: Launch, listed: Sequence[Instance]) -> bool:
        """Whether a listing of the task's instances proves that nothing of a launch is left."""
        if launch.open_call is not None or any(each.state != "ended" for each in listed):
            return False
        names = {each.id for each in listed}
        lag = self._context.settings.listing_lag
        young = any(clock.now() - each.at < lag for each in launch.calls)
        # Otherwise the listing may be older than the launch.
        return not young or names.issuperset(launch.ids)

    def clear(self, task: str) -> None:
        """Removes the groups of those launches of a task that have no machine, since none of them comes any more."""
        for launch in self._context.ledger.launches(task):
            settled = launch.open_call is None and made_by(launch) is None
            if settled and not launch.ended and self._remove_groups(launch):
                self._close(launch)

    def tidy_all(self, listed: Sequence[Instance]) -> None:
        """Removes groups of tasks of which nothing exists any more, of any FLOW_HOME. For `flow gc`."""
        ledger = self._context.ledger
        for launch in ledger.launches():
            old = clock.now() - launch.at > _FORGOTTEN_SECONDS
            if old and not launch.ended and launch.open_call is None and made_by(launch) is None:
                ledger.end(launch.token)
        regions = self._known_regions() | {str(each.data["region"]) for each in listed}
        ledger.prune(_FORGOTTEN_SECONDS)
        current = ledger.live()
        for task in {each.task for each in current}:
            self.tidy(task, listed)
        busy = _tasks_of(ledger.live(everywhere=True))
        busy |= {each.task_id for each in listed if each.state != "ended"}
        self._remove_strays(regions, busy)

    def sweep(self, live: Collection[str], *, dry_run: bool) -> list[str]:
        """Removes groups of tasks that launch nothing any more and have no machine; returns descriptions of them.

        Args:
            live: Tasks that may still launch something.
        """
        ledger = self._context.ledger
        busy = set(live)
        current = ledger.live()
        mine = {each.token for each in current}
        everywhere = ledger.live(everywhere=True)
        busy |= _tasks_of(each for each in everywhere if each.token not in mine)
        vain = []
        for launch in current:
            # The list of live tasks may be older than the submission of this one.
            young = clock.now() - launch.at < _FRESH_SECONDS
            is_busy = launch.task in live or young or not self._is_here(launch)
            if is_busy or not self._is_vain(launch):
                busy |= _tasks_of([launch])
            else:
                vain.append(launch)
        removed = self._remove_strays(all_regions(self._context), busy, dry_run=dry_run)
        for launch in vain:
            if not dry_run and launch.task not in busy and self._remove_groups(launch):
                self._close(launch)
        return removed

    def sweep_others(self, theirs: Iterable[Instance], *, dry_run: bool) -> list[str]:
        """Removes groups of other FLOW_HOMEs whose tasks have no machine; returns descriptions of them.

        A task that is about to launch creates its group again.

        Args:
            theirs: The machines of other FLOW_HOMEs.
        """
        busy = {each.task_id for each in theirs}
        return self._remove_strays(
            all_regions(self._context), busy, dry_run=dry_run, of_others=True
        )

    def _is_here(self, launch: Launch) -> bool:
        """Whether a launch is in the account of the credentials, as far as the listing has shown."""
        return launch.token not in self._context.in_other_accounts

    def _is_vain(self, launch: Launch) -> bool:
        """Whether an abandoned launch has nothing in the cloud."""
        if (call := made_by(launch)) is None:
            return launch.open_call is None
        listed = Listing(self._context).of_launch(region_of(call), launch.token)
        return self._have_ended(launch, listed)

    def _known_regions(self) -> set[str]:
        """The regions in the ledger, including those of ended launches, and those that would be used now.

        Raises:
            ConfigError: None is set, and that of boto3 cannot be read: `flow gc` says so, and does not look at nothing.
        """
        launches = self._context.ledger.launches()
        with_groups = {region for each in launches for region in each.notes.get("groups", {})}
        used = {region_of(call) for each in launches for call in each.calls}
        now = self._context.settings.region or [self._context.clients.region]
        return with_groups.union(used, now) - {""}

    def _remove_groups(self, launch: Launch) -> bool:
        """Removes the groups of a launch; returns whether all of them are gone.

        EC2 refuses as long as a network interface of an ended machine exists, which may take minutes.
        """
        gone = True
        for region, groups in launch.notes.get("groups", {}).items():
            own, placement = groups.get("group"), groups.get("placement_group")
            try:
                gone &= network.remove_groups(self._context.clients, region, own, placement)
            except FlowError:
                gone = False
        return gone

    def _remove_strays(
        self,
        regions: Iterable[str],
        busy: Collection[str],
        *,
        dry_run: bool = False,
        of_others: bool = False,
    ) -> list[str]:
        """Removes groups without an entry in the ledger: of this FLOW_HOME, or past their deadline.

        Args:
            busy: Tasks whose groups stay.
            of_others: Remove those of other FLOW_HOMEs instead, whatever their deadline.

        Returns:
            Descriptions of what was removed, or would be. Groups that EC2 keeps for now are left to the next call.
        """
        removed = []
        for region, made in self._made_groups(sorted(regions)).items():
            for group, tags in made:
                own = tags.get(HOME) == self._context.home_id
                may_go = not own if of_others else own or _is_overdue(tags)
                if tags.get(TASK) in busy or not may_go:
                    continue
                kind = "placement" if group is None else "security"
                name = network.group_name(str(tags[TASK]))
                if dry_run or self._is_removed(region, group, name):
                    removed.append(f"aws {kind} group {name} in {region}")
        return removed

    def _made_groups(
        self, regions: Sequence[str]
    ) -> dict[str, list[tuple[str | None, dict[str, str]]]]:
        """The groups of tasks by region. Regions that cannot be asked are noted in the context and left out."""

        def ask(region: str) -> list[tuple[str | None, dict[str, str]]]:
            return network.made_groups(self._context.clients, region)

        try:
            return ask_regions(self._context, regions, ask)
        except ProviderError as error:
            # The next clean-up looks again.
            self._context.left_out |= dict.fromkeys(regions, str(error))
            return {}

    def _is_removed(self, region: str, group: str | None, name: str) -> bool:
        with suppress(FlowError):
            placement = name if group is None else None
            return network.remove_groups(self._context.clients, region, group, placement)
        return False


def _is_overdue(tags: Mapping[str, str]) -> bool:
    """Whether the machines of a group have certainly ended themselves."""
    deadline = tags.get(DEADLINE, "")
    return deadline.isdigit() and int(deadline) < clock.wall()


def _tasks_of(launches: Iterable[Launch]) -> set[str]:
    """The tasks that have these launches, and those that they were made for, whose names their groups have."""
    found: set[str] = set()
    for launch in launches:
        found |= {launch.task, str(launch.frozen.get("tags", {}).get(TASK, launch.task))}
    return found


def made_by(launch: Launch) -> Call | None:
    """The call whose machines the launch waits for or has; None if there is none, or EC2 has taken them back."""
    call = launch.made
    return None if call is None or call.detail.get("over") else call
