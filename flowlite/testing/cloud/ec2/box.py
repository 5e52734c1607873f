"""The controls of the box's EC2."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from flowlite.testing.cloud.served import Served

REGION = "us-east-1"
ACCESS_KEY = "AKIAFLOWLITEINTHEBOX"
SECRET_KEY = "secret/of/the/box+0123456789abcdefghijkl"
# Those of another account, in which there is nothing.
OTHER_ACCESS_KEY = "AKIAFLOWLITEELSEWHER"
OTHER_SECRET_KEY = "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"


class AwsBox(Served):
    """`box.aws`: inspects and controls EC2."""

    name = "aws"
    module = "flowlite.testing.cloud.ec2"

    def environment(self) -> dict[str, str]:
        """AWS's own variables, which point every SDK and the `aws` command to the box."""
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

    def environment_elsewhere(self) -> dict[str, str]:
        """The same for another account, in which there is nothing, and nothing can be launched."""
        keys = {
            "AWS_ACCESS_KEY_ID": OTHER_ACCESS_KEY,
            "AWS_SECRET_ACCESS_KEY": OTHER_SECRET_KEY,
        }
        return {**self.environment(), **keys}

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
        """Sets how many seconds things take.

        Args:
            boot: From the launch of a machine until it runs.
            stop: From the termination of a machine until it is gone.
            unknown: How long other calls do not know a new security group; 0 for never.
            counted: How long quotas count an ended machine.
            volume: How long it takes to create, attach or detach a volume, or to create a file system or mount target.
            late: How long the interfaces of an ended machine stay in its security groups.
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
        """Sets how the next instances boot, in order: "runs", "never", or "dies" (soon after its start).

        Without arguments, all instances run from now on.
        """
        if strange := set(outcomes) - {"runs", "never", "dies"}:
            raise ValueError(
                f"an instance runs, dies or never boots; it does not {sorted(strange)}"
            )
        self.ask("boots", outcomes=list(outcomes))

    def advise(self, ids: Sequence[str]) -> None:
        """Sends spot instances the rebalance recommendation."""
        self.ask("advise", ids=list(ids))

    def die(self, id: str, *, noticed: bool = True) -> None:
        """Cuts an instance's power. EC2 terminates the instance or, without `noticed`, still lists it as running."""
        self.ask("die", id=id, noticed=noticed)

    def regions(self, *names: str) -> None:
        """Sets the regions of the account; without names, the 17 of a new one. Calls in others get AuthFailure."""
        self.ask("regions", names=list(names))

    def capacity(self, kind: str, zone: str, count: int | None) -> None:
        """Sets how many more instances of a type a zone has. None removes the limit."""
        self.ask("capacity", kind=kind, zone=zone, count=count)

    def quota(self, code: str, vcpus: float) -> None:
        """Sets a vCPU quota of the account in every region."""
        self.ask("quota", code=code, vcpus=vcpus)

    def spot_price(self, kind: str, zone: str, price: float) -> None:
        """Sets the spot price in dollars per hour. Running instances are not affected."""
        self.ask("spot_price", kind=kind, zone=zone, price=price)

    def policy(self, document: Mapping[str, Any] | None) -> None:
        """Sets the client's permissions. None permits everything."""
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
        """Creates a capacity reservation, or a capacity block, and returns its id.

        Args:
            state: EC2's name of the state: "scheduled", "active", "expired", …
            ends_in: Seconds until a block ends. Its machines are ended 30 minutes earlier.
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

    def image(self, disks: Mapping[str, int], platform: str = "Linux/UNIX") -> str:
        """Makes an image of the account's own in the usual region, and returns its id.

        Args:
            disks: The sizes in GB of the disks beside the root disk, by the name of the device. They stay when an
                instance ends, as they do in images of machines to which they were attached.
            platform: The operating system that is charged for, as DescribeImages names it.
        """
        return str(self.ask("image", region=REGION, disks=dict(disks), platform=platform))

    def throttle(self, times: int = 1, action: str = "*") -> None:
        """Refuses the next `times` calls with RequestLimitExceeded."""
        self.fault(action, code="RequestLimitExceeded", times=times)

    def bill(self) -> list[dict[str, Any]]:
        """The cost of each instance since the reset: {"id", "seconds", "since", "until", "instance", "extras"}.

        Costs are in US dollars. `until` is None while the instance is charged.
        """
        return list(self.ask("bill"))

    def volume_bill(self) -> list[dict[str, Any]]:
        """The cost of each EBS volume since the reset: {"id", "seconds", "dollars"}."""
        return list(self.ask("volume_bill"))

    def console(self, id: str) -> str:
        """The console output of an instance."""
        return str(self.ask("console", id=id))

    def forget_ended(self) -> None:
        """Removes terminated instances from listings, as EC2 does after an hour."""
        self.ask("forget_ended")

    def tagged(self, key: str, value: str) -> dict[str, list[str]]:
        """The ids of all resources with a tag, by kind, over all regions, without terminated instances."""
        found = self.ask("tagged", key=key, value=value)
        return {str(kind): [str(id) for id in ids] for kind, ids in found.items()}

    def leftovers(self) -> dict[str, list[str]]:
        """The ids of other resources: volumes, interfaces, addresses, open spot requests, placement groups."""
        found = self.ask("leftovers")
        return {str(kind): [str(id) for id in ids] for kind, ids in found.items()}
