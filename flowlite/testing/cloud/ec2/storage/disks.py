"""EBS behind the API: volumes are disks of the box, which machines have one at a time, and nothing is done at once."""

from __future__ import annotations

import threading
from collections.abc import Callable

from moto.ec2.models import ec2_backends, elastic_block_store
from moto.ec2.models.elastic_block_store import Volume, VolumeAttachment

from flowlite.testing.cloud.ec2.life import Lives
from flowlite.testing.cloud.ec2.life_record import Life
from flowlite.testing.cloud.ec2.names import ACCOUNT, Refusal
from flowlite.testing.hosts.disks import Appearance

GIB = 2**30
SECONDS = 0.3
_POLL_SECONDS = 0.05


class BoxVolume(Volume):
    """moto's volume, which takes a moment to be made."""

    is_new = False

    @property
    def status(self) -> str:
        return "creating" if self.is_new else super().status


def install() -> None:
    """Has moto use it."""
    elastic_block_store.Volume = BoxVolume  # type: ignore[misc]


class Disks:
    """The disks behind volumes. What is here runs under the lock of the API.

    Attributes:
        seconds: That it takes to make, to attach and to detach one.
    """

    def __init__(self, lives: Lives) -> None:
        self._lives = lives
        self._looks: dict[str, tuple[str, Appearance]] = {}
        self._made: dict[tuple[str, str], tuple[str, BoxVolume]] = {}
        self._day = 0
        self.seconds = SECONDS

    def forget(self) -> None:
        """No volume is there."""
        self._day += 1
        self._looks.clear()
        self._made.clear()
        self.seconds = SECONDS

    def made_before(self, region: str, token: str, request: str) -> BoxVolume | None:
        """What a client token has led to. Raises the refusal if that was another request."""
        before, volume = self._made.get((region, token), (request, None))
        if before != request:
            raise Refusal(
                "IdempotentParameterMismatch",
                "The client token you have provided is associated with a resource that is already deleted, or the "
                "parameters do not match those of the earlier request.",
            )
        return volume

    def make(self, volume: BoxVolume, region: str, token: str, request: str) -> None:
        """A blank disk for a volume."""
        self._lives.machines.make_disk(volume.id, volume.size * GIB)
        volume.is_new = True
        if token:
            self._made[region, token] = request, volume
        self._later(lambda: setattr(volume, "is_new", False))

    def remove(self, volume: str) -> None:
        """What was on it is gone."""
        self._lives.machines.remove_disk(volume)

    def attach(self, volume: Volume, life: Life) -> None:
        """Has a disk appear on the machine of an instance, in a moment."""
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
            except KeyError:  # It has ended meanwhile.
                return
            if there:
                attachment.status = "attached"
            else:
                self._later(appear, _POLL_SECONDS)

        self._later(appear)

    def detach(self, volume: Volume, attachment: VolumeAttachment) -> None:
        """Takes a disk off its machine, as soon as that has it mounted no more."""
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
        """An instance is gone, and is to keep no disk. Those that came with it are left to moto."""
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
    """What a volume looks like: an NVMe disk that bears its id, as all types of the box are built on Nitro.

    Under which name it was attached is not seen there: Ubuntu's images have no links such as /dev/sdf.
    """
    serial = volume.replace("-", "")
    name = next(n for n in (f"nvme{number}n1" for number in range(1, 100)) if n not in taken)
    return Appearance(name, serial, (f"disk/by-id/nvme-Amazon_Elastic_Block_Store_{serial}",))
