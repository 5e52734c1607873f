"""Launches one bid for all machines of an intent: it is placed once, then checked until it is ready or fails.

A launch is called repeatedly with the same token and does not block. Its state is in the ledger:

    frozen      what every bid of the launch is made from: script, host key, price, volumes
    calls       the bids that were placed, each under a name of its own; the last one that was not dropped counts
    notes       "allocated_at", "node_key", "key_until", "given": the machines that were handed out, as they were then;
                "script_key" until then, the secret of a key that is in the script; "dropping": the name of the call
                whose bid is being ended, since another one replaces it; "failed": why the launch has failed for good;
                "tried_at": when the launch was last asked for, to the hour

A launch may take over a bid that another task has kept (`rented/kept_gangs.py`). The bid keeps its name, which names
the task that it was placed for, its machines' program to end it, and their key.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from flowlite.errors import NodeUnreachable, ProviderError
from flowlite.node.config.ranks import assign_ranks
from flowlite.provider import Instance, LaunchIntent, LaunchPending, Plan
from flowlite.provider.durations import duration
from flowlite.state import clock
from provider_adapters.mithril import bids, costs, disks, nodekey
from provider_adapters.mithril.bid_submission import BidSubmission
from provider_adapters.mithril.bids import Bid
from provider_adapters.mithril.context import deadline_seconds
from provider_adapters.mithril.ending import last_tried
from provider_adapters.mithril.markets import read_price
from provider_adapters.mithril.rest import requests
from provider_adapters.mithril.settings import IN_SCRIPT
from provider_adapters.rented.first_contact import (
    WRONG,
    MachineAccess,
    ReadyMachine,
    holding_up,
)
from provider_adapters.rented.gang_fit import LONGER_LIFE
from provider_adapters.rented.kept_gangs import as_held
from provider_adapters.rented.ledger import Call, Launch
from provider_adapters.rented.preparation import agent_of
from provider_adapters.ssh.hosts import everywhere

if TYPE_CHECKING:
    from provider_adapters.mithril.context import MithrilContext
    from provider_adapters.mithril.ending import Ending
    from provider_adapters.rented.cloud_polls import CloudPolls

_LOOK = 2.0
_PRICE_SECONDS = 30.0
# How often it is noted that a launch is still wanted, while it has nothing.
_NOTED_EVERY = 3600.0
_PAUSED = "the bid {name} is paused at Mithril: resume it in its console, or cancel the task (`flow cancel {task}`)"


class Launching:
    """The launches of one FLOW_HOME."""

    def __init__(self, place: MithrilContext, submission: BidSubmission, ending: Ending) -> None:
        self._place = place
        self._submission = submission
        self._ending = ending
        self._prices: dict[str, tuple[float, str]] = {}

    def run(self, intent: LaunchIntent) -> list[Instance]:
        """All machines of an intent, as soon as all of them answer.

        Raises:
            LaunchPending: Not yet; the bid continues.
            ProviderError: The launch failed; nothing of it continues.
        """
        ledger = self._place.ledger
        with ledger.hold(intent.token):
            if ledger.read(intent.token) is None:
                self._end_older(intent)
                if found := self._take_over(intent):
                    return found
            launch = ledger.begin(
                intent.token, intent.task_id, intent.count, lambda: self._place.freeze(intent)
            )
            if launch.ended and not (launch.notes.get("ending") or launch.notes.get("given")):
                raise _ended_elsewhere(launch)
            if launch.ended or launch.notes.get("ending"):
                ended = f"the launch {intent.token} has been ended before"
                raise ProviderError(str(launch.notes.get("failed") or ended))
            if launch.notes.get("given"):
                return given(launch)
            if clock.now() - last_tried(launch) > _NOTED_EVERY:
                launch = ledger.note(launch.token, tried_at=clock.now())
            call = self._bid(launch)
            return self._look(intent, ledger.read(intent.token) or launch, call)

    # A bid of another task

    def _take_over(self, intent: LaunchIntent) -> list[Instance]:
        """The machines of a bid that another task has kept for one like this; an empty list if there is none."""
        kept = KeptBids(self._place, self._ending, Plan.from_json(intent.plan))
        found = self._place.kept.take_over(
            intent,
            self._place.fits(intent),
            kept,
            patience=self._place.account.settings.boot_timeout,
        )
        kept.raise_limit(found)
        return found

    # The bid

    def _bid(self, launch: Launch) -> Call:
        """The bid that counts; places one if there is none."""
        if launch.open_call is not None:
            self._submission.settle(launch, repeat=True)
            launch = self._place.ledger.read(launch.token) or launch
        if launch.current is not None:
            return launch.current
        if not launch.calls:
            self._place.contact.require_jump(launch.frozen["jump"], "mithril")
        body = self._prepare(launch)
        self._key_for_script(launch)
        return self._submission.place_bid(self._place.ledger.read(launch.token) or launch, body)

    def _prepare(self, launch: Launch) -> dict[str, Any]:
        """The bid's body without name and script; creates what it needs first."""
        frozen, account = launch.frozen, self._place.account
        key = account.ssh_key(frozen["public_key"], self._place.home_id)
        volumes = self._place.volumes.ensure(frozen["volumes"], frozen["region"])
        return requests.bid(
            project=frozen["project"],
            region=frozen["region"],
            instance_type=frozen["type_id"],
            count=launch.count,
            limit_price=frozen["limit_price"],
            ssh_keys=[key],
            volumes=volumes,
        )

    def _end_older(self, intent: LaunchIntent) -> None:
        """Ends bids of the same task that have lost machines, since they would win unwanted replacements."""
        for other in self._place.ledger.launches(intent.task_id):
            if other.ended:
                continue
            found = bids.fetch(self._place.account.api, self._place.account.project, other.ids)
            for bid in found.values():
                if (
                    bid is None
                    or bid.over
                    or not broken(other, bid, self._place.account.settings.listing_lag)
                ):
                    continue
                if bid.status == requests.PAUSED:
                    raise LaunchPending(_PAUSED.format(name=bid.name, task=other.task), _LOOK)
                self._ending.end_bid(other, bid.fid)

    # Checking the bid

    def _look(self, intent: LaunchIntent, launch: Launch, call: Call) -> list[Instance]:
        looks, token = self._pace(launch), launch.token
        known = self._place.seen.get(token)
        if known is None or looks.due(token):
            account = self._place.account
            found = bids.fetch(account.api, account.project, call.ids[:1])
            known = found[call.ids[0]]
            looks.looked(token)
            if known is None:
                self._unknown(launch, call)
            else:
                self._place.seen[token] = known
        if known is None:
            raise self._wait(launch, "the bid was placed, and is not listed yet")
        return self._judge(intent, launch, call, known)

    def _pace(self, launch: Launch) -> CloudPolls:
        """The pace of checks: ever rarer during an auction; for machines that start, until all have an address."""
        known = self._place.seen.get(launch.token)
        if known is None or not known.live:
            return self._place.looks
        where = [m.get("ssh_destination") for m in known.live.values()]
        all_known = len(where) == launch.count and all(where)
        return self._place.looks if all_known else self._place.starting

    def _unknown(self, launch: Launch, call: Call) -> None:
        if clock.now() - call.at > self._place.account.settings.listing_lag:
            self._place.ledger.made(launch.token, call.name, call.ids, {"dropped": True})
            raise ProviderError(f"Mithril does not know the bid {call.detail.get('name')} any more")

    def _judge(self, intent: LaunchIntent, launch: Launch, call: Call, bid: Bid) -> list[Instance]:
        if launch.notes.get("dropping") == call.name:
            self._ending.drop(launch, call)
            raise self._wait(launch, "machines were gone before they were ready; it is bid anew")
        if bid.status == requests.TERMINATED:
            raise self._failed(launch, _ended_elsewhere(launch))
        if bid.status == requests.PAUSED:
            raise self._wait(launch, _PAUSED.format(name=bid.name, task=launch.task))
        if bid.gone:
            self._lost(launch, call, bid)
        if bid.status == requests.OPEN or not bid.live:
            raise self._wait(launch, self._auction(launch, bid), queued=True)
        if bid.status == requests.PREEMPTING:
            raise self._wait(launch, "Mithril takes the machines away before they were ready")
        return self._meet(intent, launch, bid)

    def _lost(self, launch: Launch, call: Call, bid: Bid) -> None:
        """Handles machines that were lost before all were ready. Raises; the launch is tried again or has failed."""
        failed = {name: m for name, m in bid.gone.items() if m["status"] not in requests.TAKEN_AWAY}
        if failed:
            told = ", ".join(f"{m['name']} ({name}: {m['status']})" for name, m in failed.items())
            text = f"died while starting: {told}; all machines of the bid were ended"
            raise self._failed(launch, ProviderError(text))
        self._ending.drop(launch, call)
        name, machine = next(iter(bid.gone.items()))
        why = requests.TAKEN_AWAY[machine["status"]]
        raise self._wait(launch, f"{name} is gone before it was ready ({why}); it is bid anew")

    def _failed(self, launch: Launch, error: ProviderError) -> ProviderError:
        """Ends all that a launch has, since it has failed; returns the error, which it gives from now on."""
        self._place.ledger.note(launch.token, failed=str(error))
        self._ending.end(launch)
        return error

    def _auction(self, launch: Launch, bid: Bid) -> str:
        frozen = launch.frozen
        asked_at, price = self._prices.get(launch.token, (0.0, ""))
        if clock.monotonic() - asked_at > _PRICE_SECONDS:
            query = requests.price_of(frozen["type_id"], frozen["region"], launch.count)
            try:
                now = read_price(self._place.account.api.get("/v2/pricing/current", query), 0.0).now
            except LaunchPending:
                raise
            except ProviderError:
                # The bid is good without it.
                now = 0.0
            price = f"price now {requests.dollars(now)}, " if now else ""
            self._prices[launch.token] = (clock.monotonic(), price)
        return (
            f"waiting for the auction of {launch.count} × {frozen['type_name']} in {frozen['region']}: {price}"
            f"your limit {requests.dollars(bid.limit_price)} per instance and hour"
        )

    # The machines

    def _meet(self, intent: LaunchIntent, launch: Launch, bid: Bid) -> list[Instance]:
        since = launch.notes.get("allocated_at")
        if since is None:
            since = clock.now()
            self._place.ledger.note(launch.token, allocated_at=since)
        names = assign_ranks(bid.live)
        where = {name: bids.ssh_place(bid.live[name].get("ssh_destination")) for name in names}
        if len(names) < launch.count or None in where.values():
            unknown = [name for name in names if where[name] is None]
            why = dict.fromkeys(unknown, "it has no address yet")
            self._check_time(launch, bid, since, why)
            up = len(names) - len(unknown)
            text = (
                f"{launch.count - up} of {launch.count} machines are still being started by Mithril"
            )
            raise self._wait(launch, text)
        places = [self._place.where(launch, name, *found) for name, found in where.items() if found]
        met = self._reach(intent, launch, bid, places, since)
        try:
            disk_of = self._disks(launch, met[0])
            self._give_keys(launch, bid, met)
        except LaunchPending as error:
            # Preparing machines counts as booting, since they are paid for meanwhile.
            self._check_time(launch, bid, since, {met[0].id: str(error)})
            raise
        return self._give(launch, bid, met, disk_of)

    def _reach(
        self,
        intent: LaunchIntent,
        launch: Launch,
        bid: Bid,
        places: list[MachineAccess],
        since: float,
    ) -> list[ReadyMachine]:
        minor = Plan.from_json(intent.plan).options.get("minor")
        found = self._place.contact.reach(
            places, task=launch.task, minor=minor, agent=agent_of(intent)
        )
        missing = holding_up(found)
        wrong = [each for each in missing if each.stage == WRONG]
        if wrong:
            text = f"{_named(bid, wrong[0].id)} cannot be used: {wrong[0].why}; all machines of the bid were ended"
            raise self._failed(launch, ProviderError(text))
        if missing:
            self._check_time(launch, bid, since, {each.id: each.why for each in missing})
            first = missing[0]
            text = f"{len(missing)} of {launch.count} nodes are still starting ({first.id}: {first.why})"
            raise self._wait(launch, text, addresses_known=True)
        return [each for each in found if isinstance(each, ReadyMachine)]

    def _check_time(
        self, launch: Launch, bid: Bid, since: float, missing: Mapping[str, str]
    ) -> None:
        limit = self._place.account.settings.boot_timeout
        just_woke = self._place.suspends.just_woke()
        if clock.now() - since <= limit or just_woke:
            return
        told = "; ".join(
            f"{_named(bid, name)} ({bid.machines[name]['status']}): {why}"
            for name, why in missing.items()
        )
        text = (
            f"not all machines were ready {duration(limit)} after Mithril gave them: "
            f"{told or 'some never came'}. All were ended. Mithril gives no console output; `boot_timeout` under "
            "[mithril] waits longer"
        )
        raise self._failed(launch, ProviderError(text))

    def _disks(self, launch: Launch, only: ReadyMachine) -> dict[str, Any]:
        """Which disk of the only machine each block volume is."""
        blocks = [each for each in launch.frozen["volumes"] if each["interface"] == "block"]
        if not blocks:
            return {}
        try:
            with self._place.contact.connect(only.data) as connection:
                return disks.find(connection, blocks)
        except NodeUnreachable as error:
            raise self._wait(launch, f"{only.id} does not answer: {error}") from error
        except ProviderError as error:
            self._failed(launch, error)
            raise

    def _give_keys(self, launch: Launch, bid: Bid, met: Sequence[ReadyMachine]) -> None:
        """Sends all machines, once, the key and program with which they can end the bid."""
        ledger = self._place.ledger
        if self._place.account.settings.node_key is not True or launch.notes.get("has_key"):
            return
        api, again = self._place.account.api, launch.notes.get("key_name") == bid.name
        ledger.note(launch.token, key_name=bid.name)
        try:
            until = _key_until(launch, launch.frozen.get("deadline"))
            made = nodekey.make(api, bid.name, until, again=again)
            ledger.note(launch.token, node_key=str(made["fid"]), key_until=until)
            bring = partial(self._bring_key, bid, str(made["secret"]))
            everywhere(enumerate(met), bring)
        except (LaunchPending, NodeUnreachable, OSError) as error:
            raise self._wait(
                launch, f"not all nodes have a key yet to end the bid: {error}"
            ) from error
        except ProviderError as error:
            raise self._failed(launch, self._keyless(error)) from error
        ledger.note(launch.token, has_key=True)

    def _bring_key(self, bid: Bid, secret: str, ranked: tuple[int, ReadyMachine]) -> None:
        rank, machine = ranked
        text = nodekey.program(self._place.account.settings.api_url, bid.fid, secret, rank)
        with self._place.contact.connect(machine.data) as connection:
            nodekey.bring(connection, str(machine.data["python"]), text)

    def _key_for_script(self, launch: Launch) -> None:
        """Creates the key for the start-up script of the next bid, if the settings ask for it."""
        if self._place.account.settings.node_key != IN_SCRIPT or launch.notes.get("script_key"):
            return
        ledger, name = self._place.ledger, requests.bid_name(self._place.home_id, launch.token)
        again = bool(launch.calls or launch.notes.get("key_name"))
        ledger.note(launch.token, key_name=name)
        try:
            until = _key_until(launch, None)
            made = nodekey.make(self._place.account.api, name, until, again=again)
        except LaunchPending:
            raise
        except ProviderError as error:
            raise self._keyless(error) from error
        # A repeated request must be identical, so the secret is kept until the machines are there.
        secret = str(made["secret"])
        ledger.note(launch.token, node_key=str(made["fid"]), key_until=until, script_key=secret)

    @staticmethod
    def _keyless(error: ProviderError) -> ProviderError:
        return ProviderError(
            f"the nodes cannot be given a key to end the bid by themselves: {error}. No bid goes on. "
            "`node_key = false` under [mithril] goes without; docs/providers/mithril.md says what that means"
        )

    def _give(
        self, launch: Launch, bid: Bid, met: list[ReadyMachine], disk_of: dict[str, Any]
    ) -> list[Instance]:
        account = self._place.account
        try:
            bill = costs.bill_of(account.api, account.project, bid.fid)
        except ProviderError:
            # Until a listing has it, they are charged at the bid's limit from their allocation on.
            bill = {}
        found = [instance_of(launch, bid, each, bill.get(each.id)) for each in met]
        if disk_of:
            found = [replace(each, data={**each.data, "disks": disk_of}) for each in found]
        self._place.ledger.note(launch.token, given=[each.to_json() for each in found])
        # The script contains the throw-away key, which no machine uses any more.
        self._place.ledger.forget(launch.token, "script")
        self._place.ledger.note(launch.token, script_key=None)
        self._place.forget(launch.token)
        self._place.seen.pop(launch.token, None)
        return found

    def _wait(
        self, launch: Launch, text: str, *, addresses_known: bool = False, queued: bool = False
    ) -> LaunchPending:
        pause = self._pace(launch).pause(launch.token, addresses_known=addresses_known)
        return LaunchPending(text, retry_after=min(_LOOK, max(0.1, pause)), queued=queued)


