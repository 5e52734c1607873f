"""RunInstances like EC2's: validated, idempotent, limited by capacity and quotas, with real machines."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import re
from typing import Any

from moto.core.responses import ActionResult
from moto.ec2.models.instances import Reservation
from moto.ec2.responses.instances import InstanceResponse

from flowlite.testing.cloud.ec2 import images, network, spot
from flowlite.testing.cloud.ec2.cloud import Cloud, Launch
from flowlite.testing.cloud.ec2.instance import RentedInstance
from flowlite.testing.cloud.ec2.life import BROKEN
from flowlite.testing.cloud.ec2.life_record import Life
from flowlite.testing.cloud.ec2.market import quota_code
from flowlite.testing.cloud.ec2.names import Refusal
from flowlite.testing.cloud.machines import Gpus, NoMachineFree

USER_DATA_LIMIT = 16_384
_DRIVER_NAMES = {
    "H100": "NVIDIA H100 80GB HBM3",
    "A100": "NVIDIA A100-SXM4-{gb}GB",
    "T4": "Tesla T4",
    "V100": "Tesla V100-SXM2-{gb}GB",
}
# Parameters that may differ between two requests with one client token, since they only name the place.
_PLACES = re.compile(r"Action|Version|ClientToken|Placement\.AvailabilityZone|(.*\.)?SubnetId")


class Launching(InstanceResponse):
    """The calls that launch instances, which replace moto's."""

    cloud: Cloud

    def run_instances(self) -> ActionResult:
        """RunInstances."""
        self._resolve_image()
        explicit = self._explicit_zone()
        if known := self._known_launch(explicit):
            return ActionResult(known)
        self._check_counts()
        network.check(self)
        zone = explicit or self._some_zone()
        count = self._count_in(zone)
        self._check_quota(count)
        market = spot.Request.of(self, zone)
        self.error_on_dryrun()
        reservation = self._launch(zone, count)
        self._start(reservation, market)
        self._remember(explicit, reservation)
        return ActionResult(reservation)

    def _resolve_image(self) -> None:
        image = self._get_param("ImageId") or ""
        if image.startswith("resolve:ssm:"):
            found = images.parameter(image.removeprefix("resolve:ssm:"), self.region)
            if found is None:
                raise Refusal("InvalidParameterValue", f"The parameter of '{image}' does not exist")
            self.params["ImageId"] = found

    def _explicit_zone(self) -> str:
        """The zone that the request sets, directly or by a subnet; "" if it sets none."""
        placement = self._get_param("Placement.AvailabilityZone") or ""
        subnets = [self._get_param("SubnetId")]
        subnets += [nic.get("SubnetId") for nic in self._get_param("NetworkInterfaces", [])]
        for subnet in filter(None, subnets):
            zone = str(self.ec2_backend.get_subnet(subnet).availability_zone)
            if placement and placement != zone:
                raise Refusal(
                    "InvalidParameterValue",
                    f"The availability zone '{placement}' does not match that of '{subnet}'",
                )
            return zone
        return str(placement)

    def _fingerprint(self) -> str:
        kept = {k: v for k, v in self.querystring.items() if not _PLACES.fullmatch(k)}
        return hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()

    def _known_launch(self, zone: str) -> Reservation | None:
        token = self._get_param("ClientToken")
        launches = self.cloud.launches.get((self.region, token), {}) if token else {}
        if token and len(token) > 64:
            raise Refusal("InvalidParameterValue", "The client token has more than 64 characters")
        if any(launch.fingerprint != self._fingerprint() for launch in launches.values()):
            raise Refusal(
                "IdempotentParameterMismatch",
                "Arguments on this idempotent request are inconsistent with arguments used in previous request(s).",
            )
        return launches[zone].reservation if zone in launches else None

    def _remember(self, zone: str, reservation: Reservation) -> None:
        if token := self._get_param("ClientToken"):
            launches = self.cloud.launches.setdefault((self.region, token), {})
            launches[zone] = Launch(self._fingerprint(), reservation)

    def _check_counts(self) -> None:
        low, high = int(self._get_param("MinCount", 1)), int(self._get_param("MaxCount", 1))
        if not 1 <= low <= high:
            raise Refusal("InvalidParameterValue", f"'{low}' to '{high}' is no number of instances")
        data = base64.b64decode(self._get_param("UserData") or "")
        if len(data) > USER_DATA_LIMIT:
            raise Refusal("InvalidParameterValue", "User data is limited to 16384 bytes")

    def _offered_in(self) -> list[str]:
        kind = self._get_param("InstanceType", "m1.small")
        offers = self.ec2_backend.describe_instance_type_offerings(
            "availability-zone", {"instance-type": [kind]}
        )
        return sorted(offer["Location"] for offer in offers)

    def _some_zone(self) -> str:
        """The zone that EC2 would choose: the first with room for all instances."""
        kind, wanted = self._get_param("InstanceType", "m1.small"), self._get_param("MaxCount", 1)
        zones = self._offered_in()
        for zone in zones:
            left = self.cloud.market.left(kind, zone)
            if left is None or left >= int(wanted):
                return zone
        return zones[0] if zones else f"{self.region}a"

    def _count_in(self, zone: str) -> int:
        """How many instances the zone can launch. Raises a refusal if that is less than the minimum."""
        kind = self._get_param("InstanceType", "m1.small")
        low, high = int(self._get_param("MinCount", 1)), int(self._get_param("MaxCount", 1))
        zones = self._offered_in()
        if zones and zone not in zones:
            raise Refusal(
                "Unsupported",
                f"Your requested instance type ({kind}) is not supported in your requested Availability Zone ({zone}). "
                f"Please retry your request by not specifying an Availability Zone or choosing {', '.join(zones)}.",
            )
        left = network.reserved_left(self, zone)
        if left is None:
            left = self.cloud.market.left(kind, zone)
        count = high if left is None else min(high, left)
        count = min(count, self.cloud.machines.free())
        if count < low:
            raise no_capacity(kind, zone)
        return count

    def _check_quota(self, count: int) -> None:
        kind = self._get_param("InstanceType", "m1.small")
        is_spot = self._get_param("InstanceMarketOptions.MarketType") == "spot"
        if self._get_param("InstanceMarketOptions.MarketType") == "capacity-block":
            return
        code = quota_code(kind, is_spot)
        names = {kind, *(life.instance.instance_type for life in self.cloud.counted(self.region))}
        vcpus = {name: vcpus_of(self.ec2_backend, name) for name in names}
        used = self.cloud.vcpus_used(self.region, code, vcpus)
        limit = self.cloud.market.quotas[code]
        if used + count * vcpus[kind] <= limit:
            return
        if is_spot:
            raise Refusal("MaxSpotInstanceCountExceeded")
        raise Refusal(
            "VcpuLimitExceeded",
            f"You have requested more vCPU capacity than your current vCPU limit of {limit:g} allows for the instance "
            "bucket that the specified instance type belongs to. Please visit "
            "http://aws.amazon.com/contact-us/ec2-request to request an adjustment to this limit.",
        )

    def _launch(self, zone: str, count: int) -> Reservation:
        """Launches the instances in moto."""
        self.params["MinCount"] = count
        self.params["BlockDeviceMappings"] = self._disks()
        placement = dict(self._get_param("Placement") or {})
        self.params["Placement"] = {**placement, "AvailabilityZone": zone}
        with network.numbered(self) as nics:
            super().run_instances()
        reservation: Reservation = list(self.ec2_backend.reservations.values())[-1]
        for instance in _rented(reservation):
            network.finish(self, instance, nics)
            instance.placement.group_name = placement.get("GroupName", "")
            instance.placement.tenancy = placement.get("Tenancy", "default")
        kind = str(reservation.instances[0].instance_type)
        self.cloud.market.take(kind, zone, count)
        return reservation

    def _disks(self) -> list[dict[str, Any]]:
        """The disks of each instance: those of the image as the request changes them, and more."""
        (image,) = self.ec2_backend.describe_images(ami_ids=[self._get_param("ImageId")])
        asked = {each["DeviceName"]: each for each in self._get_param("BlockDeviceMappings", [])}
        found = {
            each["DeviceName"]: {**each, "Ebs": dict(each["Ebs"])}
            for each in image.block_device_mappings
        }
        for device, each in asked.items():
            before = found.get(device, {}).get("Ebs", {})
            found[device] = {**each, "Ebs": {**before, **each.get("Ebs", {})}}
        return [each for each in found.values() if "NoDevice" not in each]

    def _start(self, reservation: Reservation, market: spot.Request | None) -> None:
        started: list[Life] = []
        for instance in _rented(reservation):
            try:
                life = self._boot(instance)
            except NoMachineFree:
                for other in started:
                    self.cloud.lives.end(other, BROKEN)
                self.ec2_backend.reservations.pop(reservation.id)
                raise no_capacity(instance.instance_type, str(instance.placement.zone)) from None
            if market is not None:
                life.spot = spot.open_request(
                    self.ec2_backend, market, instance, self._tags("spot-instances-request")
                )
            started.append(life)

    def _boot(self, instance: RentedInstance) -> Life:
        outcome = self.cloud.next_boot()
        lives, id = self.cloud.lives, instance.id
        machine = self.cloud.machines.boot(
            id,
            script=_script(instance),
            authorized_keys=self._login_keys(instance),
            user=images.USER,
            hostname="",
            gpus=_gpus(self.ec2_backend, instance.instance_type),
            delay=float("inf") if outcome == "never" else lives.boot_seconds,
            on_end=lambda: lives.powered_off(id),
            on_up=lambda: lives.started(id),
        )
        network.give_addresses(instance, machine)
        disks = self._get_param("BlockDeviceMappings", [])
        life = Life(
            instance,
            self.region,
            machine,
            gigabytes=sum(int(each.get("Ebs", {}).get("VolumeSize", 0)) for each in disks),
            public=instance.nics[0].public_ip is not None,
            block=self._get_param("InstanceMarketOptions.MarketType") == "capacity-block",
        )
        lives.begin(life, outcome)
        if (block := network.reserved(self)) is not None and block.ends is not None:
            lives.end_with_block(life, block.ends)
        return life

    def _login_keys(self, instance: RentedInstance) -> list[str]:
        if not instance.key_name:
            return []
        pairs = self.ec2_backend.describe_key_pairs(key_names=[instance.key_name])
        return [pair.public_key for pair in pairs]

    def _tags(self, kind: str) -> dict[str, str]:
        found: dict[str, str] = self._parse_tag_specification().get(kind, {})
        return found


