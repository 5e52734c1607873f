"""What is to be launched: the plan that the user sees, and the intent that is recorded before the launch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from typing import Any

from flowlite.node.quick_dataclass import dataclass
from flowlite.provider.json_value import JsonValue

REHEARSED = frozenset({"local"})
"""Providers whose prices only rehearse charging."""


@dataclass(frozen=True, slots=True)
class Plan(JsonValue):
    """What will be launched. It is shown before money is spent, and then launched exactly as shown.

    Attributes:
        provider: Name of the adapter that made the plan.
        instance_type: The provider's name of the machine type; "this machine" for the local provider.
        region: Region or zone; "" if there is none.
        num_instances: Nodes in the gang, at most. Prices, worst cases and caps are those of so many, and of the spares.
        min_instances: Nodes without which no attempt begins; 0 if all attempts have `num_instances`.
        spares: Machines that are launched, and charged, beside the nodes, to take the rank of one that is lost.
        processes_per_node: Workers on each node.
        gpu: Canonical GPU kind ("h100"), or "" for CPU.
        gpus_per_node: GPUs that each node really has; 0 when the gang is rehearsed on CPU.
        price_per_hour: Present price in US dollars per instance and hour; 0 where nothing is charged.
        extras_per_hour: US dollars per instance and hour for its disk and public address.
        least_seconds: Minimum time for which each instance is charged.
        start_seconds: Longest time for which instances are charged before GO: their boot, and the bring-up of the gang.
        spot: Whether the machines may be taken away, at a price that may change.
        price_cap: US dollars per instance and hour that must never be exceeded. Passed on to providers that support it.
        unmet_price: Present price, if it is above the one offered, so that a launch waits until it falls; else None.
        max_run_seconds: Longest run after GO, from the time and cost caps; None for no limit.
        max_cost: US dollars in all, or None.
        reserved_seconds: Longest time for which instances are charged after the run: to stop the workers, and to give
            the nodes back. `max_cost` reserves it.
        warm_seconds: How long the nodes are kept, and charged, after the run for the next task.
        may_exceed: When the cost may exceed the caps, in words; "" if they are strict bounds.
        not_included: What the provider charges besides, in words, which is in no figure of the task and under no cap:
            volumes, which are charged by the month until they are deleted, and traffic.
        notes: Sentences the user should read before launch (an option without effect here, a rehearsal on CPU).
        slots: What the task takes whole of a fixed set, such as hosts, and therefore waits for in the queue: for each
            kind {"slots": their names, "count": how many}. A kind that every task takes comes first. Names are unique
            among all providers. () where machines are made on demand. `slots_of_gang` makes a kind of which each node
            takes some.
        options: The adapter's own values, JSON only.
        settings: The provider's settings that the plan was made with (`ProviderSettings` as JSON). Every process that
            supervises, reaches or ends the task's instances uses these settings and no others.
    """

    provider: str
    instance_type: str
    num_instances: int
    processes_per_node: int
    min_instances: int = 0
    region: str = ""
    gpu: str = ""
    gpus_per_node: int = 0
    price_per_hour: float = 0.0
    extras_per_hour: float = 0.0
    least_seconds: float = 0.0
    start_seconds: float = 0.0
    spot: bool = False
    price_cap: float | None = None
    unmet_price: float | None = None
    max_run_seconds: float | None = None
    max_cost: float | None = None
    reserved_seconds: float = 0.0
    warm_seconds: float = 0.0
    may_exceed: str = ""
    not_included: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    slots: tuple[dict[str, Any], ...] = ()
    options: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    spares: int = 0

    @property
    def machines(self) -> int:
        """Machines that are charged: the nodes of the gang, and its spares."""
        return self.num_instances + self.spares

    @property
    def place(self) -> str:
        """Where it is, in words: `aws us-east-1 p5.48xlarge spot`."""
        market = "spot" if self.spot else ""
        return " ".join(filter(None, (self.provider, self.region, self.instance_type, market)))

    @property
    def fewest_instances(self) -> int:
        """Nodes without which no attempt begins."""
        return self.min_instances or self.num_instances

    @property
    def size(self) -> str:
        """How many nodes it has, in words: `8`, or `2 to 8`."""
        fewest, most = self.fewest_instances, self.num_instances
        return str(most) if fewest == most else f"{fewest} to {most}"

    @property
    def highest_price(self) -> float:
        """US dollars per instance and hour that the price can rise to."""
        return max(self.price_per_hour, self.price_cap or 0.0) if self.spot else self.price_per_hour

    @property
    def highest_rate(self) -> float:
        """US dollars per instance and hour, extras included, that it can cost at most."""
        return self.highest_price + self.extras_per_hour

    @property
    def is_paid(self) -> bool:
        """Whether the instances cost anything. Those of a capacity block do for their disks, at a price of zero."""
        return self.highest_rate > 0

    @property
    def costs_money(self) -> bool:
        """Whether launching the instances costs money."""
        return self.is_paid and self.provider not in REHEARSED

    @property
    def paid_seconds(self) -> float | None:
        """Seconds for which `max_cost` pays the whole gang, spares included; None if it sets no limit."""
        rate = self.highest_rate * self.machines
        return self.max_cost / rate * 3600 if self.max_cost is not None and rate > 0 else None

    @property
    def longest_charge_seconds(self) -> float | None:
        """The longest time for which each instance is charged, from launch to end; None without a cap on time."""
        if self.max_run_seconds is None:
            return None
        run = self.max_run_seconds + self.warm_seconds
        return max(self.least_seconds, self.start_seconds + run + self.reserved_seconds)

    @property
    def worst_case_cost(self) -> float | None:
        """US dollars if the gang runs until its cap; None without a cap on a priced plan."""
        if not self.is_paid:
            return 0.0
        bounds = [self.max_cost] if self.max_cost is not None else []
        if (seconds := self.longest_charge_seconds) is not None:
            bounds.append(self.highest_rate * self.machines * seconds / 3600)
        return min(bounds) if bounds else None


def slots_of_gang(slots: Sequence[str], fewest: int, most: int, each: int = 1) -> dict[str, Any]:
    """An entry of `Plan.slots` for slots of which each node takes `each`.

    A gang that may have more nodes than the fewest has in it also "most", the slots of the largest gang, and "each".
    """
    found = {"slots": list(slots), "count": fewest * each}
    return found if most <= fewest else {**found, "most": most * each, "each": each}


@dataclass(frozen=True, slots=True)
class LaunchIntent(JsonValue):
    """An intent to launch, durable in the store before the provider is called.

    Attributes:
        token: Idempotency token. The same token never launches twice.
        task_id: Task the instances belong to. Written into their tags.
        count: Instances to launch.
        least: With how many the launch is content if there is no room for all; 0 if it needs all.
        beside: Whether a gang runs meanwhile, which must lose nothing by this launch.
        plan: The plan being launched, as JSON.
        preload: What an adapter may use to prepare nodes before an agent is there: {"agent": path of the agent's
            zipapp on this machine, "call": what workers will run, "environment": the user's variables, "secrets":
            names of the secret ones, "processes_per_node", "warm_seconds", "setup": whether there is one}. Without it,
            the start only takes longer.
    """

    token: str
    task_id: str
    count: int
    plan: dict[str, Any]
    preload: dict[str, Any] = field(default_factory=dict)
    least: int = 0
    beside: bool = False

    @property
    def fewest(self) -> int:
        """Instances without which the launch has failed."""
        return self.least or self.count
