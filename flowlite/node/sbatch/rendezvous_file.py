"""How the processes of a batch task reach each other: files of the attempt, and the connection to the router."""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping, Sequence
from dataclasses import asdict, field
from pathlib import Path
from typing import Any

from ..config.agent_config import AgentConfig, AttemptPaths
from ..protocol.framing import STEP_ROLE, ClientSession, Hello
from ..protocol.stream import tls_session_of
from ..quick_dataclass import dataclass
from ..system import processes
from ..system.atomic_files import write_atomically

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..protocol.tls import TlsSession

CONNECT_SECONDS = 30.0
_FILE = "batch.json"


@dataclass(frozen=True, slots=True)
class JobFacts:
    """A node's facts about the job, read by `srun` and `scontrol`.

    Attributes:
        job: SLURM_JOB_ID.
        names: The nodes' names, by rank.
        counts: Tasks of the job on each node.
        node: This node's rank.
        directory: Where the script starts, or would start on this node.
        environment: The environment it starts with, or would.
        of_slurm: Whether the gang is a job of a cluster, so that Slurm knows the job by this number.
        limits: The umask and the limits that it starts with, or would.
    """

    job: str
    names: list[str]
    counts: list[int]
    node: int
    directory: str
    environment: dict[str, str]
    of_slurm: bool = False
    limits: dict[str, int] = field(default_factory=dict)

    def write(self, attempt: Path) -> None:
        """Writes the file, readable by its user only, since the variables include secrets."""
        write_atomically(attempt / _FILE, json.dumps(asdict(self)))

    @classmethod
    def read(cls, attempt: Path) -> JobFacts:
        """Reads the file. Raises OSError, ValueError, TypeError."""
        return cls(**json.loads((attempt / _FILE).read_bytes()))


def programs(attempt: Path) -> Path:
    """Returns the directory of the programs that stand in for Slurm's."""
    return attempt / "slurm"


def write_programs(attempt: Path, command: Sequence[str]) -> None:
    """Writes `srun` and `scontrol` to that directory.

    Args:
        command: The command line that runs a subcommand of this program.
    """
    directory = programs(attempt)
    directory.mkdir(mode=0o700, exist_ok=True)
    for name in ("srun", "scontrol"):
        processes.write_program(directory / name, [*command, name, str(attempt)])


def dial(
    config: AgentConfig, paths: AttemptPaths, who: str
) -> tuple[socket.socket, ClientSession, TlsSession | None]:
    """Connects to the router. Returns the socket with its sessions. Raises OSError, KeyError, ValueError."""
    leader: Mapping[str, Any] = json.loads(paths.leader.read_bytes())
    address = config.own_address if config.is_leader else str(leader["address"])
    hello = Hello(config.task, STEP_ROLE, who, config.attempt)
    session = ClientSession(paths.secret.read_bytes(), hello)
    connected = socket.create_connection((address, int(leader["steps"])), CONNECT_SECONDS)
    return connected, session, tls_session_of(config, paths)
