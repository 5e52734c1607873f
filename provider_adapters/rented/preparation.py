"""Prepares a machine at first contact, to save time: sends the node's program and starts a courier.

The agent is then forked from the courier, which has its modules imported already. If that is not possible, the machine
is prepared later, like any other node.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flowlite.connect import programs
from flowlite.connect.base import Connection, NotStarted
from flowlite.errors import NodeUnreachable, ProviderError

if TYPE_CHECKING:
    from flowlite.provider import LaunchIntent

log = logging.getLogger("flowlite.rented")

_SECONDS = 15.0


def make_ready(connection: Connection, data: Mapping[str, Any], agent: Path | None) -> None:
    """Prepares a machine after first contact.

    Args:
        data: As `ReadyMachine.data`.
        agent: Local path of the agent's zipapp, named by its hash; None if there is none yet.

    Raises:
        ProviderError: Other users could change the program that would be started.
    """
    from flowlite.connect.ssh.connection import SshConnection

    if agent is None or not isinstance(connection, SshConnection):
        return
    program = f"{data['root']}/blobs/{agent.stem}"
    with suppress(NodeUnreachable, OSError):
        connection.put_cached(agent, program, agent.stem, mode=0o700)
        command = programs.started(str(data["python"]), program, "courier")
        try:
            connection.ask({"do": "hello"}, timeout=_SECONDS, start=command)
        except NotStarted as error:
            if error.code == programs.UNSAFE:
                raise ProviderError(programs.unsafe(str(error))) from error
        else:
            return
    log.debug("%s is not made ready", data["place"]["id"])


def agent_of(intent: LaunchIntent) -> Path | None:
    """The agent's zipapp of a launch, if any."""
    given = intent.preload.get("agent")
    return Path(str(given)) if given else None
