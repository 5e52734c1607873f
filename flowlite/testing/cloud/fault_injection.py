"""What a cloud does wrong by itself now and then, drawn from a seed: it throttles, fails, falls silent, and lags.

Whatever is drawn could happen in a real cloud at any moment, so a program has to live with it in every place. What is
not drawn is a refusal: a cloud that says "no" for no reason.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from flowlite.testing.cloud.fault import Fault

# Of all calls, how many go wrong before they have their effect, and how many after it.
_BEFORE, _AFTER = 0.06, 0.06
# After so many failures in a row of one kind of call one goes well: libraries try five times, and an outage that
# lasts is another matter.
_IN_A_ROW = 3
# How often listings are late, and by how much at most, in seconds.
_LATE, _LATEST = 0.3, 3.0


@dataclass(frozen=True)
class Habits:
    """What one cloud may do wrong, as faults whose action is left open.

    Attributes:
        before: Before a call has its effect.
        after: After that, on the way back.
    """

    before: Sequence[Fault]
    after: Sequence[Fault]


class Unkindness:
    """One run of bad luck."""

    def __init__(self, seed: int, habits: Habits) -> None:
        self._chance = random.Random(seed)
        self._habits = habits
        self._in_a_row: Counter[str] = Counter()

    def fault(self, action: str, when: str) -> Fault | None:
        """What goes wrong with this call now."""
        before = when == "before"
        if self._in_a_row[action] >= _IN_A_ROW or self._chance.random() >= (
            _BEFORE if before else _AFTER
        ):
            if not before:
                self._in_a_row[action] = 0
            return None
        self._in_a_row[action] += 1
        kinds = self._habits.before if before else self._habits.after
        return replace(self._chance.choice(kinds), action=action, when=when)

    def lag(self) -> float:
        """By how many seconds listings are late now."""
        late = self._chance.random() < _LATE
        return self._chance.uniform(0.0, _LATEST) if late else 0.0
