"""The operations on volumes and quotas."""

from __future__ import annotations

from typing import Any

from flowlite.state import clock
from flowlite.testing.cloud.mithril import catalog
from flowlite.testing.cloud.mithril.errors import business, missing
from flowlite.testing.cloud.mithril.forms import fixed_fid, new_fid
from flowlite.testing.cloud.mithril.records import Volume
from flowlite.testing.cloud.mithril.request import Request
from flowlite.testing.cloud.mithril.world import World

_LARGEST_GB = 32_000
_GB = 10**9
_CLUSTER = "6f1c7f2e-0000-4000-8000-0000000000c1"


class Storage:
    """Operations. Call them with the world's lock held."""

    def __init__(self, world: World) -> None:
        self._world = world

    def get_volumes(self, request: Request) -> tuple[int, Any]:
        """The volumes of a project; deleted ones on request."""
        project = request.query["project"]
        deleted = request.query.get("include_deleted", False)
        region = request.query.get("region")
        self._world.project_of(project)
        return 200, [
            each
            for each in self._world.listed(self._world.volumes)
            if each["project"] == project
            and (deleted or each["deleted_at"] is None)
            and region in (None, each["region"])
        ]

    def create_volume(self, request: Request) -> tuple[int, Any]:
        """Creates a volume."""
        name = request.body["name"]
        project = request.body["project"]
        interface = request.body["disk_interface"]
        region = request.body["region"]
        size = request.body["size_gb"]
        # The document bounds it, and does not say its type.
        if not isinstance(size, int) or size <= 0:
            request.wrong("size_gb", "Input should be greater than 0", "greater_than")
        request.checked()
        self._world.project_of(project)
        if region not in catalog.REGIONS:
            raise business(f"Region {region} not found")
        if interface == "Block" and region not in catalog.BLOCK_REGIONS:
            raise business(f"Block storage is not available in region {region}")
        if size > _LARGEST_GB:
            raise business(f"Volume size exceeds the maximum of {_LARGEST_GB} GB")
        live = self._live(project)
        taken = any(each.name == name and each.region == region for each in live)
        if taken and self._world.rules.unique_names:
            raise business(f"Volume name already exists: {name}")
        used = sum(each.capacity_gb for each in live)
        if used + size > self._world.storage_quota_gb:
            raise business(
                f"Storage quota exceeded: {used} of {self._world.storage_quota_gb} GB are in use"
            )
        volume = Volume(
            fid=new_fid("vol"),
            name=name,
            project=project,
            region=region,
            interface=interface,
            capacity_gb=size,
        )
        if interface == "Block":
            self._world.ground.make_disk(volume.fid, size * _GB)
        self._world.add(self._world.volumes, volume)
        return 201, volume.model()

    def _live(self, project: str) -> list[Volume]:
        found = self._world.volumes.values()
        return [each for each in found if each.project == project and each.deleted_at is None]

    def _volume(self, request: Request) -> Volume:
        volume = self._world.volumes.get(request.path["volume_fid"])
        if volume is None or volume.deleted_at is not None:
            raise missing("Volume")
        self._world.project_of(volume.project)
        return volume

    def update_volume(self, request: Request) -> tuple[int, Any]:
        """Renames a volume."""
        volume = self._volume(request)
        if volume.bids:
            raise business("Volume is in use")
        volume.name = request.body["name"]
        volume.keep()
        return 200, volume.model()

    def delete_volume(self, request: Request) -> tuple[int, Any]:
        """Deletes a volume that no bid uses, and its contents."""
        volume = self._volume(request)
        if volume.bids:
            raise business("Volume is in use and cannot be deleted")
        self._world.ground.remove_disk(volume.fid)
        volume.deleted_at = clock.wall()
        volume.keep()
        return 204, None

    def get_quotas(self, request: Request) -> tuple[int, Any]:
        """The project's quotas and their use."""
        project = request.query["project"]
        self._world.project_of(project)
        quotas = [self._spot_quota(project, fid) for fid in self._world.types]
        used = sum(each.capacity_gb for each in self._live(project))
        storage = {
            "fid": fixed_fid("quota", project, "storage"),
            "project": project,
            "instance_type": None,
            "product_type": "Storage",
            "total_quantity": self._world.storage_quota_gb,
            "used_quantity": used,
            "units": "GB",
            "name": "Storage",
        }
        return 200, [*quotas, storage]

    def _spot_quota(self, project: str, instance_type: str) -> dict[str, Any]:
        found = self._world.types[instance_type]
        live = [
            bid
            for bid in self._world.bids.values()
            if bid.instance_type == instance_type and bid.status != "Terminated"
        ]
        return {
            "fid": fixed_fid("quota", project, instance_type),
            "project": project,
            "instance_type": instance_type,
            "product_type": "Spot",
            "total_quantity": self._world.quotas.get(instance_type, 256),
            "used_quantity": sum(bid.quantity for bid in live),
            "units": "instances",
            "name": f"Spot {found.name} ({found.region})",
        }

    def get_organization_quotas(self, request: Request) -> tuple[int, Any]:
        """The organization's storage by region."""
        volumes = [v for v in self._world.volumes.values() if v.deleted_at is None]
        granted = self._world.storage_quota_gb
        rows = []
        for region in catalog.REGIONS:
            used = sum(v.capacity_gb for v in volumes if v.region == region)
            rows.append(
                {
                    "product_type": "storage_gib",
                    "cluster_id": _CLUSTER,
                    "region": region,
                    "granted": granted,
                    "used": used,
                    "remaining": granted - used,
                    "limit_source": "organization",
                    "units": "GiB",
                    "usage_by_project": [],
                }
            )
        return 200, rows
