"""Launches on EC2 that wait for room, for days: what they are launched with then, and what they leave on the disk."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from flowlite.errors import CapacityUnavailable, PermissionRefused, ProviderError
from flowlite.provider import Instance, LaunchIntent, LaunchPending, Plan
from flowlite.state import clock
from provider_adapters.aws.context import DEADLINE, Context
from provider_adapters.aws.errors import NoAnswer
from provider_adapters.aws.launching import Launching
from provider_adapters.aws.listing import Listing
from provider_adapters.aws.session import Clients
from provider_adapters.aws.settings import AwsSettings

exceptions = pytest.importorskip("botocore.exceptions")

HOUR = 3600.0
ZONES = [f"us-east-1{letter}" for letter in "abc"]


class Ec2:
    """Refuses every launch with `code`, or carries it out if there is none."""

    def __init__(self) -> None:
        self.code = "InsufficientInstanceCapacity"
        self.asked: list[dict[str, Any]] = []
        self.may_end = False
        self.ended: list[str] = []
        self.is_silent = False
        self.listed: list[dict[str, Any]] = []

    def run_instances(self, **request: Any) -> dict[str, Any]:
        self.asked.append(request)
        if self.is_silent:
            raise exceptions.ReadTimeoutError(endpoint_url="https://ec2")
        if self.code == "unreachable":
            raise exceptions.EndpointConnectionError(endpoint_url="https://ec2")
        if self.code:
            said = {"Code": self.code, "Message": "no capacity"}
            raise exceptions.ClientError({"Error": said}, "RunInstances")
        made = {
            "LaunchTime": datetime.fromtimestamp(clock.wall(), UTC),
            "Tags": request["TagSpecifications"][0]["Tags"],
        }
        names = [f"i-{number + 1}" for number in range(request["MaxCount"])]
        return {"Instances": [{**made, "InstanceId": name} for name in names], "OwnerId": "1"}

    def terminate_instances(self, InstanceIds: list[str]) -> None:
        if not self.may_end:
            said = {"Code": "UnauthorizedOperation", "Message": "you may not"}
            raise exceptions.ClientError({"Error": said}, "TerminateInstances")
        self.ended += InstanceIds

    def cancel_spot_instance_requests(self, **_: Any) -> None: ...

    def get_console_output(self, **_: Any) -> dict[str, Any]:
        return {}

    def get_paginator(self, operation: str) -> Ec2:
        assert operation == "describe_instances"
        return self

    def paginate(self, **_: Any) -> list[dict[str, Any]]:
        if self.is_silent:
            raise exceptions.EndpointConnectionError(endpoint_url="https://ec2")
        return [{"Reservations": [{"OwnerId": "1", "Instances": self.listed}]}]

    def get_service_quota(self, **_: Any) -> dict[str, Any]:
        return {"Quota": {"Value": 1000.0}}

    def tags(self) -> dict[str, str]:
        """The tags of the machine that was asked for last."""
        return {
            each["Key"]: each["Value"] for each in self.asked[-1]["TagSpecifications"][0]["Tags"]
        }


class Waiting:
    """One launch, and the time that passes."""

    def __init__(self, home: Path, clouds: Ec2) -> None:
        self.ec2 = clouds
        self.home = home
        self.passed = 0.0
        settings = AwsSettings(
            region=("us-east-1",), security_group="sg-1", ssh_from=("10.0.0.0/8",)
        )
        self.context = Context(home, settings)
        self.intent = self.intend()

    def intend(self, number: int = 1, count: int = 1) -> LaunchIntent:
        zones = [
            {"zone": zone, "subnet": f"subnet-{zone}", "vpc": "vpc-1", "price": 1.0}
            for zone in ZONES
        ]
        image = {"id": "ami-1", "root_device": "/dev/sda1", "root_gb": 100}
        plan = Plan(
            "aws",
            "c7i.large",
            count,
            1,
            price_per_hour=1.0,
            start_seconds=HOUR,
            max_run_seconds=HOUR,
            options={
                "places": [{"region": "us-east-1", "image": image, "zones": zones}],
                "vcpus": 2,
            },
        )
        return LaunchIntent(f"t1-launch-{number}", "t1", count, plan.to_json())

    def launch(self) -> None:
        Launching(self.context, Listing(self.context), self.intent).run()

    def ask(self) -> None:
        """Asks once, as the supervisor does, and lets the pause pass."""
        try:
            self.launch()
        except (CapacityUnavailable, LaunchPending) as error:
            self.passed += error.retry_after


@pytest.fixture
def waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Waiting:
    ec2 = Ec2()
    monkeypatch.setattr(Clients, "__call__", lambda *_, **__: ec2)
    made = Waiting(tmp_path, ec2)
    began = clock.wall()
    for name in ("now", "wall", "monotonic"):
        monkeypatch.setattr(clock, name, lambda: began + made.passed)
    return made


def test_machines_that_were_waited_for_have_their_whole_time(waiting: Waiting) -> None:
    waiting.ask()
    waiting.passed += 9 * HOUR
    waiting.ec2.code = ""
    waiting.ask()
    # The `flow gc` of anybody ends machines whose time is over.
    left = float(waiting.ec2.tags()[DEADLINE]) - clock.wall()
    assert 2 * HOUR <= left <= 2 * HOUR + 200
    launch = waiting.context.ledger.read(waiting.intent.token)
    assert launch is not None
    (listed,) = Listing(waiting.context)._not_listed_yet([launch], {})
    assert listed.ends_by - clock.wall() == pytest.approx(left, abs=1.0)


def test_days_without_a_network_end_no_wait(waiting: Waiting) -> None:
    waiting.ask()
    waiting.context.ledger.note(waiting.intent.token, tries=5000)
    waiting.ec2.code = "unreachable"
    with pytest.raises(LaunchPending) as caught:
        waiting.launch()
    assert caught.value.retry_after == 30.0


def test_a_request_whose_answer_was_lost_is_not_repeated_hours_later(waiting: Waiting) -> None:
    """Its machines would be ended at once: their boot time would be over, and their deadline near."""
    waiting.ec2.code, waiting.ec2.is_silent = "", True
    for _ in range(5):
        waiting.ask()
        waiting.passed += HOUR
    asked = len(waiting.ec2.asked)
    assert {each["ClientToken"] for each in waiting.ec2.asked} == {
        waiting.ec2.asked[0]["ClientToken"]
    }
    waiting.ec2.is_silent = False
    waiting.ask()
    assert len(waiting.ec2.asked) == asked + 1
    assert waiting.ec2.asked[-1]["ClientToken"] != waiting.ec2.asked[0]["ClientToken"]
    assert float(waiting.ec2.tags()[DEADLINE]) - clock.wall() >= 2 * HOUR
    assert waiting.ec2.ended == []


def test_what_a_request_whose_answer_was_lost_has_made_is_found_hours_later(
    waiting: Waiting,
) -> None:
    waiting.ec2.code, waiting.ec2.is_silent = "", True
    waiting.ask()
    waiting.passed += HOUR
    waiting.ec2.is_silent = False
    waiting.ec2.listed = [{"InstanceId": "i-1", "State": {"Name": "running"}}]
    waiting.ec2.may_end = True
    with pytest.raises(ProviderError, match="was not ready within 60 min"):
        waiting.launch()
    assert len(waiting.ec2.asked) == 1
    assert waiting.ec2.ended == ["i-1"]


class Disk:
    """The volumes of a region: one disk, which a task may use."""

    def __init__(self) -> None:
        self.error: ProviderError | None = None

    def check_free(self, *_: Any) -> None:
        if self.error is not None:
            raise self.error

    def made_since(self, _: Any) -> list[str]:
        return []

    def ready(self, volumes: Any, *_: Any) -> tuple[Any, list[str]]:
        return volumes, []


def test_nothing_is_launched_for_a_disk_that_was_taken_while_the_task_waited(
    waiting: Waiting, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk()
    monkeypatch.setattr(Context, "volumes", lambda *_: disk)
    waiting.intent.plan["options"]["volumes"] = [{"name": "scratch", "kind": "ebs"}]
    waiting.ask()
    asked = len(waiting.ec2.asked)
    assert asked == len(ZONES)
    waiting.ec2.code = ""
    # A day without a network ends no wait.
    disk.error = NoAnswer("AWS cannot be reached", "EndpointConnectionError")
    for _ in range(3):
        waiting.ask()
        waiting.passed += 8 * HOUR
    disk.error = ProviderError("volume 'scratch' is used by the task t2")
    with pytest.raises(ProviderError, match="is used by the task t2"):
        waiting.launch()
    assert len(waiting.ec2.asked) == asked


def test_days_of_waiting_leave_little_on_the_disk(waiting: Waiting) -> None:
    for _ in range(5):
        waiting.ask()
    launch = waiting.context.ledger.read(waiting.intent.token)
    assert launch is not None
    assert len(launch.calls) == len(waiting.ec2.asked) == 5 * len(ZONES)
    size = len((waiting.home / "aws" / "launches" / f"{launch.token}.json").read_bytes())
    # The start-up script alone has 6,000 bytes.
    assert size < 10_000 + 500 * len(launch.calls)


def test_launches_that_came_to_nothing_go_with_the_next_one(waiting: Waiting) -> None:
    """A gang asks for more nodes, or for a spare, every few minutes, each time under another token."""
    for number in range(1, 5):
        waiting.intent = waiting.intend(number)
        waiting.ask()
    (last,) = waiting.context.ledger.launches("t1")
    assert last.token == "t1-launch-4"
    assert len(list((waiting.home / "aws" / "launches").iterdir())) <= 3


def test_what_is_left_of_a_launch_ends_before_other_machines_are_asked_for(
    waiting: Waiting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """EC2 has taken one of two back while they booted, and does not end the other one."""
    waiting.intent = waiting.intend(count=2)
    waiting.ec2.code = ""
    waiting.ask()
    data = {"region": "us-east-1", "public": "", "code": "Server.InsufficientInstanceCapacity"}
    listed = [
        Instance("i-1", "t1", state="ended", data={**data, "ec2_state": "terminated"}),
        Instance("i-2", "t1", state="running", data={**data, "code": "", "ec2_state": "running"}),
    ]
    monkeypatch.setattr(Listing, "of_launch", lambda *_: listed)
    monkeypatch.setattr(waiting.context.looks, "due", lambda _: True)
    with pytest.raises(PermissionRefused, match="TerminateInstances"):
        waiting.launch()
    assert len(waiting.ec2.asked) == 1
    waiting.ec2.may_end = True
    waiting.ask()
    assert waiting.ec2.ended == ["i-2"]
    waiting.ask()
    assert len(waiting.ec2.asked) == 2


@pytest.mark.parametrize("taken", ["i-1", "i-2"])
def test_what_was_ended_since_ec2_took_another_back_has_not_failed(
    waiting: Waiting, monkeypatch: pytest.MonkeyPatch, taken: str
) -> None:
    """The answer to its end was lost, or this is another process."""
    waiting.intent = waiting.intend(count=2)
    waiting.ec2.code = ""
    waiting.ask()
    data = {"region": "us-east-1", "public": "", "ec2_state": "shutting-down"}
    codes = dict.fromkeys(["i-1", "i-2"], "Client.UserInitiatedShutdown")
    codes[taken] = "Server.InsufficientInstanceCapacity"
    listed = [
        Instance(name, "t1", state="ending", data={**data, "code": code})
        for name, code in codes.items()
    ]
    monkeypatch.setattr(Listing, "of_launch", lambda *_: listed)
    monkeypatch.setattr(waiting.context.looks, "due", lambda _: True)
    with pytest.raises(LaunchPending, match=f"EC2 has taken {taken} back"):
        waiting.launch()
    with suppress(LaunchPending):
        waiting.launch()
    assert len(waiting.ec2.asked) == 2


def test_an_outage_ends_no_wait_for_room_beside_other_nodes_in_one_of_several_regions(
    waiting: Waiting, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = waiting.context.ledger
    ledger.begin("t1-launch-0", "t1", 1, dict)
    call = ledger.intend("t1-launch-0", "us-east-1/us-east-1a", {"price": 1.0})
    ledger.made("t1-launch-0", call.name, ["i-0"])
    (place,) = waiting.intent.plan["options"]["places"]
    waiting.intent.plan["options"]["places"] = [place, {**place, "region": "us-west-2"}]

    def unreachable(*_: Any) -> list[Instance]:
        raise NoAnswer("AWS cannot be reached", "EndpointConnectionError")

    monkeypatch.setattr(Listing, "mine", lambda *_: [Instance("i-0", "t1", state="running")])
    waiting.ask()
    asked = len(waiting.ec2.asked)
    assert asked == len(ZONES)
    monkeypatch.setattr(Listing, "mine", unreachable)
    for _ in range(3):
        waiting.ask()
        waiting.passed += HOUR
    monkeypatch.setattr(Listing, "mine", lambda *_: [Instance("i-0", "t1", state="running")])
    waiting.ask()
    assert len(waiting.ec2.asked) == asked + len(ZONES)
