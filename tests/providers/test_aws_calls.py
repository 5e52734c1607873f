"""How many calls a large gang takes, from the plan to its end: against moto in this process, on a clock of its own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from flowlite.api.adapters import adapter
from flowlite.provider import Instance, LaunchIntent, LaunchPending
from flowlite.spec import TaskConfig
from flowlite.state import clock as clocks
from provider_adapters.aws import booting
from provider_adapters.aws.catalog.regions import Catalog
from provider_adapters.rented import cloud_polls
from provider_adapters.rented.first_contact import Contact, MachineAccess, NotYet, ReadyMachine

NODES = 64
BOOT_SECONDS = 300.0
AMI = "ami-12c6146b"


class Clock:
    """Time that passes only where somebody waits."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    own = SimpleNamespace(monotonic=made, now=clocks.now)
    monkeypatch.setattr(booting, "clock", own)
    return made


@pytest.fixture
def calls(clock: Clock, flow_home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Counter[str]]:
    """What is asked of AWS; the machines answer after five minutes."""
    moto = pytest.importorskip("moto", reason="needs moto (extra `box`)")
    from botocore.client import BaseClient

    for name, value in {
        "AWS_ACCESS_KEY_ID": "AKIA",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_DEFAULT_REGION": "us-east-1",
    }.items():
        monkeypatch.setenv(name, value)
    for name in ("AWS_ENDPOINT_URL", "AWS_PROFILE", "AWS_REGION"):
        monkeypatch.delenv(name, raising=False)
    (flow_home / "config.toml").write_text(
        f'[aws]\nami = "{AMI}"\nssh_from = "203.0.113.7/32"\n[aws.prices]\n"p5.48xlarge" = 55.04\n'
    )
    counted: Counter[str] = Counter()
    real = BaseClient._make_api_call
    begun = clock.now

    def count(client: Any, operation: str, parameters: dict[str, Any]) -> Any:
        counted[operation] += 1
        return real(client, operation, parameters)

    def reach(self: Contact, places: list[MachineAccess], **_: Any) -> list[ReadyMachine | NotYet]:
        if clock.now - begun < BOOT_SECONDS:
            return [NotYet(each.id, "silent", "nothing answers") for each in places]
        return [ReadyMachine(each.id, {"home": "/root/t", "root": "/root"}) for each in places]

    monkeypatch.setattr(BaseClient, "_make_api_call", count)
    monkeypatch.setattr(Contact, "reach", reach)
    # moto has no price list.
    monkeypatch.setattr(
        Catalog, "_ask_prices", lambda self, types: counted.update(["GetProducts"]) or {}
    )
    monkeypatch.setattr(
        Catalog,
        "_ask_storage_price",
        lambda self, kind: counted.update(["GetProducts"]) or 0.08,
    )
    with moto.mock_aws():
        open_default_vpc()
        counted.clear()
        yield counted


def open_default_vpc() -> None:
    """Gives moto's default VPC the way to the Internet that EC2's has."""
    import boto3

    ec2 = boto3.client("ec2")
    (table,) = ec2.describe_route_tables()["RouteTables"]
    gateway = ec2.create_internet_gateway()["InternetGateway"]["InternetGatewayId"]
    ec2.attach_internet_gateway(InternetGatewayId=gateway, VpcId=table["VpcId"])
    ec2.create_route(
        RouteTableId=table["RouteTableId"], DestinationCidrBlock="0.0.0.0/0", GatewayId=gateway
    )


@pytest.mark.slow
# moto takes long to write its answers, half a minute of processor time.
@pytest.mark.timeout(900)
def test_64_nodes_take_fewer_than_40_calls(calls: Counter[str], clock: Clock) -> None:
    provider = adapter("aws")
    provider._context.looks = cloud_polls.CloudPolls(clock)
    config = TaskConfig(command=["true"], gpu="h100:8", num_instances=NODES, provider="aws")
    plan = provider.plan(config)
    intent = LaunchIntent("t1-launch-1", "t1", NODES, plan.to_json())
    found: list[Instance] = []
    while not found:
        try:
            found = provider.launch(intent)
        except LaunchPending as error:
            # Longer steps than in life: what is counted are calls to AWS, which have a clock of their own.
            clock.now += max(error.retry_after, 3.0)
    assert len(found) == NODES
    assert clock.now - 1000.0 >= BOOT_SECONDS
    provider.terminate(provider.list_instances("t1"))
    assert {each.state for each in provider.list_instances("t1")} == {"ended"}
    assert calls.total() < 40, calls
    assert calls["RunInstances"] == calls["TerminateInstances"] == 1
    # Nothing is asked for each node.
    assert max(calls.values()) < NODES / 2, calls
