"""Whether the credentials here are of the account in which something was launched.

AWS answers those of another account as if the machines had never existed, so that machines that run, and are charged,
would be taken for gone.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from contextlib import suppress

from flowlite.errors import ProviderError
from flowlite.state import clock
from provider_adapters.aws.context import MACHINES_GONE, Context, region_of
from provider_adapters.aws.service import Service
from provider_adapters.rented.ledger import Launch

OWNER = "account"
"""Key in the detail of a call: the id of the account in which it has created machines."""


def elsewhere(
    context: Context, launches: Iterable[Launch], listed: Collection[str]
) -> dict[str, str]:
    """The launches whose machines are in another account than that of the credentials: by token, what to do.

    AWS is asked for the account only if a listing has no machine of a launch, and all of them should be listed.

    Args:
        launches: The launches.
        listed: The ids of all instances that are listed.
    """
    unseen = [each for each in launches if _lacks_machines(context, each, listed)]
    if not unseen or (here := _account_here(context, unseen[0])) is None:
        return {}
    owners = {each.token: (each.task, _owner(each)) for each in unseen}
    return {
        token: f"the credentials here are of the AWS account {here}, and the machines of task {task} were launched in "
        f"{owner}: repeat this with credentials of {owner}"
        for token, (task, owner) in owners.items()
        if owner != here
    }


def _lacks_machines(context: Context, launch: Launch, listed: Collection[str]) -> bool:
    if launch.ended or launch.notes.get(MACHINES_GONE) or not _owner(launch):
        return False
    young = any(clock.now() - each.at < context.settings.listing_lag for each in launch.calls)
    return not young and not set(launch.ids).intersection(listed)


def _owner(launch: Launch) -> str:
    return next((str(each.detail[OWNER]) for each in launch.calls if each.detail.get(OWNER)), "")


def _account_here(context: Context, launch: Launch) -> str | None:
    """The id of the account of the credentials; None if AWS does not tell it."""
    region = region_of(launch.calls[-1])
    with suppress(ProviderError):
        sts = Service.of(context.clients, "sts", region)
        return str(sts.call("GetCallerIdentity")["Account"])
    return None
