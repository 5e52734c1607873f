"""The clouds of the box as the crashes need them: where they can be hit, what they do wrong, what is left in them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.crash.cases import Fault, Points

if TYPE_CHECKING:
    from flowlite.testing.cloud import CloudInABox
    from flowlite.testing.hosts import Host

SLOW = {"supervisor": 600.0, "machine": 5.0}
"""Seconds to boot: until after the crash, and for ever where the machines are not needed after it."""
QUICK = 0.3
# What a silent cloud lets its caller wait.
_SILENCE = 0.3


def _at(actions: tuple[str, ...], **order: Any) -> tuple[dict[str, Any], ...]:
    return tuple({"action": action, **order} for action in actions)


_EC2 = ("RunInstances", "TerminateInstances")
AWS = Points(
    boot=(
        "servicequotas:GetServiceQuota",
        "CreateSecurityGroup",
        "AuthorizeSecurityGroupIngress",
        "AuthorizeSecurityGroupEgress",
        "RunInstances",
        "DescribeInstances",
    ),
    end=("DescribeInstances", "TerminateInstances", "DeleteSecurityGroup"),
    run=("RunInstances", "DescribeInstances", "TerminateInstances", "DeleteSecurityGroup"),
    faults={
        "nothing": Fault(),
        "throttled": Fault(_at((*_EC2, "DescribeInstances"), code="RequestLimitExceeded")),
        "error-before": Fault(_at(_EC2, code="InternalError", status=500)),
        "error-after": Fault(_at(_EC2, code="InternalError", status=500, when="after")),
        "silent-before": Fault(_at(_EC2, hang=_SILENCE)),
        "silent-after": Fault(_at(_EC2, hang=_SILENCE, when="after")),
        "no-capacity": Fault(_at(("RunInstances",), code="InsufficientInstanceCapacity")),
        "quota": Fault(_at(("RunInstances",), code="VcpuLimitExceeded")),
        "lagging": Fault(lag=2.0),
        "never-boots": Fault(machines="never"),
        "dies-at-boot": Fault(machines="dies"),
    },
    # Asked only where the group that was just made is not known yet; prices of the past.
    harmless=frozenset({"DescribeSecurityGroups", "DescribeSpotPriceHistory"}),
)

_MITHRIL = ("create_bid", "cancel_bid")
MITHRIL = Points(
    boot=("get_ssh_keys", "create_ssh_key", "create_bid", "get_bid", "get_instances"),
    end=("get_bid", "get_instances", "cancel_bid"),
    run=(
        *("create_bid", "get_bid", "create_api_key", "get_instances", "cancel_bid"),
        "revoke_api_key",
    ),
    faults={
        "nothing": Fault(),
        "throttled": Fault(_at((*_MITHRIL, "get_bid"), status=429, retry_after=0.5)),
        "error-before": Fault(_at(_MITHRIL, status=503)),
        "error-after": Fault(_at(_MITHRIL, status=502, when="after")),
        "silent-before": Fault(_at(_MITHRIL, hang=_SILENCE)),
        "silent-after": Fault(_at(_MITHRIL, hang=_SILENCE, when="after")),
        "no-capacity": Fault(capacity=False),
        "lagging": Fault(lag=2.0),
        "never-boots": Fault(machines="never"),
        "dies-at-boot": Fault(machines="die"),
    },
    harmless=frozenset(
        {
            *("get_projects", "get_instance_types", "get_auctions", "get_current_prices"),
            *("get_instance_pricing_history", "get_instance_status_history", "get_api_keys"),
        }
    ),
)


class AwsCloud:
    """EC2."""

    name = "aws"
    points = AWS
    needs_gc = False
    """An instance that ends itself is terminated."""

    def __init__(self, box: CloudInABox) -> None:
        self._box = box
        self.control = box.aws
        self._before: dict[str, list[str]] = {}

    def settings(self) -> str:
        """The configuration file of a FLOW_HOME."""
        return '[aws]\nregion = "us-east-1"\nlease = "60s"\nlisting_lag = "4s"\n'

    def suffer(self, fault: Fault, boot: float) -> None:
        """Has the cloud do something wrong, and machines boot in so many seconds."""
        self._before = self.control.leftovers()
        self.control.timing(boot=QUICK if fault.machines == "dies" else boot)
        self.control.lag(fault.lag)
        if fault.machines:
            self.control.boots(fault.machines)
        for order in fault.orders:
            self.control.fault(**order)

    def soothe(self) -> None:
        """Nothing goes wrong any more, but what has gone wrong already."""
        self.control.clear_faults()
        self.control.boots()
        self.control.lag(0.0)
        self.control.timing(boot=QUICK)

    def existing(self, task: str) -> list[str]:
        """What there is of a task and costs money, in words."""
        mine = [i for i in self.control.instances() if i["tags"].get("flowlite:task") == task]
        alive = [f"{i['id']} is {i['state']}" for i in mine if i["state"] != "terminated"]
        # One case runs after the other, so what is new is of this one.
        left = {
            kind: sorted(set(ids) - set(self._before.get(kind, ())))
            for kind, ids in self.control.leftovers().items()
        }
        return alive or [f"{kind}: {ids}" for kind, ids in left.items() if ids]

    def left_over(self, task: str) -> list[str]:
        """What bears the tag of a task in any region, whether or not it costs anything."""
        found = self.control.tagged("flowlite:task", task)
        return [f"{kind}: {ids}" for kind, ids in found.items()]

    def launches(self) -> int:
        """How often something that costs money was launched."""
        return len(self.control.instances())

    def machine_of(self, task: str) -> dict[str, Any] | None:
        """The instance of a task that runs, if there is one."""
        mine = [i for i in self.control.instances() if i["tags"].get("flowlite:task") == task]
        return next((each for each in mine if each["state"] == "running"), None)

    def can_end(self, host: Host) -> bool:
        """Whether a machine can end by itself what costs money."""
        return True


class MithrilCloud:
    """Mithril."""

    name = "mithril"
    points = MITHRIL
    needs_gc = True
    """A machine that powers itself off leaves its bid, unless it was given a key before its client was gone."""

    def __init__(self, box: CloudInABox) -> None:
        self._box = box
        self.control = box.mithril
        self.auction_seconds = 0.2

    def settings(self) -> str:
        """The configuration file of a FLOW_HOME."""
        return '[mithril]\nlease = "120s"\nlisting_lag = "4s"\n'

    def suffer(self, fault: Fault, boot: float) -> None:
        """Has the cloud do something wrong, and machines boot in so many seconds."""
        boot = QUICK if fault.machines == "die" else boot
        self.control.rules(boot_seconds=boot, auction_seconds=self.auction_seconds)
        self.control.lag(fault.lag)
        if not fault.capacity:
            self.control.price("*", 1000.0)
        if fault.machines:
            self.control.odd_boots(fault.machines)
        for order in fault.orders:
            self.control.fault(**order)

    def soothe(self) -> None:
        """Nothing goes wrong any more, but what has gone wrong already."""
        self.control.clear_faults()
        self.control.odd_boots("never", times=0)
        self.control.lag(0.0)
        self.control.rules(boot_seconds=QUICK)
        self.control.price("*", 0.5)

    def existing(self, task: str) -> list[str]:
        """What there is of a task and costs money, in words."""
        bids = [
            f"{each['id']} is {each['status']}"
            for each in self.control.live_bids()
            if f"-{task}-" in each["name"]
        ]
        there = [
            f"{each['id']} is {each['state']}"
            for each in self.control.instances()
            if f"-{task}-" in each["name"] and (each["there"] or each["charged"])
        ]
        return bids + there + [f"volume {each['fid']}" for each in self.control.volumes()]

    def left_over(self, task: str) -> list[str]:
        """Keys that were made for nodes of a task and still open something."""
        keys = self.control.api_keys()
        return [str(key["name"]) for key in keys if f"-{task}-" in key["name"] and key["good"]]

    def launches(self) -> int:
        """How often something that costs money was launched: a bid wins its machines later."""
        return len(self.control.bids())

    def machine_of(self, task: str) -> dict[str, Any] | None:
        """The instance of a task that runs, if there is one."""
        mine = [i for i in self.control.instances() if f"-{task}-" in i["name"]]
        return next((i for i in mine if i["state"] == "STATUS_RUNNING" and i["there"]), None)

    def can_end(self, host: Host) -> bool:
        """Whether a machine can end by itself what costs money."""
        return host.exec(["test", "-s", "/var/lib/flowlite/before-end"]).returncode == 0


Cloud = AwsCloud | MithrilCloud
CLOUDS = {"aws": AwsCloud, "mithril": MithrilCloud}
POINTS = {"aws": AWS, "mithril": MITHRIL}
