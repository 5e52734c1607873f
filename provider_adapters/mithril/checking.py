"""`flow providers check`: whether a bid could be placed, without placing one."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from flowlite.errors import ConfigError, FlowError, PermissionRefused, ProviderError
from flowlite.provider import Finding
from provider_adapters.mithril.offers import reserved
from provider_adapters.mithril.rest import credentials

if TYPE_CHECKING:
    from provider_adapters.mithril.account import Account


def check(account: Account) -> list[Finding]:
    """The findings, in the order of their dependence: without the API key, for example, nothing else is checked."""
    found: list[Finding] = []
    needed: tuple[Callable[[], Finding], ...] = (
        lambda: _settings(account),
        lambda: _key(account),
        lambda: _found("API", lambda: _me(account)),
        lambda: _found("project", lambda: account.project),
    )
    for look in needed:
        found.append(look())
        if not found[-1].ok:
            return found
    found += [
        _found("machines", lambda: _machines(account)),
        _found("SSH keys", lambda: _ssh_keys(account)),
        _found("key for the nodes", lambda: _node_key(account)),
        _quota(account),
        _found("reservations", lambda: _reservations(account)),
    ]
    return found


def _found(what: str, look: Callable[[], str]) -> Finding:
    try:
        return Finding(what, True, look())
    except FlowError as error:
        return Finding(what, False, str(error))


def _settings(account: Account) -> Finding:
    try:
        settings = account.settings
    except ConfigError as error:
        return Finding("settings", False, str(error))
    return Finding("settings", True, f"the API is {settings.api_url}")


def _key(account: Account) -> Finding:
    try:
        key = credentials.find_key(account.settings.api_key_file, account.home)
    except PermissionRefused as error:
        return Finding("API key", False, str(error))
    if key is None:
        return Finding(
            "API key", False, f"none was found: {credentials.how_to_give_one(account.home)}"
        )
    return Finding("API key", True, f"from {key.origin}")


def _me(account: Account) -> str:
    me = account.api.get("/v2/me")
    role = f", {me['organization_role']}" if me.get("organization_role") else ""
    return f"the key is valid: {me.get('email', '?')}{role}"


def _machines(account: Account) -> str:
    markets = account.catalogue.markets(fresh=0.0)
    if not markets:
        raise ProviderError("Mithril lists no machines for this account")
    kinds, regions = {m.name for m in markets}, {m.region for m in markets}
    return f"{len(kinds)} kinds in {', '.join(sorted(regions))}"


def _ssh_keys(account: Account) -> str:
    listed = account.api.get("/v2/ssh-keys", {"project": account.project})
    required = [str(each["name"]) for each in listed if each.get("required")]
    also = (
        f"; {', '.join(required)} can log in to every machine, as the project requires"
        if required
        else ""
    )
    return f"{len(listed)} registered{also}"


def _node_key(account: Account) -> str:
    if not account.settings.node_key:
        return "turned off (node_key): a bid goes on after its machines have ended themselves, until `flow` ends it"
    left = [
        str(key["name"])
        for key in account.api.get("/v2/api-keys")
        if str(key["name"]).startswith("flow-") and not key.get("deactivated_at")
    ]
    return (
        f"keys can be listed; {len(left)} of flowlite's are in use"
        if left
        else "keys can be listed"
    )


def _quota(account: Account) -> Finding:
    try:
        listed: list[dict[str, Any]] = account.api.get("/v2/quotas", {"project": account.project})
    except FlowError as error:
        return Finding("quota", False, str(error))
    spot = [each for each in listed if "spot" in str(each["product_type"]).lower()]
    free = [each for each in spot if int(each["used_quantity"]) < int(each["total_quantity"])]
    if spot and not free:
        told = "; ".join(
            f"{each['name']}: {each['used_quantity']} of {each['total_quantity']}" for each in spot
        )
        return Finding("quota", False, f"all is used up: {told}. Mithril raises it on request")
    told = "; ".join(
        f"{each['name']}: {each['used_quantity']} of {each['total_quantity']} {each['units']} used"
        for each in spot
        if int(each["used_quantity"])
    )
    return Finding("quota", True, told or f"none used of {len(spot)}")


def _reservations(account: Account) -> str:
    listed = account.api.pages("/v2/reservation", {"project": account.project})
    live = [each for each in listed if each["status"] in ("Pending", "Active", "Paused")]
    if not live:
        return "none"
    names = {str(each["fid"]): str(each["name"]) for each in account.api.get("/v2/instance-types")}
    told = "; ".join(reserved(each, names) for each in live)
    return f"{told}. flowlite places bids and leaves reserved machines alone"
