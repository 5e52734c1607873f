"""`AgentConfig`: the configuration of an agent, as the file `agent.json` of its attempt's directory.

A node's directory (`home`) contains the files that all attempts share (`call.bin`, `source-<sha>.zip`, `secrets.json`)
and one directory for each attempt, `a<attempt>/`, with `agent.json`, `secret`, the streams `r<rank>.out` and
`r<rank>.err`, the results `r<rank>.result` and, at the end, `report.json`.
"""

from __future__ import annotations

import json
from dataclasses import field, fields
from pathlib import Path
from typing import Any

from ..quick_dataclass import dataclass
from . import distributed_modes
from .fencing import FENCE_AFTER
from .ranks import global_rank


class ConfigFault(ValueError):
    """`agent.json` is not valid for this agent."""


@dataclass(slots=True)
class AgentConfig:
    """The configuration of one agent for one attempt.

    `processes_per_node` is the number of processes that share a node's GPUs. In mode "auto" flowlite starts that many
    workers on each node. In mode "manual" it starts one, and passes the number to the user's own launcher
    (`PET_NPROC_PER_NODE`); so it does in the modes in which node 0 leads (distributed_modes.py). `workers_per_node` is
    the number of workers that flowlite starts, and ranks are computed from it.

    Durations are in seconds. `call` is one of

        {"kind": "function", "bundle": path, "sha256": hex, "source": [{"zip": path, "sha256": hex}], "imports": [...],
         "start": "auto" | "fork" | "spawn", "results": "any" | "plain"}
        {"kind": "command", "argv": [...], and, if it runs Python, "start", "imports", "late", "writes" as
         `bundle/script.py` reads them, or "start": "spawn" and "why"}

    Relative paths in it are relative to the node's directory.

    Attributes:
        attempt: The number of the attempt.
        roster: The instance ids of the gang; the index is the node rank (ranks.py).
        workdir: The working directory of the workers, an absolute path; None for the node's directory. If it is below
            the node's directory, it is made if it does not exist.
        cache: Directory of files that tasks of this node share, by content hash; None where nothing is shared.
        python_spec: The Python environment of the workers (node/python_env/environments.py); None uses `python` as is.
        container: The image in which the workers run (node/containers/container.py).
        mounts: Buckets to mount read-only: {"path", "url", "endpoint"}; their credentials are in `storage.json`.
        checkpoint: Which checkpoints to copy away while workers run, and where to (node/checkpoints/agent_side.py).
        tls: Whether the rendezvous is encrypted (node/protocol/tls.py); its files are in the attempt's directory.
        warm_seconds: How long the fork server, with its imports, is kept for the next task.
        trace: Whether the node's processes record what they do and when (node/system/trace.py).
        lease: {"file", "seconds"}: the machine's lease, which the agent renews (node/preemption/lease_file.py); None
            without one.
        max_run_seconds: The longest run after GO; None for no limit.
        paid_seconds: The time from the agent's start after which workers must stop, because the task's money lasts no
            longer; None for no limit.
        gang: {"cpus"}: the number of CPUs of each node in a gang that node 0 leads; None for all of the machine.
        outputs: Patterns of the files that are collected from the working directory (node/outputs/patterns.py).
        setup: Shell commands to run once on this node before the workers start (node/setup/run.py).
        setup_seconds: The longest time that all these commands may take together.
        preemption: {"kind"}: how the node learns of a preemption (node/preemption/notices.py); None for none.
        spare: Whether this is a machine without a rank, which only gets ready (node/agent/spare.py). Its attempt is 0.
        preflight: Which measurements to make before GO: "quick", "full", or "" for none.
        provider: The provider of the nodes, for `FLOW_PROVIDER`; None if it is not known.
        size: The fewest and the most nodes that an attempt of this task may have; None if all have as many.
        tells_stoppable: Whether the agent says once a worker calls `should_stop()` or listens for SIGUSR2.
    """

    task: str
    name: str
    attempt: int
    instance: str
    roster: list[str]
    processes_per_node: int
    call: dict[str, Any]
    mode: str = "auto"
    environment: dict[str, str] = field(default_factory=dict)
    workdir: str | None = None
    python: str = ""
    gpus: dict[str, Any] | None = None
    visible_gpus: str | None = None
    volumes: list[dict[str, Any]] = field(default_factory=list)
    stop_signal: str = "SIGTERM"
    grace: float = 10.0
    join_timeout: float = 300.0
    beat: float = 1.0
    lost_after: float = 8.0
    fence_after: float = FENCE_AFTER
    linger: float = 600.0
    max_run_seconds: float | None = None
    paid_seconds: float | None = None
    warm_socket: str | None = None
    bind: str = "127.0.0.1"
    leader_address: str = "127.0.0.1"
    ports_dir: str | None = None
    master_port: int | None = None
    cache: str | None = None
    python_spec: dict[str, Any] | None = None
    container: dict[str, Any] | None = None
    mounts: list[dict[str, Any]] = field(default_factory=list)
    checkpoint: dict[str, Any] | None = None
    tls: bool = False
    warm_seconds: float = 0.0
    trace: bool = False
    lease: dict[str, Any] | None = None
    preemption: dict[str, Any] | None = None
    gang: dict[str, Any] | None = None
    outputs: list[str] = field(default_factory=list)
    setup: list[str] = field(default_factory=list)
    setup_seconds: float = 3600.0
    provider: str | None = None
    spare: bool = False
    preflight: str = ""
    size: list[int] | None = None
    tells_stoppable: bool = False

    def __post_init__(self) -> None:
        if self.instance not in self.roster:
            raise ConfigFault(f"instance {self.instance!r} is not in the roster {self.roster}")
        if self.mode not in distributed_modes.ALL:
            raise ConfigFault(
                f"mode is {self.mode!r}; it is one of {', '.join(distributed_modes.ALL)}"
            )
        if self.processes_per_node < 1:
            raise ConfigFault(f"processes_per_node is {self.processes_per_node}; it is at least 1")
        if self.call.get("kind") not in ("function", "command"):
            raise ConfigFault(f"call kind is {self.call.get('kind')!r}")

    @property
    def node_rank(self) -> int:
        """This node's rank: its position in the roster."""
        return self.roster.index(self.instance)

    @property
    def num_nodes(self) -> int:
        return len(self.roster)

    @property
    def is_leader(self) -> bool:
        return self.node_rank == 0

    @property
    def own_address(self) -> str:
        """The address at which this node reaches what it serves itself."""
        anywhere = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}
        return anywhere.get(self.bind, self.bind)

    @property
    def workers_per_node(self) -> int:
        """How many workers flowlite starts on each node."""
        return self.processes_per_node if self.mode == distributed_modes.AUTO else 1

    @property
    def ranks(self) -> range:
        """The global ranks of this node's workers."""
        first = global_rank(self.node_rank, self.workers_per_node, 0)
        return range(first, first + self.workers_per_node)

    def to_json(self) -> str:
        return json.dumps({each.name: getattr(self, each.name) for each in fields(self)})

    @classmethod
    def from_json(cls, text: str | bytes) -> AgentConfig:
        """Read `agent.json`.

        Raises:
            ConfigFault: it is not JSON, lacks a field, or has one that this agent does not know.
        """
        try:
            data = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ConfigFault(f"agent.json is not JSON: {error}") from error
        if not isinstance(data, dict):
            raise ConfigFault("agent.json is not an object")
        unknown = sorted(set(data) - {each.name for each in fields(cls)})
        if unknown:
            raise ConfigFault(
                f"agent.json has fields this agent does not know: {', '.join(unknown)}"
            )
        try:
            return cls(**data)
        except TypeError as error:
            raise ConfigFault(f"agent.json: {error}") from error


