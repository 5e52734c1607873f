"""`LocalProvider`: each node is a directory and the processes started in it, with its own id, on this machine."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flowlite.connect import local_courier
from flowlite.connect.agent_program import built_last
from flowlite.connect.local import LocalConnection
from flowlite.errors import NodeUnreachable, NotFound, ProviderError
from flowlite.node.host_lease import cleanup
from flowlite.node.mount_namespace import unmount
from flowlite.node.system import atomic_files, processes
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
from flowlite.state import clock
from provider_adapters.local import warming
from provider_adapters.local.admission import Admission
from provider_adapters.local.volumes import Volumes

if TYPE_CHECKING:
    from flowlite.connect.base import Connection
    from flowlite.settings.provider_settings import ProviderSettings
    from flowlite.settings.settings import Settings
    from flowlite.spec import TaskConfig


class LocalProvider(Provider):
    """Nodes as processes on this machine; no account, no cost."""

    name = "local"
    no_spares = "nodes of the local provider share one machine, so that a spare could not take over from any of them"
    # A price, if one is set, is a rehearsal.
    teardown_seconds = 0.0
    elastic = True

    def __init__(self, home: Path, settings: ProviderSettings) -> None:
        super().__init__(home, settings)
        self._admission = Admission(self.home)
        self._volumes = Volumes(self.home / "volumes")
        self._warm = warming.WarmNodes(self.home)

    @classmethod
    def freeze(cls, settings: Settings, environment: Mapping[str, str]) -> ProviderSettings:
        from provider_adapters.local.planning import refuse_unknown

        found = super().freeze(settings, environment)
        refuse_unknown(found.values)
        for name in ("local_tasks", "local_warm"):
            origin = settings.entry(name).origin
            named = os.path.abspath(origin) if origin.endswith(".toml") else origin
            found = found.with_value(name, getattr(settings, name), named)
        return found

    def plan(self, config: TaskConfig) -> Plan:
        from provider_adapters.local.planning import make_plan

        for volume in config.volumes.values():
            self._volumes.check_interface(volume.name, volume.interface)
        plan = make_plan(config, self.settings)
        kept = [
            self._volumes.kept_size(each.name, each.size_gb) for each in config.volumes.values()
        ]
        return dataclasses.replace(plan, notes=(*plan.notes, *filter(None, kept)))

    @classmethod
    def start_ahead(cls, home: Path) -> None:
        # The first task of a FLOW_HOME builds it.
        with suppress(ProviderError):
            local_courier.start_ahead(built_last(home))

    def launch(self, intent: LaunchIntent) -> list[Instance]:
        plan = Plan.from_json(intent.plan)
        volumes = self._make_volumes(plan)
        try:
            spec = warming.spec_of(self.home, plan, intent)
        except OSError as error:
            raise ProviderError(f"the nodes cannot be made: {error}") from error
        socket = spec["socket"] if spec else self._socket_for_later(plan, intent)
        stem = f"{intent.task_id}-{hashlib.sha256(intent.token.encode()).hexdigest()[:4]}"
        ids = [f"{stem}-{index:03d}" for index in range(intent.count)]
        entry = {
            "price_per_hour": plan.price_per_hour,
            "launched_at": clock.now(),
            "volumes": [volume["name"] for volume in volumes],
            "data": {
                "python": warming.python_of(plan.options),
                "workdir": plan.options.get("workdir"),
                "warm_socket": socket,
                "volumes": volumes,
                # Only on a node of the first launch, since the task is to continue afterwards.
                "preempted": ids[-1] if intent.token.endswith("-launch-1") else "",
            },
        }
        held = self._admission.admit(
            intent.task_id, intent.token, ids, entry, plan, least=intent.fewest
        )
        # A repeated launch keeps the socket of the first one.
        socket = held["data"]["warm_socket"]
        continued = self._warm.take(socket, ids)
        asked = set(ids)
        found = [
            dataclasses.replace(instance, continues=continued.get(instance.id, ""))
            for instance in _instances(intent.task_id, held)
            if instance.id in asked
        ]
        try:
            for instance in found:
                atomic_files.make(str(self._node_home(instance)))
            if spec is not None:
                warming.start(spec, socket)
        except OSError as error:
            self.terminate(found)
            raise ProviderError(f"the nodes cannot be made: {error}") from error
        return found

    def list_instances(self, task_id: str | None = None) -> list[Instance]:
        held = self._admission.held()
        chosen = held if task_id is None else {k: v for k, v in held.items() if k == task_id}
        found = [i for task, entry in chosen.items() for i in _instances(task, entry)]
        found += self._warm.listed(task_id)
        if task_id in chosen:
            # Its processes belong to the instances that are listed. To look for them means to read the environment of
            # every process of the machine.
            return found
        return found + [
            Instance(id=f"{task}-strays", task_id=task, state="running", address="127.0.0.1")
            for task in sorted(self._tasks_with_processes(task_id) - set(chosen))
        ]

    def terminate(self, instances: Sequence[Instance]) -> None:
        for task_id in {instance.task_id for instance in instances}:
            ending = [instance for instance in instances if instance.task_id == task_id]
            held = self._admission.held().get(task_id, {})
            whole = {instance.id for instance in ending} >= set(held.get("instances", ()))
            left = self._end_processes(task_id, None if whole else ending)
            if left:
                raise ProviderError(
                    f"processes {sorted(left)} of task {task_id} do not end, not even by SIGKILL; "
                    "they wait for a device or a file system"
                )
            self._admission.give_back(task_id, [instance.id for instance in ending])
            for instance in ending:
                home = self._node_home(instance)
                if self._retained(instance).exists():
                    cleanup.shed(str(home))
                else:
                    _remove(home)
            self._warm.end([instance.id for instance in ending])
            if whole:
                warming.forget(warming.socket_of(self.home, task_id))

    def retain(self, instances: Sequence[Instance]) -> list[Instance]:
        for instance in instances:
            self._retained(instance).touch(mode=0o600)
        return list(instances)

    def forget(self, instances: Sequence[Instance]) -> None:
        for instance in instances:
            _remove(self._node_home(instance))
            self._retained(instance).unlink(missing_ok=True)

    def keep(self, instances: Sequence[Instance], seconds: float) -> list[Instance]:
        # Only the imported modules are kept; nodes and GPUs are released at once.
        imported = [
            (instance, socket)
            for instance in instances
            if (socket := _kept_socket(self._node_home(instance)))
        ]
        self.terminate(instances)
        return self._warm.keep(imported, seconds)

    def still_warm(self, instances: Sequence[Instance]) -> list[Instance]:
        there = {instance.id for instance in self._warm.listed()}
        return [instance for instance in instances if instance.id in there]

    def answers_beside(self, instances: Sequence[Instance]) -> str:
        return "this machine"

    def connect(self, instance: Instance) -> Connection:
        if not self._node_home(instance).is_dir():
            raise NodeUnreachable(f"the local node {instance.id} is gone")
        return LocalConnection()

    def node_settings(self, plan: Plan, instance: Instance) -> NodeSettings:
        gpus = instance.data.get("gpus")
        environment = {
            "FLOW_TASK_ID": instance.task_id,
            "FLOW_HOME": str(self.home),
        }
        if gpus:
            # nvidia-smi numbers the GPUs in this order; CUDA by default does not.
            environment["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
        hidden = "" if plan.options.get("hide_gpus") else None
        python = plan.options.get("python_spec")
        after = plan.options.get("preempted_after")
        rehearses = after is not None and instance.data.get("preempted") == instance.id
        return NodeSettings(
            home=str(self._node_home(instance)),
            python=warming.python_of(instance.data),
            bind="127.0.0.1",
            workdir=instance.data.get("workdir"),
            environment=environment,
            visible_gpus=",".join(map(str, gpus)) if gpus else hidden,
            warm_socket=instance.data.get("warm_socket"),
            ports_dir=str(self.home / "ports"),
            volumes=tuple(instance.data.get("volumes", ())),
            container=plan.options.get("container"),
            python_spec=python and {**python, "directory": str(self.home / "envs")},
            preemption={"kind": "rehearsal", "after": after} if rehearses else None,
        )

    def offers(
        self,
        gpu: str | None = None,
        num_instances: int = 1,
        *,
        spot: bool | None = None,
        region: str | None = None,
    ) -> list[Offer]:
        from flowlite.spec.gpu import GpuRequest
        from provider_adapters.local.gpus import discover
        from provider_adapters.local.planning import price_per_hour

        request = GpuRequest.parse(gpu) if gpu else None
        found = [g for g in discover() if request is None or g.fits(request)]
        wanted = (request.count if request else 0) * num_instances
        rehearsal = request is not None and len(found) < wanted
        return [
            Offer(
                provider=self.name,
                instance_type="this machine",
                region="",
                gpu=found[0].kind if found and not rehearsal else "",
                gpus_per_node=0 if rehearsal or request is None else request.count,
                price_per_hour=price_per_hour(self.settings.values),
                available=True,
                note="rehearsal on CPU" if rehearsal else "",
            )
        ]

    def create_volume(
        self, name: str, size_gb: float | None, interface: str, region: str | None = None
    ) -> VolumeInfo:
        return self._volumes.create(name, size_gb, interface)

    def list_volumes(self) -> list[VolumeInfo]:
        return self._volumes.list()

    @contextmanager
    def volume_place(self, name: str) -> Iterator[VolumePlace | None]:
        directory = self._volumes.path(name)
        if not directory.is_dir():
            raise NotFound(
                f"no volume {name!r} at the provider 'local'; `flow volumes create {name}` makes it"
            )
        with LocalConnection() as connection:
            yield VolumePlace(connection, (sys.executable,), str(directory))

    def delete_volume(self, name: str) -> None:
        users = [task for task, entry in self._admission.held().items() if name in entry["volumes"]]
        if users:
            raise ProviderError(
                f"volume {name!r} is in use by task {users[0]}; wait for its end or cancel it first"
            )
        self._volumes.delete(name)

    # Helpers

    def _node_home(self, instance: Instance) -> Path:
        return self.home / "tasks" / instance.task_id / "nodes" / instance.id

    def _retained(self, instance: Instance) -> Path:
        """A marker file that exists as long as the node's files are still needed."""
        home = self._node_home(instance)
        return home.with_name(f"{home.name}.retained")

    def _socket_for_later(self, plan: Plan, intent: LaunchIntent) -> str | None:
        """The socket of the agents' fork server; None if what is kept depends on a Python that is not installed yet."""
        depends = plan.options.get("python_spec") or intent.preload.get("setup")
        if depends and intent.preload.get("warm_seconds"):
            return None
        return warming.socket_of(self.home, intent.task_id)

    def _make_volumes(self, plan: Plan) -> list[dict[str, Any]]:
        made = []
        for volume in plan.options.get("volumes", ()):
            info = self._volumes.create(volume["name"], volume["size_gb"], volume["interface"])
            made.append(
                {
                    "name": volume["name"],
                    "path": volume["path"],
                    "source": info.location,
                    "interface": volume["interface"],
                }
            )
        return made

    def _end_processes(self, task_id: str, ending: Sequence[Instance] | None) -> set[int]:
        """Kills every process of these instances, or of the whole task; returns those that did not die."""
        if ending is None:
            markers = {"FLOW_TASK_ID": task_id, "FLOW_HOME": str(self.home)}
            return processes.kill_all(lambda: processes.marked(markers))
        homes = [self._node_home(instance) for instance in ending]
        return processes.kill_all(
            lambda: {pid for home in homes for pid in _processes_of_node(home)}
        )

    def _tasks_with_processes(self, task_id: str | None) -> set[str]:
        markers = {"FLOW_HOME": str(self.home)}
        if task_id is not None:
            markers["FLOW_TASK_ID"] = task_id
            return {task_id} if processes.marked(markers) else set()
        found = {
            processes.environment_of(pid).get("FLOW_TASK_ID") for pid in processes.marked(markers)
        }
        return {task for task in found if task}


