"""Providers that exist on paper: each offers some kinds of machines in some regions, at prices that a test sets."""

from __future__ import annotations

import fnmatch
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flowlite.connect.base import Connection
from flowlite.errors import ConfigError
from flowlite.provider import Instance, LaunchIntent, NodeSettings, Plan, Provider
from flowlite.settings.provider_settings import ProviderSettings
from flowlite.spec import TaskConfig


@dataclass(frozen=True)
class Ware:
    """One kind of machine in one region.

    Attributes:
        ceiling: The price to which spot can rise; None for the price itself.
    """

    gpu: str | None
    region: str
    price: float
    spot: bool = False
    ceiling: float | None = None


class Shop(Provider):
    """A provider with these wares.

    Args:
        wares: What it has.
        own: The regions of its settings; None for a provider without regions.
        gate: Nothing is answered before it is set.
        ready: Whether it is set up.
        caps: Whether spot may be capped below its ceiling.
    """

    def __init__(
        self,
        name: str,
        wares: Iterable[Ware],
        own: Sequence[str] | None = None,
        *,
        spots: tuple[bool, ...] = (),
        gate: threading.Event | None = None,
        ready: bool = True,
        caps: bool = False,
    ) -> None:
        super().__init__(Path("/nowhere"), ProviderSettings(name))
        self.name = name
        self.wares = tuple(wares)
        self.spot_choices = spots  # type: ignore[misc]
        self.caps_spot_price = caps
        self.asked: list[tuple[str | None, str | None, bool | None]] = []
        self._own, self._gate, self._ready = own, gate, ready

    def configured(self) -> bool:
        return self._ready

    def regions(self, pattern: str | None = None) -> list[str] | None:
        if self._own is None:
            return None
        if pattern is None:
            return list(self._own)
        return sorted({w.region for w in self.wares if fnmatch.fnmatchcase(w.region, pattern)})

    def plan(self, config: TaskConfig) -> Plan:
        if self._gate is not None:
            self._gate.wait()
        assert isinstance(config.gpu, str | None)
        assert isinstance(config.spot, bool | None)
        region = config.one_region
        self.asked.append((config.gpu, region, config.spot))
        found = [
            ware
            for ware in self.wares
            if ware.gpu == config.gpu
            and (self._own is None or ware.region in ([region] if region else self._own))
            and (not self.spot_choices or ware.spot == bool(config.spot))
        ]
        if not found:
            raise ConfigError(f"{self.name} has no {config.gpu} in {region}")
        ware = min(found, key=lambda each: each.price)
        return Plan(
            provider=self.name,
            instance_type=f"{self.name}-{ware.gpu}",
            region=ware.region,
            num_instances=config.most_nodes,
            processes_per_node=config.workers_per_node,
            gpu=config.gpu_request.kind if config.gpu_request else "",
            gpus_per_node=config.gpus_per_node,
            price_per_hour=ware.price,
            spot=ware.spot,
            price_cap=ware.ceiling,
            max_run_seconds=config.max_run_seconds,
        )

    def launch(self, intent: LaunchIntent) -> list[Instance]:
        raise AssertionError("nothing is launched")

    def list_instances(self, task_id: str | None = None) -> list[Instance]:
        return []

    def terminate(self, instances: Sequence[Instance]) -> None:
        raise AssertionError

    def connect(self, instance: Instance) -> Connection:
        raise AssertionError

    def node_settings(self, plan: Plan, instance: Instance) -> NodeSettings:
        raise AssertionError


def by_name(*shops: Shop) -> Callable[[str], Provider]:
    """What gives the adapter of a name."""
    known: Mapping[str, Any] = {shop.name: shop for shop in shops}
    return lambda name: known[name]
