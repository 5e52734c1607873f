"""The controls of the box's EC2."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from flowlite.testing.cloud.served import Served

ACCESS_KEY = "AKIAFLOWLITEINTHEBOX"
SECRET_KEY = "secret/of/the/box+0123456789abcdefghijkl"
REGION = "us-east-1"


class AwsBox(Served):
    """`box.aws`: what there is, what was asked, and what is to go wrong."""

    name = "aws"
    module = "flowlite.testing.cloud.ec2"

    def environment(self) -> dict[str, str]:
        """AWS's own variables, with which every SDK and the `aws` command find the box."""
        return {
            "AWS_ACCESS_KEY_ID": ACCESS_KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
            "AWS_DEFAULT_REGION": REGION,
            "AWS_REGION": REGION,
            "AWS_ENDPOINT_URL": self.url,
            "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_CONFIG_FILE": "/dev/null",
            "AWS_SHARED_CREDENTIALS_FILE": "/dev/null",
        }

    def timing(
        self,
        *,
        boot: float | None = None,
        stop: float | None = None,
        unknown: float | None = None,
        counted: float | None = None,
        volume: float | None = None,
        late: float | None = None,
    ) -> None:
        """Seconds that things take.

        Args:
            boot: From the launch of a machine until it runs.
            stop: From its termination until it is gone.
            unknown: For which other calls do not know a security group that was made; 0 for EC2 as it never is.
            counted: For which quotas count a machine that has ended.
            volume: Until a volume is made, attached or detached, and a file system or its mount target is made.
            late: For which interfaces of a machine that has ended are in its security groups still.
        """
        self.ask(
            "timing",
            boot=boot,
            stop=stop,
            unknown=unknown,
            counted=counted,
            volume=volume,
            late=late,
        )

    def boots(self, *outcomes: str) -> None:
        """How the next instances boot, one after the other: "runs", "never", or "dies" (soon after it began).

        Without any, all run from now on.
        """
        if strange := set(outcomes) - {"runs", "never", "dies"}:
            raise ValueError(
                f"an instance runs, dies or never boots; it does not {sorted(strange)}"
            )
        self.ask("boots", outcomes=list(outcomes))

    def advise(self, ids: Sequence[str]) -> None:
        """Gives the rebalance recommendation to spot instances."""
        self.ask("advise", ids=list(ids))

    def die(self, id: str, *, noticed: bool = True) -> None:
        """An instance is gone as if its power had been cut; EC2 terminates it, or (not `noticed`) says it runs."""
        self.ask("die", id=id, noticed=noticed)

    def capacity(self, kind: str, zone: str, count: int | None) -> None:
        """How many more instances of a type a zone has; None for enough."""
        self.ask("capacity", kind=kind, zone=zone, count=count)

    def quota(self, code: str, vcpus: float) -> None:
        """The account's limit for the vCPUs that a quota counts, in every region."""
        self.ask("quota", code=code, vcpus=vcpus)

    def spot_price(self, kind: str, zone: str, price: float) -> None:
        """Dollars per hour of spot from now on. Instances that run are not touched."""
        self.ask("spot_price", kind=kind, zone=zone, price=price)

    def policy(self, document: Mapping[str, Any] | None) -> None:
        """The only permissions that the client has from now on; None for all of them."""
        self.ask("policy", document=None if document is None else dict(document))

    def reserve(
        self,
        kind: str,
        zone: str,
        count: int,
        *,
        block: bool = False,
        state: str = "active",
        ends_in: float = 86400.0,
    ) -> str:
        """A capacity reservation (or a capacity block) of the account; its id.

        Args:
            state: As EC2 names it: "scheduled", "active", "expired", …
            ends_in: Seconds from now until a block ends. Its machines are ended 30 minutes before.
        """
        return str(
            self.ask(
                "reserve",
                kind=kind,
                zone=zone,
                count=count,
                block=block,
                state=state,
                ends_in=ends_in,
            )
        )

    def throttle(self, times: int = 1, action: str = "*") -> None:
        """Refuses so many calls with RequestLimitExceeded."""
        self.fault(action, code="RequestLimitExceeded", times=times)

    def bill(self) -> list[dict[str, Any]]:
        """What each instance there ever was costs: {"id", "seconds", "instance", "extras"}, in US dollars."""
        return list(self.ask("bill"))

    def console(self, id: str) -> str:
        """What an instance has printed."""
        return str(self.ask("console", id=id))

    def forget_ended(self) -> None:
        """Terminated instances are not listed any more, as after an hour."""
        self.ask("forget_ended")

    def tagged(self, key: str, value: str) -> dict[str, list[str]]:
        """What bears a tag in any region, by kind, but for terminated instances."""
        found = self.ask("tagged", key=key, value=value)
        return {str(kind): [str(id) for id in ids] for kind, ids in found.items()}

    def leftovers(self) -> dict[str, list[str]]:
        """What there is beside instances: volumes, interfaces, addresses, open spot requests, placement groups."""
        found = self.ask("leftovers")
        return {str(kind): [str(id) for id in ids] for kind, ids in found.items()}
