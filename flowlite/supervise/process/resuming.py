"""When a task without supervisor and machines goes on by itself, and when it needs `flow resume`.

A supervisor that takes over such a task launches machines. If these cost money, the task continues only while a client
waits for it, and only until `LEFT_SECONDS` after the last sign of life of its supervisor. Otherwise the user decides:
`flow status` asks, `flow resume` and `flow cancel` answer. Until then, any command continues a task that costs nothing.

A supervisor that was started unasked launches nothing. It finds out what an unanswered launch has created, continues
with machines that exist, and hands back a task without machines.
"""

from __future__ import annotations

from collections.abc import Sequence

from flowlite.provider import Instance, Plan, Provider
from flowlite.state import clock
from flowlite.state.store import Store, TaskRecord
from flowlite.supervise.record import wording
from flowlite.supervise.record.lifecycle import JOINING

LEFT_SECONDS = 600.0


# States of instances that the task does not keep.
_GOING = frozenset({"ended", "ending", "warm"})


def would_launch(store: Store, record: TaskRecord) -> bool:
    """Whether the next supervisor of the task would begin by launching machines, as far as the store knows."""
    ending = record.final or record.outcome or record.cancel_requested_at is not None
    return not ending and not store.has_machines(record.id)


def needs_resume(store: Store, record: TaskRecord, *, is_awaited: bool = False) -> bool:
    """Whether the task goes on only after `flow resume`.

    An open launch may have created machines, so a supervisor looks for them first (`may_lead`).

    Args:
        is_awaited: Whether a client waits for the task.
    """
    if not would_launch(store, record):
        return False
    if not is_left(record) and launches_unasked(record, is_awaited=is_awaited):
        return False
    return not store.has_open_launch(record.id) or store.is_parked(record.id)


def launches_unasked(record: TaskRecord, *, is_awaited: bool) -> bool:
    """Whether a supervisor may launch machines for the task without asking the user."""
    return is_awaited or not Plan.from_json(record.plan).costs_money


def is_left(record: TaskRecord) -> bool:
    """Whether the task has had no supervisor for longer than `LEFT_SECONDS`."""
    return clock.now() > _last_led(record) + LEFT_SECONDS


def may_lead(store: Store, before: TaskRecord, provider: Provider) -> bool:
    """Whether a supervisor may go on with the task. If not, the task is recorded as waiting for `flow resume`.

    Args:
        before: The task as it was before this supervisor acquired the lease.

    Raises:
        ProviderError: The provider cannot be asked whether an open launch has created machines.
    """
    if not launches_nothing(store, before):
        return True
    if store.has_open_launch(before.id) and not store.is_parked(before.id):
        if has_machines(store, before.id, provider.list_instances(before.id)) is not False:
            return True
        if _open_launches(store, before.id) & _launches_to_grow(store, before.id):
            # It is handed back once its bids are withdrawn (`launches_nothing`).
            return True
        store.park(before.id, _text(before))
    return False


def launches_nothing(store: Store, before: TaskRecord) -> bool:
    """Whether a supervisor that leads the task launches nothing, whoever has started it, unless there are machines.

    Args:
        before: The task as it was before this supervisor acquired the lease.
    """
    return is_left(before) and would_launch(store, before)


def _open_launches(store: Store, task_id: str) -> set[str]:
    """The tokens of the launches that are open."""
    return {each.token for each in store.intents(task_id) if each.is_open_launch}


def _launches_to_grow(store: Store, task_id: str) -> set[str]:
    """The tokens of the launches, open or not, with which its gang was to grow while it ran."""
    return {each.token for each in store.intents(task_id) if each.purpose == JOINING}


def has_machines(store: Store, task_id: str, listed: Sequence[Instance]) -> bool | None:
    """Whether a task has machines to continue with. None: that is not certain yet.

    Args:
        listed: What its provider lists. Without an open launch, only machines in the store count: what is listed
            besides, such as a bid that has lost its machines and may win others, is left over and will be ended. So
            is what was launched for a gang to grow: without the gang, it is of no use.
    """
    growing = _launches_to_grow(store, task_id)
    is_open = bool(_open_launches(store, task_id) - growing)
    recorded = {row.id for row in store.instances(task_id) if row.ended_at is None}
    staying = [
        each
        for each in listed
        if each.state not in _GOING
        and (each.id in recorded or (is_open and each.launch not in growing))
    ]
    if any(not each.unconfirmed for each in staying):
        return True
    return None if staying else False


def waits_for_resume(record: TaskRecord) -> str:
    """Returns what such a task waits for, as the reason of its state."""
    return f"has no supervisor and no machines; `flow resume {record.id}` continues it"


def sentence(record: TaskRecord) -> str:
    """Returns a sentence for the user: the task's situation, and the commands that resume or cancel it."""
    from flowlite.supervise.money import price_text

    plan = Plan.from_json(record.plan)
    price = f" ({price_text.sentence(plan)})" if plan.is_paid else ""
    return (
        f"{record.name} ({record.id}) {_text(record)}: `flow resume {record.id}` continues it and launches "
        f"machines{price}, `flow cancel {record.id}` ends it"
    )


def _text(record: TaskRecord) -> str:
    left = wording.duration(max(0.0, clock.now() - _last_led(record)))
    return f"has had no supervisor for {left}, and has no machines"


def _last_led(record: TaskRecord) -> float:
    return max(record.created_at, record.lease_expires)
