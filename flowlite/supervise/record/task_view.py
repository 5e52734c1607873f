"""The values of a task's configuration, plan and call that the supervisor uses, read without pydantic."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flowlite.node.config import distributed_modes
from flowlite.node.quick_dataclass import dataclass
from flowlite.provider import Plan
from flowlite.spec.retry_policy import RetryPolicy
from flowlite.state.store import TaskRecord


@dataclass(frozen=True, slots=True)
class TaskView:
    """One task as it was submitted.

    Attributes:
        plan: What to launch.
        call: What workers run, with paths on this machine.
        mode: One of the modes in `node/config/distributed_modes.py`.
        workers_per_node: Workers that flowlite starts on each node.
        processes_per_node: Same as `workers_per_node` in the mode "auto"; in all others, what launchers are told to
            start.
        cpus: CPU cores requested on each node.
        grace: Seconds from the stop signal to SIGKILL.
        secrets: Names of the secret variables.
        outputs: Patterns of the files to fetch from the working directories.
        setup: Commands that run once on every node before the workers.
        setup_seconds: How long they may take on each node.
        max_wait_seconds: How long the task may wait for room; None for no limit.
        warm_seconds: How long nodes are kept for the next task.
        preflight: Which measurements the nodes make before GO: "quick", "full" or "".
        after: Ids of the tasks that must have completed before it begins.
        settle_seconds: How long a gang that may grow waits for more nodes at its first start.
        heal_seconds: How long a gang that may shrink waits for nodes in place of lost ones.
        grows_at_checkpoints: Whether a gang is asked to stop so that it continues with nodes for which there is room.
    """

    plan: Plan
    call: dict[str, Any]
    environment: dict[str, str]
    mode: str
    workers_per_node: int
    processes_per_node: int
    stop_signal: str
    grace: float
    join_timeout: float
    retries: RetryPolicy
    mounts: tuple[dict[str, Any], ...] = ()
    checkpoint: dict[str, Any] | None = None
    warm_seconds: float = 0.0
    secrets: tuple[str, ...] = ()
    cpus: float | None = None
    setup: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    setup_seconds: float = 3600.0
    after: tuple[str, ...] = ()
    preflight: str = ""
    max_wait_seconds: float | None = None
    settle_seconds: float = 30.0
    heal_seconds: float = 60.0
    grows_at_checkpoints: bool = False

    @property
    def time_to_stop(self) -> float:
        """Seconds a node may take to stop: the grace period of its workers, and a last copy of checkpoints."""
        return self.grace + float((self.checkpoint or {}).get("final_seconds", 0.0))

    @property
    def is_elastic(self) -> bool:
        """Whether attempts may have different numbers of nodes."""
        return self.plan.fewest_instances < self.plan.num_instances

    @classmethod
    def of(cls, record: TaskRecord) -> TaskView:
        """Reads a task's row."""
        config, plan = record.config, Plan.from_json(record.plan)
        mode = str(config.get("distributed_mode") or "auto")
        workers = plan.processes_per_node if mode == distributed_modes.AUTO else 1
        return cls(
            plan=plan,
            call=record.call,
            environment=dict(config.get("environment") or {}),
            mode=mode,
            workers_per_node=workers,
            processes_per_node=workers if mode == distributed_modes.AUTO else _launched(record),
            stop_signal=str(config.get("stop_signal") or "SIGTERM"),
            grace=float(config.get("grace_seconds", 10.0)),
            join_timeout=float(config.get("join_timeout_seconds", 300.0)),
            retries=RetryPolicy.of(config.get("retries")),
            mounts=_mounts(config.get("mounts")),
            checkpoint=config.get("checkpoint"),
            warm_seconds=float(config.get("keep_warm") or 0.0),
            cpus=config.get("cpu"),
            outputs=tuple(str(pattern) for pattern in config.get("outputs") or ()),
            setup=tuple(str(command) for command in config.get("setup") or ()),
            setup_seconds=float(config.get("setup_timeout", 3600.0)),
            after=tuple(str(task_id) for task_id in config.get("after") or ()),
            preflight=str(config.get("preflight") or ""),
            secrets=tuple(str(name) for name in config.get("secrets") or ()),
            settle_seconds=float(config.get("settle_seconds", 30.0)),
            heal_seconds=float(config.get("heal_seconds", 60.0)),
            grows_at_checkpoints=config.get("grow") == "checkpoint",
            max_wait_seconds=None
            if (hours := config.get("max_wait_hours")) is None
            else float(hours) * 3600,
        )


def _launched(record: TaskRecord) -> int:
    """Returns how many processes the user's launcher starts on each node: the number requested, or one per GPU."""
    asked = record.config.get("processes_per_node")
    if isinstance(asked, int) and asked > 1:
        return asked
    gpu = record.config.get("gpu")
    if record.candidates:
        gpu = record.candidates[record.candidate]["options"].get("gpu")
    if not gpu:
        return 1
    from flowlite.spec.gpu import GpuRequest

    return GpuRequest.parse(str(gpu)).count


def _mounts(value: object) -> tuple[dict[str, Any], ...]:
    if not isinstance(value, Mapping):
        return ()
    return tuple(
        {"path": path, **({"url": what} if isinstance(what, str) else dict(what))}
        for path, what in value.items()
    )
