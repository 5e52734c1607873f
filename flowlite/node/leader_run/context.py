"""The facts about a gang led by node 0, which its programs read from the attempt's directory."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..config.agent_config import AgentConfig, AttemptPaths
from ..protocol.framing import RELAY_ROLE, WireError
from ..protocol.stream import Stream, dial
from ..quick_dataclass import dataclass
from ..system.atomic_files import write_atomically
from ..worker.launcher_files import apart

FILE = "gang.json"
_NAME_PREFIX = "flow-node-"


class Unreachable(OSError):
    """A node of the gang cannot be reached for a command; the text says why."""


@dataclass(frozen=True, slots=True)
class GangContext:
    """One attempt from the view of the programs on one node.

    Attributes:
        addresses: Of all nodes, by rank.
        relay: Address and port of the relay (`relay.py`).
        cores: This node's number of cores.
    """

    config: AgentConfig
    paths: AttemptPaths
    addresses: tuple[str, ...]
    relay: tuple[str, int]
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
        """This node's rank."""
        return self.config.node_rank

    @property
    def on_one_machine(self) -> bool:
        """Whether some of the nodes share an address, as all nodes of the local provider do."""
        return len(set(self.addresses)) < len(self.addresses)

    @property
    def hosts(self) -> tuple[str, ...]:
        """A unique address for each node: its own, if that is unique."""
        return tuple(apart(self.addresses))

    def node(self, host: str) -> int | None:
        """Returns the rank of a node by its address or name; None if it is not in this gang."""
        return node_named(host, self.hosts)

    def dial(self, purpose: str, **request: Any) -> Stream:
        """Opens an authenticated connection to the relay for a purpose. Raises Unreachable."""
        try:
            stream = dial(self.config, self.paths, self.relay, RELAY_ROLE, purpose)
            stream.send(json.dumps(request).encode() + b"\n")
        except WireError as error:
            raise Unreachable(f"node 0 let nobody in: {error}") from error
        except OSError as error:
            address, port = self.relay
            raise Unreachable(f"node 0 does not answer at {address}:{port}: {error}") from error
        return stream


def note(paths: AttemptPaths, go: Mapping[str, Any], cores: int) -> None:
    """Saves the data received with GO, for `GangContext.read`."""
    told = {"addresses": list(go["addresses"]), "cores": cores}
    write_atomically(paths.directory / FILE, json.dumps(told))


def node_named(host: str, addresses: Sequence[str]) -> int | None:
    """Returns the rank of a node, or None if it is not in the gang.

    The node is named by its address or by `flow-node-RANK`, with or without a user in front.

    Args:
        addresses: One for each node, by rank.
    """
    name = host.rpartition("@")[2].strip("[]")
    rank = name.removeprefix(_NAME_PREFIX)
    if rank != name:
        return int(rank) if rank.isdigit() and int(rank) < len(addresses) else None
    return list(addresses).index(name) if name in addresses else None
