"""`SshProvider`: nodes are hosts that the user can log in to, each leased to one task at a time."""

from __future__ import annotations

import socket
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flowlite.provider import (
    Instance,
    LaunchIntent,
    NodeSettings,
    Offer,
    Plan,
    Provider,
    VolumeInfo,
    VolumePlace,
)
from provider_adapters import pythons
from provider_adapters.ssh import hosts, leases, records
from provider_adapters.ssh.ending import Ending
from provider_adapters.ssh.host_requirements import choose_python
from provider_adapters.ssh.hosts import Facts, Memory
from provider_adapters.ssh.launching import Launch
from provider_adapters.ssh.patience import Patience
from provider_adapters.ssh.pools import LOCAL_FILES, Host, choose_pool, from_environment, read_pools
from provider_adapters.ssh.records import Records
from provider_adapters.ssh.unfit_hosts import UnfitHosts
from provider_adapters.ssh.volume_hosts import Places, directory_of
from provider_adapters.ssh.warm_hosts import WarmHosts

if TYPE_CHECKING:
    from flowlite.connect.base import Connection
    from flowlite.settings.provider_settings import ProviderSettings
    from flowlite.settings.settings import Settings
    from flowlite.spec import TaskConfig
    from provider_adapters.ssh.host_commands import HostCommands
    from provider_adapters.ssh.volumes import Volumes


