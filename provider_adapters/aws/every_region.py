"""One question to several regions of the account at once, some of which may be denied to it, or not answer."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TypeVar

from flowlite.errors import FlowError, PermissionRefused, ProviderError
from provider_adapters.aws.context import Context, region_of
from provider_adapters.aws.service import Service
from provider_adapters.rented.ledger import Launch

_THREADS = 16
_Answer = TypeVar("_Answer")


def known_regions(context: Context, launches: Iterable[Launch]) -> list[str]:
    """The regions of these launches, and those that would be used now."""
    used = [region_of(call) for launch in launches for call in launch.calls]
    asked = list(context.settings.region)
    try:
        own = asked or [context.clients.region]
    except FlowError:
        own = []
    return [region for region in dict.fromkeys([*used, *own]) if region]


def all_regions(context: Context) -> list[str]:
    """All regions of the account; if they may not be listed, those that are known here. Raises ProviderError."""
    known = known_regions(context, context.ledger.launches())
    if not known:
        return []
    with suppress(PermissionRefused):
        told = Service.of(context.clients, "ec2", known[0]).call("DescribeRegions")["Regions"]
        return [str(each["RegionName"]) for each in told]
    return known


def regions_to_choose(context: Context) -> list[str]:
    """All regions of the account or, if none is known here to ask, those that botocore knows. Raises FlowError."""
    return all_regions(context) or list(context.clients.session.get_available_regions("ec2"))


def ask_regions(
    context: Context,
    regions: Sequence[str],
    ask: Callable[[str], _Answer],
    *,
    needed: Collection[str] = (),
    awaited: Collection[str] = (),
) -> dict[str, _Answer]:
    """The answers of regions, asked in parallel. A region that is denied or fails is noted in the context and left out.

    Args:
        needed: Regions without which the answer proves nothing.
        awaited: Regions that are left out only if they are denied.

    Raises:
        ProviderError: One of these has failed, or all regions have.
    """

    def guarded(region: str) -> _Answer | ProviderError:
        try:
            return ask(region)
        except ProviderError as error:
            return error

    with ThreadPoolExecutor(_THREADS) as pool:
        answers = dict(zip(regions, pool.map(guarded, regions), strict=True))
    failed = {r: each for r, each in answers.items() if isinstance(each, ProviderError)}
    for region, error in failed.items():
        silent = not isinstance(error, PermissionRefused)
        if region in needed or (silent and region in awaited) or len(failed) == len(answers):
            raise error
        context.left_out[region] = str(error)
    return {r: each for r, each in answers.items() if not isinstance(each, ProviderError)}
