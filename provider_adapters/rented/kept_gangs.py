"""Gangs of rented machines that their task has finished with, and that another task of the same FLOW_HOME takes over.

A gang is the machines of one launch. The launch's file in the ledger says which task has it, so that it is handed over
by writing one file, and no call to the cloud is needed. The machines' tags still name the task that they were launched
for; the ledger knows better. In the launch:

    frozen["fits"]    hash of what a task must ask for so that it may take the gang over; without it, it is never kept
    notes["kept"]     {"until"}: it is kept until then
    notes["held"]     {"token", "at", "hold"}: it was taken over by this launch of `Launch.task`

Kept machines have a lease that ends with the time for which they are kept. A gang is kept only once all of them have
it, and taken over only once all of them have the longer lease of machines with an agent, so that a crash at any point
leaves machines that end themselves. Who ends a gang marks it as not kept first, under the same lock.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flowlite.errors import FlowError, ProviderError
from flowlite.provider import Instance, LaunchIntent, Plan
from flowlite.state import clock
from provider_adapters.rented import machine_hand_over
from provider_adapters.rented.ledger import Launch, Ledger, hash_of
from provider_adapters.rented.preparation import make_ready
from provider_adapters.ssh.hosts import everywhere
from provider_adapters.ssh.leases import find_agent

if TYPE_CHECKING:
    from flowlite.connect.base import Connection

log = logging.getLogger("flowlite.rented")

POOL = "pool"
"""Option of a plan: the sweep whose tasks share machines."""
LONGER_LIFE = 86400.0
"""How much later than its first task needs it a machine that may be handed on may end, in seconds."""
# A gang whose time is nearly over is not taken over, and one that would be kept for less is given back.
_SHORTEST = 5.0
_MARGIN = 2.0
# Of a plan's options, those in which plans of tasks that may share machines differ.
_VARYING = frozenset({"places", "name", "reservation_ends"})
_TROUBLE = (ProviderError, OSError)


def fits(intent: LaunchIntent) -> str:
    """What the machines of a launch have to fit; "" if they are only for its task."""
    plan = Plan.from_json(intent.plan)
    whole = intent.count == intent.fewest == plan.num_instances and not intent.beside
    if not whole or plan.spares or plan.min_instances or plan.warm_seconds <= 0:
        return ""
    # What is attached to a machine, or runs with it, stays with its task.
    if any(plan.options.get(name) for name in ("volumes", "container", "reservation_ends")):
        return ""
    return hash_of(
        {
            "type": plan.instance_type,
            "nodes": plan.num_instances,
            "market": [plan.spot, plan.price_cap],
            "settings": plan.settings,
            "options": {k: v for k, v in plan.options.items() if k not in _VARYING},
        }
    )


def is_kept(launch: Launch) -> bool:
    """Whether the machines of a launch are kept for another task now."""
    return float(launch.notes.get("kept", {}).get("until", 0.0)) > clock.now()


def as_held(instance: Instance, launch: Launch) -> Instance:
    """An instance, as it was launched or is listed, as an instance of the task that has it now."""
    state = "warm" if instance.state == "running" and is_kept(launch) else instance.state
    found = replace(instance, task_id=launch.task, state=state)
    if held := launch.notes.get("held"):
        since = max(float(held["at"]), instance.launched_at)
        data = dict(instance.data)
        if "root" in data:
            data["home"] = f"{data['root']}/tasks/{launch.task}-{instance.id}"
        # What is left of the minimum time is charged to the task that has it last.
        least = instance.least_seconds - (since - instance.launched_at)
        return replace(
            found,
            data=data,
            launch=str(held["token"]),
            launched_at=since,
            least_seconds=max(0.0, least),
            hold=int(held["hold"]),
        )
    return found


class KeptGangs:
    """The gangs of one provider and FLOW_HOME."""

    def __init__(
        self,
        home: Path,
        ledger: Ledger,
        connect: Callable[[Mapping[str, Any]], Connection],
    ) -> None:
        """
        Args:
            connect: A connection to the machine with this `Instance.data`.
        """
        self._home = home
        self._ledger = ledger
        self._connect = connect

    def keep(self, instances: Sequence[Instance], seconds: float) -> list[Instance]:
        """Keeps the machines of a task for another one, if they are one whole gang. As `Provider.keep`."""
        until = clock.now() + seconds - _MARGIN
        launch = self._launch_of(instances)
        if launch is None or seconds < _SHORTEST + _MARGIN:
            return []
        token = launch.token
        with self._ledger.hold(token):
            launch = self._ledger.read(token) or launch
            if not self._may_be_kept(launch, instances):
                return []
            try:
                agent = find_agent(self._home, None).path
            except ProviderError as error:
                log.debug("%s is not kept: %s", token, error)
                return []

            def keep(instance: Instance) -> None:
                with self._connect(instance.data) as connection:
                    task = instance.task_id
                    machine_hand_over.keep(connection, instance.data, agent, task, seconds)

            for each in everywhere(instances, keep, *_TROUBLE):
                if isinstance(each, Exception):
                    log.debug("%s is not kept: %s", token, each)
                    return []
            self._ledger.note(token, kept={"until": until})
        return [replace(each, state="warm") for each in instances]

    def still(self, instances: Sequence[Instance]) -> list[Instance]:
        """Those of some kept machines that are still kept for a task after this one."""
        return [
            each
            for each in instances
            if (launch := self._of(each)) and launch.task == each.task_id and is_kept(launch)
        ]

    def to_end(self, instances: Iterable[Instance]) -> list[Instance]:
        """Those of some machines that may be ended: that no other task has taken over, nor will from now on."""
        found = []
        for each in instances:
            launch = self._of(each)
            if launch is None or launch.ended:
                found.append(each)
                continue
            with self._ledger.hold(launch.token):
                launch = self._ledger.read(launch.token) or launch
                if launch.task == each.task_id:
                    if "kept" in launch.notes:
                        self._ledger.note(launch.token, kept=None)
                    found.append(each)
        return found

    def held_by(self, intent: LaunchIntent) -> Launch | None:
        """The launch whose machines this intent has taken over."""
        mine = self._ledger.launches(intent.task_id)
        token = intent.token
        return next((e for e in mine if e.notes.get("held", {}).get("token") == token), None)

    def kept_for(self, intent: LaunchIntent) -> list[Launch]:
        """The launches whose machines are kept, and are what this intent asks for."""
        if not (wanted := fits(intent)):
            return []
        return [
            each
            for each in self._ledger.launches()
            if not each.ended and each.frozen.get("fits") == wanted and is_kept(each)
        ]

    def take(
        self,
        launch: Launch,
        intent: LaunchIntent,
        instances: Callable[[Launch], Sequence[Instance]],
        lease: float,
        longest: float | None,
    ) -> Launch | None:
        """Hands a kept gang to the task of an intent, once all its machines have answered. It may have it already.

        Args:
            instances: Lists the machines of a launch that run, with their data of first contact.
            lease: Seconds without an agent after which a machine ends itself.
            longest: Seconds from now on after which it ends itself in any case; None for no limit.

        Returns:
            The launch as it is now; None if it is not kept any more, or a machine is gone or does not answer.
        """
        token = launch.token
        with self._ledger.hold(token):
            now = self._ledger.read(token)
            if now is None or now.ended or not (is_kept(now) or self._has(now, intent)):
                return None
            found = list(instances(now))
            if {each.id for each in found} != set(now.ids) or len(found) != intent.count:
                return None
            agent = intent.preload.get("agent")

            def take(instance: Instance) -> None:
                with self._connect(instance.data) as connection:
                    machine_hand_over.take(connection, lease, longest)
                    make_ready(connection, instance.data, Path(str(agent)) if agent else None)

            for each in everywhere(found, take, *_TROUBLE):
                if isinstance(each, Exception):
                    log.debug("%s is not taken over: %s", token, each)
                    return None
            if self._has(now, intent):
                return now
            before = now.notes.get("held", {})
            charged = [each.launched_at for each in found]
            held = {
                "token": intent.token,
                "at": max(clock.now(), *charged),
                "hold": int(before.get("hold", 0)) + 1,
            }
            return self._ledger.hand_over(token, intent.task_id, held=held, kept={})

    def lost(self, launch: Launch) -> None:
        """Records that the task that has taken over these machines launches others. They are not of its launch then."""
        held = (self._ledger.read(launch.token) or launch).notes.get("held")
        if held:
            self._ledger.note(launch.token, held={**held, "token": f"{held['token']}-lost"})

    # Helpers

    def _has(self, launch: Launch, intent: LaunchIntent) -> bool:
        held = launch.notes.get("held", {})
        return launch.task == intent.task_id and held.get("token") == intent.token

    def _of(self, instance: Instance) -> Launch | None:
        """The launch that has created a machine, if the ledger knows it."""
        token = str(instance.data.get("token") or "")
        try:
            return self._ledger.read(token) if token else None
        except FlowError:
            return None

    def _launch_of(self, instances: Sequence[Instance]) -> Launch | None:
        """The one launch that has created all these machines; None if there are several."""
        found = {each.token: each for i in instances if (each := self._of(i)) is not None}
        return next(iter(found.values())) if len(found) == 1 else None

    def _may_be_kept(self, launch: Launch, instances: Sequence[Instance]) -> bool:
        task = {each.task_id for each in instances}
        whole = {each.id for each in instances} == set(launch.ids)
        running = all(each.state == "running" for each in instances)
        fit = launch.frozen.get("fits") and not launch.ended
        return bool(fit and whole and running and task == {launch.task})
