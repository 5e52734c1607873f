"""Assigns the tasks of a step to nodes. Pure.

Every node of a gang has the same number of workers. A step, one `srun`, has tasks on some or all nodes. A step that
uses the whole gang gives task `n` to rank `n`, so that a trainer's SLURM_PROCID and `flow logs --rank` agree.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..quick_dataclass import dataclass


class LayoutError(ValueError):
    """The step does not fit the gang; the text says why."""


@dataclass(frozen=True, slots=True)
class StepRequest:
    """A step's request. None leaves a value to the job.

    Attributes:
        within: Node ranks it may use, None for all.
    """

    nodes: int | None = None
    tasks: int | None = None
    per_node: int | None = None
    within: Sequence[int] | None = None


@dataclass(frozen=True, slots=True)
class Task:
    """One task of a step. `step_node` counts the nodes of the step, `node` those of the gang."""

    id: int
    node: int
    step_node: int
    local: int


@dataclass(frozen=True, slots=True)
class Placement:
    """The nodes of a step, by their ranks in the gang, and the number of tasks on each."""

    nodes: Sequence[int]
    counts: Sequence[int]

    def tasks(self) -> list[Task]:
        """Returns all tasks, sorted by id: node after node."""
        order = [(each, local) for each, count in enumerate(self.counts) for local in range(count)]
        return [Task(i, self.nodes[each], each, local) for i, (each, local) in enumerate(order)]


def per_node_of(nodes: int, tasks: int | None, per_node: int | None) -> list[int]:
    """Returns the number of a job's tasks on each of its nodes.

    Raises:
        LayoutError: There are fewer tasks than nodes, or more than `per_node` allows.
    """
    if tasks is None:
        return [per_node or 1] * nodes
    if tasks < nodes:
        raise LayoutError(f"{tasks} tasks cannot run on {nodes} nodes; ask for {tasks} nodes")
    if per_node is not None and tasks > nodes * per_node:
        raise LayoutError(
            f"{tasks} tasks do not fit on {nodes} nodes with {per_node} tasks each; "
            "ask for more nodes, or for more tasks per node"
        )
    return _evenly(tasks, nodes)


def place(wish: StepRequest, job: Sequence[int], busy: Sequence[int]) -> Placement:
    """Chooses the nodes of a step.

    Args:
        job: Tasks of the job on each node.
        busy: Tasks now running on each node; a step that needs few nodes gets the least busy ones.

    Raises:
        LayoutError: The step asks for more than the gang has.
    """
    allowed = list(range(len(job))) if wish.within is None else sorted(set(wish.within))
    wanted = len(allowed) if wish.nodes is None else wish.nodes
    if wish.tasks is not None:
        if wish.nodes is None and wish.per_node:
            wanted = min(wanted, -(-wish.tasks // wish.per_node))
        wanted = min(wanted, wish.tasks)
    if wanted > len(allowed):
        raise LayoutError(f"{wanted} nodes are asked for, and there are {len(allowed)}")
    chosen = sorted(sorted(allowed, key=lambda node: (busy[node], node))[:wanted])
    if wish.tasks is not None:
        if wish.per_node is not None and wish.tasks > wanted * wish.per_node:
            raise LayoutError(
                f"{wish.tasks} tasks do not fit on {wanted} nodes with {wish.per_node} tasks each"
            )
        counts = _evenly(wish.tasks, wanted)
    elif wish.per_node is not None:
        counts = [wish.per_node] * wanted
    else:
        counts = [job[node] for node in chosen]
    return Placement(tuple(chosen), tuple(counts))


def _evenly(tasks: int, nodes: int) -> list[int]:
    each, more = divmod(tasks, nodes)
    return [each + (number < more) for number in range(nodes)]