class KeptBids:
    """Bids that other tasks have kept, for a task with this plan: as `GangCloud`."""

    def __init__(self, place: MithrilContext, ending: Ending, plan: Plan) -> None:
        self._place = place
        self._ending = ending
        self._plan = plan
        self._limit = float(plan.options["limit_price"])
        self._bid: Bid | None = None
        self._longest = deadline_seconds(plan, place.account.settings.boot_timeout)

    def is_suitable(self, launch: Launch) -> bool:
        """As `GangCloud.is_suitable`. The limit of a bid is set to that of the plan when it is taken over."""
        if launch.frozen["region"] != self._plan.region or self._plan.unmet_price is not None:
            return False
        until = float(launch.notes.get("key_until") or 0.0)
        return nodekey.expiry(clock.wall(), self._longest) <= until

    def running(self, launch: Launch) -> list[Instance]:
        """As `GangCloud.running`: none if a machine is gone or will be."""
        call, account = launch.current, self._place.account
        self._bid = None
        if call is None:
            return []
        bid = bids.fetch(account.api, account.project, call.ids[:1])[call.ids[0]]
        if bid is None:
            # A listing may lack a new bid; the machines will be asked themselves.
            return given(launch) if clock.now() - call.at < account.settings.listing_lag else []
        if bid.status not in (requests.ALLOCATED, requests.OPEN):
            return []
        leaving = any(m["status"] in requests.LEAVING for m in bid.machines.values())
        if leaving or broken(launch, bid, account.settings.listing_lag):
            return []
        if bid.limit_price > self._limit:
            bids.set_limit(account.api, bid.fid, self._limit)
        self._bid = bid
        bill: dict[str, costs.Charged] = {}
        with suppress(ProviderError):
            bill = costs.bill_of(account.api, account.project, bid.fid)
        return [bill[i.id].on(i) if i.id in bill else i for i in given(launch)]

    def end(self, launch: Launch) -> None:
        """As `GangCloud.end`."""
        self._ending.terminate([as_held(each, launch) for each in given(launch)])

    def raise_limit(self, found: Sequence[Instance]) -> None:
        """Gives the bid of machines that were taken over the plan's limit, if its own is lower."""
        if found and self._bid is not None and self._bid.limit_price < self._limit:
            # With the lower one it is only likelier to lose.
            with suppress(ProviderError):
                bids.set_limit(self._place.account.api, self._bid.fid, self._limit)


