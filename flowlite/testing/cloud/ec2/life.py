"""The lifecycle of the box's instances: pending, running, shutting-down, terminated, each with its machine."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta

from moto.ec2.models import ec2_backends
from moto.ec2.models.instances import InstanceState

from flowlite.state import clock
from flowlite.testing.cloud.ec2.life_record import CODES, Life
from flowlite.testing.cloud.ec2.metadata import Metadata
from flowlite.testing.cloud.ec2.names import ACCOUNT, stamp
from flowlite.testing.cloud.machines import Machines
from flowlite.testing.cloud.timers import Timers, utc_now

SHUTDOWN = ("Client.InstanceInitiatedShutdown", "Instance initiated shutdown")
BY_USER = ("Client.UserInitiatedShutdown", "User initiated shutdown")
SPOT = ("Server.SpotInstanceTermination", "Spot instance termination")
BROKEN = ("Server.InternalError", "Internal error")
# AWS's documentation does not say which code EC2 returns here.
BLOCK_ENDED = (
    "Server.CapacityReservationExpired",
    "The capacity block of the instance has come to its end",
)
BLOCK_ENDS_SECONDS = 30 * 60.0
"""How long before a capacity block's end EC2 ends its machines, in seconds. They get no notice."""


class Lives:
    """All instances of the box. The methods run under the lock that every call of the API takes.

    Attributes:
        on_gone: Called with each instance when it is terminated.
    """

    def __init__(self, machines: Machines, timers: Timers) -> None:
        self.lock = threading.RLock()
        self.machines = machines
        self._timers = timers
        self.boot_seconds = 0.5
        self.stop_seconds = 0.1
        self.lag = 0.0
        self._lives: dict[str, Life] = {}
        self._ever: list[Life] = []
        self.metadata = Metadata(self.machines, self.lock)
        self.on_gone: Callable[[Life], None] = lambda life: None

    def all(self) -> list[Life]:
        """All instances that are still listed."""
        with self.lock:
            return list(self._lives.values())

    def ever(self) -> list[Life]:
        """All instances since the reset, including those that are not listed any more."""
        with self.lock:
            return list(self._ever)

    def find(self, id: str) -> Life | None:
        """The instance with that id."""
        return self._lives.get(id)

    def begin(self, life: Life, outcome: str) -> None:
        """Boots an instance on its machine, which has a slot already. `outcome` is "runs", "never" or "dies"."""
        self._lives[life.instance.id] = life
        self._ever.append(life)
        life.enter("pending")
        self.metadata.serve(life)
        if outcome == "dies":
            self._later(life, self.boot_seconds + 0.2, lambda: self.break_down(life))

    def started(self, id: str) -> None:
        """Handles the start of the instance's machine."""
        with self.lock:
            life = self._lives.get(id)
            if life is not None and life.state == "pending":
                life.enter("running")

    def powered_off(self, id: str) -> None:
        """Handles a machine that has ended by itself."""
        with self.lock:
            life = self._lives.get(id)
            if life is None or life.state not in ("pending", "running"):
                return
            if life.instance.instance_initiated_shutdown_behavior == "terminate":
                self.end(life, SHUTDOWN, "")
            else:
                life.console = self.machines.console(id)
                life.enter("stopped")
                life.explain(SHUTDOWN, "")

    def end(self, life: Life, reason: tuple[str, str], transition: str | None = None) -> None:
        """Terminates an instance. Idempotent."""
        if life.state in ("shutting-down", "terminated"):
            return
        life.enter("shutting-down")
        said = f"User initiated ({stamp()})" if transition is None else transition
        life.explain(reason, said)
        life.console = self.machines.console(life.instance.id)
        self._cancel(life)
        # In another thread, without the caller's lock, since it takes a moment.
        self._timers.after(0.0, lambda: self.machines.end(life.instance.id))
        self._later(life, self.stop_seconds, lambda: self._buried(life, reason, said))

    def _buried(self, life: Life, reason: tuple[str, str], said: str) -> None:
        for nic in life.instance.nics.values():
            nic.public_ip_auto_assign = False
        self.on_gone(life)
        life.instance.terminate()
        life.enter("terminated")
        life.explain(reason, said)
        life.instance.gone = True
        if life.spot is not None:
            life.spot.close(reason[0])

    def break_down(self, life: Life, noticed: bool = True) -> None:
        """Cuts the power of a machine. EC2 terminates the instance, or has not noticed."""
        if life.state in ("shutting-down", "terminated"):
            return
        life.console = self.machines.console(life.instance.id)
        self.machines.power_cut(life.instance.id)
        if noticed:
            self.end(life, BROKEN, f"Service initiated ({stamp()})")

    def advise(self, life: Life) -> None:
        """Gives the instance the rebalance recommendation."""
        life.rebalance = utc_now()

    def interrupt(self, life: Life, seconds: float) -> None:
        """Gives an interruption notice, and terminates the instance after `seconds`."""
        life.notice = utc_now() + timedelta(seconds=seconds)
        if life.spot is not None:
            life.spot.mark("marked-for-termination")
        self._later(life, seconds, lambda: self.end(life, SPOT, f"Service initiated ({stamp()})"))

    def end_with_block(self, life: Life, ends: datetime) -> None:
        """Terminates the instance when EC2 begins to end the machines of its block, which ends at `ends`."""
        left = (ends - utc_now()).total_seconds() - BLOCK_ENDS_SECONDS
        said = "Service initiated ({})"
        self._later(life, max(0.0, left), lambda: self.end(life, BLOCK_ENDED, said.format(stamp())))

    def console(self, life: Life) -> str:
        """The instance's console output."""
        return life.console or self.machines.console(life.instance.id)

    def forget_ended(self) -> None:
        """Removes terminated instances from listings."""
        for life in [each for each in self._lives.values() if each.state == "terminated"]:
            del self._lives[life.instance.id]
            reservations = ec2_backends[ACCOUNT][life.region].reservations
            for reservation in list(reservations.values()):
                if life.instance in reservation.instances:
                    reservation.instances.remove(life.instance)
                if not reservation.instances:
                    del reservations[reservation.id]

    def reset(self) -> None:
        """Removes all instances, and ends the lag."""
        with self.lock:
            for life in self._lives.values():
                self._cancel(life)
            self._lives.clear()
            self._ever.clear()
            self.lag = 0.0
        self.machines.end_all()

    @contextmanager
    def past(self) -> Iterator[None]:
        """Makes moto's listings show the state of `lag` seconds ago. Call it with the lock held."""
        if not self.lag:
            yield
            return
        then = clock.monotonic() - self.lag
        undo: list[Callable[[], None]] = []
        for life in self._lives.values():
            self._show_as_of(life, then, undo)
        try:
            yield
        finally:
            for step in reversed(undo):
                step()

    def _show_as_of(self, life: Life, then: float, undo: list[Callable[[], None]]) -> None:
        backend, instance = ec2_backends[ACCOUNT][life.region], life.instance
        was = [state for when, state in life.history if when <= then]
        if was:
            state = instance._state
            instance._state = InstanceState(was[-1], CODES[was[-1]])
            undo.append(lambda: setattr(instance, "_state", state))
            return
        for reservation in list(backend.reservations.values()):
            if instance in reservation.instances:
                kept = list(reservation.instances)
                reservation.instances.remove(instance)
                undo.append(lambda r=reservation, k=kept: setattr(r, "instances", k))  # type: ignore[misc]
        if life.spot is not None and life.spot.id in backend.spot_instance_requests:
            spot = backend.spot_instance_requests.pop(life.spot.id)
            undo.append(lambda: backend.spot_instance_requests.update({spot.id: spot}))

    def _later(self, life: Life, seconds: float, act: Callable[[], None]) -> None:
        def run() -> None:
            with self.lock:
                if self._lives.get(life.instance.id) is life:
                    act()

        life.timers.append(self._timers.after(seconds, run))

    def _cancel(self, life: Life) -> None:
        for timer in life.timers:
            with contextlib.suppress(RuntimeError):
                timer.cancel()
        life.timers.clear()
