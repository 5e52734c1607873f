"""The rows of the database as dataclasses: tasks, instances, intents, events, leases."""

from __future__ import annotations

from dataclasses import field
from typing import Any, NamedTuple

from flowlite.node.quick_dataclass import dataclass

FINAL_STATES = frozenset({"completed", "failed", "cancelled"})
STATES = FINAL_STATES | {"pending", "provisioning", "starting", "running", "stopping"}


@dataclass(frozen=True, slots=True)
class TaskRecord:
    """One row of `tasks`. Times are Unix times. `cost` is in US dollars, as last computed.

    Attributes:
        function: Name of the function, or the command line.
        outcome: "" until the gang has ended, then "done", "failed" or "cancelled".
        call: What the workers run, as in the agent's configuration, with paths on this machine.
        attempt: Number of the current attempt, from 1; 0 before the first.
        roster: Instance ids by node rank.
        candidates: The places where the task may run (`Candidate` as JSON), the preferred one first. Empty for a task
            that was submitted for one place only.
        candidate: Index in `candidates` of the present one, whose plan and provider are those of the record.
        tried: What became of the places that were tried, in order: {"candidate": index, "at": Unix time, "why": words},
            and what `supervise/failover.py` needs to choose the next one.
        lease_token: Increases with every change of supervisor.
    """

    id: str
    name: str
    function: str
    provider: str
    config: dict[str, Any]
    plan: dict[str, Any]
    call: dict[str, Any]
    created_at: float
    state: str = "pending"
    reason: str = ""
    outcome: str = ""
    attempt: int = 0
    retries_used: int = 0
    roster: list[str] = field(default_factory=list)
    started_at: float | None = None
    finished_at: float | None = None
    cancel_requested_at: float | None = None
    cost: float = 0.0
    lease_owner: str | None = None
    lease_token: int = 0
    lease_expires: float = 0.0
    candidates: list[dict[str, Any]] = field(default_factory=list)
    candidate: int = 0
    tried: list[dict[str, Any]] = field(default_factory=list)

    @property
    def final(self) -> bool:
        """Whether the task has ended and its state cannot change any more."""
        return self.state in FINAL_STATES


class TaskKey(NamedTuple):
    """The columns of a task by which lists choose among thousands."""

    id: str
    name: str
    state: str


@dataclass(frozen=True, slots=True)
class InstanceRecord:
    """One row of `instances`. `data` is the provider's `Instance` as JSON."""

    id: str
    task_id: str
    provider: str
    state: str
    price_per_hour: float
    launched_at: float
    data: dict[str, Any]
    node_rank: int | None = None
    ended_at: float | None = None


@dataclass(frozen=True, slots=True)
class Intent:
    """One row of `intents`: an action that may cost money, recorded before it is done."""

    token: str
    task_id: str
    kind: str
    data: dict[str, Any]
    state: str
    created_at: float
    settled_at: float | None = None

    @property
    def is_open_launch(self) -> bool:
        """Whether it is a launch whose outcome is unknown."""
        return self.kind == "launch" and self.state == "open"

    @property
    def purpose(self) -> str:
        """The state that the machines of a launch get if they have no rank; "" for all others."""
        return str(self.data.get("purpose", ""))


@dataclass(frozen=True, slots=True)
class Event:
    """One row of `events`."""

    seq: int
    task_id: str
    at: float
    kind: str
    text: str
    data: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to write to one task. `token` is the fencing token."""

    task_id: str
    owner: str
    token: int


@dataclass(frozen=True, slots=True)
class FullPlace:
    """One row of `full_places`: a place that had no room for so many nodes, as a task found at that Unix time."""

    place: str
    nodes: int
    task_id: str
    at: float


@dataclass(frozen=True, slots=True)
class LeaseHolder:
    """The lease of an unfinished task. `owner` is None if nobody holds it. Times are Unix times."""

    task_id: str
    owner: str | None
    expires: float
    created_at: float


@dataclass(frozen=True, slots=True)
class UnfinishedTask:
    """What the queue needs of an unfinished task. Times are Unix times.

    Attributes:
        priority: "high", "med" or "low".
        after: Ids of the tasks that must have completed before it begins.
        slots: `Plan.slots`.
        max_run_seconds: `Plan.max_run_seconds`.
        instance_type: `Plan.instance_type`.
        launching_since: Since when its launch is open; None if it has none.
        held: Slots that its instances take, "" for those that are alike.
    """

    id: str
    name: str
    state: str
    created_at: float
    started_at: float | None
    cancel_requested: bool
    led_until: float
    priority: str
    after: tuple[str, ...]
    slots: tuple[dict[str, Any], ...]
    max_run_seconds: float | None
    instance_type: str
    launching_since: float | None
    held: tuple[str, ...]
