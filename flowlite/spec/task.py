"""`TaskConfig`: the configuration of one run, checked as a whole."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import field
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import Field, PrivateAttr, field_serializer, model_validator

from flowlite.errors import SpecError
from flowlite.node.quick_dataclass import dataclass
from flowlite.notify.targets import shown
from flowlite.spec import fields
from flowlite.spec.base import Spec
from flowlite.spec.checkpoint import CheckpointField, checkpoint_problem
from flowlite.spec.gpu import GpuRequest
from flowlite.spec.launchers import launcher_problem
from flowlite.spec.limits import NotNegative, Positive, Priority, Retries
from flowlite.spec.secrets import Secret
from flowlite.spec.storage import Mounts, Volumes, storage_problem

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Unpack

    from flowlite.spec.options import ConfigOptions


@dataclass(frozen=True, slots=True)
class BoundCall:
    """A function with the arguments of the call."""

    function: Callable[..., Any]
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)


class TaskConfig(Spec):
    """What is run, on which nodes, and under which limits. Frozen; `replace` makes a changed copy.

    Attributes:
        name: Name to find the task by; None uses the name of the function or command.
        num_instances: Nodes in the gang; (2, 8) for a gang of 2 to 8 nodes, which shrinks and grows with the room.
        settle_seconds: How long a gang that may grow waits for more nodes once it has the fewest that it needs; a text
            such as "2m" is read too.
        heal_seconds: How long a gang that may shrink waits for new nodes in place of lost ones, if enough are left.
        grow: When such a gang takes nodes for which there is room again: "attempt" when its next attempt begins,
            "checkpoint" also while an attempt runs: its workers are asked to stop as before a preemption.
        spares: Further machines that are brought up with code, environment and imports, and have no rank. One of them
            takes the rank of a node that is lost, also without `retries`. They count in every cap.
        processes_per_node: Workers on each node; "auto" is one per GPU, or one. In manual mode, the number that the
            user's launcher is told to start there.
        gpu: GPUs of each node in canonical form ("h100:8"), None for CPU only. Of several, any will do.
        distributed_mode: "auto" starts every worker with its rank; "manual" starts one process per node, for launchers
            such as torchrun; "ray" runs once, on node 0, in a Ray cluster of all nodes; "mpi" runs under `mpirun`.
        volumes: Volumes by their path on every node.
        mounts: Read-only buckets ("s3://…") by path.
        checkpoint: Files that are copied away while workers run, and restored before they start again.
        environment: Variables of every worker.
        secrets: Variables of every worker whose values are read at submission and kept out of every configuration.
        image: Container image to run in.
        dependencies: Requirements to install on the nodes, or the path of a requirements file.
        python: Python version on the nodes ("3.11"); None for the one of this machine.
        notify: Targets that are notified of the end of the task, of a failure that is retried, and of a cap: commands
            that run on this machine, URLs of webhooks, URLs of Apprise. They are kept like secrets; a configuration
            shows them without keys.
        setup: Commands for the shell that run once on every node, in the working directory, before the workers start.
        setup_timeout: Seconds they may take on each node in total; a text such as "30m" is read too.
        outputs: Files of the working directory, as patterns ("runs/**"), that are copied to this machine at the end.
        priority: Pricing tier, if the provider has tiers; the order of the queue, where tasks wait for hosts or for
            this machine.
        spot: Whether machines may be taken away in exchange for a lower price; "prefer" allows both, None leaves it to
            the provider.
        prefer: Which of several places is tried first: "price" is the one that can cost least for the whole gang,
            "order" follows the order in which the values of `gpu`, `provider` and `region` were given.
        max_wait_hours: How long the task may wait for room before it fails. A text such as "30m" is read too.
        max_price_per_hour: Cap in US dollars per instance and hour.
        max_run_time_hours: Cap in hours from the start of the workers; enforced by the nodes themselves. A text such as
            "1h30m" is read too.
        max_cost: Cap in US dollars for the whole task.
        keep_warm: Seconds for which its nodes, and what was imported there, are kept for the next task; a text such as
            "10m" is read too. None or 0 gives the nodes back at once.
        retries: New attempts after a failure.
        internode_interconnect: Network between nodes that is required ("InfiniBand").
        intranode_interconnect: Link between the GPUs of a node that is required ("SXM5").
        provider: Where nodes come from; None for the setting `provider`, "any" for all providers that are set up. Of
            several, any will do.
        region: Region or zone at the provider. Of several, any will do; "us-*" is all that fit.
        cpu: CPU cores each node must have.
        memory: Memory each node must have, in GB; a text such as "64GB" is read too.
        start: How workers start: "fork" (from the fork server), "spawn" (as new processes), or "auto" for whichever is
            safe.
        results: "plain" accepts only results that cannot execute code when they are read; "any" also pickles.
        stop_signal: Signal that asks workers to stop.
        grace_seconds: Seconds between that signal and SIGKILL.
        preflight: What is measured on every node before the workers start: "quick" looks at the GPUs and multiplies
            matrices, "full" measures the paths between the nodes, too. A node that is broken, or slow beside the
            others, is replaced.
        join_timeout_seconds: Seconds in which all nodes must join before the task fails and names the missing ones; an
            outage before the start may last as long.
        slurm: Further options for Slurm ({"partition": "gpu", "qos": "high"}); without effect elsewhere.
        after: Tasks that must have completed before this one begins, by id or name.
        command: Command to run instead of a function; a text goes through the shell.
        workdir: Directory the workers start in: one of the project, relative to the current directory ("experiments"),
            or an absolute path on the node, to which the project's files are not copied.
        sync: Whether the project's files are sent to the nodes. None sends them to other machines, and lets tasks on
            this machine work in the directory itself; True gives those a copy, too; False sends nothing.
        files: Further files and directories of this machine that are sent, by their path below the working directory
            ({"data.csv": "/mnt/data/small.csv"}).
    """

    name: fields.Name | None = None
    num_instances: fields.Nodes = 1
    settle_seconds: fields.Duration = 30.0
    heal_seconds: fields.Duration = 60.0
    grow: Literal["attempt", "checkpoint"] = "attempt"
    spares: Annotated[int, Field(ge=0, le=64)] = 0
    processes_per_node: fields.Processes = "auto"
    gpu: fields.Gpus | None = None
    distributed_mode: Literal["auto", "manual", "ray", "mpi"] = "auto"
    volumes: Volumes = Field(default_factory=dict)
    mounts: Mounts = Field(default_factory=dict)
    checkpoint: CheckpointField | None = None
    environment: fields.Environment = Field(default_factory=dict)
    secrets: fields.Secrets = ()
    image: fields.Word | None = None
    dependencies: fields.Dependencies = ()
    python: fields.PythonVersion | None = None
    notify: fields.Notify = ()
    setup: fields.Setup = ()
    setup_timeout: fields.Duration = 3600.0
    outputs: fields.Outputs = ()
    priority: Priority = "med"
    spot: fields.Spot | None = None
    prefer: Literal["price", "order"] = "price"
    max_wait_hours: fields.Hours | None = None
    max_price_per_hour: Positive | None = None
    max_run_time_hours: fields.Hours | None = None
    max_cost: Positive | None = None
    keep_warm: fields.Duration | None = None
    retries: fields.RetriesField = Retries(0)
    internode_interconnect: fields.Internode | None = None
    intranode_interconnect: fields.Intranode | None = None
    provider: fields.Providers | None = None
    region: fields.Regions | None = None
    cpu: Positive | None = None
    memory: fields.Memory | None = None
    start: Literal["auto", "fork", "spawn"] = "auto"
    results: Literal["any", "plain"] = "any"
    stop_signal: fields.StopSignal = "SIGTERM"
    grace_seconds: NotNegative = 10.0
    preflight: Literal["quick", "full"] | None = None
    join_timeout_seconds: Positive = 300.0
    slurm: fields.SlurmOptions = Field(default_factory=dict)
    after: fields.After = ()
    command: fields.Command | None = None
    workdir: fields.Directory | None = None
    sync: bool | None = None
    files: fields.Files = Field(default_factory=dict)

    _call: BoundCall | None = PrivateAttr(default=None)
    _batch: dict[str, Any] | None = PrivateAttr(default=None)

    if TYPE_CHECKING:

        def __init__(self, **options: Unpack[ConfigOptions]) -> None: ...

    # Derived values

    @property
    def gpu_request(self) -> GpuRequest | None:
        """`gpu`, parsed into its parts. Raises SpecError if there are several, one of which is chosen by the plan."""
        gpu = _only("gpu", self.gpu)
        return GpuRequest.parse(gpu) if gpu else None

    @property
    def one_region(self) -> str | None:
        """`region`. Raises SpecError if there are several, one of which is chosen by the plan."""
        return _only("region", self.region)

    @property
    def most_nodes(self) -> int:
        """Nodes of the gang, at most."""
        found = self.num_instances
        return found if isinstance(found, int) else found[1]

    @property
    def fewest_nodes(self) -> int:
        """Nodes without which no attempt begins."""
        found = self.num_instances
        return found if isinstance(found, int) else found[0]

    @property
    def is_elastic(self) -> bool:
        """Whether attempts may have different numbers of nodes."""
        return self.fewest_nodes < self.most_nodes

    @property
    def gpus_per_node(self) -> int:
        """GPUs asked for on each node."""
        request = self.gpu_request
        return request.count if request else 0

    @property
    def workers_per_node(self) -> int:
        """Processes that flowlite starts on each node, with "auto" resolved."""
        if self.distributed_mode != "auto":
            return 1
        if self.processes_per_node == "auto":
            return self.gpus_per_node or 1
        return self.processes_per_node

    @property
    def total_processes(self) -> int:
        """The world size: processes of the whole gang, at most."""
        return self.most_nodes * self.workers_per_node

    @property
    def total_gpus(self) -> int:
        """GPUs of the whole gang, at most."""
        return self.most_nodes * self.gpus_per_node

    @property
    def max_run_seconds(self) -> float | None:
        """`max_run_time_hours` in seconds."""
        return None if self.max_run_time_hours is None else self.max_run_time_hours * 3600

    @property
    def directory_on_node(self) -> str | None:
        """`workdir`, if it is an absolute path on the nodes; else None."""
        return self.workdir if self.workdir is not None and self.workdir.startswith("/") else None

    @property
    def call(self) -> BoundCall | None:
        """The call this configuration runs, if it was built from a function."""
        return self._call

    @property
    def batch(self) -> dict[str, Any] | None:
        """The batch script that is run, and what was read from it (`spec/batch/`); None if it is not a batch script."""
        return self._batch

    # Changed copies

    def replace(self, **changes: Unpack[ConfigOptions]) -> Self:
        """A copy with these options changed, checked again; the call is kept unless a command replaces it."""
        given: dict[str, Any] = {name: getattr(self, name) for name in self.model_fields_set}
        changed = type(self)(**{**given, **changes})
        changed._call = None if changed.command is not None else self._call
        changed._batch = self._batch if changed.command == self.command else None
        return changed

    def with_defaults(self, defaults: Mapping[str, Any]) -> Self:
        """A copy in which options that were not given explicitly take these values."""
        missing: dict[str, Any] = {
            name: value for name, value in defaults.items() if name not in self.model_fields_set
        }
        return self.replace(**missing) if missing else self

    def with_call(self, call: BoundCall) -> Self:
        """A copy that runs this call."""
        # With no command, nothing is left to check. A sweep makes a copy for each of its calls.
        if self.command is not None:
            return self.replace(command=None).with_call(call)
        changed = self.model_copy(update={"command": None})
        changed._call = call
        return changed

    def with_batch(self, batch: dict[str, Any]) -> Self:
        """A copy that runs a batch script, which `command` names."""
        changed = self.replace()
        changed._batch = batch
        return changed

    # Text form

    def to_dict(self) -> dict[str, Any]:
        """The options as plain JSON values. Secrets are names only; the call is not included."""
        return self.model_dump(mode="json")

    def to_json(self) -> str:
        """`to_dict` as text."""
        return json.dumps(self.to_dict(), ensure_ascii=False)

    @classmethod
    def from_json(cls, data: str | Mapping[str, Any]) -> Self:
        """Rebuilds a configuration from the result of `to_json` or `to_dict`. Raises SpecError."""
        if not isinstance(data, str):
            return cls(**dict(data))
        try:
            found = json.loads(data)
        except ValueError as error:
            raise SpecError(f"not a configuration: {error}") from None
        if not isinstance(found, dict):
            raise SpecError("not a configuration: a JSON object is expected")
        return cls(**found)

    @classmethod
    def from_yaml(cls, path: str | Path) -> Self:
        """Reads a task file. Raises SpecError naming file, line and option."""
        from flowlite.spec.taskfile import TaskFile

        task_file = TaskFile.read(path)
        try:
            return cls(**task_file.options)
        except SpecError as error:
            raise task_file.locate(error) from None

    # Checks

    @field_serializer("notify")
    def _without_keys(self, targets: tuple[str, ...]) -> list[str]:
        return [shown(target) for target in targets]

    @field_serializer("num_instances")
    def _number_or_pair(self, value: int | tuple[int, int]) -> int | list[int]:
        return list(value) if isinstance(value, tuple) else value

    @field_serializer("gpu", "provider", "region")
    def _one_or_list(self, value: str | tuple[str, ...] | None) -> str | list[str] | None:
        return list(value) if isinstance(value, tuple) else value

    @field_serializer("secrets")
    def _only_names(self, secrets: tuple[Secret, ...]) -> list[str]:
        return [secret.name for secret in secrets]

    @model_validator(mode="after")
    def _agree(self) -> Self:
        problem = storage_problem(self.volumes, self.mounts, self.most_nodes)
        problem = problem or checkpoint_problem(
            self.checkpoint, self.volumes, self.mounts, self.most_nodes
        )
        if self.checkpoint is not None and self.checkpoint.nodes == "all" and self.is_elastic:
            problem = problem or (
                "checkpoint: nodes='all' keeps a part of each node, which another number of nodes cannot read; write "
                "whole checkpoints on node 0 (nodes='leader'), or give num_instances one number"
            )
        # With several kinds of GPU, this is checked for each of them once it is the only one.
        if not isinstance(self.gpu, tuple):
            problem = problem or launcher_problem(
                self.command,
                self.distributed_mode,
                self.total_processes,
                self.workers_per_node,
                self.gpus_per_node,
            )
        if self.distributed_mode == "mpi" and self.start == "fork":
            problem = (
                "start: 'fork' does not go with distributed_mode 'mpi', where mpirun starts processes; leave it "
                "out"
            )
        if problem:
            raise ValueError(problem)
        if self.directory_on_node is not None and (self.sync or self.files):
            what = "files" if self.files else "sync"
            raise ValueError(
                f"workdir: {self.workdir} is a directory that the nodes have, and {what} puts files into one that is "
                "made for the task; give only one of them"
            )
        both = sorted(self.environment.keys() & {secret.name for secret in self.secrets})
        if both:
            raise ValueError(f"environment: {both[0]} is also one of the secrets; give it once")
        return self


def _only(name: str, value: str | tuple[str, ...] | None) -> str | None:
    if isinstance(value, tuple):
        raise SpecError(
            f"{name}: any of {', '.join(value)} would do, and the plan of the task chooses one of them"
        )
    return value
