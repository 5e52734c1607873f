"""The life of a task as one table: events possible in each state, the next state, and the reason shown.

    pending ──> provisioning ──> starting ──> running ──> stopping ──> completed | failed | cancelled
                     ^                                        │
                     └──────────── new attempt ───────────────┘

Every task that has begun passes through `stopping`. It becomes final only when its nodes are known to be gone.
"""

from __future__ import annotations

from enum import StrEnum

from flowlite.node.quick_dataclass import dataclass


class State(StrEnum):
    """The state of a task. The last three are final (`state.records.FINAL_STATES`)."""

    PENDING = "pending"
    PROVISIONING = "provisioning"
    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


class TaskEvent(StrEnum):
    """An event in the life of a task."""

    BEGIN = "begin"
    WAIT = "wait"
    LAUNCHED = "launched"
    PROGRESS = "progress"
    GO = "go"
    DONE = "done"
    FAILURE = "failure"
    CANCEL = "cancel"
    RETRY = "retry"
    GONE_DONE = "gone: done"
    GONE_FAILED = "gone: failed"
    GONE_CANCELLED = "gone: cancelled"


S, H = State, TaskEvent

# (state, event) -> (next state, reason shown; the caller fills in the braces).
TABLE: dict[tuple[State, TaskEvent], tuple[State, str]] = {
    (S.PENDING, H.BEGIN): (S.PROVISIONING, "asking for {nodes}"),
    (S.PENDING, H.WAIT): (S.PENDING, "{why}"),
    (S.PENDING, H.FAILURE): (S.STOPPING, "{why}"),
    (S.PENDING, H.CANCEL): (S.STOPPING, "cancelled before it began"),
    (S.PROVISIONING, H.WAIT): (S.PROVISIONING, "{why}"),
    (S.PROVISIONING, H.LAUNCHED): (S.STARTING, "starting agents on {nodes}"),
    (S.PROVISIONING, H.RETRY): (S.PROVISIONING, "{why}"),
    (S.PROVISIONING, H.FAILURE): (S.STOPPING, "{why}"),
    (S.PROVISIONING, H.CANCEL): (S.STOPPING, "cancelled while waiting for nodes"),
    (S.STARTING, H.PROGRESS): (S.STARTING, "{why}"),
    (S.STARTING, H.GO): (S.RUNNING, "all ranks started"),
    (S.STARTING, H.DONE): (S.STOPPING, "all ranks have ended"),
    (S.STARTING, H.FAILURE): (S.STOPPING, "{why}"),
    (S.STARTING, H.CANCEL): (S.STOPPING, "cancelled before the ranks started"),
    (S.RUNNING, H.PROGRESS): (S.RUNNING, "{why}"),
    (S.RUNNING, H.DONE): (S.STOPPING, "all ranks have ended"),
    (S.RUNNING, H.FAILURE): (S.STOPPING, "{why}"),
    (S.RUNNING, H.CANCEL): (S.STOPPING, "cancelled while running"),
    (S.STOPPING, H.PROGRESS): (S.STOPPING, "{why}"),
    (S.STOPPING, H.DONE): (S.STOPPING, "all ranks have ended"),
    (S.STOPPING, H.RETRY): (S.PROVISIONING, "{why}"),
    (S.STOPPING, H.CANCEL): (S.STOPPING, "{why}"),
    (S.STOPPING, H.FAILURE): (S.STOPPING, "{why}"),
    (S.STOPPING, H.GONE_DONE): (S.COMPLETED, ""),
    (S.STOPPING, H.GONE_FAILED): (S.FAILED, "{why}"),
    (S.STOPPING, H.GONE_CANCELLED): (S.CANCELLED, "{why}"),
}

# Reasons for stopping that are no failures.
STOPPING_REASONS = frozenset(
    reason for state, reason in TABLE.values() if state is S.STOPPING and "{" not in reason
)

SPARE = "spare"
"""State of the row of a machine that has no rank, and takes that of a lost node."""
JOINING = "joining"
"""State of the row of a machine that has no rank, and gets one in the next attempt, so that the gang grows."""

# How the reason begins while the project is sent. It changes often, so that a terminal shows it in one row.
SENDING = "sending the project"

# The event when all nodes are gone, by the task's outcome.
GONE: dict[str, TaskEvent] = {
    "done": H.GONE_DONE,
    "failed": H.GONE_FAILED,
    "cancelled": H.GONE_CANCELLED,
}


class ImpossibleTransition(RuntimeError):
    """A program error: the event is not possible in this state."""


@dataclass(frozen=True, slots=True)
class Transition:
    """The next state and its reason, to be recorded."""

    state: State
    reason: str


def step(state: str, event: TaskEvent, **words: object) -> Transition:
    """Returns what follows an event in a state.

    Raises:
        ImpossibleTransition: The table has no such entry.
    """
    entry = TABLE.get((State(state), event))
    if entry is None:
        raise ImpossibleTransition(f"{event.value!r} cannot happen to a task that is {state}")
    following, template = entry
    return Transition(following, template.format(**words))


def nodes(count: int | str) -> str:
    """Returns `1 node`, `4 nodes`, `2 to 8 nodes`."""
    return "1 node" if count in (1, "1") else f"{count} nodes"
