"""The most telling cases, always the same; `make attack` draws others each time."""

from __future__ import annotations

import pytest

from tests.attack.cases import Case, Fault, cut
from tests.attack.crowd import play_all
from tests.attack.findings import line
from tests.components import need

CUTS = [
    Case(1, "partition", "prepare", (cut("all-pairs", seconds=15.0),), open_after=1.0),
    Case(2, "partition", "before GO", (cut("leader-member", 2, 15.0),)),
    Case(3, "partition", "running", (cut("leader-all", seconds=20.0),)),
    Case(4, "partition", "last seconds", (cut("client-node", 2, 30.0),), finish_after=3.0),
    Case(5, "partition", "collecting", (cut("member-all", 1, 20.0),)),
]
ENDS = [
    Case(6, "partition", "running", (cut("member-all", 1, 45.0),), retries=1),
    Case(7, "partition", "running", (cut("client-all", seconds=15.0),), cancel_after=5.0),
    Case(8, "clock", "running", (Fault("clock", (), 0.0, 10.0, "+3600"),)),
    Case(
        9,
        "sshd",
        "last seconds",
        (Fault("sshd", (1,), 0.0, 15.0, "noise before the command"),),
        finish_after=2.0,
    ),
]
OTHERS = [
    Case(10, "squatter", "bring-up", (Fault("squatter", (1,), 0.0, 20.0, "yes"),)),
    Case(11, "disk", "collecting", (Fault("client-disk", (), 0.0, 15.0),)),
    Case(12, "hostile", "bring-up", (Fault("hostile", (1,), 0.0, 1.0, "control"),)),
    Case(13, "hostile", "bring-up", (Fault("hostile", (2,), 0.0, 1.0, "pickle"),)),
]


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "cases", [CUTS, ENDS, OTHERS], ids=["short cuts", "what ends or must not", "other faults"]
)
def test_nothing_is_lost_and_nobody_let_in(cases: list[Case]) -> None:
    need("hosts")
    told: list[str] = []
    found = play_all(cases, len(cases), lambda finding: told.append(line(finding)))
    wrong = {each.case: each.wrong + each.story for each in found if each.wrong}
    assert not wrong, "\n".join(
        [*told, *(f"\n{case}:\n  " + "\n  ".join(what) for case, what in wrong.items())]
    )