@dataclass(frozen=True, slots=True)
class AttemptPaths:
    """The files of one attempt on one node."""

    directory: Path

    @property
    def home(self) -> Path:
        return self.directory.parent

    @property
    def config(self) -> Path:
        return self.directory / "agent.json"

    @property
    def secret(self) -> Path:
        return self.directory / "secret"

    @property
    def certificate(self) -> Path:
        """The leader's certificate, where the rendezvous is encrypted (node/protocol/tls.py)."""
        return self.directory / "rendezvous.crt"

    @property
    def certificate_key(self) -> Path:
        """The key of the certificate; on the leader only."""
        return self.directory / "rendezvous.key"

    @property
    def leader(self) -> Path:
        return self.directory / "leader.json"

    @property
    def leader_silent(self) -> Path:
        """A file that exists while this node does not hear its leader."""
        return self.directory / "leader.silent"

    @property
    def stop(self) -> Path:
        """The page by which agent and workers agree when to stop (node/preemption/shared_page.py)."""
        return self.directory / "stop"

    @property
    def pid(self) -> Path:
        return self.directory / "agent.pid"

    @property
    def log(self) -> Path:
        return self.directory / "agent.log"

    @property
    def environment(self) -> Path:
        return self.directory / "env.json"

    @property
    def trace(self) -> Path:
        """What the processes of this node did and when, if that is recorded (node/system/trace.py)."""
        return self.directory / "trace.json"

    @property
    def report(self) -> Path:
        return self.directory / "report.json"

    @property
    def project(self) -> Path:
        """The task's copy of the project (node/project_files/make.py), unless the workers start elsewhere."""
        return self.home / "project"

    @property
    def secrets(self) -> Path:
        return self.home / "secrets.json"

    @property
    def storage(self) -> Path:
        """The endpoints and credentials of the task's buckets."""
        return self.home / "storage.json"

    @property
    def packages(self) -> Path:
        """Variables of uv for package indexes, which may contain credentials."""
        return self.home / "packages.json"

    @property
    def ready(self) -> Path:
        """A file that exists once a spare machine is ready."""
        return self.directory / "ready"

    @property
    def wanted(self) -> Path:
        """A file that the supervisor touches while it watches over a spare machine."""
        return self.directory / "wanted"

    @property
    def has_later_attempt(self) -> bool:
        """Whether a later attempt has started on this node, or is about to."""
        mine = int(self.directory.name[1:])
        names = [each.name for each in self.home.glob("a[0-9]*")]
        return any(name[1:].isdigit() and int(name[1:]) > mine for name in names)

    def stream(self, rank: int, stream: str) -> Path:
        """The file of one stream of one rank: "out", "err", "setup" or "result"."""
        return self.directory / f"r{rank}.{stream}"

    def failure(self, rank: int) -> Path:
        """The failure that a worker writes before it ends: {"kind", "type", "message"}."""
        return self.directory / f"r{rank}.failure"
