"""The volumes of an account in every region that is known here, since each is charged until it is deleted.

Known are the regions of the settings, those of launches, and those in which this FLOW_HOME has ever used a volume. To
ask all regions of the account takes several seconds, so that is left to `flow gc`, for instances.
"""

from __future__ import annotations

from flowlite.errors import ConfigError, NotFound
from flowlite.provider import VolumeInfo
from provider_adapters.aws.context import Context
from provider_adapters.aws.every_region import ask_regions, known_regions
from provider_adapters.aws.storage.volumes import regions_with_volumes


def list_volumes(context: Context) -> list[VolumeInfo]:
    """The volumes that flowlite created, by name. Raises ProviderError."""
    found = [each for here in _by_region(context).values() for each in here]
    return sorted(found, key=lambda each: (each.name, each.location))


def delete_volume(context: Context, name: str) -> None:
    """Deletes a volume and its content, by its name or id.

    Raises:
        NotFound: There is none.
        ConfigError: Several have that name.
        ProviderError: It is in use, or AWS refuses.
    """
    having = {
        region: [each.location for each in here if name in (each.name, each.location)]
        for region, here in _by_region(context).items()
    }
    having = {region: ids for region, ids in having.items() if ids}
    if not having:
        raise NotFound(f"no volume {name!r} that flowlite made; `flow volumes list` shows them")
    if len(having) > 1:
        places = ", ".join(f"{' and '.join(ids)} in {r}" for r, ids in having.items())
        raise ConfigError(f"volume {name!r} is the name of several: {places}; give the id of one")
    context.volumes(next(iter(having))).delete(name)


def _by_region(context: Context) -> dict[str, list[VolumeInfo]]:
    """The volumes of each region. A region that does not answer is noted in the context, except the present ones."""
    own = known_regions(context, ())
    used = known_regions(context, context.ledger.launches())
    regions = dict.fromkeys([*own, *used, *regions_with_volumes(context.volumes_directory)])

    def ask(region: str) -> list[VolumeInfo]:
        return context.volumes(region).list()

    return ask_regions(context, list(regions), ask, needed=own)
