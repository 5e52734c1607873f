"""EBS behind the API: volumes are disks of the box, each on one machine at a time, and operations take a moment."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

from moto.ec2.models import ec2_backends, elastic_block_store
from moto.ec2.models.elastic_block_store import Volume, VolumeAttachment

from flowlite.state import clock
from flowlite.testing.cloud.ec2.life import Lives
from flowlite.testing.cloud.ec2.life_record import Life
from flowlite.testing.cloud.ec2.names import ACCOUNT, Refusal
from flowlite.testing.hosts.disks import Appearance

GIB = 2**30
SECONDS = 0.3
_POLL_SECONDS = 0.05


class BoxVolume(Volume):
    """moto's volume, which is not available at once."""

    is_new = False

    @property
    def status(self) -> str:
        return "creating" if self.is_new else super().status


def install() -> None:
    """Replaces moto's class."""
    elastic_block_store.Volume = BoxVolume  # type: ignore[misc]


@dataclass(slots=True)
class Owned:
    """A volume on the account's bill.

    Attributes:
        since: When it was made, as Unix time.
        until: When it was deleted; None while it exists.
    """

    gigabytes: int
    since: float
    until: float | None = None


class Disks:
    """The disks behind volumes. The methods run under the API's lock.

    Attributes:
        seconds: How long it takes to create, attach or detach a disk.
        owned: All volumes since the reset, by id, without the disks of images and instances.
    """

    def __init__(self, lives: Lives) -> None:
        self._lives = lives
        self._looks: dict[str, tuple[str, Appearance]] = {}
        self._made: dict[tuple[str, str], tuple[str, BoxVolume]] = {}
        self._day = 0
        self.seconds = SECONDS
        self.owned: dict[str, Owned] = {}

    def forget(self) -> None:
        """Forgets all volumes."""
        self._day += 1
        self._looks.clear()
        self._made.clear()
        self.owned.clear()
        self.seconds = SECONDS

    def made_before(self, region: str, token: str, request: str) -> BoxVolume | None:
        """The volume that was made with a client token.

        Raises a refusal if the token's request was another one, or the volume was deleted.
        """
        before, volume = self._made.get((region, token), (request, None))
        deleted = volume is not None and self.owned[volume.id].until is not None
        if before != request or deleted:
            raise Refusal(
                "IdempotentParameterMismatch",
                "The client token you have provided is associated with a resource that is already deleted, or the "
                "parameters do not match those of the earlier request.",
            )
        return volume

    def make(self, volume: BoxVolume, region: str, token: str, request: str) -> None:
        """Makes a blank disk for a volume."""
        self._lives.machines.make_disk(volume.id, volume.size * GIB)
        volume.is_new = True
        self.owned[volume.id] = Owned(volume.size, clock.wall())
        if token:
            self._made[region, token] = request, volume
        self._later(lambda: setattr(volume, "is_new", False))

    def remove(self, volume: str) -> None:
        """Deletes a volume's disk."""
        self._lives.machines.remove_disk(volume)
        if volume in self.owned:
            self.owned[volume].until = clock.wall()

    def attach(self, volume: Volume, life: Life) -> None:
        """Attaches a disk to the machine of an instance after a moment."""
        attachment = volume.attachment
        assert attachment is not None
        attachment.status = "attaching"
        taken = {look.name for owner, look in self._looks.values() if owner == life.instance.id}
        look = _appearance(volume.id, taken)
        self._looks[volume.id] = life.instance.id, look

        def appear() -> None:
            if volume.attachment is not attachment or attachment.status != "attaching":
                return
            try:
                there = self._lives.machines.attach_disk(volume.id, life.instance.id, look)
            except KeyError:  # The instance has ended.
                return
            if there:
                attachment.status = "attached"
            else:
                self._later(appear, _POLL_SECONDS)

        self._later(appear)

    def detach(self, volume: Volume, attachment: VolumeAttachment) -> None:
        """Detaches a disk as soon as its machine has unmounted it."""
        attachment.status = "detaching"

        def disappear() -> None:
            if volume.attachment is not attachment:
                return
            if not self._lives.machines.detach_disk(volume.id):
                attachment.status = "busy"
                self._later(disappear, _POLL_SECONDS)
                return
            attachment.instance.block_device_mapping.pop(attachment.device, None)
            volume.attachment = None
            self._looks.pop(volume.id, None)

        self._later(disappear)

    def let_go(self, life: Life) -> None:
        """Detaches the disks of an ended instance. Disks created with the instance are left to moto."""
        for volume in list(ec2_backends[ACCOUNT][life.region].volumes.values()):
            attachment = volume.attachment
            if attachment is None or attachment.instance.id != life.instance.id:
                continue
            if volume.id in self._looks:
                life.instance.block_device_mapping.pop(attachment.device, None)
                self.detach(volume, attachment)

    def _later(self, act: Callable[[], None], seconds: float | None = None) -> None:
        day = self._day

        def run() -> None:
            with self._lives.lock:
                if day == self._day:
                    act()

        timer = threading.Timer(self.seconds if seconds is None else seconds, run)
        timer.daemon = True
        timer.start()


def _appearance(volume: str, taken: set[str]) -> Appearance:
    """The appearance of a volume: an NVMe disk with the volume's id, since all types of the box are built on Nitro.

    The device name of the attachment is not visible: Ubuntu's images have no links such as /dev/sdf.
    """
    serial = volume.replace("-", "")
    name = next(n for n in (f"nvme{number}n1" for number in range(1, 100)) if n not in taken)
    return Appearance(name, serial, (f"disk/by-id/nvme-Amazon_Elastic_Block_Store_{serial}",))
