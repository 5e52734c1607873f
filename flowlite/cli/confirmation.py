"""Asks for confirmation before actions that cannot be undone. Only a user at a terminal is ever asked."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import typer

from flowlite.cli import output

if TYPE_CHECKING:
    from flowlite.provider import Plan


def can_ask() -> bool:
    """Whether there is a terminal on which a user can read the question and answer."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def confirm(question: str, otherwise: str) -> None:
    """Returns only if the user answers yes; else shows `otherwise`, which says what was not done. Enter means no.

    Raises:
        Quit: The answer is no.
    """
    if not typer.confirm(question, err=True):
        output.tell(otherwise)
        raise output.Quit(1)


def confirm_launch(plan: Plan, yes: bool, *, tasks: int = 1) -> None:
    """Asks for confirmation before machines that cost money are launched, showing the worst-case cost.

    The user is not asked with `--yes`, with the setting `confirm = false`, without a terminal, and for the local
    provider, whose price is a rehearsal.

    Args:
        plan: What is launched.
        yes: Whether the answer was given on the command line, or the output is for a program.
        tasks: How many tasks of this plan are launched.

    Raises:
        Quit: The answer is no.
    """
    from flowlite.supervise.money import price_text

    if not asks_before(plan, yes):
        return
    many = f"{tasks} tasks, each on " if tasks > 1 else ""
    worst = price_text.worst_case(plan, " for each" if tasks > 1 else "")
    confirm(f"Launch {many}{price_text.gang(plan)}? Cost at most: {worst}", "nothing was launched")


def asks_before(plan: Plan, yes: bool) -> bool:
    """Whether the user is asked before this plan is launched."""
    from flowlite.settings.settings import load_settings
    from flowlite.supervise.cleanup import background_gc

    paid = plan.is_paid and plan.provider not in background_gc.FREE
    return paid and not yes and can_ask() and bool(load_settings()["confirm"])