class SshProvider(Provider):
    """Hosts that the user can log in to by SSH."""

    name = "ssh"
    listing_is_proof = False
    avoids = True
    elastic = True

    local_files = LOCAL_FILES

    def __init__(self, home: Path, settings: ProviderSettings) -> None:
        super().__init__(home, settings)
        self._records = Records(self.home / "ssh")
        self._memory = Memory(self.home / "ssh" / "hosts")
        self._unfit = UnfitHosts(self.home / "ssh")
        self._ending = Ending(self._records, self._unfit)
        self._keeping = WarmHosts(self._records)
        self._places = Places(self.home / "ssh")
        self._patience = Patience()

    @classmethod
    def freeze(cls, settings: Settings, environment: Mapping[str, str]) -> ProviderSettings:
        found = from_environment(settings.of_provider(cls.name), environment)
        return found.with_absolute_paths(cls.local_files)

    def configured(self) -> bool:
        return bool(read_pools(self.settings))

    def plan(self, config: TaskConfig) -> Plan:
        from provider_adapters.ssh.planning import make_plan

        return make_plan(config, self.settings, self._memory)

    def prepare_to_launch(self) -> None:
        # It loads paramiko.
        from flowlite.connect.ssh import link

        _ = link

    def launch(self, intent: LaunchIntent) -> list[Instance]:
        agent = leases.find_agent(self.home, intent.preload.get("agent"))
        return Launch(
            intent,
            self.home,
            agent,
            self._memory,
            self._records,
            self._places,
            self._unfit,
            self._patience,
            _label(),
            self._ending.lapsed,
        ).run()

    def list_instances(self, task_id: str | None = None) -> list[Instance]:
        if task_id is None:
            self._records.prune()
        known = [task_id] if task_id is not None else self._records.tasks()
        kept = {task: self._records.read(task) for task in known}
        entries = [entry for each in kept.values() for entry in each.values()]
        # Hosts that were given up are asked again only when all tasks are listed.
        near = [e for e in entries if task_id is None or e["state"] != records.LEFT]
        by_key = {(host := Host.from_json(entry["host"])).key: host for entry in near}
        if task_id is None:
            for pool in read_pools(self.settings).values():
                by_key |= {host.key: host for host in pool.hosts}
        found = self._ask(list(by_key.values()))
        mine = []
        for key, held in found.items():
            # A host's answer is untrusted and may be malformed.
            with suppress(KeyError, TypeError, ValueError):
                mine.append(self._instance_of(by_key[key], held, kept, set(by_key)))
        listed = {i.id: i for i in mine if i and task_id in (None, i.task_id)}
        for entry in entries:
            host = Host.from_json(entry["host"])
            out_of_reach = host.key not in found and entry["state"] == records.TAKEN
            if out_of_reach:
                # It is not known whether the instance is gone.
                instance = Instance.from_json({**entry["instance"], "state": "unreachable"})
                listed.setdefault(instance.id, instance)
        return sorted(listed.values(), key=lambda each: each.id)

    def avoid(self, instances: Sequence[Instance]) -> None:
        # The hosts are released also if this machine's disk is full.
        with suppress(OSError):
            self._unfit.note(instances)

    def terminate(self, instances: Sequence[Instance]) -> None:
        self._ending.end(instances)

    def tidy_up(self, instances: Sequence[Instance]) -> None:
        self._ending.tidy_up(instances)

    def has_left(self) -> bool:
        return bool(self._records.left())

    def revisit(self) -> None:
        self._ending.revisit()

    def answers_beside(self, instances: Sequence[Instance]) -> str:
        return self._ending.answers_beside(instances)

    def retain(self, instances: Sequence[Instance]) -> list[Instance]:
        self._records.retain(instances)
        return list(instances)

    def forget(self, instances: Sequence[Instance]) -> None:
        self._ending.forget(instances)

    def sweep(self, live: Collection[str], *, dry_run: bool = False) -> list[str]:
        """Removes secrets of tasks on hosts that could not be released."""
        pools = read_pools(self.settings).values()
        known = [(host, self._memory.facts(host)) for pool in pools for host in pool.hosts]
        listed = [(host, facts) for host, facts in known if facts is not None]

        def tidy(each: tuple[Host, Facts]) -> list[str]:
            host, facts = each
            python = choose_python(host, facts, None)
            if python is None:
                return []
            agent = leases.find_agent(self.home, None)
            with hosts.connect(host) as connection, suppress(leases.NotThere):
                return leases.tidy(connection, python[0], agent, facts.root, dry_run=dry_run)
            return []

        answers = hosts.everywhere(listed, tidy, *hosts.TROUBLE, patience=hosts.PATIENCE)
        return [
            f"secrets of {name} on {host.name}"
            for (host, _), names in zip(listed, answers, strict=True)
            if not isinstance(names, Exception)
            for name in names
        ]

    def keep(self, instances: Sequence[Instance], seconds: float) -> list[Instance]:
        return self._keeping.keep(instances, seconds)

    def still_warm(self, instances: Sequence[Instance]) -> list[Instance]:
        return self._keeping.still(instances)

    def connect(self, instance: Instance) -> Connection:
        return hosts.connect_to(instance.data["target"])

    def node_settings(self, plan: Plan, instance: Instance) -> NodeSettings:
        data, options = instance.data, plan.options
        gpus = data.get("gpus") or []
        environment = {"FLOW_TASK_ID": instance.task_id, "FLOW_LEASE": str(data["marker"])}
        if gpus:
            # nvidia-smi numbers the GPUs in this order; CUDA by default does not.
            environment["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
        some = gpus and not data.get("all_gpus")
        return NodeSettings(
            home=str(data["home"]),
            python=str(data["python"]),
            bind=instance.address,
            workdir=options.get("workdir"),
            environment=environment,
            visible_gpus=",".join(map(str, gpus)) if some else None,
            volumes=tuple(
                {**volume, "source": _source(options["shared_dir"], data["root"], volume["name"])}
                for volume in options.get("volumes", ())
            ),
            cache=f"{data['root']}/blobs",
            python_spec=pythons.spec_for_node(options, data),
            container=options.get("container"),
        )

    def offers(
        self,
        gpu: str | None = None,
        num_instances: int = 1,
        *,
        spot: bool | None = None,
        region: str | None = None,
    ) -> list[Offer]:
        from provider_adapters.ssh.offers import offers_of

        pools = read_pools(self.settings)
        return [offer for pool in pools.values() for offer in offers_of(pool, gpu, self._memory)]

    def host_commands(self, read: Callable[[], ProviderSettings]) -> HostCommands:
        """The operations of `flow hosts`. `read` returns the current settings, which they change."""
        from provider_adapters.ssh.host_commands import HostCommands

        return HostCommands(self._memory, self._unfit, read)

    def create_volume(
        self, name: str, size_gb: float | None, interface: str, region: str | None = None
    ) -> VolumeInfo:
        return self._volumes().create(name, size_gb, interface)

    def list_volumes(self) -> list[VolumeInfo]:
        return self._volumes().list()

    @contextmanager
    def volume_place(self, name: str) -> Iterator[VolumePlace | None]:
        with self._volumes().place(name, self._memory) as place:
            yield place

    def delete_volume(self, name: str) -> None:
        self._volumes().delete(name)

    # Helpers

    def _ask(self, asked: list[Host]) -> dict[str, dict[str, Any] | None]:
        """The holder of each host's lease, by the host's key; hosts that cannot be asked are left out."""

        def ask(host: Host) -> dict[str, Any] | None:
            with hosts.connect(host) as connection:
                shown = leases.show(connection)
                if shown is not None:
                    self._ending.has_answered(host.key)
                    return shown["held"]  # type: ignore[no-any-return]
                return hosts.held_by(host, connection, self._memory.facts(host))

        answers = hosts.everywhere(asked, ask, *hosts.TROUBLE, patience=hosts.PATIENCE)
        return {
            host.key: answer
            for host, answer in zip(asked, answers, strict=True)
            if not isinstance(answer, Exception)
        }

    def _instance_of(
        self,
        host: Host,
        held: dict[str, Any] | None,
        kept: dict[str, records.Entries],
        asked: set[str],
    ) -> Instance | None:
        """The instance that a lease of ours stands for; None for any other lease.

        A host is trusted only with regard to itself. Its address and what runs there are taken from our records.

        Args:
            kept: The entries by task.
            asked: Keys of all hosts that were asked.
        """
        if not held or held.get("client") != self._records.client:
            return None
        told, task, name = dict(held["data"]), str(held["task"]), str(held["instance"])
        if told["key"] != host.key and told["key"] in asked:
            # The same machine under another name; it has answered under the name of its lease, too.
            return None
        if not records.is_plain(task) or not records.is_plain(name):
            return None
        if task not in kept:
            kept[task] = self._records.read(task)
        noted = (kept[task].get(host.key) or {}).get("instance")
        if noted is None or noted["id"] != name:
            # There is no record of it here any more. Its answer may refer to this host only.
            own = {"host": host.name, "key": host.key, "target": host.target}
            noted = {"data": {**told, **own}}
        lease = {"lease": held["lease"], "marker": held["marker"]}
        return Instance(
            id=name,
            task_id=task,
            state="warm" if held.get("state") == "warm" else "running",
            address=noted.get("address", ""),
            launched_at=float(told.get("launched_at", 0.0)),
            slot=host.key,
            data={k: v for k, v in {**noted["data"], **lease}.items() if k != "launched_at"},
        )

    def _volumes(self) -> Volumes:
        from provider_adapters.ssh.volumes import Volumes

        return Volumes(choose_pool(self.settings), self._places)


def _source(shared_dir: str, root: str, name: str) -> str:
    """The path of a volume: on every node, or on the leader, which serves it to the others."""
    return f"{shared_dir}/{name}" if shared_dir else directory_of(root, name)


def _label() -> str:
    """The label that other users of a host see in its lease: the name of this machine."""
    return socket.gethostname().partition(".")[0]
