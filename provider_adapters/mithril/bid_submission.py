"""Places each bid exactly once, even if the answer is lost.

Each bid has a unique name, which is in the ledger before the bid is placed. A bid whose answer got lost is found by its
name. Mithril does not promise to refuse a name that is taken. If a request was repeated, bids are therefore searched
for by name until the launch has ended, and all but one of a name are ended.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flowlite.errors import ProviderError, QuotaExceeded
from flowlite.provider import LaunchPending
from flowlite.state import clock
from provider_adapters.mithril import bids, nodekey
from provider_adapters.mithril.rest import requests
from provider_adapters.mithril.rest.client import ApiRefused, OutcomeUnknown, Unreachable
from provider_adapters.rented.ledger import Call, Launch

if TYPE_CHECKING:
    from collections.abc import Mapping

    from provider_adapters.mithril.context import MithrilContext

_BIDS = "/v2/spot/bids"
_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 30.0
# Listings normally show a bid after this many seconds; a request that is repeated earlier might place it twice.
_LISTED_SECONDS = 5.0
_CONFLICT = 409
_TAKEN = ("already", "duplicate", "taken", "exists")


class BidSubmission:
    """Places bids, and finds the outcome of requests."""

    def __init__(self, place: MithrilContext) -> None:
        self._place = place

    def place_bid(self, launch: Launch, body: Mapping[str, Any]) -> Call:
        """Places a bid under a new name.

        Raises:
            LaunchPending: It was not placed, or that is not known yet; to be tried again.
            ProviderError: It was refused.
        """
        call = self._place.ledger.intend(launch.token, str(body["region"]), body)
        return self._send(launch, call)

    def settle(self, launch: Launch, *, repeat: bool) -> None:
        """Finds out whether the bid of an open call was placed.

        Args:
            repeat: Whether to place the bid again if several checks did not find it. Otherwise a bid that is not found
                within the listing's lag counts as never placed.

        Raises:
            LaunchPending: It is still not known.
            ProviderError: It was refused.
        """
        with self._place.ledger.hold(launch.token):
            found = self._place.ledger.read(launch.token)
            call = found.open_call if found else None
            if found is None or call is None:
                return
            if self._adopt(found, call):
                return
            age = clock.now() - call.at
            if repeat and age < _LISTED_SECONDS:
                raise LaunchPending(
                    "whether the bid was placed is not known yet, it is looked up", _FIRST_PAUSE
                )
            if repeat:
                self._place.ledger.note(launch.token, doubtful=True)
                self._send(found, call, again=True)
            elif age > self._place.account.settings.listing_lag:
                self._place.ledger.refused(launch.token, call.name, {"why": "it was never listed"})

    def confirm(self, launch: Launch) -> Launch:
        """Finds bids that were placed twice, and ends all but the first one of a name."""
        if launch.ended or not launch.notes.get("doubtful"):
            return launch
        for call in launch.calls:
            if call.state == "made":
                self._adopt(launch, call)
        return self._place.ledger.read(launch.token) or launch

    # Helpers

    def _send(self, launch: Launch, call: Call, *, again: bool = False) -> Call:
        """Sends the request of a call.

        Args:
            again: Whether it was sent before. A refusal then says nothing of the first request, which may even be its
                reason: the bid that it placed uses up the quota, or has the name.
        """
        account, ledger = self._place.account, self._place.ledger
        name = requests.bid_name(self._place.home_id, call.name)
        body = requests.with_script({**call.parameters, "name": name}, self._script(launch, name))
        try:
            placed = account.api.post(_BIDS, body)
            if not isinstance(placed, dict) or not placed.get("fid"):
                raise OutcomeUnknown(f"Mithril answered POST {_BIDS} without the id of the bid")
        except OutcomeUnknown as error:
            raise self._doubt(launch, error) from error
        except ProviderError as error:
            taken = _is_taken(error)
            if taken and (adopted := self._adopt(launch, call)):
                return adopted
            not_listed_yet = clock.now() - call.at <= account.settings.listing_lag
            if (again or taken) and not_listed_yet:
                raise self._doubt(launch, error) from error
            ledger.refused(launch.token, call.name, {"why": str(error)})
            if self._lacks_our_key(launch, error):
                raise LaunchPending(
                    "our SSH key was removed at Mithril a moment ago: it is registered again",
                    _FIRST_PAUSE,
                ) from error
            if (explained := self._explained(launch, error)) is error:
                raise
            raise explained from error
        made = ledger.made(launch.token, call.name, [str(placed["fid"])], {"name": name})
        return self.confirm(made).call(call.name)

    def _script(self, launch: Launch, name: str) -> str:
        script, secret = str(launch.frozen["script"]), launch.notes.get("script_key")
        if not secret:
            return script
        url, project = self._place.account.settings.api_url, str(launch.frozen["project"])
        return script + nodekey.in_script(url, project, name, str(secret))

    def _adopt(self, launch: Launch, call: Call) -> Call | None:
        """Records the bids that have the name of a call as the call's; returns the call, or None if there is none."""
        account, ledger = self._place.account, self._place.ledger
        name = requests.bid_name(self._place.home_id, call.name)
        found = bids.named(account.api, launch.frozen["project"], name)
        if not found:
            return None
        ids = [str(each["fid"]) for each in found]
        adopted = ledger.made(launch.token, call.name, ids, {"name": name}).call(call.name)
        for each in found:
            if each["fid"] != adopted.ids[0] and each["status"] != requests.TERMINATED:
                bids.end(account.api, str(each["fid"]))
        return adopted

    def _doubt(self, launch: Launch, error: Exception) -> LaunchPending:
        times = int(launch.notes.get("unknown", 0)) + 1
        self._place.ledger.note(launch.token, unknown=times)
        pause = min(_LONGEST_PAUSE, _FIRST_PAUSE * 2.0 ** min(times - 1, 16))
        return Unreachable(
            f"whether the bid was placed is not known yet, it is looked up: {error}",
            retry_after=pause,
        )

    def _explained(self, launch: Launch, error: ProviderError) -> ProviderError:
        if isinstance(error, QuotaExceeded):
            return QuotaExceeded(f"{error}{self._quota(launch)}")
        if not isinstance(error, ApiRefused):
            return error
        said = error.detail.lower()
        if "price" in said and ("minimum" in said or "below" in said):
            limit = requests.dollars(launch.frozen["limit_price"])
            return ProviderError(
                f"{error}. The bid was {limit} per instance and hour; the least that is taken has risen since it was "
                "planned. Submit again, with a higher max_price_per_hour if you set one"
            )
        return error

    def _lacks_our_key(self, launch: Launch, error: ProviderError) -> bool:
        """Whether a bid is refused since our SSH key is not there any more: a `flow gc` may have found it unused."""
        if not isinstance(error, ApiRefused) or "ssh" not in error.detail.lower():
            return False
        return not self._place.account.registered(str(launch.frozen["public_key"]))

    def _quota(self, launch: Launch) -> str:
        """The quota's figures, if they are available."""
        frozen, api = launch.frozen, self._place.account.api
        try:
            listed = api.get("/v2/quotas", {"project": frozen["project"]})
        except ProviderError:
            return ""
        told = [
            f"{each['name']}: {each['used_quantity']} of {each['total_quantity']} {each['units']} used"
            for each in listed
            if each.get("instance_type") in (None, frozen["type_id"])
            and "spot" in str(each["product_type"]).lower()
        ]
        return f". Quota: {'; '.join(told)}. Mithril raises it on request" if told else ""


def _is_taken(error: ProviderError) -> bool:
    """Whether the name of the bid is refused, since a bid has it: it may be ours, placed by a request sent twice."""
    if not isinstance(error, ApiRefused):
        return False
    said = error.detail.lower()
    return error.status == _CONFLICT or ("name" in said and any(word in said for word in _TAKEN))
