"""Leases the hosts of a gang: hosts are asked in the pool's order, and released if they do not suffice."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import itertools
import random
import re
from collections.abc import Collection, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from flowlite.errors import (
    CapacityUnavailable,
    NodeUnreachable,
    ProviderError,
)
from flowlite.node.quick_dataclass import dataclass
from flowlite.provider import Instance, LaunchIntent, Plan
from flowlite.spec.gpu import GpuRequest
from flowlite.state import clock
from provider_adapters import pythons
from provider_adapters.ssh import host_requirements, hosts, leases, patience, records
from provider_adapters.ssh.hosts import Facts, Memory
from provider_adapters.ssh.leases import Agent
from provider_adapters.ssh.patience import Patience
from provider_adapters.ssh.pools import Host
from provider_adapters.ssh.records import Records
from provider_adapters.ssh.unfit_hosts import UnfitHosts
from provider_adapters.ssh.volume_hosts import Places, directory_of
from provider_adapters.ssh.warm_hosts import WarmHosts

Value = TypeVar("Value")

# Seconds until a waiting launch tries again; random, so that two launches do not collide for ever.
_LOOK_AGAIN = (0.7, 1.6)
# How many other hosts are recorded with each, to distinguish a dead host from a dead network.
_PEERS = 4
# How long connections stay open between the lease of a host and its use, in which the others are leased.
_IDLE_SECONDS = 120.0
# How many other addresses a host is given, to find its own address on the route to them.
_TOWARDS = 8


@dataclass(frozen=True, slots=True)
class Ready:
    """A host that could take the task."""

    host: Host
    facts: Facts
    python: str


class Refused(ProviderError):
    """A host that cannot be used.

    Attributes:
        waiting: Whether it makes sense to wait for it.
        lasting: Whether a person has to fix something, perhaps after some waiting.
    """

    def __init__(self, text: str, *, waiting: bool, lasting: bool | None = None) -> None:
        super().__init__(text)
        self.waiting = waiting
        self.lasting = not waiting if lasting is None else lasting


class Launch:
    """One try to lease the hosts of one intent."""

    def __init__(
        self,
        intent: LaunchIntent,
        home: Path,
        agent: Agent,
        memory: Memory,
        kept: Records,
        places: Places,
        unfit: UnfitHosts,
        waited: Patience,
        label: str,
        lapsed: Collection[str] = (),
    ) -> None:
        """
        Args:
            lapsed: Keys of hosts on which the task's lease has ended by itself.
        """
        self._intent = intent
        self._home = home
        self._plan = Plan.from_json(intent.plan)
        self._options = self._plan.options
        self._agent = agent
        self._memory = memory
        self._records = kept
        self._keeping = WarmHosts(kept)
        self._unfit = unfit
        self._patience = waited
        self._label = label
        self._lapsed = lapsed
        self._began = clock.now()
        self._places = places
        self._hosts = [Host.from_json(each) for each in self._options["hosts"]]
        self._before: records.Entries = {}
        self._refused: dict[str, Refused] = {}
        # Keys of hosts that other tasks have, and hosts that another has asked for at the same moment.
        self._held: set[str] = set()
        self._outrun: list[Host] = []
        self._on_hosts = [] if self._options["shared_dir"] else self._volume_names()
        self._keeper = self._find_keeper()

    def run(self) -> list[Instance]:
        """Leases as many hosts as the intent asks for, or at least those without which it has failed.

        Raises:
            CapacityUnavailable: Not possible now; no host is held.
            ProviderError: Not possible at all; no host is held.
        """
        # Imported here because it loads paramiko, which a plan does without.
        from flowlite.connect.ssh import transport

        # The first hosts of a large gang are used again when the last ones are leased.
        transport.stay_idle(_IDLE_SECONDS)
        before = self._before = self._records.read(self._intent.task_id)
        asked = {k for k, entry in before.items() if entry["token"] == self._intent.token}
        # Hosts that an earlier try may have leased come first; any surplus is released.
        warm = self._keeping.hosts()
        left = {k for k, entry in before.items() if entry["state"] == records.LEFT}
        # To be refused by each host that is in use takes longer than to take the one that is free.
        held = self._held = self._records.held_beside(self._intent.task_id)
        queue = sorted(
            self._hosts,
            key=lambda host: (
                # Hosts that failed this task before come last, even if they answer again.
                host.key in left or host.key in self._lapsed,
                host.key not in asked,
                host != self._keeper,
                host.key not in warm,
                host.key in held,
                host.index,
            ),
        )
        in_use = {k for k, entry in before.items() if entry["state"] == records.TAKEN} - asked
        for host in queue:
            if why := self._unfit.why(host.key, self._intent.task_id):
                self._refused[host.name] = Refused(why, waiting=False)
        queue = [
            host for host in queue if host.key not in in_use and host.name not in self._refused
        ]
        size = max(self._intent.count, len(asked))
        taken: list[Instance] = []
        try:
            while queue and len(taken) < self._intent.count and not self._lacks_keeper():
                batch, queue = queue[:size], queue[size:]
                taken += self._take_all(batch)
                # Another task was a moment faster. To wait for its host's refusal, which is busy, takes up to seconds.
                queue, self._outrun = [*queue, *self._outrun], []
                size = self._intent.count - len(taken)
            enough = len(taken) >= self._intent.fewest and not self._lacks_keeper()
            kept = sorted(taken, key=lambda each: each.id)[: self._intent.count] if enough else []
            if kept:
                kept[0] = dataclasses.replace(kept[0], note=self._passed_over())
            if self._on_hosts and kept and not in_use:
                first = kept[0].data
                place = {"host": first["host"], "key": first["key"], "root": first["root"]}
                self._places.settle(self._options["pool"], self._on_hosts, place)
        except BaseException:
            self._give_back(taken)
            raise
        wanted = {each.id for each in kept}
        self._give_back([each for each in taken if each.id not in wanted])
        if not enough:
            raise self._not_enough()
        return kept

    def _take_all(self, batch: Sequence[Host]) -> list[Instance]:
        ready = self._ask_for(self._ready(batch))
        names = [each.host for each in ready]
        results = hosts.everywhere(ready, self._take, *hosts.TROUBLE)
        taken = [
            (host, result)
            for host, result in zip(names, results, strict=True)
            if isinstance(result, Instance)
        ]
        self._note(records.TAKEN, taken)
        self._keeping.taken_over([instance for _, instance in taken])
        for host, _ in taken:
            self._patience.forget(host.key)
        return self._sort(names, results)

    def _ask_for(self, ready: Sequence[Ready]) -> list[Ready]:
        """Records that hosts are asked for, but those for which another task has done so since this launch began.

        These come once more after the others.
        """
        # In one write: a file for each of hundreds of hosts would take longer than asking them.
        with self._records.change(self._intent.task_id) as entries:
            # What this task may have already is its own, whoever asks for it.
            new = self._records.held_beside(self._intent.task_id) - self._held - {*entries}
            free = [each for each in ready if each.host.key not in new]
            self._enter(
                entries, records.ASKED, [(each.host, self._instance(each)) for each in free]
            )
        self._held |= new
        self._outrun = [each.host for each in ready if each.host.key in new]
        return free

    def _ready(self, batch: Sequence[Host]) -> list[Ready]:
        """The hosts that could take the task. Only those whose facts are unknown or do not fit are asked."""
        known = [self._known(host) for host in batch]
        asked = [host for host, ready in zip(batch, known, strict=True) if ready is None]
        answers = iter(hosts.everywhere(asked, self._prepare, *hosts.TROUBLE))
        return self._sort(batch, [ready or next(answers) for ready in known])

    def _sort(self, batch: Sequence[Host], results: Sequence[Value | Exception]) -> list[Value]:
        """The successful results; the reasons of the others are kept in `_refused`."""
        good = []
        for host, result in zip(batch, results, strict=True):
            if not isinstance(result, Exception):
                good.append(result)
            elif isinstance(result, Refused):
                self._refused[host.name] = result
            else:
                waiting = self._patience.is_left(host.key, result)
                self._refused[host.name] = Refused(
                    _named(host, result), waiting=waiting, lasting=patience.lasts(result)
                )
        return good

    # Volumes on hosts

    def _volume_names(self) -> list[str]:
        return [str(volume["name"]) for volume in self._options.get("volumes", ())]

    def _find_keeper(self) -> Host | None:
        """The host that has the task's volumes on its disk and must therefore be the leader. Raises ProviderError."""
        pool = self._options["pool"]
        name = self._places.host_for(pool, self._on_hosts) if self._on_hosts else None
        if name is None:
            return None
        found = next((host for host in self._hosts if host.name == name), None)
        if found is None:
            raise ProviderError(
                f"the volume {self._on_hosts[0]} lies on {name}, which is not in the pool {pool} any more"
            )
        return found

    def _lacks_keeper(self) -> bool:
        return self._keeper is not None and self._keeper.name in self._refused

    def _directories(self, root: str) -> list[str]:
        """Directories of volumes that have to exist."""
        shared = self._options["shared_dir"]
        if shared:
            return [f"{shared}/{name}" for name in self._volume_names()]
        return [directory_of(root, name) for name in self._on_hosts]

    # One host

    def _known(self, host: Host) -> Ready | None:
        """A host of which the cached facts say that it will do; None for any other."""
        facts = self._memory.facts(host)
        if facts is None or host_requirements.can_be_brought(host, facts):
            return None
        python = host_requirements.choose_python(host, facts, self._options.get("minor"))
        if python is None or host_requirements.misfit(host, facts, self._options["wanted"]):
            return None
        return Ready(host, facts, python[0])

    def _prepare(self, host: Host) -> Ready:
        facts = self._memory.facts(host)
        if facts is None or host_requirements.misfit(host, facts, self._options["wanted"]):
            # Cached facts may be out of date, so a host is not refused because of them.
            return self._look(host)
        return self._checked(host, facts)

    def _look(self, host: Host) -> Ready:
        return self._checked(host, hosts.ask_now(host, self._memory)[0])

    def _checked(self, host: Host, facts: Facts) -> Ready:
        if host_requirements.can_be_brought(host, facts):
            facts = self._bring_python(host, facts)
        wrong = host_requirements.misfit(host, facts, self._options["wanted"])
        python = host_requirements.choose_python(host, facts, self._options.get("minor"))
        if wrong or python is None:
            raise Refused(wrong, waiting=False)
        return Ready(host, facts, python[0])

    def _bring_python(self, host: Host, facts: Facts) -> Facts:
        """Installs a Python on a host that has none, and collects its facts again. Raises Refused."""
        minor = self._options.get("minor")
        try:
            with hosts.connect(host) as connection:
                pythons.bring(connection, facts.root, facts.machine, minor, self._home)
                found, _ = hosts.probe(host, connection)
        except NodeUnreachable:
            raise
        except ProviderError as error:
            problem = f"{host_requirements.python_problem(host, facts)}; {error}"
            raise Refused(problem, waiting=False) from error
        self._memory.keep(host, found)
        if host_requirements.choose_python(host, found, None) is None:
            raise Refused(host_requirements.python_problem(host, found), waiting=False)
        return found

    def _take(self, ready: Ready) -> Instance:
        try:
            return self._take_as(ready)
        except (NodeUnreachable, Refused):
            raise
        except ProviderError:
            if ready.facts.seen_at > self._began:
                raise
            # The cached facts, for example its Python, are out of date.
            again = self._look(ready.host)
            # The facts may have changed since the host was recorded.
            self._note(records.ASKED, [(again.host, self._instance(again))])
            return self._take_as(again)

    def _take_as(self, ready: Ready) -> Instance:
        host = ready.host
        instance = self._instance(ready)
        with hosts.connect(host) as connection:
            answer = self._ask(ready, instance, connection)
            if not answer["ok"] and self._is_stale(answer.get("held")):
                held, ours = answer["held"], {**instance.data, "home": str(answer["held"]["home"])}
                client = self._records.client
                # It was given up while unreachable: its files may not have been fetched.
                leases.release(connection, ours, str(held["task"]), client, retain=True)
                answer = self._ask(ready, instance, connection)
        if not answer["ok"]:
            self._note(None, [(host, instance)])
            raise Refused(leases.refused(host.name, answer), waiting=True)
        lease = answer["lease"]
        if lease["data"]["key"] != host.key:
            self._note(None, [(host, instance)])
            twin = lease["data"]["host"]
            raise Refused(f"{host.name} is the same machine as {twin}", waiting=False)
        if (lease["instance"], lease["home"]) != (instance.id, instance.data["home"]):
            # Our paths on a host are decided here, not by the process that answers there.
            self._note(None, [(host, instance)])
            raise Refused(f"{host.name} answers with a lease that was not asked for", waiting=False)
        address = host.private_ip or answer.get("address") or ready.facts.address
        was = self._keeping.noted(host, lease.get("warm"))
        told = {key: lease[key] for key in ("lease", "marker")}
        final = dataclasses.replace(
            instance,
            address=address,
            data={**instance.data, **told, "warm": was},
            continues=was.get("instance", ""),
        )
        wrong = hosts.lacks_address(host, address) if hosts.is_of_one_link(address) else ""
        if answer.get("problem"):
            wrong = f"{host.name}: {answer['problem']}"
        if wrong:
            self._keeping.taken_over([final])
            self._give_back([final])
            raise Refused(wrong, waiting=False)
        if not leases.same_machine(ready.facts, answer):
            # It has rebooted; it may have other GPUs or another Python now.
            self._keeping.taken_over([final])
            return self._check_again(ready, final)
        return final

    def _ask(self, ready: Ready, instance: Instance, connection: Any) -> dict[str, Any]:
        request = {
            "token": self._intent.token,
            "task": self._intent.task_id,
            "client": self._records.client,
            "label": self._label,
            "instance": instance.id,
            "root": instance.data["root"],
            "home": instance.data["home"],
            "ttl": self._options["ttl"],
            "data": {**instance.data, "launched_at": instance.launched_at},
            "towards": self._others(ready.host),
            "make": self._directories(ready.facts.root),
        }
        return leases.take(connection, ready.python, self._agent, ready.facts.root, request)

    def _check_again(self, ready: Ready, instance: Instance) -> Instance:
        try:
            again = self._look(ready.host)
        except ProviderError:
            self._give_back([instance])
            raise
        if (again.python, again.facts.gpus) != (ready.python, ready.facts.gpus):
            self._give_back([instance])
            raise Refused(f"{ready.host.name} has changed since it was last asked", waiting=True)
        return instance

    def _is_stale(self, held: dict[str, Any] | None) -> bool:
        """Whether a lease is ours, of a task that has given this host up."""
        if not held or held.get("client") != self._records.client:
            return False
        entries = self._records.read(str(held.get("task")))
        home = held.get("home")
        mine = [e for e in entries.values() if (e["instance"] or {})["data"].get("home") == home]
        return all(entry["state"] == records.LEFT for entry in mine)

    def _instance(self, ready: Ready) -> Instance:
        host, facts = ready.host, ready.facts
        token = hashlib.sha256(self._intent.token.encode()).hexdigest()[:4]
        slug = re.sub(r"[^A-Za-z0-9.-]+", "-", host.name).strip("-.") or "host"
        # Ranks follow the sorted ids: the order of the pool, with the host of the volumes first.
        place = (
            host.index if self._keeper is None else 0 if host == self._keeper else host.index + 1
        )
        digits = max(3, len(str(len(self._hosts))))
        name = f"{self._intent.task_id}-{place:0{digits}d}-{slug}-{token}"
        entry = self._before.get(host.key)
        if entry is not None and entry["token"] == self._intent.token:
            # The id of an earlier try; the pool may have changed since.
            name = str(entry["instance"]["id"])
        gpus = []
        if self._options["wanted"].get("gpu"):
            request = GpuRequest.parse(self._options["wanted"]["gpu"])
            gpus = host_requirements.usable_gpus(host, facts, request)[: request.count]
        return Instance(
            id=name,
            task_id=self._intent.task_id,
            address=host.private_ip or facts.address,
            launched_at=clock.now(),
            slot=host.key,
            data={
                "host": host.name,
                "key": host.key,
                "target": host.target,
                "root": facts.root,
                "home": f"{facts.root}/tasks/{name}",
                "python": ready.python,
                "pythons": [list(each) for each in facts.pythons],
                "agent": self._agent.on_host(facts.root),
                "gpus": gpus,
                "all_gpus": len(gpus) == len(facts.gpus),
            },
        )

    def _others(self, host: Host) -> list[str]:
        """Known addresses of other hosts of the pool."""
        found = (address for key, address in self._addresses.items() if key != host.key)
        return list(itertools.islice(found, _TOWARDS))

    @functools.cached_property
    def _addresses(self) -> dict[str, str]:
        """Addresses of some hosts of the pool, by the host's key."""
        found: dict[str, str] = {}
        for host in self._hosts:
            if len(found) > _TOWARDS:
                break
            known = None if host.private_ip else self._memory.facts(host)
            if address := host.private_ip or (known.address if known else ""):
                found[host.key] = address
        return found

    def _note(self, state: str | None, of: Sequence[tuple[Host, Instance]]) -> None:
        """Records the state of hosts; None removes them from the task's record."""
        if not of:
            return
        with self._records.change(self._intent.task_id) as entries:
            self._enter(entries, state, of)

    def _enter(
        self, entries: records.Entries, state: str | None, of: Sequence[tuple[Host, Instance]]
    ) -> None:
        for host, instance in of:
            if state is None:
                entries.pop(host.key, None)
                continue
            entries[host.key] = {
                "host": host.to_json(),
                "token": self._intent.token,
                "state": state,
                "instance": instance.to_json(),
                "peers": [told for key, told in self._first if key != host.key][:_PEERS],
            }

    @functools.cached_property
    def _first(self) -> list[tuple[str, dict[str, Any]]]:
        """The first hosts of the pool, of which each host is recorded with `_PEERS` others."""
        return [(host.key, host.to_json()) for host in self._hosts[: _PEERS + 1]]

    # After a try

    def _give_back(self, instances: Sequence[Instance]) -> None:
        def give(instance: Instance) -> None:
            with hosts.connect_to(instance.data["target"]) as connection, suppress(leases.NotThere):
                leases.release(connection, instance.data, instance.task_id, self._records.client)

        # A host that cannot be reached finds out by itself: no agent arrives, and its lease expires.
        results = hosts.everywhere(instances, give, *hosts.TROUBLE)
        given = [i for i, r in zip(instances, results, strict=True) if not isinstance(r, Exception)]
        self._records.drop(given)

    def _passed_over(self) -> str:
        """A note on hosts that a person has to fix, though enough others were found; "" if there are none."""
        unfit = [str(each) for each in self._refused.values() if each.lasting]
        return f"passed over: {'; '.join(unfit)}" if unfit else ""

    def _not_enough(self) -> ProviderError:
        pool, count = self._options["pool"], self._intent.fewest
        possible = len(self._hosts) - sum(not each.waiting for each in self._refused.values())
        why = "; ".join(str(each) for each in self._refused.values())
        if possible < count:
            return ProviderError(
                f"the pool {pool} has {possible} hosts that will do, and {count} "
                f"{'is' if count == 1 else 'are'} needed: {why}"
            )
        text = f"waiting for {count} {'host' if count == 1 else 'hosts'} of the pool {pool}"
        # Without a reason if others asked for them at the same moment.
        text += f": {why}" if why else ""
        if self._keeper is not None and self._lacks_keeper():
            volume, name = self._on_hosts[0], self._keeper.name
            if not self._refused[name].waiting:
                return ProviderError(
                    f"the volume {volume} lies on {name}, which will not do: {why}"
                )
            text = f"waiting for {name}, where the volume {volume} lies: {why}"
        return CapacityUnavailable(text, retry_after=random.uniform(*_LOOK_AGAIN))


def _named(host: Host, error: Exception) -> str:
    text = str(error) or type(error).__name__
    return text if host.name in text else f"{host.name}: {text}"