# State of a launch


def given(launch: Launch) -> list[Instance]:
    """The machines that were handed out, with their data of that time."""
    return [Instance.from_json(each) for each in launch.notes.get("given", ())]


def broken(launch: Launch, bid: Bid, lag: float) -> bool:
    """Whether a bid has lost one of its machines after they were handed out.

    Args:
        lag: Seconds after the allocation during which a listing may lack a machine.
    """
    placed = [call.at for call in launch.calls if bid.fid in call.ids]
    since = max([*placed, float(launch.notes.get("allocated_at") or 0.0)])
    old, gone = clock.now() - since > lag, bid.gone
    return any(
        each.id in gone or (old and each.id not in bid.machines)
        for each in given(launch)
        if each.data["bid"] == bid.fid
    )


def instance_of(
    launch: Launch, bid: Bid, met: ReadyMachine, bill: costs.Charged | None
) -> Instance:
    """The instance of a machine that is ready."""
    machine = bid.machines[met.id]
    made = Instance(
        id=met.id,
        task_id=launch.task,
        state="running",
        address=str(machine.get("private_ip") or met.data["private_address"]),
        price_per_hour=bid.limit_price,
        launched_at=float(launch.notes.get("allocated_at") or clock.now()),
        data={
            **met.data,
            "bid": bid.fid,
            "name": str(machine["name"]),
            "token": launch.token,
        },
    )
    return made if bill is None else bill.on(made)


def _key_until(launch: Launch, deadline: float | None) -> float:
    """Unix time until which the key of a bid must be valid. Machines that may be handed on need it for longer."""
    longer = LONGER_LIFE if launch.frozen.get("fits") else 0.0
    return nodekey.expiry(clock.wall(), deadline) + longer


def _ended_elsewhere(launch: Launch) -> ProviderError:
    call = launch.made
    name = call.detail.get("name") if call else launch.token
    return ProviderError(
        f"the bid {name} was ended by somebody else before its machines were ready"
    )


def _named(bid: Bid, name: str) -> str:
    return f"{bid.machines[name]['name']} ({name})" if name in bid.machines else name
