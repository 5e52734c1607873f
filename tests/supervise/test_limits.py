"""What keeps a task from running, and costing, for ever."""

from __future__ import annotations

import pytest

from flowlite.supervise.money.caps import pause_after_preemption


class TestPreemptions:
    def test_the_first_one_costs_no_time(self) -> None:
        assert pause_after_preemption(0, 0.0) == 0.0

    def test_attempts_that_were_worth_it_are_followed_by_the_next_at_once(self) -> None:
        assert pause_after_preemption(3, 3600.0) == 0.0

    @pytest.mark.parametrize(("before", "seconds"), [(1, 5.0), (2, 10.0), (3, 20.0), (50, 300.0)])
    def test_one_upon_the_other_they_are_answered_by_longer_and_longer_pauses(
        self, before: int, seconds: float
    ) -> None:
        assert pause_after_preemption(before, 30.0) == seconds
