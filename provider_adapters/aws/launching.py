"""Launches a gang: one call creates its machines in one zone, or none; later calls check whether they are ready.

A launch that may have fewer machines than it asks for first asks each zone for all of them, so that a zone with room
for all is found. Then it asks each zone for what it has. If the quota refuses, it asks for the fewest.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from flowlite.errors import CapacityUnavailable, ProviderError
from flowlite.provider import Instance, LaunchIntent, LaunchPending, Plan
from flowlite.state import clock
from provider_adapters.aws import instances, network, requests
from provider_adapters.aws.account import OWNER
from provider_adapters.aws.booting import BootingMachines
from provider_adapters.aws.catalog import quotas, reservations, zone_order
from provider_adapters.aws.catalog.zone_order import Site
from provider_adapters.aws.context import (
    DEADLINE,
    EXTRAS,
    PRICE,
    TASK,
    TOKEN,
    Context,
    longest_life,
    region_of,
)
from provider_adapters.aws.ending import Ending, made_by
from provider_adapters.aws.errors import (
    CredentialsRefused,
    NoAnswer,
    NotKnownYet,
    Refusal,
    refusal,
    refusals_by_zone,
)
from provider_adapters.aws.listing import Listing
from provider_adapters.rented.gang_fit import LONGER_LIFE, fits
from provider_adapters.rented.ledger import REFUSED, Call, Launch
from provider_adapters.rented.preparation import agent_of

# From the moment when all machines answer until the last of them has its agent.
_TO_AGENT_SECONDS = 600.0
_LATELY_SECONDS = 600.0
# What a machine's end by itself takes at most.
_END_SECONDS = 120.0
_MOST_PAUSE = 30.0
# A new group may not be known everywhere yet.
_NOT_KNOWN_YET = frozenset({"InvalidGroup.NotFound", "InvalidPlacementGroup.Unknown"})
_KNOWN_SECONDS = 60.0
_REFUSED_PAUSE = 60.0
# These refusals apply to every zone that gives them; asking again does not help.
_FOR_GOOD = frozenset({"Unsupported", "UnsupportedOperation"})
# What the zones are asked for: all machines, as many as a zone has, or only the fewest.
_ALL, _FEWER, _FEWEST = "all", "fewer", "fewest"


class Launching:
    """Carries one intent as far as is possible now."""

    def __init__(self, context: Context, listing: Listing, intent: LaunchIntent) -> None:
        self._context = context
        self._listing = listing
        self._intent = intent
        self._plan = Plan.from_json(intent.plan)
        self._options = self._plan.options
        self._ledger = context.ledger
        self._sites = zone_order.sites_of(self._options["places"])

    def run(self) -> list[Instance]:
        """The instances, once all that were created answer.

        Raises:
            LaunchPending: They are starting, or it is not known whether they exist; to be called again.
            CapacityUnavailable: No zone has capacity now, or none had before the session expired. No machine exists.
            ProviderError: The launch failed; what was created is being ended.
        """
        try:
            found = self._take_further()
        except NoAnswer as error:
            limit = self._context.settings.boot_timeout
            raise self._ask_again(
                error, "unanswered", limit, "[aws] boot_timeout waits longer"
            ) from error
        except CredentialsRefused as error:
            if not self._may_exist():
                if not (self._has_found_no_room() and self._context.clients.may_be_renewed):
                    raise
                # AWS has accepted them before. The task has waited since then, perhaps for a night.
                raise CapacityUnavailable(
                    f"{error}. The task keeps waiting for room, and continues once AWS accepts them",
                    retry_after=_REFUSED_PAUSE,
                ) from error
            # Machines that boot cannot be ended without credentials either, and the session may be renewed.
            limit = self._context.settings.boot_timeout
            raise self._ask_again(error, "unanswered", limit, "") from error
        except NotKnownYet as error:
            raise self._ask_again(error, "unknown", _KNOWN_SECONDS, "") from error
        except LaunchPending:
            self._answered()
            raise
        except CapacityUnavailable as error:
            self._answered()
            if self._may_exist():
                # What lacks room is needed beside the machines, such as an address for a volume.
                raise LaunchPending(str(error), error.retry_after) from error
            raise
        self._answered()
        return found

    def _take_further(self) -> list[Instance]:
        token = self._intent.token
        with self._ledger.hold(token):
            if self._ledger.read(token) is None:
                if found := self._taken_over():
                    return found
                self._begin_after_others()
            launch = self._read()
            if failed := launch.notes.get("failed"):
                raise ProviderError(str(failed))
            if launch.ended:
                raise ProviderError(f"the machines of {token} have ended")
            if launch.open_call is not None:
                self._settle(launch.open_call)
            elif made_by(launch) is None:
                self._make(launch)
        launch = self._read()
        if launch.ended:
            raise ProviderError(f"the machines of {token} have ended")
        call = made_by(launch)
        if call is None:
            raise ProviderError(f"nothing is known of the machines of {token}")
        return self._booting(launch, call).run()

    def _begin_after_others(self) -> None:
        """Begins the launch. Launches of the task that came to nothing are dropped, and their groups are its own.

        While a gang runs, it may ask for more nodes, or for a spare, every few minutes for days.
        """
        token, task = self._intent.token, self._intent.task_id
        vain = [each for each in self._ledger.launches(task) if _is_in_vain(each)]
        self._ledger.begin(token, task, self._intent.count, self._freeze)
        groups: dict[str, dict[str, Any]] = {}
        for launch in vain:
            for region, here in launch.notes.get("groups", {}).items():
                groups[region] = {k: v for k, v in here.items() if not k.startswith("volume")}
        if groups:
            self._ledger.note(token, groups=groups)
        for launch in vain:
            # Another thread may go on with it just now.
            with suppress(ProviderError), self._ledger.hold(launch.token, 0.0):
                self._ledger.drop(launch.token)

    def _booting(self, launch: Launch, call: Call) -> BootingMachines:
        agent = agent_of(self._intent)
        return BootingMachines(
            self._context, self._listing, self._plan, launch, call, self._intent.fewest, agent
        )

    # Machines of another task: `GangCloud`

    def _taken_over(self) -> list[Instance]:
        """The machines that another task has kept for one like this, if there are some; else an empty list."""
        return self._context.kept.take_over(
            self._intent, self._fits(), self, patience=self._context.settings.boot_timeout
        )

    def _fits(self) -> str:
        return fits(self._intent, self._plan.price_cap)

    def is_suitable(self, launch: Launch) -> bool:
        """As `GangCloud.is_suitable`."""
        call = made_by(launch)
        site = next((each for each in self._sites if call and each.where == call.where), None)
        if call is None or site is None:
            return False
        if call.parameters["request"]["ImageId"] != site.image["id"]:
            return False
        if float(call.parameters["price"]) > self._plan.highest_price:
            return False
        ends_by, longest = instances.ends_by(call), longest_life(self._plan)
        if not ends_by:
            return True
        return longest is not None and clock.wall() + longest + _END_SECONDS <= ends_by

    def running(self, launch: Launch) -> list[Instance]:
        """As `GangCloud.running`."""
        return [each for each in self._noted(launch) if each.state in ("running", "warm")]

    def end(self, launch: Launch) -> None:
        """As `GangCloud.end`."""
        Ending(self._context).end(self._noted(launch))

    def _noted(self, launch: Launch) -> list[Instance]:
        call = made_by(launch)
        return [] if call is None else self._listing.as_noted(region_of(call), launch)

    # Requests without an answer

    def _ask_again(
        self, error: ProviderError, what: str, limit: float, more_time: str
    ) -> ProviderError:
        """The error for a missing answer: to be tried again with growing pauses, until the limit has passed.

        Args:
            what: Name of the note that says since when answers have been missing, and how often it was tried.
            limit: Seconds from then on, or from the launch of machines that boot meanwhile and are charged.
        """
        launch, now = self._read(), clock.now()
        noted = launch.notes.get(what, {})
        since, tries = float(noted.get("since", now)), int(noted.get("tries", 0)) + 1
        call = made_by(launch)
        seconds = now - (call.at if call is not None else since)
        just_woke = self._context.suspends.just_woke()
        if seconds > limit and not just_woke:
            message = f"{error}. It has been so for {max(now - since, 0.0):.0f} s"
            message += f"; {more_time}" if more_time else ""
            if call is not None:
                self._booting(launch, call).give_up(message)
            return ProviderError(message)
        self._ledger.note(launch.token, **{what: {"since": since, "tries": tries}})
        return LaunchPending(f"{error}; it is asked again", min(_pause(0.25, tries), limit))

    def _may_exist(self) -> bool:
        """Whether machines of the launch exist, or may exist."""
        launch = self._ledger.read(self._intent.token)
        if launch is None:
            return False
        return launch.open_call is not None or made_by(launch) is not None

    def _has_found_no_room(self) -> bool:
        """Whether EC2 was asked for these machines before, and had no room for them."""
        launch = self._ledger.read(self._intent.token)
        return launch is not None and any(map(_lacked_room, launch.calls))

    def _answered(self) -> None:
        launch = self._ledger.read(self._intent.token)
        if launch is not None and (noted := {"unanswered", "unknown"} & set(launch.notes)):
            self._ledger.note(launch.token, **dict.fromkeys(noted))

    def _settle(self, call: Call) -> None:
        """Repeats the call whose answer was lost; if it had no effect, the next zone is tried.

        After a while a listing has what it has made, and it is not repeated: its deadline and its boot time count from
        when it was made first.
        """
        if clock.now() - call.at > self._context.settings.listing_lag:
            with _however_long():
                self._listing.settle(self._intent.token)
            if made_by(self._read()) is None:
                self._make(self._read())
            return
        said = self._send(call, before=True)
        if said is not None and said.kind != "capacity":
            raise self._final(said, call.where)
        if said is not None:
            self._make(self._read())

    def _read(self) -> Launch:
        launch = self._ledger.read(self._intent.token)
        if launch is None:
            raise ProviderError(f"the record of the launch {self._intent.token} is gone")
        return launch

    # Shared by all calls of the launch

    def _freeze(self) -> dict[str, Any]:
        from provider_adapters.rented.keys import client_public, new_key
        from provider_adapters.rented.userdata import Boot, boot_script

        settings = self._context.settings
        host_key = new_key()
        longest = longest_life(self._plan)
        script = boot_script(
            Boot(
                host_key=host_key,
                authorized=(client_public(self._context.home),),
                user=settings.user,
                boot_lease=settings.boot_timeout + _TO_AGENT_SECONDS,
                deadline=longest,
            )
        )
        fitting = self._fits()
        tags = {TASK: self._intent.task_id, **self._context.whose(), TOKEN: self._intent.token}
        return {
            "user_data": script,
            "host_key": host_key.public,
            "tags": tags,
            **({"fits": fitting} if fitting else {}),
        }

    # New calls

    def _make(self, launch: Launch) -> None:
        """Tries zone after zone until one has capacity. Raises CapacityUnavailable, ProviderError, ConfigError."""
        block = self._context.settings.capacity_block
        reservations.check_open(block, self._options.get("reservation_ends"), clock.wall())
        if not launch.notes.get("quota"):
            self._context.contact.require_jump(self._context.settings.jump, "aws")
            allowed = self._check_quota()
            most = launch.count if allowed is None else min(launch.count, allowed)
            self._ledger.note(launch.token, quota=True, most=most)
        self._look_for_disks(launch)
        refused_regions: set[str] = set()
        while True:
            launch = self._read()
            left = [s for s in self._next_sites(launch) if s.region not in refused_regions]
            if not left:
                if self._is_content_with_less(launch) and not self._is_unsupported(launch):
                    self._ask_for(launch, _FEWER)
                    continue
                raise self._no_room(launch)
            site = left[0]
            order = self._order(launch, site)
            parameters = {
                "price": site.price,
                "extras": self._plan.extras_per_hour,
                "deadline": order.tags[DEADLINE],
                "request": requests.run_instances(order),
            }
            call = self._ledger.intend(launch.token, site.where, parameters)
            said = self._send(call, before=False)
            if said is None:
                return
            if said.kind == "quota" and any(s.region != site.region for s in left):
                refused_regions.add(site.region)
            elif said.kind == "quota" and self._may_ask_for_fewest(self._read()):
                self._ask_for(self._read(), _FEWEST)
            elif said.code in _NOT_KNOWN_YET and not self._given_by_user(said.code):
                # A group of ours is unknown: it is looked up, or created again.
                self._ledger.note(launch.token, groups={})
                raise NotKnownYet(f"{said.action}: {said.message} ({said.code})")
            elif said.kind != "capacity":
                raise self._final(said, site.where)

    def _look_for_disks(self, launch: Launch) -> None:
        """Checks that the task's disks are free, which may have changed in days of waiting for room.

        Notes where an earlier launch of the task, or machines of this one, have made disks that the plan lacks.

        Raises:
            ProviderError: Another task uses a disk, or no zone of the plan has all of them.
        """
        volumes = self._options.get("volumes")
        if not volumes:
            return
        here = self._context.volumes(self._sites[0].region)
        with _however_long():
            here.check_free(volumes, launch.task)
        if "disks" in launch.notes and launch.made is None:
            return
        zones = here.made_since(volumes)
        if not any(_has_all(site, zones) for site in self._sites):
            raise ProviderError(
                f"volumes: disks of this task have been made in {' and '.join(zones)} since it was planned; run it "
                "again, so that it is planned there"
            )
        self._ledger.note(launch.token, disks=zones)

    # How many machines to ask for

    def _counts(self, launch: Launch) -> tuple[int, int]:
        """The fewest and the most machines that the next call asks for."""
        most, fewest = int(launch.notes.get("most", launch.count)), self._intent.fewest
        asked = {_ALL: (most, most), _FEWER: (fewest, most), _FEWEST: (fewest, fewest)}
        return asked[str(launch.notes.get("asks", _ALL))]

    def _is_content_with_less(self, launch: Launch) -> bool:
        """Whether all zones were asked for all machines, and the launch needs fewer."""
        least, most = self._counts(launch)
        return least == most > self._intent.fewest

    def _may_ask_for_fewest(self, launch: Launch) -> bool:
        return self._counts(launch)[1] > self._intent.fewest

    def _ask_for(self, launch: Launch, what: str) -> None:
        """Asks all zones anew, for less."""
        self._ledger.note(launch.token, asks=what, round=len(launch.calls))

    def _final(self, said: Refusal, where: str) -> ProviderError:
        """The error for a refusal that no other zone would change; a further call begins a new round."""
        launch = self._read()
        self._ledger.note(launch.token, round=len(launch.calls), asks=None)
        region, _, zone = where.partition("/")
        if said.kind != "quota":
            return said.error(zone)
        plan, vcpus = self._plan, int(self._options["vcpus"])
        count = self._intent.fewest
        return said.error(zone, quotas.advice(plan.instance_type, plan.spot, count, vcpus, region))

    def _check_quota(self) -> int | None:
        """How many machines the quota allows at most; None if not known. Raises QuotaExceeded."""
        if self._context.settings.capacity_block or self._context.settings.capacity_reservation:
            return None
        regions = list(dict.fromkeys(site.region for site in self._sites))
        if len(regions) > 1:
            return None
        return quotas.check(
            self._context.clients,
            regions[0],
            self._plan.instance_type,
            self._plan.spot,
            self._intent.fewest,
            int(self._options["vcpus"]),
        )

    def _next_sites(self, launch: Launch) -> list[Site]:
        tried = {c.where for c in launch.calls[int(launch.notes.get("round", 0)) :]}
        again = {c.where for c in launch.calls[-1:] if c.detail.get("code") in _NOT_KNOWN_YET}
        return zone_order.order(
            [site for site in self._sites if _has_all(site, launch.notes.get("disks", ()))],
            tried=tried - again,
            beside=self._beside(launch),
            must_be_beside=bool(self._options.get("beside")),
            refused_lately=self._refused_lately(),
        )

    def _beside(self, launch: Launch) -> str:
        """The zone in which the task has other nodes; "" if it has none."""
        others = [each for each in self._ledger.launches(launch.task) if each.token != launch.token]
        calls = [made_by(each) for each in others if not each.ended]
        there = [call for call in calls if call is not None]
        if there and len({site.region for site in self._sites}) > 1:
            # A gang of which nothing is left may begin anew in another region.
            with _however_long():
                listed = self._listing.mine(launch.task)
            alive = {each.id for each in listed if each.state in ("starting", "running")}
            there = [call for call in there if alive.intersection(call.ids)]
        return there[-1].where if there else ""

    def _refused_lately(self) -> set[str]:
        since = clock.now() - _LATELY_SECONDS
        return {
            call.where
            for launch in self._ledger.launches()
            for call in launch.calls
            if call.at > since and _lacked_room(call)
        }

    def _order(self, launch: Launch, site: Site) -> requests.LaunchRequest:
        settings, options = self._context.settings, self._options
        groups, placement_group, tags = self._ensure_groups(launch, site)
        market = "spot" if self._plan.spot else "on-demand"
        least, most = self._counts(launch)
        return requests.LaunchRequest(
            instance_type=self._plan.instance_type,
            count=most,
            least=least,
            image=str(site.image["id"]),
            root_device=str(site.image["root_device"]),
            root_gb=int(site.image["root_gb"]),
            disks=tuple(site.image.get("disks", ())),
            zone=site.zone,
            subnet=site.subnet,
            groups=groups,
            user_data=str(launch.frozen["user_data"]),
            tags={
                **self._tags(launch),
                PRICE: f"{site.price:.6g}",
                EXTRAS: f"{self._plan.extras_per_hour:.6g}",
                **tags,
            },
            cards=tuple(tuple(card) for card in options.get("cards", ())),
            public_ip=settings.public_ip,
            market="capacity-block" if settings.capacity_block else market,
            max_price=self._highest_bid(site.region) if self._plan.spot else None,
            placement_group=placement_group,
            reservation=settings.capacity_block or settings.capacity_reservation,
            instance_profile=settings.instance_profile,
            name=f"flowlite {options.get('name') or launch.task}",
        )

    def _tags(self, launch: Launch) -> dict[str, str]:
        """The tags of what is created now. The launch may have waited for days, and machines live from now on."""
        longest, deadline = longest_life(self._plan), "none"
        if longest is not None:
            longer = LONGER_LIFE if launch.frozen.get("fits") else 0.0
            deadline = str(int(clock.wall() + longest + longer + _END_SECONDS))
        return {**launch.frozen["tags"], DEADLINE: deadline}

    def _highest_bid(self, region: str) -> float | None:
        """The maximum spot price in the currency of the region; None for no limit of ours."""
        cap = self._plan.price_cap
        return None if cap is None else cap * self._context.settings.per_dollar(region)

    def _ensure_groups(
        self, launch: Launch, site: Site
    ) -> tuple[tuple[str, ...], str, dict[str, str]]:
        """Security groups and placement group for a site, and the tags that volumes need."""
        known = dict(launch.notes.get("groups", {}))
        here = dict(known.get(site.region, {}))
        settings, clients = self._context.settings, self._context.clients
        tags = self._tags(launch)
        if settings.security_group:
            own = settings.security_group
        else:
            if "group" not in here:
                networks = network.callers(clients, settings, site.region, site.vpc)
                here["group"] = network.ensure_group(
                    clients, site.region, site.vpc, launch.task, tags, networks
                )
                here["networks"] = networks
            own = here["group"]
        asked = self._options.get("placement_group")
        if asked is True and "placement_group" not in here:
            here["placement_group"] = network.ensure_placement_group(
                clients, site.region, launch.task, tags
            )
        name = here.get("placement_group", "") if asked is True else asked or ""
        more, about = self._ready_volumes(launch, site, here)
        self._ledger.note(launch.token, groups={**known, site.region: here})
        return (own, *more), str(name), about

    def _ready_volumes(
        self, launch: Launch, site: Site, here: dict[str, Any]
    ) -> tuple[list[str], dict[str, str]]:
        if not self._options.get("volumes"):
            return [], {}
        from provider_adapters.aws.storage.volumes import tags_for

        if "volumes" not in here:
            ready, groups = self._context.volumes(site.region).ready(
                self._options["volumes"], site.vpc
            )
            here["volumes"], here["volume_groups"] = ready, groups
        return list(here["volume_groups"]), tags_for(here["volumes"])

    def _given_by_user(self, code: str) -> bool:
        settings = self._context.settings
        if code.startswith("InvalidGroup"):
            return bool(settings.security_group)
        return isinstance(settings.placement_group, str)

    # A single call

    def _send(self, call: Call, *, before: bool) -> Refusal | None:
        """Makes a call, or repeats it.

        Args:
            before: Whether it may have been made already.

        Returns:
            The refusal; None if the machines exist.

        Raises:
            LaunchPending: It is not known whether it had an effect; to be called again.
            ProviderError: It cannot be made; if it was never made before, it is settled.
        """
        token, region = self._intent.token, region_of(call)
        try:
            ec2 = self._context.clients("ec2", region, once=True)
            told = ec2.run_instances(**call.parameters["request"], ClientToken=call.name)
        except Exception as error:
            said = refusal(error, "ec2:RunInstances")
            if said is None:
                if not before:
                    self._ledger.refused(token, call.name, {"message": str(error)})
                raise
            return self._refused(call, said, before)
        made = [instances.read(each, region) for each in told["Instances"]]
        nodes = {each.id: {"private": each.address, "public": ""} for each in made}
        owner = {OWNER: str(told.get("OwnerId", ""))}
        self._ledger.made(token, call.name, [each.id for each in made], owner)
        self._ledger.note(token, nodes=nodes, tries=None)
        self._context.looks.looked(token)
        return None

    def _refused(self, call: Call, said: Refusal, before: bool) -> Refusal | None:
        token = self._intent.token
        if said.code in ("IdempotentParameterMismatch", "IdempotentInstanceTerminated"):
            # Something was created with this token; the listing shows what.
            if self._listing.settle(token) is None and made_by(self._read()) is not None:
                return None
            raise LaunchPending(f"what {call.name} has made is not listed yet", 2.0)
        # An error raised before EC2 looks up the token says nothing about an earlier call.
        conclusive = said.kind in ("capacity", "quota", "refused") and said.code != ""
        uncertain = said.kind == "uncertain" or (before and not conclusive)
        if not uncertain:
            detail = {"code": said.code, "message": said.message, "kind": said.kind}
            self._ledger.refused(token, call.name, detail)
            if said.kind in ("throttled", "unreachable"):
                raise self._later(call, said)
            return said
        if said.kind in ("permission", "credentials"):
            raise said.error(call.where)
        raise self._later(call, said)

    def _later(self, call: Call, said: Refusal) -> LaunchPending:
        launch = self._read()
        tries = int(launch.notes.get("tries", 0)) + 1
        # A zone that was not really asked is asked again.
        start = min(int(launch.notes.get("round", 0)), len(launch.calls))
        self._ledger.note(
            launch.token,
            tries=tries,
            round=len(launch.calls) if launch.open_call is None else start,
        )
        told = {
            "throttled": "AWS wants fewer calls just now",
            "unreachable": "AWS cannot be reached",
        }.get(said.kind, "whether EC2 has started the machines is not known; it is asked again")
        return LaunchPending(f"{told} ({said.code}: {said.message})", _pause(0.5, tries))

    def _no_room(self, launch: Launch) -> ProviderError:
        """The error when all zones of the round have refused."""
        said = self._said(launch)
        rounds = int(launch.notes.get("rounds", 0))
        what = f"{self._intent.fewest} × {self._plan.instance_type}"
        where = refusals_by_zone(said)
        if self._is_unsupported(launch):
            return ProviderError(f"EC2 has no {what}: {where}. Try another region or type")
        self._ledger.note(launch.token, round=len(launch.calls), rounds=rounds + 1, asks=None)
        return CapacityUnavailable(
            f"EC2 has no room for {what} just now ({where})", zone_order.pause(rounds)
        )

    def _said(self, launch: Launch) -> dict[str, Mapping[str, Any]]:
        """What the zones of this round have said, by zone."""
        start = int(launch.notes.get("round", 0))
        return {c.where.partition("/")[2]: c.detail for c in launch.calls[start:]}

    def _is_unsupported(self, launch: Launch) -> bool:
        """Whether no zone of this round has the type at all."""
        said = self._said(launch)
        return bool(said) and all(each.get("code") in _FOR_GOOD for each in said.values())


@contextmanager
def _however_long() -> Iterator[None]:
    """Has a question asked again for as long as AWS does not answer. Nothing of the launch is charged meanwhile."""
    try:
        yield
    except NoAnswer as error:
        raise LaunchPending(f"{error}; it is asked again", _MOST_PAUSE) from error


def _has_all(site: Site, zones: Sequence[str]) -> bool:
    """Whether disks in these zones can be attached to a machine at a site."""
    return all(zone == site.zone for zone in zones)


def _is_in_vain(launch: Launch) -> bool:
    """Whether nothing was ever created for a launch, and nothing will be by what was asked for."""
    return not launch.ended and all(call.state == REFUSED for call in launch.calls)


def _pause(first: float, tries: int) -> float:
    """Seconds until the next try, after tries that may be those of several days."""
    return min(_MOST_PAUSE, first * 2.0 ** min(tries, 16))


def _lacked_room(call: Call) -> bool:
    """Whether EC2 has refused a call for want of capacity."""
    return call.state == REFUSED and call.detail.get("kind") == "capacity"
