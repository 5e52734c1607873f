"""Sweeps with real processes and hosts: a few cases that differ much, and the others where there are hours.

Every combination of faults, moments and lengths takes minutes where each is played with real ones. What all of them
share is also played on a simulated clock (`tests/attack/deciding.py`, `tests/crash/simulated.py`).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import pytest

Case = TypeVar("Case")

A_DOZEN = 12


def pairwise(
    cases: Iterable[Case],
    count: int,
    attributes: Callable[[Case], Iterable[Any]] = enumerate,  # type: ignore[assignment]
) -> list[Case]:
    """So many cases that together have as many pairs of attributes as one finds by always taking the best next one.

    Args:
        cases: What there is to choose from.
        count: How many are chosen.
        attributes: Names and values of what a case consists of; of a tuple, its places and what is there.
    """
    pairs = {case: set(itertools.combinations(attributes(case), 2)) for case in cases}
    chosen: list[Case] = []
    seen: set[Any] = set()
    for _ in range(min(count, len(pairs))):
        best = max(pairs, key=lambda case: len(pairs[case] - seen))
        chosen.append(best)
        seen |= pairs.pop(best)
    return chosen


def swept(
    *axes: Sequence[Any],
    names: Callable[..., str],
    quick: Iterable[tuple[Any, ...]] = (),
    count: int = A_DOZEN,
) -> list[Any]:
    """Parameters of a sweep over every combination of what the axes have.

    Args:
        axes: The values of each parameter.
        names: Makes the id of a case.
        quick: Cases that `make test` plays.
        count: How many more `make test-all` plays; `make test-hours` plays the others.
    """
    cases = list(itertools.product(*axes))
    quick = list(quick)
    chosen = pairwise([case for case in cases if case not in quick], count)

    def marks(case: tuple[Any, ...]) -> list[pytest.MarkDecorator]:
        if case in quick:
            return []
        return [pytest.mark.slow] if case in chosen else [pytest.mark.slow, pytest.mark.hours]

    return [pytest.param(*case, id=names(*case), marks=marks(case)) for case in cases]