def no_capacity(kind: str, zone: str) -> Refusal:
    """The refusal for lack of capacity."""
    return Refusal(
        "InsufficientInstanceCapacity",
        f"We currently do not have sufficient {kind} capacity in the Availability Zone you requested ({zone}). "
        "Our system will be working on provisioning additional capacity.",
    )


def vcpus_of(backend: Any, kind: str) -> int:
    """The number of vCPUs of an instance type."""
    found = backend.describe_instance_types([kind])
    return int(found[0]["VCpuInfo"]["DefaultVCpus"]) if found else 0


def _gpus(backend: Any, kind: str) -> Gpus | None:
    """The GPUs of an instance type, as the driver names them."""
    info = backend.describe_instance_types([kind])[0].get("GpuInfo")
    if not info or info["Gpus"][0]["Manufacturer"] != "NVIDIA":
        return None
    gpu = info["Gpus"][0]
    memory = int(gpu["MemoryInfo"]["SizeInMiB"])
    named = _DRIVER_NAMES.get(gpu["Name"], "NVIDIA {name}")
    return Gpus(named.format(name=gpu["Name"], gb=memory // 1024), int(gpu["Count"]), memory)


def _rented(reservation: Reservation) -> list[RentedInstance]:
    return [instance for instance in reservation.instances if isinstance(instance, RentedInstance)]


def _script(instance: RentedInstance) -> bytes:
    if instance.user_data is None:
        return b""
    data = base64.b64decode(instance.user_data.as_bytes())
    return gzip.decompress(data) if data.startswith(b"\x1f\x8b") else data
