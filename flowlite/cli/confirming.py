"""Questions before something that cannot be taken back. Only a person at a terminal is ever asked."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import typer

from flowlite.cli import output

if TYPE_CHECKING:
    from flowlite.provider import Plan


def can_ask() -> bool:
    """Whether a person reads what is said and can answer."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def confirm(question: str, otherwise: str) -> None:
    """Goes on only if the answer is yes; `otherwise` says what did not happen. Enter alone means no.

    Raises:
        Quit: The answer is no.
    """
    if not typer.confirm(question, err=True):
        output.tell(otherwise)
        raise output.Quit(1)


def confirm_launch(plan: Plan, yes: bool, *, tasks: int = 1) -> None:
    """Asks before machines are launched that cost money, with the worst case.

    Nobody is asked with `--yes`, with the setting `confirm = false`, where no person can answer, and for this machine,
    whose price is a rehearsal.

    Args:
        plan: What is launched.
        yes: The answer was given on the command line, or a program reads what is printed.
        tasks: How many tasks of this plan are launched.

    Raises:
        Quit: The answer is no.
    """
    from flowlite.supervise.money import price_text

    if not asks_before(plan, yes):
        return
    many = f"{tasks} tasks, each on " if tasks > 1 else ""
    worst = price_text.worst_case(plan) + (" for each" if tasks > 1 else "")
    confirm(f"Launch {many}{price_text.gang(plan)}? Cost at most: {worst}", "nothing was launched")


def asks_before(plan: Plan, yes: bool) -> bool:
    """Whether a person is asked before this plan is launched."""
    from flowlite.settings.settings import load_settings
    from flowlite.supervise.cleanup import background_gc

    paid = plan.price_per_hour > 0 and plan.provider not in background_gc.FREE
    return paid and not yes and can_ask() and bool(load_settings()["confirm"])
