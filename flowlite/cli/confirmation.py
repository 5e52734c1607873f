"""Asks for confirmation before actions that cannot be undone. Only a user at a terminal is ever asked."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import typer

from flowlite.cli import output

if TYPE_CHECKING:
    from flowlite.api.candidates.ranking import Candidates
    from flowlite.provider import Plan


def can_ask() -> bool:
    """Whether there is a terminal on which a user can read the question and answer."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def confirm(question: str, otherwise: str) -> None:
    """Shows `otherwise`, which says what was not done, and raises Quit unless the user answers yes. Enter means no."""
    if not typer.confirm(question, err=True):
        output.tell(otherwise)
        raise output.Quit(1)


def confirm_launch(places: Candidates, yes: bool, *, tasks: int = 1) -> None:
    """Asks for confirmation before machines that cost money are launched, showing the worst-case cost.

    The user is not asked with `yes`, with the setting `confirm = false`, without a terminal, and for the local
    provider, whose price is a rehearsal. Raises Quit if the answer is no.
    """
    from flowlite.supervise.money import price_text

    dearest, others = places.dearest, len(places.ranked) - 1
    if not asks_before(dearest, yes):
        return
    _say_why_it_asks()
    many = f"{tasks} tasks, each on " if tasks > 1 else ""
    what, each = price_text.gang(places.best), " for each" if tasks > 1 else ""
    if others:
        what += f", or at one of {others} other places" if others > 1 else ", or at another place"
        where = " ".join(filter(None, (dearest.provider, dearest.region)))
        each += f", for {price_text.gang(dearest)} at {where}"
    worst = price_text.worst_case(dearest, each)
    confirm(f"Launch {many}{what}? Cost at most: {worst}", "nothing was launched")


def _say_why_it_asks() -> None:
    from flowlite.settings.settings import load_settings

    project = load_settings().project
    if project is not None and "confirm" in project.unasked and not project.trusted:
        output.tell(
            f"note: confirm = false in {project.path} counts once you trust that file (`flow config trust`)"
        )


def asks_before(plan: Plan, yes: bool) -> bool:
    """Whether the user is asked before this plan is launched."""
    from flowlite.settings.settings import load_settings

    return plan.costs_money and not yes and can_ask() and bool(load_settings()["confirm"])
