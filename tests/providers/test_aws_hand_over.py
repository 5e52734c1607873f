"""Which kept machines of EC2 another task takes over: none dearer than it allows, or that ends too soon."""

from __future__ import annotations

from pathlib import Path

import pytest

from flowlite.provider import LaunchIntent, Plan
from flowlite.state import clock
from provider_adapters.aws.context import Context
from provider_adapters.aws.launching import Launching
from provider_adapters.aws.listing import Listing
from provider_adapters.aws.settings import AwsSettings

pytest.importorskip("boto3")
HOUR = 3600.0
# The longest life of the machines of the second task; those that it takes over may end two minutes later.
LONGEST = 2 * HOUR


def is_taken(
    home: Path,
    *,
    zone: str = "us-east-1a",
    image: str = "ami-1",
    price: float = 1.0,
    lives: float | None = LONGEST + 300.0,
    longest: float | None = LONGEST,
    spot_cap: float | None = None,
) -> bool:
    """Whether a machine is taken over by a task that allows $1.00 in one zone, with one image.

    Args:
        lives: For how many seconds it may still run; None for no limit.
        longest: How long the task may have it; None for no limit.
        spot_cap: The highest price of the task on spot.
    """
    context = Context(home, AwsSettings(region=("us-east-1",)))
    deadline = "none" if lives is None else str(int(clock.wall() + lives))
    context.ledger.begin("t1-launch-1", "t1", 1, dict)
    parameters = {"price": price, "deadline": deadline, "request": {"ImageId": image}}
    call = context.ledger.intend("t1-launch-1", f"us-east-1/{zone}", parameters)
    launch = context.ledger.made("t1-launch-1", call.name, ["i-1"])
    place = {"zone": "us-east-1a", "subnet": "subnet-1", "vpc": "vpc-1", "price": 1.0}
    plan = Plan(
        "aws",
        "c7i.large",
        1,
        1,
        price_per_hour=1.0,
        spot=spot_cap is not None,
        price_cap=spot_cap,
        start_seconds=HOUR,
        max_run_seconds=None if longest is None else longest - HOUR,
        options={
            "places": [{"region": "us-east-1", "image": {"id": "ami-1"}, "zones": [place]}],
        },
    )
    intent = LaunchIntent("t2-launch-1", "t2", 1, plan.to_json())
    return Launching(context, Listing(context), intent).is_suitable(launch)


def test_one_like_those_of_the_plan_is_taken(tmp_path: Path) -> None:
    assert is_taken(tmp_path)


@pytest.mark.parametrize(
    "other", [{"zone": "us-east-1b"}, {"image": "ami-2"}], ids=["zone", "image"]
)
def test_one_of_another_zone_or_image_is_not(tmp_path: Path, other: dict[str, str]) -> None:
    assert not is_taken(tmp_path, **other)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("price", "spot_cap", "taken"),
    [(1.01, None, False), (0.5, None, True), (1.2, 1.2, True), (1.21, 1.2, False)],
)
def test_none_is_dearer_than_the_task_allows(
    tmp_path: Path, price: float, spot_cap: float | None, taken: bool
) -> None:
    assert is_taken(tmp_path, price=price, spot_cap=spot_cap) is taken


@pytest.mark.parametrize(
    ("lives", "longest", "taken"),
    [
        (LONGEST + 60.0, LONGEST, False),
        (LONGEST + 130.0, LONGEST, True),
        (None, LONGEST, True),
        (None, None, True),
        # It would end the task, which has no limit.
        (LONGEST, None, False),
    ],
)
def test_none_ends_before_the_task_may(
    tmp_path: Path, lives: float | None, longest: float | None, taken: bool
) -> None:
    assert is_taken(tmp_path, lives=lives, longest=longest) is taken
