"""Many bad days: never two epochs live, never a start with a wrong roster, always an end with a name."""

from __future__ import annotations

import pytest

from flowlite.node.protocol import messages
from tests.node.simulation import TIMES, World


def live_through(seeds: range) -> None:
    for seed in seeds:
        world = World(seed)
        try:
            world.run()
        except Exception as error:
            story = "\n".join(world.supervisor.story)
            raise AssertionError(f"seed {seed}: {error}\n{story}") from error


@pytest.mark.parametrize("first", range(0, 400, 40))
def test_no_seed_breaks_the_gang(first: int) -> None:
    live_through(range(first, first + 40))


@pytest.mark.parametrize("first", range(0, 200, 50))
def test_an_outage_that_is_shorter_than_the_fence_costs_nothing(first: int) -> None:
    """Two thirds of it, as 20 s are of 30 s."""
    for seed in range(first, first + 50):
        world = World(seed, outage=TIMES["fence_after"] * 2 / 3)
        world.run()
        story = "\n".join(world.supervisor.story)
        assert world.supervisor.outcome == messages.DONE, f"seed {seed}\n{story}"
        assert set(world.rosters) == {1}, f"seed {seed}\n{story}"


@pytest.mark.slow
@pytest.mark.parametrize("first", range(400, 1400, 250))
def test_no_seed_of_a_thousand_breaks_the_gang(first: int) -> None:
    live_through(range(first, first + 250))


@pytest.mark.hours
@pytest.mark.parametrize("first", range(1400, 10400, 250))
def test_no_seed_of_thousands_breaks_the_gang(first: int) -> None:
    live_through(range(first, first + 250))
