"""One machine as its provider lists it, and how the agent runs on it."""

from __future__ import annotations

from dataclasses import field
from typing import Any

from flowlite.node.quick_dataclass import dataclass
from flowlite.provider.json_value import JsonValue

PRICES = "prices"
"""Key in an instance's `data`: [[from when, US dollars per hour], ...] if its price has changed."""


@dataclass(frozen=True, slots=True)
class Instance(JsonValue):
    """One machine as the provider lists it.

    Attributes:
        id: The provider's id. Node ranks follow from the sorted ids.
        task_id: Task it was launched for.
        state: "starting"; "running"; "ending" while it still exists but nothing keeps it any more; "ended"; "warm"
            while it is kept without a task; "returning" if it was taken away and the provider brings it back for the
            task's next launch; or "unreachable" if the provider cannot say whether it still runs.
        address: Address at which the other nodes of the gang reach it; "" until known.
        price_per_hour: US dollars.
        extras_per_hour: As in `Plan`.
        least_seconds: As in `Plan`.
        ends_by: Unix time by which it has certainly ended by itself; 0 if there is none.
        launched_at: Unix time from which it is charged; 0 if unknown.
        data: The adapter's own values, JSON only.
        continues: Id of the warm instance that it reuses; "" if it is new.
        ended_at: Unix time until which it is charged, according to the provider; 0 while it runs, or if unknown.
        why: The provider's reason for its end; "" if there is none.
        preempted: Whether it was taken away for another customer or user.
        slot: Which slot of `Plan.slots` it takes; "" if the slots are alike.
        failed: Whether the provider says that this machine itself failed, and not another one of its launch.
        sick: What is wrong with the machine, as a task on it found; "" for nothing.
        note: What the user is told when it is launched, such as what was passed over for it; "" for nothing.
        unconfirmed: Whether it stands for a call without an answer, which may have created nothing. Such an instance is
            listed only until the provider can say whether there is one.
        certain_from: Unix time from which the provider can say that, for an unconfirmed instance; 0 if unknown.
        launch: In a listing, the token of the launch (`LaunchIntent.token`) that has brought it, or may bring it; "" if
            the provider does not know. While a launch of its task is open, an instance of another launch that the task
            does not need is ended, and one of an unknown launch is kept.
        hold: How many tasks have had the machine before this one, if it was handed over under the same id. Its row then
            is that of the task with the highest number.
        cost_at_most: Whether what it costs is not known but bounded: the last of its prices is the highest that it can
            have until the provider is asked again, or `price_per_hour` is.
        unlisted: Whether the provider itself does not list it, since it was launched so recently. That is no proof that
            the instance still exists.
    """

    id: str
    task_id: str
    state: str = "running"
    address: str = ""
    price_per_hour: float = 0.0
    extras_per_hour: float = 0.0
    least_seconds: float = 0.0
    ends_by: float = 0.0
    launched_at: float = 0.0
    data: dict[str, Any] = field(default_factory=dict)
    continues: str = ""
    ended_at: float = 0.0
    why: str = ""
    preempted: bool = False
    note: str = ""
    failed: bool = False
    slot: str = ""
    sick: str = ""
    unconfirmed: bool = False
    certain_from: float = 0.0
    launch: str = ""
    unlisted: bool = False
    hold: int = 0
    cost_at_most: bool = False


@dataclass(frozen=True, slots=True)
class NodeSettings(JsonValue):
    """How the agent must run on one instance.

    Attributes:
        home: Absolute path of the task's directory on the node.
        python: Interpreter for agent and workers.
        bind: The one address the leader's rendezvous listens on; "" for the instance's own `address`.
        workdir: Directory workers start in; None for the task's directory.
        environment: Variables for every process of the node.
        visible_gpus: GPU indices of this node when it shares a machine ("0,1"); None for no restriction.
        warm_socket: Path of the fork server's socket when several nodes share one; None for one per node.
        ports_dir: Directory of port locks when several leaders share a machine.
        master_port: The port to try first as MASTER_PORT; None for 29500.
        volumes: For each file volume `{"name", "path", "source", "interface"}`.
        cache: Directory on the node with files by their hash, shared by all tasks; None if nothing is shared.
        python_spec: The Python environment the node makes for the workers; None uses `python` as it is.
        container: The image the workers run in, and how it is started; None for none.
        lease: {"file", "seconds"}: the machine ends itself if the agent does not renew this file; None for none.
        preemption: {"kind"}: how the node learns that it is taken away (`node/preemption/notices.py`); None if it
            never is.
    """

    home: str
    python: str
    bind: str = ""
    workdir: str | None = None
    environment: dict[str, str] = field(default_factory=dict)
    visible_gpus: str | None = None
    warm_socket: str | None = None
    ports_dir: str | None = None
    master_port: int | None = None
    volumes: tuple[dict[str, Any], ...] = ()
    cache: str | None = None
    python_spec: dict[str, Any] | None = None
    container: dict[str, Any] | None = None
    lease: dict[str, Any] | None = None
    preemption: dict[str, Any] | None = None
