"""Ends bids, which ends the bill, and revokes the API key that their machines had.

Mithril takes back all machines of a bid or none, so ending one of them ends all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from flowlite.errors import ProviderError
from flowlite.provider import Instance
from flowlite.state import clock
from provider_adapters.mithril import bids, costs, nodekey
from provider_adapters.mithril.rest import requests
from provider_adapters.mithril.rest.client import Unreachable
from provider_adapters.rented.kept_gangs import as_held
from provider_adapters.rented.ledger import Call, Launch, over_of

if TYPE_CHECKING:
    from provider_adapters.mithril.bid_submission import BidSubmission
    from provider_adapters.mithril.bids import Bid
    from provider_adapters.mithril.context import MithrilContext

# A launch that has nothing, was never ended, and was not asked for is dropped after this time.
_FORGOTTEN_SECONDS = 86400.0


class Ending:
    """Ends the bids of one FLOW_HOME."""

    def __init__(self, place: MithrilContext, submission: BidSubmission) -> None:
        self._place = place
        self._submission = submission

    def terminate(self, instances: Sequence[Instance]) -> None:
        """Ends the bids of these instances, but none that another task has taken over. Raises ProviderError."""
        launches = {each.token: each for each in self._place.ledger.launches()}
        by_bid = {fid: token for token, each in launches.items() for fid in each.ids}
        tokens: dict[str, set[str]] = {}
        foreign: dict[str, str] = {}
        for instance in self._place.kept.to_end(instances):
            bid = str(instance.data.get("bid") or "")
            token = by_bid.get(bid) or str(instance.data.get("token") or "")
            if token in launches:
                tokens.setdefault(token, set()).add(instance.id)
            elif bid:
                foreign[bid] = str(instance.data.get("bid_name") or "")
        failed: list[ProviderError] = []
        for token, machines in tokens.items():
            try:
                if not launches[token].ended and not self._are_paused(launches[token], machines):
                    self.end(launches[token])
            except Unreachable:
                # It does not answer for the others either.
                raise
            except ProviderError as error:
                # The others are charged, too.
                failed.append(error)
        for bid in foreign:
            try:
                bids.end(self._place.account.api, bid)
            except Unreachable:
                raise
            except ProviderError as error:
                failed.append(error)
        if failed:
            raise failed[0]
        if names := [name for name in foreign.values() if name]:
            nodekey.revoke_named(self._place.account.api, *names)

    def end(self, launch: Launch) -> None:
        """Ends all that a launch has created. The listing shows when it is gone. Raises ProviderError."""
        ledger = self._place.ledger
        with ledger.hold(launch.token):
            try:
                ledger.note(launch.token, ending=True)
            except ProviderError:
                # The disk may be full. What is known of it is charged, and ended all the same.
                for fid in launch.ids:
                    self.end_bid(launch, fid)
                raise
            self._submission.settle(launch, repeat=False)
            found = self._submission.confirm(ledger.read(launch.token) or launch)
            for fid in found.ids:
                self.end_bid(found, fid)
            with suppress(ProviderError):
                self._revoke(found)

    def end_bid(self, launch: Launch, fid: str) -> None:
        """Ends one bid; one that has ended is no error. Raises ProviderError."""
        bids.end(self._place.account.api, fid)
        self._place.seen.pop(launch.token, None)

    def drop(self, launch: Launch, call: Call) -> None:
        """Ends a bid that another one of the same launch will replace."""
        ledger = self._place.ledger
        # Whoever finds it ended would take it for one that somebody else has ended.
        ledger.note(launch.token, dropping=call.name)
        for fid in call.ids:
            self.end_bid(launch, fid)
        with suppress(ProviderError):
            self._revoke(launch)
        ledger.made(launch.token, call.name, call.ids, {"dropped": True})
        nothing = dict.fromkeys(
            ("allocated_at", "key_name", "node_key", "has_key", "revoked", "script_key", "dropping")
        )
        ledger.note(launch.token, **nothing)

    def conclude(self, launch: Launch, found: Mapping[str, Bid | None]) -> list[Instance] | None:
        """Closes a launch of which nothing exists any more, and to which nothing will come.

        Returns:
            The machines that were handed out or have cost anything, billed to the second; None if the launch stays
            open.
        """
        if not _is_done(launch, found):
            return None
        ledger = self._place.ledger
        with ledger.hold(launch.token), suppress(ProviderError):
            launch = ledger.read(launch.token) or launch
            if launch.ended:
                # Another process, or thread, has closed it meanwhile.
                return over_of(launch)
            if not _is_done(launch, found):
                # It goes on with another bid.
                return None
            self._revoke(launch)
            over = self._ended(launch, found)
            ledger.note(launch.token, over=[each.to_json() for each in over])
            ledger.end(launch.token)
            for name in {name for bid in found.values() if bid for name in bid.machines}:
                self._place.contact.forget(name)
            self._place.forget(launch.token)
            return over
        return None

    # Helpers

    def _are_paused(self, launch: Launch, names: set[str]) -> bool:
        """Whether these are machines that are gone because somebody has paused their bids.

        The bids themselves are kept, since the task waits until they are resumed. Whoever ends their entries in the
        listing ends them.
        """
        machines = {each["id"]: str(each["data"]["bid"]) for each in launch.notes.get("given", ())}
        if launch.notes.get("ending") or not names <= machines.keys():
            return False
        fids = {machines[name] for name in names}
        try:
            found = bids.fetch(self._place.account.api, str(launch.frozen["project"]), fids)
        except ProviderError:
            return False
        return all(
            bid is not None and bid.status == requests.PAUSED and not bid.live
            for bid in found.values()
        )

    def _revoke(self, launch: Launch) -> None:
        notes, api = launch.notes, self._place.account.api
        if notes.get("revoked") or not notes.get("key_name"):
            return
        if notes.get("node_key"):
            nodekey.revoke(api, str(notes["node_key"]))
        else:
            # The key may come from a process that was killed before it could record it.
            nodekey.revoke_named(api, str(notes["key_name"]))
        self._place.ledger.note(launch.token, revoked=True, script_key=None)

    def _ended(self, launch: Launch, found: Mapping[str, Bid | None]) -> list[Instance]:
        """The machines that were handed out or have cost anything, each billed to the second."""
        account = self._place.account
        given = {each["id"]: Instance.from_json(each) for each in launch.notes.get("given", ())}
        over = []
        for fid, bid in found.items():
            if bid is None or not bid.machines:
                continue
            bill = costs.bill_of(account.api, launch.frozen["project"], fid)
            for name in sorted(bid.machines):
                about = {"bid": fid, "name": str(bid.machines[name]["name"])}
                each = given.get(name) or Instance(name, launch.task, data=about)
                if name in given or name in bill:
                    over.append(as_held(ended(each, bid, bill.get(name)), launch))
        return over


def _is_done(launch: Launch, found: Mapping[str, Bid | None]) -> bool:
    """Whether nothing comes to a launch any more of which nothing exists.

    Its machines were handed out, it was given up, or somebody else has ended its last bid.
    """
    old = clock.now() - last_tried(launch) > _FORGOTTEN_SECONDS
    if launch.notes.get("given") or launch.notes.get("ending") or old:
        return True
    call = launch.made
    if call is None or call.detail.get("dropped") or launch.open_call is not None:
        return False
    if launch.notes.get("dropping") == call.name:
        return False
    there = [found.get(fid) for fid in call.ids]
    return bool(there) and all(bid is not None and bid.over for bid in there)


def last_tried(launch: Launch) -> float:
    """The Unix time at which a launch was last asked for, to the hour."""
    return max(launch.at, float(launch.notes.get("tried_at") or 0.0))


def ended(instance: Instance, bid: Bid, bill: costs.Charged | None) -> Instance:
    """A machine that is gone: why, and what it cost."""
    status = str(bid.machines.get(instance.id, {}).get("status", "STATUS_TERMINATED"))
    if bill is not None and bill.paused:
        status = requests.PAUSED_INSTANCE
    why = requests.TAKEN_AWAY.get(status, "" if status == "STATUS_TERMINATED" else status)
    found = replace(instance, state="ended", why=why, preempted=status in requests.TAKEN_AWAY)
    if bill is None:
        return found
    billed = bill.on(found)
    return billed if billed.ended_at else replace(billed, ended_at=clock.now())
