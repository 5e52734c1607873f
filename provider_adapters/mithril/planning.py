"""The plan of the Mithril provider, made from a task's options, and all reasons for refusing one. Creates nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from flowlite import python_request
from flowlite.errors import CapExceeded, ConfigError
from flowlite.provider import Plan, kept_size
from provider_adapters.mithril import markets as known
from provider_adapters.mithril.markets import MachineRequirements, Market, Price
from provider_adapters.mithril.rest import requests
from provider_adapters.mithril.rest.requests import dollars
from provider_adapters.mithril.settings import AROUND_SECONDS, IN_SCRIPT
from provider_adapters.rented.gang_fit import why_not_kept

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from flowlite.spec import TaskConfig
    from provider_adapters.mithril.settings import MithrilSettings

# How far a bid goes from the present price towards the ceiling.
POSITIONS = {"low": 0.0, "med": 0.5, "high": 1.0}
# The ceiling without a cap, as a multiple of the present price.
CEILING = 2.0
VOLUME_PRICE = 0.08
"""US dollars per GB and month."""

_NO_ANSWER = "Mithril's API does not answer for long"


def _may_exceed(settings: MithrilSettings) -> str:
    """When a bid may cost more than the caps, as a text: a bid has no end of its own, so something must end it."""
    if settings.node_key is False:
        return "if this machine is lost, since no node can end the bid (node_key = false)"
    if settings.node_key == IN_SCRIPT:
        return f"if all nodes die at once while this machine is lost, or {_NO_ANSWER}"
    return (
        "if this machine is lost for good before the nodes are up, or all nodes die or are taken away after it, or "
        f"{_NO_ANSWER}"
    )


def limit_price(price: Price, priority: str, cap: float | None) -> float:
    """The price to bid, in US dollars per instance and hour.

    From the present price (low) to the ceiling (high), half-way for med. The ceiling is the cap or, without a cap,
    twice the present price. The price paid is that of the auction, which never exceeds the bid. A cap below the present
    price is bid unchanged.

    Raises:
        CapExceeded: The cap is below the lowest permitted bid.
    """
    if cap is not None and cap < price.least:
        raise CapExceeded(
            f"max_price_per_hour is {dollars(cap)}, and no bid below {dollars(price.least)} per instance and hour is "
            "taken for this machine; raise the cap, or ask for another machine (`flow offers`)"
        )
    ceiling = CEILING * price.now if cap is None else cap
    if ceiling <= price.now:
        return requests.round_down(ceiling)
    wanted = price.now + POSITIONS[priority] * (ceiling - price.now)
    return min(requests.round_up(wanted), requests.round_down(ceiling))


def make_plan(
    config: TaskConfig,
    settings: MithrilSettings,
    project: str,
    markets: Sequence[Market],
    volumes: Sequence[Mapping[str, Any]],
    ask_price: Callable[[Market, int], Price],
    ask_regions_without: Callable[[str], Collection[str]] = lambda interface: (),
    ask_users: Callable[[Mapping[str, Any]], Sequence[str]] = lambda volume: (),
) -> Plan:
    """The plan of one bid.

    Args:
        project: Id of the project.
        markets: All markets.
        volumes: Volumes of the project, as the API lists them.
        ask_price: Returns the present price for a number of machines of a market.
        ask_regions_without: Returns the regions that are known to have no volumes of an interface.
        ask_users: Returns the users of a volume, of those that its entry names.

    Raises:
        ConfigError: An option is not possible.
        CapExceeded: The cap is below the lowest permitted bid.
    """
    if config.spot is False:
        raise ConfigError(
            "spot=False: Mithril sells machines by auction, and they may be taken away when others bid more. Leave the "
            "option out, or take another provider"
        )
    mounts, regions = _volumes(config, volumes, ask_users)
    wish = _wish(config, settings, regions)
    new = sorted({str(each["interface"]) for each in mounts if not each["id"]})
    # Regions that would do, but for a volume that has to be made and the interface that they do not have.
    fitting = {market.region for market in known.choose(markets, wish)}
    without = {region: kind for kind in new for region in fitting & set(ask_regions_without(kind))}
    market = _choose(markets, wish, config, without)
    price = ask_price(market, config.most_nodes)
    limit = limit_price(price, config.priority, config.max_price_per_hour)
    return Plan(
        provider="mithril",
        instance_type=market.name,
        region=market.region,
        num_instances=config.most_nodes,
        processes_per_node=config.workers_per_node,
        gpu=market.gpu if config.gpu else "",
        gpus_per_node=config.gpus_per_node,
        price_per_hour=min(price.now, limit),
        spot=True,
        price_cap=limit,
        unmet_price=price.now if limit < price.now else None,
        start_seconds=settings.boot_timeout + AROUND_SECONDS,
        may_exceed=_may_exceed(settings),
        not_included=tuple(
            f"the volume {each['name']} ({dollars(each['size_gb'] * VOLUME_PRICE)} per month)"
            for each in mounts
        ),
        max_run_seconds=config.max_run_seconds,
        max_cost=config.max_cost,
        notes=tuple(_notes(config, settings, market, price, limit, mounts, without)),
        options={
            "project": project,
            "type_id": market.type_id,
            "limit_price": limit,
            "volumes": mounts,
            **python_request.plan_options(config),
            "container": {"image": config.image} if config.image else None,
            "workdir": config.directory_on_node,
            "retry_pause": config.retries.policy.longest_pause,
        },
    )


def _wish(
    config: TaskConfig, settings: MithrilSettings, regions: tuple[str, ...]
) -> MachineRequirements:
    asked = config.one_region or settings.region
    if asked and regions and asked not in regions:
        raise ConfigError(
            f"volumes: they lie in {' and '.join(regions)}, and the region is {asked}; a volume can only be used where "
            "it is"
        )
    return MachineRequirements(
        gpu=config.gpu_request,
        count=config.most_nodes,
        regions=(asked,) if asked else regions,
        cpu=config.cpu,
        memory_gb=config.memory,
        socket=config.intranode_interconnect or "",
        network=config.internode_interconnect or "",
    )


def _choose(
    markets: Sequence[Market],
    wish: MachineRequirements,
    config: TaskConfig,
    without: Mapping[str, str],
) -> Market:
    fitting = known.choose(markets, wish)
    usable = [market for market in fitting if market.region not in without]
    if fitting and not usable:
        there = sorted({market.region for market in markets} - set(without))
        raise ConfigError(
            f"volumes: {_lacking(without)}, and {fitting[0].name} is offered in no other region that was asked for; "
            f"take another region ({', '.join(there) or 'there is none'}), machine or interface"
        )
    fitting = usable
    if fitting:
        cap = config.max_price_per_hour
        # Where the price is above the cap, a bid only waits.
        return next((each for each in fitting if cap is None or each.price <= cap), fitting[0])
    regions = {market.region for market in markets}
    if wish.regions and not regions & set(wish.regions):
        raise ConfigError(
            f"region: Mithril has no machines in {' or '.join(wish.regions)}; it has them in "
            f"{', '.join(sorted(regions)) or 'no region'}"
        )
    near = known.nearest(markets, wish, 4)
    told = "; ".join(f"{m.name} in {m.region} {why}" for m, why in near)
    raise ConfigError(
        f"Mithril has no machine for {config.gpu or 'what was asked for'}: {told or 'it lists none at all'}. "
        "`flow offers` shows what there is"
    )


def _lacking(without: Mapping[str, str]) -> str:
    return " and ".join(
        f"{region} has no {kind} volumes" for region, kind in sorted(without.items())
    )


def _notes(
    config: TaskConfig,
    settings: MithrilSettings,
    market: Market,
    price: Price,
    limit: float,
    mounts: list[dict[str, Any]],
    without: Mapping[str, str],
) -> list[str]:
    bid = f"the bid is {dollars(limit)} per instance and hour (priority {config.priority})"
    notes = [f"{bid}; you pay what the auction comes to, {dollars(price.now)} now"]
    if limit < price.now:
        notes = [
            f"{bid}, below the present price of {dollars(price.now)}: it waits until that falls"
        ]
    elif market.capacity < config.fewest_nodes:
        notes.append(
            f"{market.capacity} of {config.fewest_nodes} machines are free in {market.region} now; the bid waits for "
            "the auction, or outbids others"
        )
    if config.gpu is None:
        notes.append(f"no gpu= was asked for, and each machine has {market.what}")
    if config.keep_warm and (why := _cannot_be_kept(config, settings)):
        notes.append(f"keep_warm has no effect: {why}; the bid ends with its task")
    notes += [
        f"the volume {each['name']} does not exist: it is made with {each['size_gb']} GB in {market.region}, for "
        f"{dollars(each['size_gb'] * VOLUME_PRICE)} per month until "
        f"`flow volumes delete {each['name']} --provider mithril`"
        for each in mounts
        if not each["id"]
    ]
    notes += [
        kept
        for asked, each in zip(config.volumes.values(), mounts, strict=True)
        if each["id"] and (kept := kept_size(asked.name, each["size_gb"], asked.size_gb))
    ]
    if without:
        notes.append(f"left out: {_lacking(without)}")
    return notes


def _cannot_be_kept(config: TaskConfig, settings: MithrilSettings) -> str:
    """Why the bid of a task is not kept for the next one, in words; "" if it is."""
    without_key = "" if settings.node_key else "no machine could end the bid (node_key = false)"
    return why_not_kept(config) or without_key


def _volumes(
    config: TaskConfig,
    listed: Sequence[Mapping[str, Any]],
    ask_users: Callable[[Mapping[str, Any]], Sequence[str]],
) -> tuple[list[dict[str, Any]], tuple[str, ...]]:
    """Volumes in the form that `launch` and the nodes need, and the regions to which they restrict the choice."""
    by_name = {str(volume["name"]): volume for volume in listed}
    mounts, regions = [], set()
    for path, asked in config.volumes.items():
        there = by_name.get(asked.name)
        if there is None and asked.size_gb is None:
            raise ConfigError(
                f"volumes: {path!r}: there is no volume {asked.name!r}; give size_gb to have it made with the task, or "
                f"make it with `flow volumes create {asked.name} --size-gb 100 --provider mithril`, and `--region` if "
                "none is set under [mithril]"
            )
        if there is not None:
            _check_volume(path, asked.interface, there, ask_users)
            regions.add(str(there["region"]))
        size = int(there["capacity_gb"]) if there else int(-(-float(asked.size_gb or 0) // 1))
        mounts.append(
            {
                "id": str(there["fid"]) if there else "",
                "name": asked.name,
                "path": path,
                "interface": asked.interface,
                "size_gb": size,
            }
        )
    if len(regions) > 1:
        raise ConfigError(
            f"volumes: they lie in different regions ({', '.join(sorted(regions))}), and a machine can only use those "
            "of its own"
        )
    return mounts, tuple(regions)


def _check_volume(
    path: str,
    interface: str,
    there: Mapping[str, Any],
    ask_users: Callable[[Mapping[str, Any]], Sequence[str]],
) -> None:
    kind = str(there["interface"]).lower()
    if kind != interface:
        raise ConfigError(
            f"volumes: {path!r}: {there['name']!r} has the interface {kind!r}, and {interface!r} was asked for; say "
            f"so: `--volume {path}={there['name']},interface={kind}`, or 'interface': {kind!r} beside its name in "
            "volumes="
        )
    if kind == "block" and (users := ask_users(there)):
        raise ConfigError(
            f"volumes: {path!r}: the block volume {there['name']!r} is in use ({', '.join(users)}), and one "
            "machine alone can use it; wait until that has ended, or use another"
        )
