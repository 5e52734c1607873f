"""Hosts that are kept warm for the next task of the same FLOW_HOME, with their leases and imported modules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from flowlite.errors import ProviderError
from flowlite.provider import Instance
from flowlite.state import clock
from provider_adapters.ssh import hosts, leases, records
from provider_adapters.ssh.pools import Host
from provider_adapters.ssh.records import Records

_TROUBLE = (*hosts.TROUBLE, leases.NotThere)


class WarmHosts:
    """The hosts that are kept, as far as this FLOW_HOME knows. Each ends its lease by itself when the time is over."""

    def __init__(self, kept: Records) -> None:
        self._records = kept
        # The records of tasks whose hosts a launch takes over, each read once. What one says of a host stays true until
        # this launch takes it: the host itself says whose it was.
        self._before: dict[str, records.Entries] = {}

    def keep(self, instances: Sequence[Instance], seconds: float) -> list[Instance]:
        """Keeps the hosts of these instances, with the task's files removed; returns those that are kept."""
        self._forget_old()
        until = clock.now() + seconds

        def keep(instance: Instance) -> Instance:
            with hosts.connect_to(instance.data["target"]) as connection:
                client = self._records.client
                answer = leases.keep(connection, instance, client, seconds)
            if not answer["ok"]:
                raise ProviderError(str(answer.get("error") or "its lease is not ours any more"))
            return replace(instance, state="warm")

        results = hosts.everywhere(instances, keep, *_TROUBLE)
        kept = [result for result in results if isinstance(result, Instance)]
        for task in {instance.task_id for instance in kept}:
            with self._records.change(task) as entries:
                for instance in (each for each in kept if each.task_id == task):
                    entry = entries.setdefault(str(instance.data["key"]), {})
                    entry |= {"state": records.WARM, "until": until}
        return kept

    def hosts(self) -> set[str]:
        """Keys of the hosts that are kept now."""
        now = clock.now()
        return {
            key
            for entries in self._records.of_all(state=records.WARM).values()
            for key, entry in entries.items()
            if entry["state"] == records.WARM and entry["until"] > now
        }

    def still(self, instances: Sequence[Instance]) -> list[Instance]:
        """The instances that were neither taken over nor released, and whose time is not over."""
        there = self.hosts()
        kept = {task: self._records.read(task) for task in {each.task_id for each in instances}}
        return [
            instance
            for instance in instances
            if (entry := kept[instance.task_id].get(str(instance.data["key"])))
            and entry["state"] == records.WARM
            and str(instance.data["key"]) in there
        ]

    def noted(self, host: Host, told: Mapping[str, Any] | None) -> dict[str, Any]:
        """The {"task", "instance"} that a warm host reports, if our records say the same; else {}."""
        if not told or not told.get("task"):
            return {}
        task = str(told["task"])
        if task not in self._before:
            self._before[task] = self._records.read(task)
        entry = self._before[task].get(host.key) or {}
        known = (entry.get("instance") or {}).get("id")
        return dict(told) if known and known == told.get("instance") else {}

    def taken_over(self, instances: Sequence[Instance]) -> None:
        """Records that another task has taken over the hosts of these instances."""
        before: dict[str, list[str]] = {}
        for instance in instances:
            was = instance.data.get("warm") or {}
            if was.get("task") and was["task"] != instance.task_id:
                before.setdefault(str(was["task"]), []).append(str(instance.data["key"]))
        for task, keys in before.items():
            with self._records.change(task) as entries:
                for key in keys:
                    entries.pop(key, None)

    def _forget_old(self) -> None:
        now = clock.now()
        for task, kept in self._records.of_all(state=records.WARM).items():
            if any(each.get("until", now) < now for each in kept.values()):
                with self._records.change(task) as entries:
                    for key, entry in list(entries.items()):
                        if entry["state"] == records.WARM and entry["until"] < now:
                            del entries[key]
