"""What the workers of one node need before they can start: which fork server, in which environment, kept for how long.

Pure: it only reads the agent's configuration. `agent.py` acts on the answers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..config.agent_config import AgentConfig, AttemptPaths
from ..forkserver import client
from ..quick_dataclass import dataclass
from ..worker.worker_spec import read_secrets

SETUP_RUN = "FLOWLITE_SETUP_RUN"
"""Variable of a fork server that is kept: the run of `setup=` after which it was started."""


@dataclass(frozen=True)
class Needs:
    """What the workers of one node need in one attempt.

    Attributes:
        call: The call of the configuration, with absolute paths.
    """

    config: AgentConfig
    paths: AttemptPaths
    call: Mapping[str, Any]

    def warm_spec(self) -> dict[str, Any]:
        """The spec of a fork server for this task only."""
        shared = self.shared_socket is not None
        return client.make_spec(
            **self._of_call(),
            socket=self.shared_socket or client.socket_path(str(self.paths.home)),
            log=str(self.paths.directory / "warm.log"),
            function=self.forks and self.call["kind"] == "function",
            idle=client.IDLE_AFTER_LAST if shared else 0.0,
        )

    def kept_spec(self, setup_run: str = "") -> dict[str, Any]:
        """The spec of a fork server that is kept for the next task.

        Args:
            setup_run: The run of `setup=` that came before; a different run makes it a different fork server.
        """
        config, found = self.config, self._of_call()
        if setup_run:
            found["environment"] |= {SETUP_RUN: setup_run}
        spec = client.make_kept_spec(
            **found,
            seconds=config.warm_seconds,
            secrets=read_secrets(self.paths.secrets).keys(),
        )
        return {**spec, "socket": config.warm_socket or spec["socket"]}

    @property
    def keeps_warm(self) -> bool:
        """Whether the fork server, with its imports, is kept for the next task."""
        config = self.config
        return (
            config.warm_seconds > 0
            and self.forks
            and config.container is None
            and client.can_be_kept(config.warm_socket)
        )

    @property
    def shared_socket(self) -> str | None:
        """The socket of a fork server that nodes of this machine share; None in a container, which has its own."""
        return self.config.warm_socket if self.config.container is None else None

    @property
    def loads_much(self) -> bool:
        """Whether preparing may load gigabytes: a checkpoint, packages, an image, or what `setup=` downloads."""
        config = self.config
        packages = (config.python_spec or {}).get("requirements")
        return any((config.checkpoint, packages, config.container, config.setup))

    @property
    def forks(self) -> bool:
        """Whether workers run in processes that are forked, with what they import."""
        return client.forks_for(self.call, in_container=self.config.container is not None)

    @property
    def imports_nothing(self) -> bool:
        """Whether workers exec a command at once, so that any Python can fork them."""
        config = self.config
        own = config.container is None and config.python_spec is None
        plain = self.call["kind"] == "command" and not self.forks
        return plain and own and self.shared_socket is None

    @property
    def shared_paths(self) -> list[str]:
        """The paths of volumes that must be the same file system on every node."""
        volumes = self.config.volumes
        return [str(each["path"]) for each in volumes if each.get("interface", "file") == "file"]

    def _of_call(self) -> dict[str, Any]:
        config = self.config
        nodes_here = config.num_nodes if config.ports_dir is not None else 1
        return client.of_call(
            self.call,
            task=config.task,
            python=config.python,
            workers=nodes_here * config.processes_per_node,
            environment=config.environment,
            in_container=config.container is not None,
        )