def _instances(task_id: str, entry: dict[str, Any]) -> list[Instance]:
    gpus = entry.get("gpus", {})
    return [
        Instance(
            id=name,
            task_id=task_id,
            state="running",
            address="127.0.0.1",
            price_per_hour=entry["price_per_hour"],
            launched_at=entry["launched_at"],
            data={**entry["data"], "gpus": gpus.get(name, [])},
        )
        for name in entry["instances"]
    ]


def _remove(home: Path) -> None:
    """Removes the directory of a node, unless something stays mounted there, which is not ours to delete."""
    if not unmount.unmount_below(home):
        # What a program leaves may be deeper than Python's own function goes.
        with suppress(OSError):
            cleanup.remove_tree(str(home))


def _kept_socket(home: Path) -> str:
    """The socket of a node's fork server, if it is kept after the task."""
    for note in home.glob("a*/env.json"):
        with suppress(OSError, ValueError, AttributeError):
            if socket := atomic_files.read_small_json(note).get("warm"):
                return str(socket)
    return ""


def _processes_of_node(home: Path) -> set[int]:
    """The agents of a node and the reapers of its workers, as noted by its attempts, with all their descendants."""
    found: set[int] = set()
    for note in (*home.glob("a*/agent.pid"), *home.glob("a*/env.json")):
        with suppress(OSError, ValueError, KeyError, TypeError):
            noted = atomic_files.read_small_json(note)
            process = noted["reaper"] if note.name == "env.json" else noted
            if processes.is_alive(int(process["pid"]), str(process["start"])):
                found |= {int(process["pid"]), *processes.descendants([int(process["pid"])])}
    return found
