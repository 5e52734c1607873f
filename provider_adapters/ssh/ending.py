"""Releases hosts, including those that do not answer.

A host that cannot be reached costs nothing, and what runs there ends by itself: its workers once their leader has been
silent for half a minute, its lease once it has no agent. A dead host therefore does not hold up the end of a task. It
is given up after several failed tries if another host of the pool answers, which proves that our own network works. If
none answers, the cause is not known, and we wait a while for the network to return. A host that was given up is asked
again repeatedly (`revisit`), by the next launch and by `flow gc`, and is released as soon as it answers.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from flowlite.errors import NodeUnreachable, ProviderError
from flowlite.provider import Instance
from flowlite.state import clock
from provider_adapters.ssh import hosts, leases, records
from provider_adapters.ssh.pools import Host
from provider_adapters.ssh.records import Records
from provider_adapters.ssh.unfit_hosts import UnfitHosts

# An sshd that only restarts is back within this time. A host that was found dead before is not waited for.
SILENT_SECONDS = 10.0
# With no host within reach the network may be at fault: how long to wait for it.
PATIENCE_SECONDS = 120.0
# A host that has answered within this time is not asked whether it does.
_JUST_NOW = 1.0


class Ending:
    """Ends instances, and tracks since when hosts have been unreachable.

    Attributes:
        lapsed: Keys of hosts on which a lease has ended by itself.
    """

    def __init__(self, kept: Records, unfit: UnfitHosts) -> None:
        self._records = kept
        self._unfit = unfit
        self._alone_since: dict[str, float] = {}
        self._answered: dict[str, float] = {}
        self.lapsed: set[str] = set()

    def has_answered(self, key: str) -> None:
        """Notes that a host has answered now."""
        self._answered[key] = time.monotonic()

    def end(self, instances: Sequence[Instance]) -> None:
        """Releases the hosts of these instances, and removes the task's files from those that answer.

        Raises:
            ProviderError: Some processes do not end, or no host can be reached; to be tried again.
        """
        # The supervisor has found already that these do not answer.
        self._give_up([each for each in instances if each.state == "unreachable"])
        instances = [each for each in instances if each.state != "unreachable"]
        silent, told = self._who_is_silent(instances)
        answering = [instance for instance in instances if instance not in silent]
        retaining = self._records.retaining(answering)
        results = hosts.everywhere(
            answering, lambda each: self._release(each, retain=each.id in retaining), *hosts.TROUBLE
        )
        pairs = list(zip(answering, results, strict=True))
        released = [each for each, result in pairs if not isinstance(result, Exception)]
        self._records.drop(released)
        self._unfit.well(released)
        for instance, result in pairs:
            if isinstance(result, NodeUnreachable | OSError):
                silent.append(instance)
            if isinstance(result, Exception):
                told[instance.id] = str(result) or type(result).__name__
        for instance in instances:
            if instance not in silent:
                self._alone_since.pop(instance.id, None)
        if (
            silent
            and self._waited(silent, SILENT_SECONDS)
            and (
                len(silent) < len(instances)
                or self.answers_beside(silent)
                or self._waited(silent, PATIENCE_SECONDS)
            )
        ):
            self._give_up(silent)
            told = {name: why for name, why in told.items() if name not in {i.id for i in silent}}
        if told:
            raise ProviderError("; ".join(f"{name}: {why}" for name, why in told.items()))

    def revisit(self) -> None:
        """Releases hosts of all tasks that were given up and answer now."""
        self._free(self._records.left())

    def tidy_up(self, instances: Sequence[Instance]) -> None:
        """Removes the files of instances whose lease has ended by itself, as on a host that was restarted.

        Hosts that do not answer are asked again, like others that were given up.
        """
        given_up = self._records.give_up(instances)
        self.lapsed |= {str(Instance.from_json(each["instance"]).data["key"]) for each in given_up}
        self._free(given_up, hosts.PATIENCE)

    def _free(self, given_up: Sequence[records.Entry], patience: float | None = None) -> None:
        def free(entry: records.Entry) -> None:
            instance = Instance.from_json(entry["instance"])
            with hosts.connect_to(instance.data["target"]) as connection:
                answer = leases.release(
                    connection,
                    instance.data,
                    instance.task_id,
                    self._records.client,
                    retain=bool(entry.get("retained")),
                    # The same task may have leased the host again.
                    token=str(entry["token"]),
                )
            if answer["ok"]:
                self._records.forget_left(entry)

        trouble = (*hosts.TROUBLE, leases.NotThere)
        results = hosts.everywhere(given_up, free, *trouble, patience=patience)
        for entry, result in zip(given_up, results, strict=True):
            if isinstance(result, leases.NotThere):
                # The host has lost its disk, and with it all of our files.
                self._records.forget_left(entry)

    def forget(self, instances: Sequence[Instance]) -> None:
        """Removes files that were retained on released hosts. Raises ProviderError.

        On a host that has removed our program since, they are removed when they have not been used for long.
        """

        def forget(instance: Instance) -> None:
            with hosts.connect_to(instance.data["target"]) as connection, suppress(leases.NotThere):
                client = self._records.client
                leases.release(connection, instance.data, instance.task_id, client)

        results = hosts.everywhere(instances, forget, *hosts.TROUBLE)
        told = [str(each) for each in results if isinstance(each, Exception)]
        if told:
            raise ProviderError("; ".join(told))

    def answers_beside(self, instances: Sequence[Instance]) -> str:
        """The name of another host of the same pool that answers now; "" if none does."""
        keys = {str(instance.data["key"]) for instance in instances}
        others: dict[str, Host] = {}
        for task in {instance.task_id for instance in instances}:
            for entry in self._records.read(task).values():
                near = [Host.from_json(each) for each in (entry["host"], *entry.get("peers", ()))]
                others |= {host.key: host for host in near if host.key not in keys}
        asked = list(others.values())
        answers = hosts.everywhere(
            asked, lambda host: _say_true(host.target), *hosts.TROUBLE, patience=hosts.PATIENCE
        )
        good = [h for h, a in zip(asked, answers, strict=True) if not isinstance(a, Exception)]
        return good[0].name if good else ""

    def _who_is_silent(
        self, instances: Sequence[Instance]
    ) -> tuple[list[Instance], dict[str, str]]:
        """The instances that do not answer, with the reasons."""
        # Who ends a task has listed its instances a moment ago, for which each host was asked.
        since = time.monotonic() - _JUST_NOW
        instances = [
            each
            for each in instances
            if self._answered.get(str(each.data["key"]), -math.inf) < since
        ]
        answers = hosts.everywhere(
            instances,
            lambda each: _say_true(each.data["target"]),
            *hosts.TROUBLE,
            patience=hosts.PATIENCE,
        )
        pairs = list(zip(instances, answers, strict=True))
        silent = [instance for instance, answer in pairs if isinstance(answer, Exception)]
        return silent, {i.id: str(a) for i, a in pairs if isinstance(a, Exception)}

    def _release(self, instance: Instance, *, retain: bool) -> None:
        with hosts.connect_to(instance.data["target"]) as connection:
            try:
                client = self._records.client
                answer = leases.release(
                    connection, instance.data, instance.task_id, client, retain=retain
                )
            except leases.NotThere:
                # The host has lost its disk, and with it all of our files.
                answer = {"ok": True}
        if not answer["ok"]:
            raise ProviderError(str(answer.get("error") or "its lease is held by a silent process"))

    def _waited(self, silent: Sequence[Instance], seconds: float) -> bool:
        now = time.monotonic()
        began = [self._alone_since.setdefault(instance.id, now) for instance in silent]
        return now - max(began) >= seconds

    def _give_up(self, silent: Sequence[Instance]) -> None:
        for instance in silent:
            with self._records.change(instance.task_id) as entries:
                entry = entries.get(str(instance.data["key"]))
                if entry is not None:
                    entry |= {"state": records.LEFT, "left_at": clock.now()}


def _say_true(target: Mapping[str, Any]) -> None:
    with hosts.connect_to(target) as connection:
        if leases.show(connection) is None:
            connection.run(["true"], timeout=3 * hosts.PATIENCE)
