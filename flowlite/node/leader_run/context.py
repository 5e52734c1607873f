"""Where a gang that is led by node 0 meets: what every program of it reads from the attempt's directory."""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..config.agent_config import AgentConfig, AttemptPaths, write_atomically
from ..protocol.framing import WireError
from ..protocol.stream import OPENING_SECONDS, Stream, knock
from ..worker.launcher_files import apart
from .hostnames import node_named

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from ..protocol.tls import TlsSession

ROOM = "gang/"
"""Before a role in the opening of a connection; no volume is called so."""
FILE = "gang.json"


class Unreachable(OSError):
    """A node of the gang cannot be asked for anything; the text says why."""


@dataclass(frozen=True, slots=True)
class GangContext:
    """One attempt as its programs on one node see it.

    Attributes:
        addresses: Of all nodes, by rank.
        hub: Address and port of what connects the nodes (relay.py).
        cores: What this node has.
    """

    config: AgentConfig
    paths: AttemptPaths
    addresses: tuple[str, ...]
    hub: tuple[str, int]
    cores: int

    @classmethod
    def read(cls, directory: str) -> GangContext:
        """Reads the files of an attempt. Raises OSError, ValueError."""
        paths = AttemptPaths(Path(directory))
        config = AgentConfig.from_json(paths.config.read_bytes())
        told = json.loads((paths.directory / FILE).read_bytes())
        leader = json.loads(paths.leader.read_bytes())
        if "gang" not in leader:
            raise Unreachable("node 0 does not connect the nodes of this task")
        return cls(
            config,
            paths,
            tuple(map(str, told["addresses"])),
            (str(leader["address"]), int(leader["gang"])),
            int(told["cores"]),
        )

    @property
    def rank(self) -> int:
        """This node's."""
        return self.config.node_rank

    @property
    def on_one_machine(self) -> bool:
        """Whether some of the nodes share an address, as all do that the local provider gives."""
        return len(set(self.addresses)) < len(self.addresses)

    @property
    def hosts(self) -> tuple[str, ...]:
        """An address for each node that no other node has: its own, where that is enough."""
        return tuple(apart(self.addresses))

    def node(self, host: str) -> int | None:
        """The rank of a node by its address or name; None if it is not of this gang."""
        return node_named(host, self.hosts)

    def dial(self, role: str, **hello: Any) -> Stream:
        """A proved connection to the hub, which was told what it is for. Raises Unreachable."""
        try:
            network = socket.create_connection(self.hub, timeout=OPENING_SECONDS)
        except OSError as error:
            raise Unreachable(
                f"node 0 does not answer at {self.hub[0]}:{self.hub[1]}: {error}"
            ) from error
        try:
            network.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            network.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            shield: Callable[[], TlsSession] | None = None
            if self.config.tls:
                from ..protocol import tls

                shield = tls.client(self.paths.certificate)
            stream = Stream(network, shield() if shield else None)
            knock(
                stream,
                self.paths.secret.read_bytes(),
                task=self.config.task,
                epoch=self.config.epoch,
                instance=self.config.instance,
                volume=f"{ROOM}{role}",
            )
            stream.send(json.dumps(hello).encode() + b"\n")
        except (OSError, WireError) as error:
            network.close()
            raise Unreachable(f"node 0 let nobody in: {error}") from error
        return stream


def note(paths: AttemptPaths, go: Mapping[str, Any], cores: int) -> None:
    """Write down what came with GO, for `GangContext.read`."""
    told = {"addresses": list(go["addresses"]), "cores": cores}
    write_atomically(paths.directory / FILE, json.dumps(told))
