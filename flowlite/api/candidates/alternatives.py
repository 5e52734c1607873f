"""The single values that the options `gpu`, `provider`, `region` and `spot` of a task allow, in the order given."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flowlite.errors import ConfigError
from flowlite.node.quick_dataclass import dataclass
from flowlite.spec.one_or_several import PREFER, is_pattern, values_of

if TYPE_CHECKING:
    from flowlite.provider import Provider
    from flowlite.spec import TaskConfig


@dataclass(frozen=True, slots=True)
class Alternative:
    """One combination of single values of `provider`, `gpu`, `region` and `spot`.

    `order` is its place among all alternatives of the task: first by GPU, then by provider, region and spot.
    """

    options: dict[str, Any]
    order: tuple[int, int, int, int]


def alternatives_of(
    config: TaskConfig, provider: Provider, place: int, *, alone: bool
) -> dict[str | None, list[Alternative]]:
    """The alternatives at one provider, by region. Raises ConfigError if none of its regions fits.

    Args:
        place: The place of the provider among those of the task.
        alone: Whether it is the only one.
    """
    gpus, spots = values_of(config.gpu) or (None,), _spots(config, provider)
    several = not alone or len(gpus) > 1 or len(spots) > 1
    found: dict[str | None, list[Alternative]] = {}
    for at, region in enumerate(_regions(config, provider, alone=alone, several=several)):
        found[region] = [
            Alternative(
                {"provider": provider.name, "gpu": gpu, "region": region, "spot": spot},
                (first, place, at, last),
            )
            for first, gpu in enumerate(gpus)
            for last, spot in enumerate(spots)
        ]
    return found


def _spots(config: TaskConfig, provider: Provider) -> tuple[bool | None, ...]:
    if config.spot == PREFER:
        return tuple(provider.spot_choices) or (None,)
    return (config.spot,) if isinstance(config.spot, bool) else (None,)


def _regions(
    config: TaskConfig, provider: Provider, *, alone: bool, several: bool
) -> tuple[str | None, ...]:
    asked = values_of(config.region)
    own = provider.regions()
    if own is None and any(map(is_pattern, asked)) and alone:
        raise ConfigError(
            f"region: {provider.name} has no list of regions for the pattern {', '.join(asked)}; name them"
        )
    if own is None and not alone:
        # The regions of a list for several providers are none of own hosts or clusters.
        return (None,)
    if not asked:
        if config.volumes:
            # The provider chooses the region where they are.
            return (None,)
        several = several or len(own or ()) > 1
        return tuple(own or provider.regions("*") or (None,)) if several else (None,)
    found: dict[str, None] = {}
    for each in asked:
        found |= dict.fromkeys(provider.regions(each) or () if is_pattern(each) else [each])
    if not found:
        raise ConfigError(f"region: {provider.name} has none that fits {', '.join(asked)}")
    return tuple(found)
