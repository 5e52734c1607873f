"""Commands on the nodes of a task, in the environment of a node's first worker: for `Task.exec` and `flow ssh`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from flowlite.errors import NodeUnreachable, NotFound
from flowlite.node.quick_dataclass import dataclass

if TYPE_CHECKING:
    from flowlite.api.session import Session
    from flowlite.connect.base import Connection
    from flowlite.provider import NodeSettings
    from flowlite.state.store import InstanceRecord, TaskRecord

# `$1` is the directory; the other arguments are passed to `env`.
_IN_DIRECTORY = 'cd "$1" || exit; shift; exec env "$@"'
_SHELL = 'exec "${SHELL:-/bin/sh}" -i'


@dataclass(frozen=True, slots=True)
class NodeAccess:
    """A connection to one node, with what is needed to run commands there.

    Attributes:
        connection: The connection to the machine.
        gone: Whether the node was a directory of this machine that has been removed. Commands then run on this machine,
            without the node's files.
        home: The task's directory on the node.
        program: Words that run the node's own program there; empty if the node is gone.
        instance: The id of the machine.
    """

    connection: Connection
    gone: bool
    prefix: tuple[str, ...]
    home: str = ""
    program: tuple[str, ...] = ()
    instance: str = ""

    def argv(self, command: str | Sequence[str] | None) -> list[str]:
        """The words to run through the connection. A string is run by the shell; None starts an interactive shell."""
        if command is None:
            command = _SHELL
        words = ["sh", "-c", command] if isinstance(command, str) else list(command)
        return [*self.prefix, *words]


@contextmanager
def access(session: Session, record: TaskRecord, node: int) -> Iterator[NodeAccess]:
    """Access to one node by its rank. Raises NotFound if there is none yet, NodeUnreachable if it does not answer."""
    from flowlite.provider import Instance, Plan, provider_of_task

    provider = provider_of_task(record, session.home)
    instance = Instance.from_json(_instance(session, record, node).data)
    settings = provider.node_settings(Plan.from_json(record.plan), instance)
    if record.final and _was_here(session, settings):
        from flowlite.connect.local import LocalConnection

        yield NodeAccess(LocalConnection(), True, _in_its_place(session, record, node, settings))
        return
    if record.final and not Path(settings.home).is_relative_to(session.home):
        raise NodeUnreachable(
            f"task {record.name} ({record.id}) has ended ({record.state}) and node {node} was given back; its output "
            f"and results are here: `flow logs {record.name}`, `flow result {record.name}`"
        )
    agent = f"{settings.home}/agent.pyz"
    program = (settings.python, "-I", "-S", agent)
    prefix = (*program, "exec", settings.home, "--")
    with provider.connect(instance) as connection:
        yield NodeAccess(connection, False, prefix, settings.home, program, instance.id)


def _instance(session: Session, record: TaskRecord, node: int) -> InstanceRecord:
    held = [i for i in session.store.instances(record.id) if i.node_rank == node]
    if not held:
        reason = f": {record.reason}" if record.reason else ""
        raise NotFound(
            f"node {node} of task {record.name} ({record.id}) is not there yet; the task is {record.state}{reason}"
        )
    # A replacement comes after the node that it replaced.
    return held[-1]


def _was_here(session: Session, settings: NodeSettings) -> bool:
    """Whether the node was a directory of this FLOW_HOME and has been removed."""
    home = Path(settings.home)
    return home.is_relative_to(session.home) and not home.exists()


def _in_its_place(
    session: Session, record: TaskRecord, node: int, settings: NodeSettings
) -> tuple[str, ...]:
    """The words in front of a command that set the directory and variables of the node's first worker."""
    from flowlite.node.worker.environment import WorkerPlace, worker_environment
    from flowlite.supervise.gang_size import bounds_of, nodes_of
    from flowlite.supervise.record.task_view import TaskView

    addresses = {
        i.node_rank: str(i.data.get("address", "")) for i in session.store.instances(record.id)
    }
    nodes = nodes_of(record)
    place = WorkerPlace(
        task=record.id,
        name=record.name,
        attempt=record.attempt,
        mode=str(record.config.get("distributed_mode") or "auto"),
        node_rank=node,
        local_rank=0,
        processes_per_node=TaskView.of(record).processes_per_node,
        addresses=[addresses.get(rank, "") for rank in range(nodes)],
        master_addr=addresses.get(0, ""),
        master_port=0,
        provider=record.provider,
        size=bounds_of(record),
    )
    variables = worker_environment({}, place, record.config.get("environment"))
    # No process listens there any more.
    for name in ("MASTER_PORT", "PET_MASTER_PORT"):
        variables.pop(name, None)
    workdir = settings.workdir
    directory = (
        workdir if workdir and Path(workdir).is_dir() else session.paths(record.id).directory
    )
    pairs = (f"{name}={value}" for name, value in variables.items())
    return ("sh", "-c", _IN_DIRECTORY, "sh", str(directory), *pairs)
