"""Random faults of a cloud, drawn from a seed: throttling, errors, calls without a reply, and listings that lag.

Every fault drawn here can happen in a real cloud at any moment, so a client must handle it at any call. Refusals
without a cause are not drawn.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from flowlite.testing.cloud.fault import Fault

# The shares of calls that fail before their effect, and after it.
_BEFORE, _AFTER = 0.06, 0.06
# After this many failures in a row of one action, a call succeeds: client libraries try five times, and this module
# does not simulate lasting outages.
_IN_A_ROW = 3
# How often listings lag, and the longest lag in seconds.
_LATE, _LATEST = 0.3, 3.0


@dataclass(frozen=True)
class Habits:
    """The faults that one cloud may inject. Their `action` is set when they are drawn.

    Attributes:
        before: Faults before a call has its effect.
        after: Faults after the effect, in place of the reply.
    """

    before: Sequence[Fault]
    after: Sequence[Fault]


class Unkindness:
    """A seeded sequence of random faults."""

    def __init__(self, seed: int, habits: Habits) -> None:
        self._chance = random.Random(seed)
        self._habits = habits
        self._in_a_row: Counter[str] = Counter()

    def fault(self, action: str, when: str) -> Fault | None:
        """The fault to inject into this call, or None."""
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
        """By how many seconds listings lag now."""
        late = self._chance.random() < _LATE
        return self._chance.uniform(0.0, _LATEST) if late else 0.0
