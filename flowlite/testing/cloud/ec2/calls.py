"""The other calls on instances, placement and security groups, and reservations, which replace moto's."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any, cast

from moto.core.responses import ActionResult
from moto.core.types import Base64EncodedString
from moto.ec2.exceptions import InvalidInstanceIdError
from moto.ec2.responses._base_response import EC2BaseResponse
from moto.ec2.responses.security_groups import SecurityGroups

from flowlite.state import clock
from flowlite.testing.cloud.ec2 import network
from flowlite.testing.cloud.ec2.cloud import Cloud, Reserved
from flowlite.testing.cloud.ec2.life import BY_USER
from flowlite.testing.cloud.ec2.life_record import CODES, Life
from flowlite.testing.cloud.ec2.names import ACCOUNT, Refusal, new_id
from flowlite.testing.cloud.timers import utc_now


class Ending(EC2BaseResponse):
    """TerminateInstances, StopInstances, StartInstances, RebootInstances, GetConsoleOutput."""

    cloud: Cloud

    def terminate_instances(self) -> ActionResult:
        """TerminateInstances. If one instance is unknown, none is terminated."""
        changes = []
        lives = self._lives()
        self.error_on_dryrun()
        for life in lives:
            if life.instance.disable_api_termination:
                raise Refusal(
                    "OperationNotPermitted",
                    f"The instance '{life.instance.id}' may not be terminated. Modify its 'disableApiTermination' "
                    "instance attribute and try again.",
                )
        for life in lives:
            before = life.state
            self.cloud.lives.end(life, BY_USER)
            changes.append(_change(life, before))
        return ActionResult({"TerminatingInstances": changes})

    def stop_instances(self) -> ActionResult:
        """StopInstances."""
        changes = []
        for life in self._lives():
            before = life.state
            if before not in ("pending", "running", "stopped"):
                raise Refusal("IncorrectInstanceState", f"The instance is {before}.")
            if life.spot is not None and life.spot.type == "one-time":
                raise Refusal(
                    "UnsupportedOperation",
                    f"You can't stop the Spot Instance '{life.instance.id}' because it is associated with a one-time "
                    "Spot Instance request.",
                )
            self.cloud.machines.halt(life.instance.id)
            life.enter("stopped")
            life.explain(BY_USER, "")
            changes.append(_change(life, before))
        return ActionResult({"StoppingInstances": changes})

    def start_instances(self) -> ActionResult:
        """StartInstances."""
        changes = []
        for life in self._lives():
            before = life.state
            if before != "stopped":
                raise Refusal("IncorrectInstanceState", f"The instance is {before}.")
            life.enter("pending")
            self.cloud.machines.restart(life.instance.id)
            changes.append(_change(life, before))
        return ActionResult({"StartingInstances": changes})

    def reboot_instances(self) -> ActionResult:
        """RebootInstances."""
        for life in self._lives():
            if life.state != "running":
                raise Refusal("IncorrectInstanceState", f"The instance is {life.state}.")
            self.cloud.machines.halt(life.instance.id)
            self.cloud.machines.restart(life.instance.id)
        return ActionResult({})

    def get_console_output(self) -> ActionResult:
        """GetConsoleOutput."""
        life = self._life(self._get_param("InstanceId"))
        output = Base64EncodedString.from_raw_string(self.cloud.lives.console(life))
        now = utc_now()
        return ActionResult({"InstanceId": life.instance.id, "Output": output, "Timestamp": now})

    def _lives(self) -> list[Life]:
        ids = self._get_param("InstanceIds", [])
        if not ids:
            raise Refusal("MissingParameter", "The request must contain the parameter InstanceIds")
        return [self._life(id) for id in ids]

    def _life(self, id: str) -> Life:
        if not re.fullmatch(r"i-[0-9a-f]{8,17}", id):
            raise Refusal("InvalidInstanceID.Malformed", f'Invalid id: "{id}"')
        life = self.cloud.lives.find(id)
        is_here = life is not None and self.current_account == ACCOUNT
        if life is None or not is_here or life.region != self.region:
            raise InvalidInstanceIdError([id])
        # What a listing does not show yet, other calls may not know either.
        if clock.monotonic() - life.history[0][0] < self.cloud.lives.lag:
            raise InvalidInstanceIdError([id])
        return life


def _change(life: Life, before: str) -> dict[str, Any]:
    return {
        "InstanceId": life.instance.id,
        "CurrentState": {"Code": CODES[life.state], "Name": life.state},
        "PreviousState": {"Code": CODES[before], "Name": before},
    }


class Groups(SecurityGroups):
    """The calls on placement groups and security groups, which can be in use or too new to be known to every call."""

    cloud: Cloud

    def create_security_group(self) -> ActionResult:
        """CreateSecurityGroup."""
        made = super().create_security_group()
        group = cast("dict[str, Any]", made.result)["GroupId"]
        self.cloud.security_groups[group] = clock.monotonic()
        return made

    def describe_security_groups(self) -> ActionResult:
        """DescribeSecurityGroups. Groups that are too new are left out."""
        told = cast("dict[str, Any]", super().describe_security_groups().result)
        known = [g for g in told["SecurityGroups"] if not self.cloud.is_unknown(_id_of(g))]
        return ActionResult({**told, "SecurityGroups": known})

    def authorize_security_group_ingress(self) -> ActionResult:
        """AuthorizeSecurityGroupIngress."""
        self._check_known()
        return super().authorize_security_group_ingress()

    def authorize_security_group_egress(self) -> ActionResult:
        """AuthorizeSecurityGroupEgress."""
        self._check_known()
        return super().authorize_security_group_egress()

    def _check_known(self) -> None:
        network.check_known(self.cloud, [self._get_param("GroupId")])

    def delete_security_group(self) -> ActionResult:
        """DeleteSecurityGroup. A group in use is refused."""
        id = self._get_param("GroupId")
        for life in self.cloud.lives.all():
            if not self.cloud.holds_groups(life) or life.region != self.region:
                continue
            if self.current_account != ACCOUNT:
                break
            if any(
                group.id == id for nic in life.instance.nics.values() for group in nic.group_set
            ):
                raise Refusal("DependencyViolation", f"resource {id} has a dependent object")
        return super().delete_security_group()

    def create_placement_group(self) -> ActionResult:
        """CreatePlacementGroup."""
        name = self._get_param("GroupName")
        if (self.region, name) in self.cloud.groups:
            raise Refusal(
                "InvalidPlacementGroup.Duplicate", f"The Placement Group '{name}' already exists."
            )
        self.error_on_dryrun()
        tags = self._parse_tag_specification().get("placement-group", {})
        group = {
            "GroupName": name,
            "GroupId": new_id("pg"),
            "Strategy": self._get_param("Strategy") or "cluster",
            "State": "available",
            "Tags": [{"Key": k, "Value": v} for k, v in tags.items()],
        }
        group["GroupArn"] = f"arn:aws:ec2:{self.region}:{ACCOUNT}:placement-group/{name}"
        self.cloud.groups[self.region, name] = group
        return ActionResult({"PlacementGroup": group})

    def describe_placement_groups(self) -> ActionResult:
        """DescribePlacementGroups."""
        names = self._get_param("GroupNames", [])
        found = [
            group
            for (region, _), group in self.cloud.groups.items()
            if region == self.region and self.current_account == ACCOUNT
        ]
        if missing := set(names) - {g["GroupName"] for g in found}:
            raise Refusal(
                "InvalidPlacementGroup.Unknown",
                f"The Placement Group '{min(missing)}' is unknown.",
            )
        filters = self._filters_from_querystring()
        found = [g for g in found if (not names or g["GroupName"] in names) and _passes(g, filters)]
        return ActionResult({"PlacementGroups": found})

    def delete_placement_group(self) -> ActionResult:
        """DeletePlacementGroup. A group with instances is refused."""
        name = self._get_param("GroupName")
        if (self.region, name) not in self.cloud.groups:
            raise Refusal(
                "InvalidPlacementGroup.Unknown", f"The Placement Group '{name}' is unknown."
            )
        for life in self.cloud.lives.all():
            inside = life.instance.placement.group_name == name and life.region == self.region
            if inside and self.cloud.holds_groups(life):
                raise Refusal(
                    "InvalidPlacementGroup.InUse",
                    f"The placement group '{name}' is in use and may not be deleted.",
                )
        del self.cloud.groups[self.region, name]
        return ActionResult({})


def _id_of(group: Any) -> str:
    return str(group["GroupId"] if isinstance(group, dict) else group.id)


class Reservations(EC2BaseResponse):
    """The calls on capacity reservations and capacity blocks."""

    cloud: Cloud

    def describe_capacity_reservations(self) -> ActionResult:
        """DescribeCapacityReservations."""
        ids = self._get_param("CapacityReservationIds", [])
        here = [r for r in self.cloud.reserved.values() if r.zone.startswith(self.region)]
        if missing := set(ids) - {r.id for r in here}:
            raise Refusal(
                "InvalidCapacityReservationId.NotFound",
                f"The capacity reservation ID '{min(missing)}' does not exist",
            )
        shown = [self._show(r) for r in here if not ids or r.id in ids]
        filters = self._filters_from_querystring()
        return ActionResult({"CapacityReservations": [s for s in shown if _passes(s, filters)]})

    def describe_capacity_block_offerings(self) -> ActionResult:
        """DescribeCapacityBlockOfferings. There is one, which begins tomorrow."""
        kind = self._get_param("InstanceType") or "p5.48xlarge"
        hours = int(self._get_param("CapacityDurationHours") or 24)
        count = int(self._get_param("InstanceCount") or 1)
        begin = utc_now().replace(hour=11, minute=30, second=0, microsecond=0)
        begin += timedelta(days=1)
        price = (self.cloud.market.price(kind, self.region) or 0.0) * 0.6 * hours * count
        offer = {
            "CapacityBlockOfferingId": new_id("cbo"),
            "InstanceType": kind,
            "AvailabilityZone": f"{self.region}a",
            "InstanceCount": count,
            "StartDate": begin,
            "EndDate": begin + timedelta(hours=hours),
            "CapacityBlockDurationHours": hours,
            "UpfrontFee": f"{price:.2f}",
            "CurrencyCode": "USD",
            "Tenancy": "default",
        }
        return ActionResult({"CapacityBlockOfferings": [offer]})

    def _show(self, reserved: Reserved) -> dict[str, Any]:
        used = sum(
            getattr(life.instance, "capacity_reservation_id", None) == reserved.id
            for life in self.cloud.living(self.region)
        )
        return {
            "CapacityReservationId": reserved.id,
            "OwnerId": ACCOUNT,
            "InstanceType": reserved.kind,
            "InstancePlatform": "Linux/UNIX",
            "AvailabilityZone": reserved.zone,
            "Tenancy": "default",
            "TotalInstanceCount": reserved.total,
            "AvailableInstanceCount": reserved.total - used,
            "State": reserved.state,
            "InstanceMatchCriteria": "targeted",
            "ReservationType": reserved.market,
            "EndDateType": "limited" if reserved.ends else "unlimited",
            **({"StartDate": reserved.begins} if reserved.begins else {}),
            **({"EndDate": reserved.ends} if reserved.ends else {}),
            "Tags": [{"Key": k, "Value": v} for k, v in reserved.tags.items()],
        }


def _passes(shown: dict[str, Any], filters: dict[str, Any]) -> bool:
    """Whether a resource matches every filter, such as `group-name` or `tag:x`."""
    tags = {tag["Key"]: tag["Value"] for tag in shown.get("Tags", [])}
    for name, values in filters.items():
        if name.startswith("tag:"):
            value = tags.get(name[4:])
        elif name == "tag-key":
            if not set(values) & set(tags):
                return False
            continue
        else:
            value = shown.get("".join(part.capitalize() for part in name.split("-")))
        if value not in values:
            return False
    return True
