"""What `flow gc` removes besides bids: node keys whose bid has ended, and our SSH key if no bid needs it."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from provider_adapters.mithril import nodekey
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


def _keys(place: MithrilContext, live: Collection[str], dry_run: bool) -> list[str]:
    found = []
    in_use = {each.notes.get("key_name") for each in _in_use(place, live)}
    for key in place.account.api.get("/v2/api-keys"):
        name = str(key["name"])
        tags = requests.tags_of({"name": name})
        if tags is None or not requests.is_ours(name, place.home_id) or key.get("deactivated_at"):
            continue
        if tags.task in live or name in in_use:
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
