"""Launches a gang that may have fewer machines than it asks for: a bid for the fewest, one for each further machine.

Mithril gives all machines of a bid or none, and takes them away together. The bid for the fewest is placed alone. The
others are placed when it has its machines, so that none is charged while there are too few, and they boot beside those.
If one machine is enough, all bids are placed at once. When all machines that were given are ready, bids without a
machine are withdrawn. The launch has succeeded when they have ended.

Beside a gang that runs, a bid is placed only for a machine that is free, and withdrawn if it has not won one after two
auctions. All who win pay what the highest of those has bid that lose, so an open bid would raise the price of the gang
to its own limit.

    token                   in the ledger, the launch of the first bid; its note "handed_out" has the tokens of the
                            launches whose machines were handed out
    token-beside-1, ...     the launches of the others, which are like any other launch of one machine
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from flowlite.errors import CapacityUnavailable, ProviderError
from flowlite.node.config.ranks import assign_ranks
from flowlite.provider import Instance, LaunchIntent, LaunchPending, Plan
from flowlite.state import clock
from provider_adapters.mithril import bids
from provider_adapters.mithril.launching import Launching, given

if TYPE_CHECKING:
    from provider_adapters.mithril.context import MithrilContext
    from provider_adapters.mithril.ending import Ending
    from provider_adapters.rented.ledger import Launch

_LOOK = 1.0
# Seconds for which a bid beside a gang is left open. Auctions are two minutes apart.
_LONGEST_BESIDE = 250.0
_BESIDE = "-beside-"


class SeveralBids:
    """The launches of one FLOW_HOME that are content with fewer machines than they ask for, or beside a gang."""

    def __init__(self, place: MithrilContext, launching: Launching, ending: Ending) -> None:
        self._place = place
        self._launching = launching
        self._ending = ending

    def run(self, intent: LaunchIntent) -> list[Instance]:
        """The machines that there is room for, as soon as all of them answer.

        Raises:
            LaunchPending: Not yet; the bids continue.
            CapacityUnavailable: No machine is free for a gang that runs; nothing of it continues.
            ProviderError: The launch failed; nothing of it continues.
        """
        ledger, token = self._place.ledger, intent.token
        with ledger.hold(token):
            launch = ledger.read(token)
            tokens = None if launch is None else launch.notes.get("handed_out")
            if tokens is None:
                tokens = self._carry_on(intent)
                ledger.note(token, handed_out=tokens)
            launches = self._read(tokens)
            if all(_is_given_up(each) for each in launches):
                raise _ended_before(token)
            found = {each.id: each for launch in launches for each in given(launch)}
            return [found[name] for name in assign_ranks(found)]

    def _carry_on(self, intent: LaunchIntent) -> list[str]:
        """Carries all bids as far as is possible now.

        Returns:
            The tokens of those whose machines are handed out, once that is settled.
        """
        first, *others = self._bids_of(intent)
        late = intent.beside and self._is_late(first.token)
        ready: list[str] = []
        pending: dict[str, LaunchPending] = {}
        failed: list[ProviderError] = []
        for each in (first, *others):
            if any(map(_is_given_up, self._read([each.token]))):
                continue
            try:
                self._launching.run(each)
                ready.append(each.token)
            except LaunchPending as error:
                pending[each.token] = error
            except ProviderError as error:
                self._give_up([each.token])
                failed.append(error)
            if (
                each is first
                and not late
                and first.count > 1
                and not self._has_machines(each.token)
            ):
                # Fewer would be of no use.
                self._give_up(other.token for other in others)
                raise (pending.get(first.token) or (failed or [_ended_before(first.token)])[0])
        if late or (ready and not _booting(pending)):
            for each in [each for each in (first, *others) if each.token in pending]:
                self._look_anew(each, ready, pending)
        if late:
            self._give_up(token for token, why in pending.items() if why.queued)
        if boots := _booting(pending):
            raise boots[0]
        if not ready and not late:
            raise [*pending.values(), *failed, _ended_before(first.token)][0]
        self._give_up(pending)
        left = {first.token, *(each.token for each in others)} - set(ready)
        if not all(self._is_over(each) for each in self._read(left)):
            raise LaunchPending("bids that have won nothing are being withdrawn", _LOOK)
        if not ready:
            raise [*failed, _nothing_free(intent)][0]
        return ready

    def _bids_of(self, intent: LaunchIntent) -> list[LaunchIntent]:
        """The launches of one bid each, the first one first. Raises CapacityUnavailable."""
        first = replace(intent, count=intent.fewest, least=0)
        numbers = range(1, intent.count - intent.fewest + 1)
        others = (replace(first, token=f"{intent.token}{_BESIDE}{n}", count=1) for n in numbers)
        found = [first, *others]
        if not intent.beside:
            return found
        if begun := [each for each in found if self._read([each.token])]:
            return begun
        plan = Plan.from_json(intent.plan)
        wanted = (plan.options["type_id"], plan.region)
        markets = self._place.account.catalogue.markets(fresh=0.0)
        free = max((m.capacity for m in markets if (m.type_id, m.region) == wanted), default=0)
        if free < first.count:
            raise _nothing_free(intent)
        return found[: 1 + free - first.count]

    def _is_late(self, token: str) -> bool:
        """Whether bids beside a gang have been open for long enough."""
        return any(clock.now() - each.at > _LONGEST_BESIDE for each in self._read([token]))

    def _look_anew(
        self, intent: LaunchIntent, ready: list[str], pending: dict[str, LaunchPending]
    ) -> None:
        """Looks at a bid that would be withdrawn now: it may have won since it was last looked at."""
        self._place.seen.pop(intent.token, None)
        try:
            self._launching.run(intent)
        except LaunchPending as error:
            pending[intent.token] = error
        except ProviderError:
            # It is withdrawn as it is.
            return
        else:
            del pending[intent.token]
            ready.append(intent.token)

    def _has_machines(self, token: str) -> bool:
        """Whether the bid of a launch has machines, ready or not."""
        return any(
            each.notes.get("allocated_at") and not _is_given_up(each)
            for each in self._read([token])
        )

    # Bids that are given up

    def _read(self, tokens: Iterable[str]) -> list[Launch]:
        found = (self._place.ledger.read(token) for token in tokens)
        return [each for each in found if each is not None]

    def _give_up(self, tokens: Iterable[str]) -> None:
        """Ends the bids of these launches, and what they have won."""
        for launch in self._read(tokens):
            if not launch.ended:
                self._ending.end(launch)

    def _is_over(self, launch: Launch) -> bool:
        """Whether a launch that was given up has nothing any more, and nothing can come."""
        if launch.ended:
            return True
        # Settles a request without an answer, and repeats an end that was refused.
        self._ending.end(launch)
        launch = self._place.ledger.read(launch.token) or launch
        if launch.ended or launch.open_call is not None:
            return launch.ended
        account = self._place.account
        ages = {fid: clock.now() - call.at for call in launch.calls for fid in call.ids}
        found = bids.fetch(account.api, str(launch.frozen["project"]), launch.ids)
        return all(
            ages[fid] > account.settings.listing_lag if bid is None else bid.over
            for fid, bid in found.items()
        )


def intent_of(token: str) -> str:
    """The token of the intent to which the bid of this token belongs."""
    first, beside, number = token.rpartition(_BESIDE)
    return first if beside and number.isdecimal() else token


def _booting(pending: Mapping[str, LaunchPending]) -> list[LaunchPending]:
    """Why launches that have machines are pending."""
    return [error for error in pending.values() if not error.queued]


def _is_given_up(launch: Launch) -> bool:
    return launch.ended or bool(launch.notes.get("ending"))


def _nothing_free(intent: LaunchIntent) -> CapacityUnavailable:
    plan = Plan.from_json(intent.plan)
    return CapacityUnavailable(
        f"Mithril has no machine free: {plan.instance_type} in {plan.region}"
    )


def _ended_before(token: str) -> ProviderError:
    return ProviderError(f"the launch {token} has been ended before")
