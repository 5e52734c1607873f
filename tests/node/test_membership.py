"""What the leader knows of its members: a tick that looks at nobody overlooks nobody."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from flowlite.node.protocol.messages import GangSettings
from flowlite.node.rendezvous.membership import Members

STEPS = st.lists(
    st.tuples(
        st.floats(0, 6),
        st.sampled_from(["join", "hear", "part", "stop", "lose", "suspect", "excuse", "nothing"]),
        st.integers(0, 2),
    ),
    max_size=40,
)


@given(STEPS)
def test_nobody_is_overlooked_while_all_are_well(steps: list[tuple[float, str, int]]) -> None:
    settings = GangSettings("task", 1, ("a", "b", "c"))
    members, now, connection = Members(settings), 100.0, 0
    for passed, what, rank in steps:
        now += passed
        member = members[rank]
        if what == "join":
            connection += 1
            members.part(member, now)
            members.take(member, connection, f"agent-{connection}", now)
            member.heard = now
        elif what == "hear" and member.connection is not None:
            member.heard, member.suspect = now, False
        elif what == "part" and member.connection is not None:
            members.part(member, now)
        elif what in ("stop", "lose", "suspect") and member.joined:
            setattr(member, {"stop": "stopped", "lose": "lost", "suspect": "suspect"}[what], True)
        elif what == "excuse":
            members.excuse(passed)
        if members.all_well(now):
            assert not list(members.doubtful(now))
            assert not list(members.given_up(now, settings.fence_after))
