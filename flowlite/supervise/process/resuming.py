"""Tasks without supervisor and machines: for how long they go on by themselves, and how they go on after that.

A supervisor that takes over such a task launches machines, which cost money. Within `LEFT_SECONDS` of its last sign of
life that is what whoever submitted it expects. Later somebody has to say so: `flow resume`, or `flow cancel`.
"""

from __future__ import annotations

from flowlite.provider import Plan, Provider
from flowlite.state import clock
from flowlite.state.store import Store, TaskRecord
from flowlite.supervise.record import wording

LEFT_SECONDS = 600.0


def would_launch(store: Store, record: TaskRecord) -> bool:
    """Whether the next supervisor of the task begins by asking for machines, as far as the store knows."""
    ending = record.final or record.outcome or record.cancel_requested_at is not None
    return not ending and not store.has_machines(record.id)


def needs_resume(store: Store, record: TaskRecord) -> bool:
    """Whether the task goes on only when somebody says so.

    A launch that is still open may have brought machines, so a supervisor looks for them first (`may_lead`).
    """
    if not is_left(record) or not would_launch(store, record):
        return False
    return not store.has_open_launch(record.id) or store.is_parked(record.id)


def is_left(record: TaskRecord) -> bool:
    """Whether nobody has led the task for a while."""
    return clock.now() > _last_led(record) + LEFT_SECONDS


def may_lead(store: Store, before: TaskRecord, provider: Provider) -> bool:
    """Whether a supervisor may lead the task on; else it was noted that the task waits for `flow resume`.

    Args:
        before: The task as it was before this supervisor has its lease.

    Raises:
        ProviderError: The provider cannot be asked whether an open launch has brought machines.
    """
    if not is_left(before) or not would_launch(store, before):
        return True
    if store.has_open_launch(before.id) and not store.is_parked(before.id):
        if any(each.state != "ended" for each in provider.list_instances(before.id)):
            return True
        store.park(before.id, _text(before))
    return False


def sentence(record: TaskRecord) -> str:
    """What has become of the task, and what can be done."""
    from flowlite.supervise.money import price_text

    plan = Plan.from_json(record.plan)
    price = f" ({price_text.sentence(plan)})" if plan.price_per_hour else ""
    return (
        f"{record.name} ({record.id}) {_text(record)}: `flow resume {record.id}` goes on with it and launches "
        f"machines{price}, `flow cancel {record.id}` ends it"
    )


def _text(record: TaskRecord) -> str:
    left = wording.duration(max(0.0, clock.now() - _last_led(record)))
    return f"has had no supervisor for {left}, and has no machines"


def _last_led(record: TaskRecord) -> float:
    return max(record.created_at, record.lease_expires)
