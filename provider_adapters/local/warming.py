"""The fork server that the local nodes of a task share and, with `keep_warm`, later tasks.

It is started as soon as there are nodes, before any agent.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

from flowlite.node.forkserver import client, registry
from flowlite.node.system import trace
from flowlite.provider import Instance, LaunchIntent, Plan
from flowlite.state import clock
from provider_adapters.locked_record import LockedRecord

_PACKAGE, _SOURCE = "flowlite_node", "flowlite.node"
# A kept node stays in the ledger longer than its fork server lives, for a launch that is repeated.
_FORGET_SECONDS = 3600.0


def python_of(options: Mapping[str, Any]) -> str:
    """The Python of the agents, and of the workers unless they need another one.

    It is that which submitted the task; that of this process if the other one is gone.

    Args:
        options: Those of the plan, or the data of an instance.
    """
    submitted = str(options.get("python", ""))
    return submitted if os.access(submitted, os.X_OK) else sys.executable


def socket_of(home: Path, task_id: str) -> str:
    """The socket path of a fork server that serves one task; short, since socket paths are limited."""
    return client.socket_path(f"{home}/{task_id}")


def spec_of(home: Path, plan: Plan, intent: LaunchIntent) -> dict[str, Any] | None:
    """The configuration of the fork server for a launch; None if there is nothing to preload.

    Raises:
        OSError: There is no place for its socket.
    """
    agent, call = intent.preload.get("agent"), intent.preload.get("call", {})
    waits = plan.options.get("python_spec") or intent.preload.get("setup")
    if not agent or waits or plan.options.get("container"):
        # Its Python has to be installed or set up first; the first agent that has it starts the fork server.
        return None
    common = client.of_call(
        call,
        task=intent.task_id,
        python=python_of(plan.options),
        workers=plan.num_instances * int(intent.preload.get("processes_per_node", 1)),
        environment={**intent.preload.get("environment", {}), "FLOW_HOME": str(home)},
    )
    forks = client.forks_for(call)
    seconds = float(intent.preload.get("warm_seconds", 0.0))
    is_kept = seconds > 0 and forks and client.can_be_kept(None)
    program = _program(Path(agent), is_plain=not is_kept and not common["argv"])
    if is_kept:
        spec: dict[str, Any] = program.make_kept_spec(
            **common,
            seconds=seconds,
            secrets=intent.preload.get("secrets", ()),
            most=int(plan.options.get("most_warm", registry.MOST)),
        )
    else:
        spec = program.make_spec(
            **common,
            socket=socket_of(home, intent.task_id),
            log=str(home / "tasks" / intent.task_id / "warm.log"),
            function=forks and call["kind"] == "function",
        )
    return {**spec, "program": agent}


def start(spec: Mapping[str, Any], socket: str) -> None:
    """Starts the fork server on that socket, unless it runs already. Raises OSError."""
    program = _program(Path(spec["program"]), is_plain=not spec["key"] and not spec["argv"])
    program.begin({**spec, "socket": socket})


def forget(socket: str) -> None:
    """Removes the files of a fork server that was killed."""
    place = Path(socket)
    for path in (place, *place.parent.glob(f"{place.name}.*")):
        with suppress(OSError):
            path.unlink()


class WarmNodes:
    """Nodes of ended tasks whose fork server is kept, each until a given time or until another task takes it over."""

    def __init__(self, home: Path) -> None:
        self._ledger = LockedRecord(home / "local" / "warm.json")

    def keep(self, nodes: Sequence[tuple[Instance, str]], seconds: float) -> list[Instance]:
        """Records nodes as kept, each with the socket of its fork server; returns those whose fork server answers."""
        until = clock.now() + seconds
        found = [registry.look(socket) for socket in {socket for _, socket in nodes}]
        answering = {each.socket for each in found if each is not None and registry.answers(each)}
        warm_ones = [
            replace(instance, state="warm", data={**instance.data, "warm_socket": socket})
            for instance, socket in nodes
            if socket in answering
        ]
        if warm_ones:
            with self._ledger.change() as entries:
                for name, entry in list(entries.items()):
                    if entry["until"] < clock.now() - _FORGET_SECONDS:
                        del entries[name]
                for each in warm_ones:
                    entries[each.id] = {"instance": each.to_json(), "until": until, "by": ""}
        return warm_ones

    def take(self, socket: str | None, ids: Sequence[str]) -> dict[str, str]:
        """Assigns kept nodes with that socket to new nodes; returns the kept id by new id. May be repeated."""
        if not self._ledger.read():
            return {}
        now = clock.now()
        with self._ledger.change() as entries:
            taken = {str(entry["by"]): name for name, entry in entries.items() if entry["by"]}
            free = [
                name
                for name, entry in entries.items()
                if not entry["by"]
                and entry["until"] > now
                and entry["instance"]["data"].get("warm_socket") == socket
            ]
            for new in ids:
                if new not in taken and free:
                    taken[new] = free.pop(0)
                    entries[taken[new]]["by"] = new
        return {new: taken[new] for new in ids if new in taken}

    def listed(self, task_id: str | None = None) -> list[Instance]:
        """The nodes that are kept now."""
        now = clock.now()
        found = [
            Instance.from_json(entry["instance"])
            for entry in self._ledger.read().values()
            if not entry["by"] and entry["until"] > now
        ]
        return [
            each
            for each in found
            if task_id in (None, each.task_id) and registry.look(each.data["warm_socket"])
        ]

    def end(self, ids: Sequence[str]) -> None:
        """Releases kept nodes. Their fork server ends if no other kept node needs it, unless it is in use."""
        entries = self._ledger.read()
        if not set(ids) & set(entries):
            return
        with self._ledger.change() as entries:
            gone = [entries.pop(name)["instance"] for name in ids if name in entries]
            needed = {
                entry["instance"]["data"].get("warm_socket")
                for entry in entries.values()
                if not entry["by"]
            }
        sockets = {each["data"].get("warm_socket") for each in gone} - needed
        found = (registry.look(str(socket)) for socket in sockets)
        registry.end([each for each in found if each is not None])


def _program(agent: Path, *, is_plain: bool) -> ModuleType:
    """The module that starts fork servers, of the same code as the agent's zipapp, which was made just before.

    To import it from there takes as long as a tenth of the supervisor's imports, and the nodes wait for it.

    Args:
        is_plain: Whether neither the key of the fork server nor its start depends on the place of that code.
    """
    return client if is_plain and _is_as_on_disk() else _as_shipped(agent)


def _is_as_on_disk() -> bool:
    """Whether the modules of a node that this process has imported have not changed on disk since it was started."""
    began = trace.started_at()
    imported = (
        str(module.__file__)
        for name, module in tuple(sys.modules.items())
        if name.startswith(f"{_SOURCE}.") and getattr(module, "__file__", None)
    )
    try:
        return began is not None and all(_last_change(path) < began for path in imported)
    except OSError:
        return False


def _last_change(path: str) -> float:
    status = os.stat(path)
    # Installers may give a file the time at which it was packed, but not the time of the change of its status.
    return max(status.st_mtime, status.st_ctime)


def _as_shipped(agent: Path) -> ModuleType:
    """The module from the agent's zipapp, so that all processes of a node run the same code."""
    loaded = sys.modules.get(f"{_PACKAGE}.forkserver.client")
    if loaded is not None and not str(loaded.__file__).startswith(f"{agent}{os.sep}"):
        # Modules of another FLOW_HOME, or of before an update: they would start that agent, which may be gone.
        for name in [name for name in sys.modules if name.partition(".")[0] == _PACKAGE]:
            del sys.modules[name]
    sys.path.insert(0, str(agent))
    try:
        return importlib.import_module(f"{_PACKAGE}.forkserver.client")
    finally:
        sys.path.remove(str(agent))
