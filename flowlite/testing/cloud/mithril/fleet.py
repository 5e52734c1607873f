"""The machines of a bid: their start, the notice of their end, and their end.

Operations on the ground run in other threads, in order for each machine, without the lock.
"""

from __future__ import annotations

import shlex
import string
import sys
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future
from contextlib import suppress

from flowlite.state import clock
from flowlite.testing.cloud.mithril.forms import new_fid, stamp
from flowlite.testing.cloud.mithril.records import Bid, Instance
from flowlite.testing.cloud.mithril.world import World

SIGNAL = "/opt/mithril/MITHRIL_SIGNAL.yml"
BOOTS = ("runs", "never", "silent", "dies", "error")
_NEVER = float("inf")
_SHARED = "/mnt/shared/.mithril"
_USER = "ubuntu"
_LETTERS = string.ascii_lowercase[1:]
_LET_GO_SECONDS = 30.0


class Fleet:
    """Starts and ends machines.

    Attributes:
        odd_boots: How the next machines start, in order, if not normally: one of `BOOTS`.
    """

    def __init__(self, world: World, workers: Executor) -> None:
        self._world = world
        self._work = workers
        self._last: dict[str, Future[None]] = {}
        self.odd_boots: deque[str] = deque()

    def close(self) -> None:
        """Waits for the pending operations."""
        self._work.shutdown(wait=True, cancel_futures=True)

    def launch(self, bid: Bid) -> None:
        """Starts as many new machines as a bid that has won asks for."""
        for _ in range(bid.quantity):
            self._launch_one(bid)
        self._attach(bid)

    def _launch_one(self, bid: Bid) -> Instance:
        world = self._world
        bid.counted += 1
        instance = Instance(
            fid=new_fid("inst"),
            name=f"{bid.name}-{bid.counted}",
            project=bid.project,
            created_by=bid.created_by,
            instance_type=bid.instance_type,
            region=bid.region,
            bid=bid.fid,
        )
        world.add(world.instances, instance)
        instance.becomes("STATUS_NEW")
        bid.instances.append(instance.fid)
        bid.keep()
        odd = self.odd_boots.popleft() if self.odd_boots else ""
        script = self._script(bid)
        disks = self._devices(bid)
        keys = [world.ssh_keys[key].public_key for key in bid.specification["ssh_keys"]]
        delay = _NEVER if odd in ("never", "silent") else world.rules.boot_seconds

        def boot() -> None:
            try:
                machine = world.ground.boot(
                    instance.fid,
                    script=script,
                    authorized_keys=keys,
                    user=_USER,
                    hostname=instance.name,
                    gpus=world.types[instance.instance_type].cards,
                    delay=delay,
                )
            except Exception as error:
                sys.stderr.write(f"{instance.fid} does not boot: {error}\n")
                self._step(instance, "STATUS_NEW", "STATUS_ERROR")
                return
            self._plug(instance, disks)
            with world.lock:
                instance.address = machine.address
                instance.becomes(
                    "STATUS_CONFIRMED" if instance.status == "STATUS_NEW" else instance.status
                )
            self._starts(instance, odd, machine.public_address)

        self._do(instance, boot)
        return instance

    def _starts(self, instance: Instance, odd: str, destination: str) -> None:
        boot = self._world.rules.boot_seconds
        after = self._world.timer.after
        if odd == "error":
            after(boot, lambda: self._fail(instance))
            return
        after(boot / 3, lambda: self._step(instance, "STATUS_CONFIRMED", "STATUS_INITIALIZING"))
        after(boot * 2 / 3, lambda: self._step(instance, "STATUS_INITIALIZING", "STATUS_STARTING"))
        if odd == "never":
            return

        def runs() -> None:
            with self._world.lock:
                if instance.status not in ("STATUS_STARTING", "STATUS_PREEMPTING"):
                    return
                instance.ssh_destination = destination
                if instance.status == "STATUS_STARTING":
                    instance.charge(self._price(instance))
                    instance.becomes("STATUS_RUNNING")
                instance.keep()
            if odd == "dies":
                after(0.2, lambda: self._fail(instance))

        after(boot, runs)

    def _step(self, instance: Instance, old: str, new: str) -> None:
        with self._world.lock:
            if instance.status == old:
                instance.becomes(new)

    def _fail(self, instance: Instance) -> None:
        with self._world.lock:
            self.die(instance, "STATUS_ERROR")

    def die(self, instance: Instance, status: str) -> None:
        """Ends a machine without notice. The API shows `status` from now on."""
        if instance.there:
            if status not in ("STATUS_RUNNING", instance.status):
                instance.charge(None)
            instance.becomes(status)
            self._do(instance, lambda: self._world.ground.power_cut(instance.fid))

    def end(self, instance: Instance, status: str) -> None:
        """Stops a machine, and charges for it until now. It has `status` once it is gone."""
        if not instance.there or instance.status == "STATUS_STOPPING":
            return
        instance.charge(None)
        instance.becomes("STATUS_STOPPING")

        def stop() -> None:
            self._world.ground.end(instance.fid)
            self._world.timer.after(self._world.rules.stop_seconds, gone)

        def gone() -> None:
            with self._world.lock:
                if instance.status == "STATUS_STOPPING":
                    instance.end_time = None
                    instance.becomes(status)

        self._do(instance, stop)

    def announce(self, instance: Instance, status: str, ends: float) -> None:
        """Announces to the machine, and in the API, that it will be taken away at `ends`, a Unix time."""
        bid_status = "Relocating" if status == "STATUS_RELOCATING" else "Preempting"
        instance.end_time = ends
        instance.becomes(status)
        text = (
            f"instance_status: {status}\nbid_status: {bid_status}\n"
            f'end_time: "{stamp(instance.end_time)}"\n'
        )
        self._do(instance, lambda: self._world.ground.write(instance.fid, SIGNAL, text))

    def withdraw(self, instance: Instance) -> None:
        """Takes back an announced end."""
        instance.end_time = None
        if instance.ssh_destination is None:
            instance.becomes("STATUS_STARTING")
        else:
            instance.charge(self._price(instance))
            instance.becomes("STATUS_RUNNING")
        self._do(instance, lambda: self._world.ground.write(instance.fid, SIGNAL, None))

    def relocate(self, bid: Bid, instance: Instance) -> Instance:
        """Replaces a machine at the end of its notice."""
        self.end(instance, "STATUS_REPLACED")
        fresh = self._launch_one(bid)
        self._attach(bid)
        return fresh

    def detach(self, bid: Bid) -> None:
        """Detaches a bid's volumes from its machines."""
        for fid in bid.specification["volumes"]:
            volume = self._world.volumes[fid]
            volume.attachments = {
                k: v for k, v in volume.attachments.items() if k not in bid.instances
            }
            volume.keep()

    def _devices(self, bid: Bid) -> dict[str, str]:
        """The device names of a bid's disks on its machine. They start at vdb, since vda is the machine's own disk."""
        volumes = (self._world.volumes[fid] for fid in bid.specification["volumes"])
        disks = [volume.fid for volume in volumes if volume.interface == "Block"]
        return {fid: f"vd{letter}" for fid, letter in zip(disks, _LETTERS, strict=False)}

    def _plug(self, instance: Instance, disks: dict[str, str]) -> None:
        """Attaches the disks to a machine that is about to start. Waits while an ending machine still has them."""
        deadline = clock.monotonic() + _LET_GO_SECONDS
        for fid, device in disks.items():
            while not self._world.ground.attach_disk(fid, instance.fid, device):
                if clock.monotonic() > deadline:
                    sys.stderr.write(f"{fid} is still mounted elsewhere\n")
                    return
                clock.sleep(0.02)

    def _attach(self, bid: Bid) -> None:
        self.detach(bid)
        devices = self._devices(bid)
        for fid in bid.specification["volumes"]:
            volume = self._world.volumes[fid]
            is_file = volume.interface == "File"
            place = f"/mnt/{volume.name}" if is_file else f"/dev/{devices[fid]}"
            volume.attachments |= {i.fid: place for i in self._world.instances_of(bid)}
            volume.keep()

    def _price(self, instance: Instance) -> int:
        return self._world.auctions[instance.instance_type].clearing_cents

    def _script(self, bid: Bid) -> str:
        """The startup script. Commands that mount the file systems precede it, as the real image does."""
        script = bid.specification.get("startup_script") or ""
        volumes = [self._world.volumes[fid] for fid in bid.specification["volumes"]]
        mounts = [
            f"mkdir -p {_SHARED}/{v.fid} /mnt/{v.name} && mount --bind {_SHARED}/{v.fid} /mnt/{v.name}"
            for v in volumes
            if v.interface == "File"
        ]
        if not mounts:
            return script
        # Run as a file, since the script may begin with any interpreter line.
        place = "/var/lib/mithril-startup"
        lines = ["#!/bin/sh", *mounts, f"printf %s {shlex.quote(script)} >{place}"]
        return "\n".join([*lines, f"chmod 700 {place}", f"exec {place}"]) + "\n"

    def _do(self, instance: Instance, what: Callable[[], None]) -> None:
        before = self._last.get(instance.fid)

        def run() -> None:
            if before is not None:
                before.exception()
            what()

        # After the shutdown of the executor, nothing is started.
        with suppress(RuntimeError):
            self._last[instance.fid] = self._work.submit(run)
