"""Gangs of machines that their task has finished with, and that another task of the same FLOW_HOME takes over.

A gang is the machines of one launch. The launch's file in the ledger says which task has it, so that it is handed over
by writing one file, and no call to the cloud is needed. The machines' tags, or the comment of a Slurm job, still name
the task that they were launched for; the ledger knows better. In the launch:

    frozen["fits"]    what a task must ask for to take the gang over (`gang_fit.py`); without it, it is never kept
    notes["kept"]     {"until"}: it is kept until then; {"ending"}: somebody began to end it
    notes["held"]     {"token", "at", "hold"}: it was taken over by this launch of `Launch.task`

Kept machines have a lease that ends with the time for which they are kept. A gang is kept only once all of them have
it, and taken over only once all of them have the longer lease of machines with an agent, so that a crash at any point
leaves machines that end themselves. Who ends a gang marks it as not kept first, under the same lock.

What differs between providers is `GangMachines`, how machines are kept and taken over, and `GangCloud`, which kept
machines one launch can use, which of them run, and how they end.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Protocol

from flowlite.errors import FlowError, ProviderError
from flowlite.provider import Instance, LaunchIntent, LaunchPending
from flowlite.state import clock
from provider_adapters.rented.ledger import Launch, Ledger

log = logging.getLogger("flowlite.rented")

# A gang whose time is nearly over is not taken over, and one that would be kept for less is given back.
_SHORTEST = 5.0
_MARGIN = 2.0
_TROUBLE = (ProviderError, OSError)


class GangMachines(Protocol):
    """The machines of a provider. Methods may be called again."""

    def token_of(self, instance: Instance) -> str:
        """The token of the launch that has created a machine; "" if it is not known."""

    def names_of(self, launch: Launch) -> set[str]:
        """The ids of all machines of a launch."""

    def keep(self, launch: Launch, instances: Sequence[Instance], seconds: float) -> None:
        """Ends the task on machines, which end themselves after this time. Its imports stay.

        Raises:
            ProviderError, OSError: One of them cannot be kept.
        """

    def take(self, launch: Launch, instances: Sequence[Instance], intent: LaunchIntent) -> None:
        """Has kept machines live on, as long as the task of the intent needs them.

        Raises:
            ProviderError, OSError: One of them does not answer, or cannot be taken over.
        """


class GangCloud(Protocol):
    """The machines of launches, for one intent."""

    def is_suitable(self, launch: Launch) -> bool:
        """Whether kept machines are at a place of the plan, no dearer than it says, and may live for long enough."""

    def running(self, launch: Launch) -> Sequence[Instance]:
        """The machines of a launch that run, with their data of first contact. Raises ProviderError."""

    def end(self, launch: Launch) -> None:
        """Ends the machines of a launch, unless another task than `launch.task` has them. Raises ProviderError."""


def is_kept(launch: Launch) -> bool:
    """Whether the machines of a launch are kept for another task now."""
    return float(launch.notes.get("kept", {}).get("until", 0.0)) > clock.now()


def as_held(instance: Instance, launch: Launch) -> Instance:
    """An instance, as it was launched or is listed, as an instance of the task that has it now."""
    state = instance.state
    if state in ("running", "warm"):
        state = "warm" if is_kept(launch) else "running"
    found = replace(instance, task_id=launch.task, state=state)
    if held := launch.notes.get("held"):
        # What is not charged yet has no time.
        since = instance.launched_at and max(float(held["at"]), instance.launched_at)
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

    def __init__(self, ledger: Ledger, machines: GangMachines) -> None:
        self._ledger = ledger
        self._machines = machines

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
                self._machines.keep(launch, instances, seconds)
            except _TROUBLE as error:
                log.debug("%s is not kept: %s", token, error)
                return []
            self._ledger.note(token, kept={"until": until})
        return [replace(each, state="warm") for each in instances]

    def still(self, instances: Sequence[Instance]) -> list[Instance]:
        """Those of some kept machines that no task has taken over, and that are not known to have ended.

        Who ended them may have been killed before the cloud was asked.
        """
        return [
            each
            for each in instances
            if (launch := self._of(each)) and launch.task == each.task_id and not launch.ended
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
                    if launch.notes.get("kept"):
                        self._ledger.note(launch.token, kept={"ending": True})
                    found.append(each)
        return found

    def take_over(
        self, intent: LaunchIntent, wanted: str, cloud: GangCloud, *, patience: float
    ) -> list[Instance]:
        """The machines of another task for this intent, if there are some that are kept, or that it has taken over.

        Those that are gone or do not answer are ended. Those that the cloud cannot tell of are left to other tasks.

        Args:
            wanted: What they have to fit (`fits`).
            patience: For how many seconds machines that were taken over are asked for again if the cloud does not
                answer.

        Raises:
            LaunchPending: Some were taken over, and the cloud does not answer.
            ProviderError: They cannot be ended.
        """
        held = self.held_by(intent)
        if held is None:
            for launch in self._half_ended(wanted):
                # If the cloud does not answer now, the next one to list the launch ends it.
                with suppress(*_TROUBLE):
                    self._end(launch, cloud)
        for launch in [held] if held is not None else self.kept_for(wanted):
            try:
                if held is None and not cloud.is_suitable(launch):
                    continue
                if found := self._take(launch, intent, cloud):
                    return sorted(found, key=lambda each: each.id)
            except ProviderError as error:
                mine = self.held_by(intent)
                if mine is None:
                    # The cloud is asked for others as without them.
                    continue
                if clock.now() - float(mine.notes["held"]["at"]) < patience:
                    raise LaunchPending(f"{error}; it is asked again", 1.0) from error
            if self._is_given_up(launch, intent):
                self._end(launch, cloud)
        return []

    def held_by(self, intent: LaunchIntent) -> Launch | None:
        """The launch whose machines this intent has taken over."""
        mine = self._ledger.launches(intent.task_id)
        return next((each for each in mine if _has(each, intent)), None)

    def kept_for(self, wanted: str) -> list[Launch]:
        """The launches whose machines are kept, and fit."""
        return [each for each in self._fitting(wanted) if is_kept(each)]

    # Helpers

    def _half_ended(self, wanted: str) -> list[Launch]:
        """The launches that fit, and that somebody began to end who may have been killed before the cloud was asked."""
        return [each for each in self._fitting(wanted) if each.notes.get("kept", {}).get("ending")]

    def _end(self, launch: Launch, cloud: GangCloud) -> None:
        cloud.end(launch)
        # Nobody has to ask for that again.
        self._ledger.note(launch.token, kept=None)

    def _fitting(self, wanted: str) -> list[Launch]:
        if not wanted:
            return []
        return [each for each in self._ledger.live() if each.frozen.get("fits") == wanted]

    def _take(self, launch: Launch, intent: LaunchIntent, cloud: GangCloud) -> list[Instance]:
        """Hands a gang to the task of an intent, once all its machines have answered. It may have it already.

        Returns:
            The machines; an empty list if the gang is not kept any more, or one of them is gone or does not answer.
        """
        token = launch.token
        with self._ledger.hold(token):
            now = self._ledger.read(token)
            if now is None or now.ended or not (is_kept(now) or _has(now, intent)):
                return []
            found = list(cloud.running(now))
            names = {each.id for each in found}
            if names != self._machines.names_of(now) or len(found) != intent.count:
                return []
            try:
                self._machines.take(now, found, intent)
            except _TROUBLE as error:
                log.debug("%s is not taken over: %s", token, error)
                return []
            if not _has(now, intent):
                before = now.notes.get("held", {})
                charged = [each.launched_at for each in found]
                held = {
                    "token": intent.token,
                    "at": max(clock.now(), *charged),
                    "hold": int(before.get("hold", 0)) + 1,
                }
                now = self._ledger.hand_over(token, intent.task_id, held=held, kept={})
            return [as_held(each, now) for each in found]

    def _is_given_up(self, launch: Launch, intent: LaunchIntent) -> bool:
        """Whether these machines, not all of which answer, are to be ended: no other task has taken them over.

        If this intent had taken them over, they are not of its launch any more, since others are launched.
        """
        with self._ledger.hold(launch.token):
            now = self._ledger.read(launch.token) or launch
            if _has(now, intent):
                held = now.notes["held"]
                self._ledger.note(launch.token, held={**held, "token": f"{held['token']}-lost"})
                return True
            return is_kept(now)

    def _of(self, instance: Instance) -> Launch | None:
        """The launch that has created a machine, if the ledger knows it."""
        token = self._machines.token_of(instance)
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
        whole = {each.id for each in instances} == self._machines.names_of(launch)
        running = all(each.state == "running" for each in instances)
        fit = launch.frozen.get("fits") and not launch.ended
        return bool(fit and whole and running and task == {launch.task})


def _has(launch: Launch, intent: LaunchIntent) -> bool:
    """Whether this intent has taken the machines of a launch over."""
    held = launch.notes.get("held", {})
    return launch.task == intent.task_id and held.get("token") == intent.token
