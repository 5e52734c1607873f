"""What `flow gc` removes besides bids: node keys whose bid has ended, and our SSH key if no bid needs it."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

from provider_adapters.mithril import bids, nodekey
from provider_adapters.mithril.rest import requests
from provider_adapters.rented.kept_gangs import is_kept
from provider_adapters.rented.keys import client_public

if TYPE_CHECKING:
    from provider_adapters.mithril.context import MithrilContext
    from provider_adapters.rented.ledger import Launch


def sweep(place: MithrilContext, live: Collection[str], *, dry_run: bool) -> list[str]:
    """Removes what no live task needs, and returns descriptions of it. Raises ProviderError."""
    if not place.account.has_key:
        return []
    return [*_keys(place, live, dry_run), *_ssh_key(place, live, dry_run)]


def sweep_others(place: MithrilContext, *, dry_run: bool) -> list[str]:
    """Revokes the keys of other FLOW_HOMEs of whose task no bid is open, and returns descriptions of them."""
    if not place.account.has_key:
        return []
    account = place.account
    there = [bid.tags for bid in bids.ours(account.api, account.project).values() if bid.tags]
    live = {(tags.home[: requests.HOME_LETTERS], tags.task) for tags in there}

    def is_left(name: str, tags: requests.Tags) -> bool:
        is_theirs = not requests.is_ours(name, place.home_id)
        return is_theirs and (tags.home[: requests.HOME_LETTERS], tags.task) not in live

    return _revoke(place, is_left, dry_run)


def _keys(place: MithrilContext, live: Collection[str], dry_run: bool) -> list[str]:
    in_use = {each.notes.get("key_name") for each in _in_use(place, live)}

    def is_left(name: str, tags: requests.Tags) -> bool:
        return requests.is_ours(name, place.home_id) and not (tags.task in live or name in in_use)

    return _revoke(place, is_left, dry_run)


def _revoke(
    place: MithrilContext, is_left: Callable[[str, requests.Tags], bool], dry_run: bool
) -> list[str]:
    """Revokes the good keys of nodes that are left over, and returns descriptions of them."""
    found = []
    for key in place.account.api.get("/v2/api-keys"):
        name = str(key["name"])
        tags = requests.tags_of({"name": name})
        if tags is None or key.get("deactivated_at") or not is_left(name, tags):
            continue
        if not dry_run:
            nodekey.revoke(place.account.api, str(key["fid"]))
        found.append(f"API key {name} of nodes whose bid has ended")
    return found


def _ssh_key(place: MithrilContext, live: Collection[str], dry_run: bool) -> list[str]:
    if _in_use(place, live):
        return []
    public = client_public(place.account.home)
    remove = place.account.registered if dry_run else place.account.forget_ssh_key
    there = remove(public)
    return [f"SSH key {requests.ssh_key_name(place.home_id)}"] if there else []


def _in_use(place: MithrilContext, live: Collection[str]) -> list[Launch]:
    """The launches whose machines a live task has, or will have, or that are kept for another one."""
    launches = place.ledger.launches(everywhere=True)
    return [each for each in launches if not each.ended and (each.task in live or is_kept(each))]
