"""The calls on EBS volumes, which replace moto's."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from moto.core.responses import ActionResult
from moto.ec2.responses.elastic_block_store import ElasticBlockStore

from flowlite.testing.cloud.ec2.cloud import Cloud
from flowlite.testing.cloud.ec2.names import Refusal
from flowlite.testing.cloud.ec2.storage.disks import BoxVolume

# Parameters that do not count when two requests are compared.
_ASKED = ("Action", "Version", "ClientToken")


class BlockStore(ElasticBlockStore):
    """The calls on volumes, answered as by EC2."""

    cloud: Cloud

    def create_volume(self) -> ActionResult:
        """CreateVolume. Idempotent by client token."""
        token = self._get_param("ClientToken") or ""
        asked = {key: value for key, value in self.querystring.items() if key not in _ASKED}
        request = hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()
        if token and (before := self.cloud.disks.made_before(self.region, token, request)):
            return ActionResult(before)
        made = super().create_volume()
        volume = made.result
        assert isinstance(volume, BoxVolume)
        self.cloud.disks.make(volume, self.region, token, request)
        return made

    def attach_volume(self) -> ActionResult:
        """AttachVolume. The instance must be running, in the volume's zone."""
        volume = self.ec2_backend.get_volume(self._get_param("VolumeId"))
        instance = self.ec2_backend.get_instance(self._get_param("InstanceId"))
        life = self.cloud.lives.find(instance.id)
        if life is None or life.state not in ("running", "stopped"):
            raise Refusal("IncorrectState", f"Instance '{instance.id}' is not 'running'.")
        if volume.attachment is not None:
            raise Refusal("VolumeInUse", f"{volume.id} is already attached to an instance")
        if volume.status != "available":
            raise Refusal("IncorrectState", f"{volume.id} is not 'available'.")
        if volume.availability_zone != instance.placement.zone:
            raise Refusal(
                "InvalidVolume.ZoneMismatch",
                f"The volume '{volume.id}' is not in the same availability zone as instance '{instance.id}'",
            )
        device = self._get_param("Device")
        if device in instance.block_device_mapping:
            raise Refusal(
                "InvalidParameterValue",
                f"Invalid value '{device}' for unixDevice. Attachment point {device} is already in use",
            )
        reply = super().attach_volume()
        self.cloud.disks.attach(volume, life)
        return reply

    def detach_volume(self) -> ActionResult:
        """DetachVolume. Takes effect after a moment, or when the volume is unmounted."""
        volume = self.ec2_backend.get_volume(self._get_param("VolumeId"))
        attachment = volume.attachment
        wanted: str = self._get_param("InstanceId") or (attachment and attachment.instance.id) or ""
        if attachment is None or attachment.instance.id != wanted:
            raise Refusal("IncorrectState", f"Volume '{volume.id}' is in the 'available' state.")
        self.error_on_dryrun()
        self.cloud.disks.detach(volume, attachment)
        told: dict[str, Any] = {
            "VolumeId": volume.id,
            "InstanceId": attachment.instance.id,
            "Device": attachment.device,
            "State": "detaching",
            "AttachTime": attachment.attach_time,
        }
        return ActionResult(told)

    def delete_volume(self) -> ActionResult:
        """DeleteVolume. A volume in use is refused."""
        volume = self.ec2_backend.get_volume(self._get_param("VolumeId"))
        if volume.attachment is not None:
            raise Refusal(
                "VolumeInUse",
                f"Volume {volume.id} is currently attached to {volume.attachment.instance.id}",
            )
        reply = super().delete_volume()
        self.cloud.disks.remove(volume.id)
        return reply
