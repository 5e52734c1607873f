"""The types of a task's options, shared by the decorator, `FlowApp`, `.options(...)` and `TaskConfig`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal, NotRequired, Protocol, TypedDict

if TYPE_CHECKING:
    from os import PathLike

    from flowlite.spec.checkpoint import Checkpoint
    from flowlite.spec.limits import Retries
    from flowlite.spec.secrets import Secret
    from flowlite.spec.storage import Mount, Volume


class VolumeOptions(TypedDict):
    """A volume written as a mapping."""

    name: str
    size_gb: NotRequired[float | None]
    interface: NotRequired[Literal["file", "block"]]


class CheckpointOptions(TypedDict):
    """A checkpoint written as a mapping."""

    path: str
    sync: str
    every: NotRequired[float]
    keep: NotRequired[int]
    nodes: NotRequired[Literal["leader", "all"]]
    final_seconds: NotRequired[float]


class MountOptions(TypedDict):
    """A bucket written as a mapping."""

    url: str
    endpoint_url: NotRequired[str | None]
    region: NotRequired[str | None]
    profile: NotRequired[str | None]


class SecretOptions(TypedDict):
    """A secret written as a mapping."""

    name: str
    env: NotRequired[str | None]
    file: NotRequired[str | None]


class RetryOptions(TypedDict):
    """Retries written as a mapping."""

    max_retries: int
    delay: NotRequired[float]
    backoff: NotRequired[float]
    max_delay: NotRequired[float]


class SlurmOptions(TypedDict, total=False):
    """Options that are passed to Slurm, as for `sbatch`."""

    partition: str
    account: str
    qos: str
    constraint: str
    reservation: str
    gres: str
    gpus_per_node: int | str
    mem: int | str
    exclusive: bool | str
    nodelist: str | Sequence[str]
    exclude: str | Sequence[str]
    requeue: bool
    sbatch: Sequence[str]
    container: Literal["none", "pyxis", "apptainer", "singularity"]
    image: str


class CommonOptions(TypedDict, total=False):
    """The options that functions of one app may share. `TaskConfig` describes each of them."""

    num_instances: int | tuple[int, int] | Sequence[int] | str
    settle_seconds: float | str
    heal_seconds: float | str
    grow: Literal["attempt", "checkpoint"]
    spares: int
    processes_per_node: int | Literal["auto"]
    gpu: str | Sequence[str] | None
    distributed_mode: Literal["auto", "manual", "ray", "mpi"]
    volumes: Mapping[str, str | Volume | VolumeOptions] | None
    mounts: Mapping[str, str | Mount | MountOptions] | None
    checkpoint: Checkpoint | CheckpointOptions | None
    environment: Mapping[str, str] | None
    secrets: Sequence[str | Secret | SecretOptions] | None
    image: str | None
    dependencies: Sequence[str] | str | None
    python: str | None
    notify: Sequence[str] | str | None
    setup: Sequence[str] | str | None
    setup_timeout: float | str
    outputs: Sequence[str] | str | None
    priority: Literal["low", "med", "high"]
    spot: bool | Literal["prefer"] | None
    prefer: Literal["price", "order"]
    max_wait_hours: float | str | None
    max_price_per_hour: float | None
    max_run_time_hours: float | str | None
    max_cost: float | None
    keep_warm: float | str | None
    retries: int | Retries | RetryOptions
    internode_interconnect: str | None
    intranode_interconnect: str | None
    region: str | Sequence[str] | None
    cpu: float | None
    memory: float | str | None
    start: Literal["auto", "fork", "spawn"]
    results: Literal["any", "plain"]
    stop_signal: str
    grace_seconds: float
    preflight: Literal["quick", "full"] | None
    join_timeout_seconds: float
    slurm: SlurmOptions | None
    workdir: str | None
    sync: bool | None
    files: Mapping[str, str | PathLike[str]] | None


class HasId(Protocol):
    """A task, as `after=` takes it."""

    @property
    def id(self) -> str:
        """Its id."""


class TaskOptions(CommonOptions, total=False):
    """Every option of `@app.function`."""

    name: str | None
    after: str | HasId | Sequence[str | HasId] | None
    provider: str | Sequence[str] | None


class ConfigOptions(TaskOptions, total=False):
    """The options of `TaskConfig`: those of the decorator and `command`."""

    command: Sequence[str] | str | None
