"""Follows machines while they boot, without blocking: EC2 is asked ever more rarely, the machines' ports often."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from flowlite.errors import CapacityUnavailable, FlowError, ProviderError
from flowlite.provider import Instance, LaunchPending, Plan
from flowlite.provider.durations import duration
from flowlite.state import clock
from provider_adapters.aws import network
from provider_adapters.aws.catalog.zone_order import sites_of
from provider_adapters.aws.context import Context, region_of
from provider_adapters.aws.ending import Ending
from provider_adapters.aws.errors import CredentialsRefused, NoAnswer, NotKnownYet
from provider_adapters.aws.instances import charged
from provider_adapters.aws.listing import Listing
from provider_adapters.aws.service import Service
from provider_adapters.rented.cloud_polls import PORTS
from provider_adapters.rented.ledger import Call, Launch

_CONSOLE_LINES = 6
# How often EC2 is asked whether machines that only have to answer still exist.
_STILL_THERE_SECONDS = 30.0
_ALIVE = ("starting", "running")
# Not failures of the machines: there was no capacity for them after all.
_NO_ROOM = (
    "Server.InsufficientInstanceCapacity",
    "Server.SpotInstanceTermination",
    "Server.SpotInstanceShutdown",
)


class BootingMachines:
    """The machines that one call has created."""

    def __init__(
        self,
        context: Context,
        listing: Listing,
        plan: Plan,
        launch: Launch,
        call: Call,
        fewest: int,
        agent: Path | None,
    ) -> None:
        """
        Args:
            fewest: How many of them have to get ready. EC2 may take back the others while they boot.
        """
        self._context = context
        self._listing = listing
        self._plan = plan
        self._launch = launch
        self._call = call
        self._fewest = fewest
        self._agent = agent
        self._region = region_of(call)
        self._nodes: dict[str, dict[str, str]] = {
            name: {"private": "", "public": "", **launch.notes.get("nodes", {}).get(name, {})}
            for name in call.ids
            if name not in launch.notes.get("taken", ())
        }
        # The listing that this process made once it knew their addresses; without one, they are listed before they are
        # handed out.
        self._looked_at, known = context.seen.get(launch.token, (-math.inf, {}))
        self._listed = {name: each for name, each in known.items() if name in self._nodes}

    def run(self) -> list[Instance]:
        """The instances, ready for agents.

        Raises:
            LaunchPending: Not all of them answer yet.
            ProviderError: A machine has died, or takes too long; all of them are being ended.
        """
        token = self._launch.token
        looked = self._is_due()
        if looked:
            try:
                self._look()
            except (NoAnswer, CredentialsRefused):
                # Those that are up are reached without AWS.
                if len(self._listed) < len(self._nodes) or not self._reachable():
                    raise
                self._context.looks.looked(token)
        if not self._reachable():
            self._not_yet("EC2 has given no address yet", self._without_address())
        from provider_adapters.rented.first_contact import (
            SILENT,
            WRONG,
            ReadyMachine,
            holding_up,
        )

        results = self._context.contact.reach(
            [self._place(name, node) for name, node in self._nodes.items()],
            task=self._launch.task,
            minor=self._plan.options.get("minor"),
            agent=self._agent,
        )
        missing = holding_up(results)
        if wrong := next((each for each in missing if each.stage == WRONG), None):
            self._fail(f"{wrong.id} cannot be used: {wrong.why}")
        if missing:
            if looked and missing[0].stage == SILENT:
                # Our own address may have changed since the launch.
                network.let_in_again(self._context, [self._launch.task])
            if looked:
                self._begin_mounts()
            self._not_yet(missing[0].why, [each.id for each in missing])
        met = {each.id: each.data for each in results if isinstance(each, ReadyMachine)}
        mounts = self._mounted()
        if len(self._listed) < len(self._nodes):
            # The time from which it is charged is only known from the listing.
            self._look()
        self._context.ledger.note(token, met=met, mounts=mounts)
        return [self._instance(name, met[name], mounts) for name in sorted(self._nodes)]

    def give_up(self, message: str) -> None:
        """Ends the machines, since the launch has failed for good."""
        self._context.ledger.note(self._launch.token, failed=message)
        self._end()

    # Listing

    def _reachable(self) -> bool:
        """Whether the addresses of all machines are known."""
        return not self._without_address()

    def _without_address(self) -> list[str]:
        """The machines whose addresses are not known."""
        return sorted(name for name, node in self._nodes.items() if not self._address(node))

    def _is_due(self) -> bool:
        """Whether to ask EC2 now; rarely, once all that is missing is the machines' own answer."""
        token = self._launch.token
        if not self._context.looks.due(token):
            return False
        since = clock.monotonic() - self._looked_at
        return not self._reachable() or since >= _STILL_THERE_SECONDS

    def _look(self) -> None:
        """Lists the machines in one call."""
        found = self._listing.of_launch(self._region, self._launch.token)
        self._context.looks.looked(self._launch.token)
        self._listed = {each.id: each for each in found if each.id in self._nodes}
        self._context.seen[self._launch.token] = clock.monotonic(), self._listed
        for name, instance in self._listed.items():
            self._nodes[name] = {
                "private": instance.address,
                "public": str(instance.data["public"]) or self._nodes[name]["public"],
            }
        self._context.ledger.note(self._launch.token, nodes=self._nodes)
        self._go_on_without_taken()
        age = clock.now() - self._call.at
        there = [self._listed[name] for name in sorted(self._listed)]
        if dead := [each for each in there if each.state not in _ALIVE]:
            # Where EC2 has taken one back, the others may be ending for that.
            self._died(next(filter(_is_taken_back, dead), dead[0]))
        missing = sorted(self._nodes.keys() - self._listed.keys())
        if missing and age > self._context.settings.listing_lag:
            self._fail(f"{missing[0]} is not listed by EC2")

    def _address(self, node: Mapping[str, str]) -> str:
        return node["public"] if self._context.settings.public_ip else node["private"]

    def _place(self, name: str, node: Mapping[str, str]) -> Any:
        from provider_adapters.rented.first_contact import MachineAccess

        settings = self._context.settings
        return MachineAccess(
            id=name,
            address=self._address(node),
            host_key=str(self._launch.frozen["host_key"]),
            user=settings.user,
            jump=settings.jump,
        )

    def _begin_mounts(self) -> None:
        """Starts creating mounts while the machines boot, since it takes about as long. Raises ProviderError."""
        with suppress(CapacityUnavailable, LaunchPending):
            self._mounted()

    def _mounted(self) -> list[dict[str, Any]]:
        """The mounts of the nodes. Ends the machines if they cannot be created, or not in time.

        Raises:
            LaunchPending: They are still being created.
            ProviderError: They cannot be created; the machines are being ended, unless AWS has not answered.
        """
        try:
            return self._mounts()
        except (NoAnswer, NotKnownYet):
            raise
        except (CapacityUnavailable, LaunchPending) as error:
            self._check_time(str(error), [])
            raise
        except ProviderError as error:
            self.give_up(str(error))
            raise

    def _mounts(self) -> list[dict[str, Any]]:
        """The mounts of the nodes. Raises LaunchPending while they are being created."""
        here = self._launch.notes.get("groups", {}).get(self._region, {})
        if not here.get("volumes"):
            return []
        if self._launch.notes.get("mounts"):
            return list(self._launch.notes["mounts"])
        from provider_adapters.aws.storage.common import LaunchLocation

        sites = sites_of(self._plan.options["places"])
        site = next(each for each in sites if each.where == self._call.where)
        location = LaunchLocation(
            zone=site.zone,
            vpc=site.vpc,
            subnet=site.subnet,
            group=next(iter(here.get("volume_groups", [])), ""),
            devices=tuple(site.image.get("disks", ())),
        )
        volumes = self._context.volumes(self._region)
        return volumes.attach(here["volumes"], location, sorted(self._nodes), self._launch.task)

    def _instance(
        self, name: str, met: Mapping[str, Any], mounts: Sequence[Mapping[str, Any]]
    ) -> Instance:
        listed = self._listed.get(name)
        data = dict(listed.data) if listed is not None else {"region": self._region}
        instance = Instance(
            id=name,
            task_id=self._launch.task,
            state="running",
            address=self._nodes[name]["private"],
            price_per_hour=float(self._call.parameters["price"]),
            launched_at=listed.launched_at if listed is not None else self._call.at,
            data={**data, **met, "mounts": [dict(each) for each in mounts]},
        )
        return charged(instance, self._call)

    # Failures

    def _check_time(self, why: str, missing: Sequence[str]) -> None:
        """Ends the machines once the boot timeout has passed, and raises ProviderError then."""
        age, just_woke = clock.now() - self._call.at, self._context.suspends.just_woke()
        if age > self._context.settings.boot_timeout and not just_woke:
            name = missing[0] if missing else next(iter(sorted(self._nodes)))
            self._fail(
                f"{name} was not ready within {duration(round(age))}: {why}{self._console(name)}. More time: [aws] "
                "boot_timeout"
            )

    def _not_yet(self, why: str, missing: Sequence[str]) -> None:
        self._check_time(why, missing)
        count = len(self._nodes)
        waiting = len(missing) or count
        raise LaunchPending(
            f"{waiting} of {count} nodes are still starting ({why})",
            PORTS
            if self._reachable()
            else self._context.looks.pause(self._launch.token, addresses_known=False),
        )

    def _go_on_without_taken(self) -> None:
        """Leaves out machines that EC2 has taken back, if enough are left."""
        taken = [name for name, each in self._listed.items() if _is_taken_back(each)]
        if not taken or len(self._nodes) - len(taken) < self._fewest:
            return
        for name in taken:
            del self._nodes[name], self._listed[name]
        before = self._launch.notes.get("taken", ())
        self._launch = self._context.ledger.note(self._launch.token, taken=[*before, *taken])

    def _died(self, instance: Instance) -> None:
        """Raises because a machine has ended before it was ready, which makes the others useless."""
        why = instance.why or f"it is {instance.data.get('ec2_state')}"
        if _is_taken_back(instance):
            # Others are launched in their place, and until the end of the task nobody would end these again.
            self._end_all()
            told, code = f"EC2 has taken {instance.id} back: {why}", str(instance.data["code"])
            detail = {"over": True, "kind": "capacity", "code": code, "message": told}
            self._context.ledger.made(self._launch.token, self._call.name, [], detail)
            raise LaunchPending(told, 1.0)
        self._fail(f"{instance.id} ended while it booted: {why}{self._console(instance.id)}")

    def _fail(self, message: str) -> None:
        self.give_up(message)
        raise ProviderError(message)

    def _end(self) -> None:
        # The end of the task tries again until they are gone.
        with suppress(FlowError):
            self._end_all()

    def _end_all(self) -> None:
        """Ends all machines of the launch. Raises ProviderError."""
        self._context.forget(self._launch.token)
        Ending(self._context).end(
            [
                self._listed.get(name)
                or Instance(name, self._launch.task, data={"region": self._region})
                for name in self._nodes
            ]
        )

    def _console(self, name: str) -> str:
        """The last lines of a machine's console, if EC2 has them."""
        with suppress(FlowError):
            ec2 = Service.of(self._context.clients, "ec2", self._region)
            told = ec2.call("GetConsoleOutput", InstanceId=name)
            lines = [line.rstrip() for line in str(told.get("Output") or "").splitlines()]
            if last := [line for line in lines if line][-_CONSOLE_LINES:]:
                return "; the end of its console:\n  " + "\n  ".join(last) + "\n"
        return ""


def _is_taken_back(instance: Instance) -> bool:
    """Whether EC2 has ended a machine for which there was no capacity after all."""
    return instance.state not in _ALIVE and instance.data.get("code") in _NO_ROOM
