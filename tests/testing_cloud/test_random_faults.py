"""Clouds of the box that go wrong by chance: in every test that does not ask them not to, and the same for a seed."""

from __future__ import annotations

from typing import Any

import pytest
from botocore.exceptions import BotoCoreError, ClientError

from flowlite.testing.cloud import CloudInABox

pytestmark = pytest.mark.needs("hosts")
CALLS = 150


def outcomes(ec2: Any, count: int = CALLS) -> list[str]:
    """What comes of calls that nobody repeats."""
    found = []
    for _ in range(count):
        try:
            ec2.describe_key_pairs()
        except ClientError as error:
            found.append(error.response["Error"]["Code"])
        except BotoCoreError:
            found.append("none")
        else:
            found.append("")
    return found


def test_calls_go_wrong_though_nobody_asked_for_it(
    box: CloudInABox, ec2: Any, request: pytest.FixtureRequest
) -> None:
    wrong = {code for code in outcomes(ec2) if code}
    # Of 150 calls, one in eight of which fails.
    assert len(wrong) > 1
    assert wrong <= {"RequestLimitExceeded", "InternalError", "Unavailable", "none"}
    sections = request.node._report_sections
    assert any("FLOW_BOX_SEED=" in text for _, _, text in sections)
    box.unkind(None)
    assert not any(outcomes(ec2, 40))


@pytest.mark.no_random_faults
def test_a_seed_draws_the_same_again(box: CloudInABox, ec2: Any) -> None:
    assert not any(outcomes(ec2, 40))
    drawn = []
    for _ in range(2):
        box.unkind(7)
        drawn.append(outcomes(ec2))
    assert drawn[0] == drawn[1]
    box.unkind(8)
    assert outcomes(ec2) != drawn[0]
