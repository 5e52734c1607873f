"""Saving time at first contact: the node's program is brought, and one of it waits there for what is to be done.

Its agent is then forked from what has imported everything already. Where that cannot be, the node is equipped a little
later, as any other.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flowlite.connect import programs
from flowlite.errors import NodeUnreachable, ProviderError

if TYPE_CHECKING:
    from flowlite.connect.base import Connection
    from flowlite.provider import LaunchIntent

log = logging.getLogger("flowlite.rented")

_SECONDS = 15.0


def make_ready(connection: Connection, data: Mapping[str, Any], agent: Path | None) -> None:
    """Does so on a machine that was met.

    Args:
        data: As `Met.data`.
        agent: The agent's zipapp here, named by its hash; None where there is none yet.

    Raises:
        ProviderError: Others could change what would be started there.
    """
    from flowlite.connect.ssh.connection import SshConnection
    from flowlite.connect.ssh.courier import NotStarted

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
    """The agent's zipapp that a launch came with, if any."""
    given = intent.preload.get("agent")
    return Path(str(given)) if given else None
