"""The listing of machines of this FLOW_HOME at Mithril, and of bids that may get machines at any time.

A bid without machines is listed as one instance in state "starting" under the bid's id; a bid whose placement is
uncertain, under its name. Nothing that may come to cost money is missing here.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from flowlite.errors import ProviderError
from flowlite.provider import Instance
from flowlite.state import clock
from provider_adapters.mithril import bids, costs
from provider_adapters.mithril.bids import Bid
from provider_adapters.mithril.ending import ended
from provider_adapters.mithril.launching import broken, given
from provider_adapters.mithril.rest import requests
from provider_adapters.mithril.several_bids import intent_of
from provider_adapters.rented.kept_gangs import as_held
from provider_adapters.rented.ledger import Launch, over_of

if TYPE_CHECKING:
    from provider_adapters.mithril.bid_submission import BidSubmission
    from provider_adapters.mithril.context import MithrilContext
    from provider_adapters.mithril.ending import Ending

_BILL_SECONDS = 60.0
# The least time between two queries, in multiples of what the last one took.
_BILL_PAUSE = 60.0
_KEEP_SECONDS = 30 * 86400.0


class Listing:
    """The listing of one FLOW_HOME."""

    def __init__(self, place: MithrilContext, submission: BidSubmission, ending: Ending) -> None:
        self._place = place
        self._submission = submission
        self._ending = ending
        self._over: dict[str, Bid] = {}
        # Of each bid: when it is queried again, and what was known last.
        self._bills: dict[str, tuple[float, dict[str, costs.Charged]]] = {}

    def of_task(self, task: str) -> list[Instance]:
        """All instances of one task, including those that have ended, with their cost."""
        launches = self._place.ledger.launches(task)
        over = [each for launch in launches for each in over_of(launch)]
        return [*over, *self._alive([each for each in launches if not each.ended])]

    def of_all(self) -> list[Instance]:
        """All instances that may cost money, known to the ledger or only to Mithril."""
        self._place.ledger.prune(_KEEP_SECONDS)
        launches = self._place.ledger.live()
        if not launches and not self._place.account.has_key:
            return []
        found = self._alive(launches)
        known = {fid for each in self._place.ledger.launches(everywhere=True) for fid in each.ids}
        home = self._place.home_id
        for bid in self._ours().values():
            if bid.fid not in known and bid.tags and home.startswith(bid.tags.home[:8]):
                found += _unknown(bid, bid.tags)
        return found

    def of_others(self) -> list[Instance]:
        """The bids of other FLOW_HOMEs in this account."""
        if not self._place.account.has_key:
            return []
        home = self._place.home_id
        found: list[Instance] = []
        for bid in self._ours().values():
            if bid.tags and not home.startswith(bid.tags.home[:8]):
                found += self._of_other_home(bid, bid.tags)
        return found

    # Helpers

    def _of_other_home(self, bid: Bid, tags: requests.Tags) -> list[Instance]:
        """The machines of a bid of another FLOW_HOME.

        Their own clocks began when they were up, up to 20 minutes after they were created. A bid whose time seems to be
        over is looked up, since `flow gc` would end it.
        """
        created = {name: requests.unix(each.get("created_at")) for name, each in bid.live.items()}
        now, seconds = clock.wall(), tags.seconds
        if seconds is not None and any(at and now > at + seconds for at in created.values()):
            with suppress(ProviderError):
                bill = costs.bill_of(self._place.account.api, self._place.account.project, bid.fid)
                created |= {name: bill[name].since for name in created if name in bill}
        return [_of_other(each, tags, created.get(each.id)) for each in _unknown(bid, tags)]

    def _ours(self) -> dict[str, Bid]:
        return bids.ours(self._place.account.api, self._place.account.project)

    def _alive(self, launches: list[Launch]) -> list[Instance]:
        found: list[Instance] = []
        settled = []
        for launch in launches:
            if launch.open_call is not None:
                self._submission.settle(launch, repeat=False)
            now = self._submission.confirm(self._place.ledger.read(launch.token) or launch)
            if now.ended:
                # Another process, or thread, has closed it meanwhile.
                found += over_of(now)
            else:
                settled.append(now)
        views = self._fetch(settled)
        for launch in settled:
            mine = {fid: views.get(fid) for fid in launch.ids}
            listed = [*self._listed(launch, mine), *self._doubtful(launch)]
            token = intent_of(launch.token)
            there = [costs.as_kept(as_held(replace(each, launch=token), launch)) for each in listed]
            over = None
            if all(each.state == "ended" for each in there):
                over = self._ending.conclude(launch, mine)
            found += there if over is None else over
        return found

    def _fetch(self, launches: list[Launch]) -> dict[str, Bid | None]:
        by_project: dict[str, list[str]] = {}
        found: dict[str, Bid | None] = {}
        for launch in launches:
            found |= {fid: self._over[fid] for fid in launch.ids if fid in self._over}
            left = (fid for fid in launch.ids if fid not in self._over)
            by_project.setdefault(str(launch.frozen["project"]), []).extend(left)
        for project, fids in by_project.items():
            if fids:
                found |= bids.fetch(self._place.account.api, project, fids)
        # A launch that loses machine after machine while they boot has had many bids.
        self._over |= {fid: bid for fid, bid in found.items() if bid is not None and bid.over}
        return found

    def _listed(self, launch: Launch, found: Mapping[str, Bid | None]) -> Iterator[Instance]:
        ages = {fid: clock.now() - call.at for call in launch.calls for fid in call.ids}
        for fid, bid in found.items():
            if bid is None:
                # A listing may lack a new bid; the machines that were handed out are known all the same.
                if ages[fid] < self._place.account.settings.listing_lag:
                    known = [each for each in given(launch) if each.data["bid"] == fid]
                    yield from known or [_placeholder(fid, launch.task, fid, launch.token)]
            elif bid.over:
                yield from (ended(each, bid, None) for each in _of(launch, bid))
            elif broken(launch, bid, self._place.account.settings.listing_lag):
                # The remaining machines end with the bid: the whole gang is bid for again.
                bill = self._bill(launch, bid)
                yield from (self._taken(each, bid, bill) for each in _of(launch, bid))
                left = _placeholder(bid.fid, launch.task, bid.fid, launch.token, bid.name)
                # The next launch waits for a bid that somebody has paused (`Launching._end_older`).
                paused = bid.status == requests.PAUSED
                yield replace(left, state="returning") if paused else left
            elif mine := _of(launch, bid):
                bill = self._bill(launch, bid)
                yield from (_running(each, bid, bill.get(each.id)) for each in mine)
            else:
                tags = requests.Tags(launch.task, self._place.home_id)
                bill = self._bill(launch, bid) if bid.live else {}
                for each in _unknown(bid, tags, launch.token):
                    yield bill[each.id].on(each) if each.id in bill else each

    def _doubtful(self, launch: Launch) -> Iterator[Instance]:
        if launch.open_call is not None:
            name = requests.bid_name(self._place.home_id, launch.open_call.name)
            yield replace(_placeholder(name, launch.task, "", launch.token, name), unconfirmed=True)

    def _taken(self, instance: Instance, bid: Bid, bill: Mapping[str, costs.Charged]) -> Instance:
        """A machine of a bid that has lost some: gone, or still there until the bid is ended."""
        causes = {
            requests.PAUSED_INSTANCE if name in bill and bill[name].paused else machine["status"]
            for name, machine in bid.gone.items()
        }
        taken = sorted(causes & set(requests.TAKEN_AWAY))
        why = requests.TAKEN_AWAY[taken[0]] if taken else ", ".join(sorted(causes))
        mine = bill.get(instance.id)
        if instance.id in bid.live:
            there = replace(_running(instance, bid, mine), state="ending")
            return replace(there, why=why, preempted=bool(taken))
        # A history that lags behind does not know the end yet.
        found = ended(instance, bid, mine if mine and mine.until else None)
        return replace(found, why=found.why or why, preempted=bool(taken))

    def _bill(self, launch: Launch, bid: Bid) -> dict[str, costs.Charged]:
        """The bid's cost until now; queried once a minute, and until it has the ends of all machines that are gone.

        The history of a large gang that runs for weeks takes long, and is queried less often.
        """
        due, known = self._bills.get(bid.fid, (-math.inf, {}))
        began = clock.monotonic()
        is_old = any(name in known and not known[name].until for name in bid.gone)
        if is_old or began >= due:
            # The listing of machines matters more than their cost.
            with suppress(ProviderError):
                project = str(launch.frozen["project"])
                known = costs.bill_of(self._place.account.api, project, bid.fid)
            took = clock.monotonic() - began
            self._bills[bid.fid] = (began + max(_BILL_SECONDS, _BILL_PAUSE * took), known)
        return known


def _of(launch: Launch, bid: Bid) -> list[Instance]:
    return [each for each in given(launch) if each.data["bid"] == bid.fid]


def _running(instance: Instance, bid: Bid, bill: costs.Charged | None) -> Instance:
    found = replace(instance, data={**instance.data, costs.LIMIT: bid.limit_price})
    # A listing may not name it yet.
    if machine := bid.machines.get(instance.id):
        found = replace(found, data={**found.data, "status": str(machine["status"])})
    return found if bill is None else bill.on(found)


def _unknown(bid: Bid, tags: requests.Tags, token: str = "") -> list[Instance]:
    """Machines of a bid that were not handed out; the bid itself if it has none."""
    if not bid.live:
        return [_placeholder(bid.fid, tags.task, bid.fid, token, bid.name)]
    return [
        Instance(
            id=name,
            task_id=tags.task,
            state="starting",
            address=str(machine.get("private_ip") or ""),
            price_per_hour=bid.limit_price,
            data={
                "bid": bid.fid,
                "bid_name": bid.name,
                "token": token,
                "name": str(machine["name"]),
                "status": str(machine["status"]),
            },
        )
        for name, machine in sorted(bid.live.items())
    ]


def _of_other(instance: Instance, tags: requests.Tags, since: float | None) -> Instance:
    """A machine of another FLOW_HOME, with its owner. Its deadline counts from its start, as far as that is known.

    Whether it has a key to end the bid cannot be seen.
    """
    until = None if since is None or tags.seconds is None else since + tags.seconds
    about = {"home": tags.home, "owner": tags.owner, "deadline": until, "stays": "its bid"}
    data = {**instance.data, **about}
    return replace(instance, launched_at=since or 0.0, cost_at_most=True, data=data)


def _placeholder(name: str, task: str, bid: str, token: str, bid_name: str = "") -> Instance:
    return Instance(
        id=name,
        task_id=task,
        state="starting",
        data={"bid": bid, "bid_name": bid_name, "token": token, "name": bid_name or name},
    )
