"""Plays crash points on a simulated clock, in a process of its own: the fake clouds change moto for all its process.

python -m tests.crash.playing --part 0 --of 8               a part of all cases
python -m tests.crash.playing --part 0 --one-in 3 --seed 77 every crash point, each with a third of its faults, drawn
python -m tests.crash.playing --sample 40 --seed 77         so many of them, drawn
python -m tests.crash.playing --kills 200 --seed 77         kills at random moments, from this seed on
python -m tests.crash.playing --sample 40 --then-gc         the same, with `flow gc` first after each crash
python -m tests.crash.playing --calls                       whether every call of a task is a crash point
python -m tests.crash.playing --market "a bid is filled late"  every point of a failover, or with --sample some
python -m tests.crash.playing --season "room for three"  every point of a gang of 2 to 4, or with --sample some
python -m tests.crash.playing --season "room for three" --different     those that differ in the calls before and after
python -m tests.crash.playing --withdrawals "it does not stop for those that come"    those of its withdrawn bids
python -m tests.crash.playing --hand-overs mithril          every moment of a hand-over, or with --sample some

It says what left something, and ends with 1 then.
"""

from __future__ import annotations

import argparse
import gc
import os
import random
import shutil
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path

from tests.crash.cases import (
    BETWEEN,
    MARKETS,
    SEASONS,
    SUPERVISOR,
    all_cases,
    some_of_each_point,
)
from tests.crash.clouds import POINTS
from tests.crash.elastic import ElasticGangs
from tests.crash.handing_over import HandOvers
from tests.crash.markets import Markets
from tests.crash.reenacting import Reenactment
from tests.crash.simulated import Simulation


def main() -> int:
    """Plays what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--part", type=int)
    parser.add_argument("--of", type=int, default=1)
    parser.add_argument("--one-in", type=int, default=1)
    parser.add_argument("--sample", type=int, default=0)
    parser.add_argument("--kills", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--then-gc", action="store_true")
    parser.add_argument("--calls", action="store_true")
    parser.add_argument("--market", action="append", default=[], choices=[*MARKETS])
    parser.add_argument("--season", action="append", default=[], choices=[*SEASONS])
    parser.add_argument("--different", action="store_true")
    parser.add_argument("--withdrawals", choices=[*SEASONS])
    parser.add_argument("--hand-overs", action="append", default=[], choices=[*BETWEEN])
    asked = parser.parse_args()
    memory = Path("/dev/shm")
    root = Path(
        tempfile.mkdtemp(prefix="flow-crash-", dir=memory if os.access(memory, os.W_OK) else None)
    )
    # What belongs to no FLOW_HOME of a case must not lie in that of whoever runs the tests.
    os.environ["FLOW_HOME"] = str(root / "nobody")
    wrong = played = hits = 0

    def attempt(name: str, play: Callable[[], bool | None]) -> None:
        nonlocal wrong, played, hits
        played += 1
        try:
            hits += bool(play())
        except Exception:
            wrong += 1
            sys.stdout.write(f"\n{name} left something:\n{traceback.format_exc()}\n")

    try:
        stage = Reenactment(Simulation(), root)
        markets = Markets(stage.world, root / "markets")
        elastic = ElasticGangs(stage.world, root / "elastic")
        hand_overs = HandOvers(stage.world, root / "hand-overs")
        (root / "hand-overs").mkdir()
        (root / "markets").mkdir()
        (root / "elastic").mkdir()
        cases = all_cases(POINTS)
        if asked.then_gc:
            # A client that never comes back runs no `flow gc`.
            cases = [each for each in cases if each.lost == SUPERVISOR]
        if asked.one_in > 1:
            cases = some_of_each_point(cases, asked.one_in, asked.seed)
        asked_for = [] if asked.part is None else cases[asked.part :: asked.of]
        chance = random.Random(asked.seed)
        others = asked.market or asked.season or asked.hand_overs
        asked_for += chance.sample(cases, 0 if others else asked.sample)
        # Of the hundred thousands of objects that the libraries consist of, none is garbage.
        gc.collect()
        gc.freeze()
        with stage.world.running():
            if asked.calls:
                for name in POINTS:
                    attempt(name, lambda name=name: check_calls(stage, name))  # type: ignore[misc]
            for case in asked_for:
                attempt(str(case), lambda case=case: stage.play(case, then_gc=asked.then_gc))  # type: ignore[misc]
            for name in asked.market:
                points = markets.points(name)
                for point in chance.sample(points, asked.sample) if asked.sample else points:
                    attempt(str(point), lambda point=point: markets.play_point(point))  # type: ignore[misc]
            for name in asked.season:
                moments = elastic.moments(name, different=asked.different)
                for moment in chance.sample(moments, asked.sample) if asked.sample else moments:
                    attempt(str(moment), lambda moment=moment: elastic.play_moment(moment))  # type: ignore[misc]
            for moment in elastic.withdrawals(asked.withdrawals) if asked.withdrawals else ():
                attempt(str(moment), lambda moment=moment: elastic.play_moment(moment))  # type: ignore[misc]
            for name in asked.hand_overs:
                of_all = hand_overs.moments(name)
                for each in chance.sample(of_all, asked.sample) if asked.sample else of_all:
                    attempt(str(each), lambda each=each: hand_overs.play_moment(each))  # type: ignore[misc]
            for seed in range(asked.seed, asked.seed + asked.kills):
                attempt(f"seed {seed}", lambda seed=seed: stage.kill_at_random(seed))  # type: ignore[misc]
    finally:
        shutil.rmtree(root)
    sys.stdout.write(f"played {played}, of which {hits} were hit at their call; {wrong} wrong\n")
    return 1 if wrong or not played else 0


def check_calls(stage: Reenactment, name: str) -> None:
    """What a task asks of a cloud, from its intent to its end, is in the lists of crash points."""
    made = stage.uneventful(stage.cloud(name))
    points = POINTS[name]
    known = {*points.boot, *points.end, *points.run}
    assert made <= known | points.harmless, sorted(made - known)


if __name__ == "__main__":
    sys.exit(main())
