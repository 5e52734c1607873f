"""Finds the node's program that was built last in a FLOW_HOME (`bundle/agent_zip.py`), for callers without a task."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

from flowlite.errors import ProviderError


class AgentProgram(NamedTuple):
    """The node's program on this machine. The file is named by its hash."""

    path: Path
    sha256: str


def built_last(home: Path) -> AgentProgram:
    """Returns the program that was built last. Raises ProviderError if there is none."""
    directory = home / "agents"
    try:
        sha256 = str(json.loads((directory / "index.json").read_bytes())["sha256"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ProviderError(f"there is no node agent in {directory}: {error}") from error
    return AgentProgram(directory / f"{sha256}.pyz", sha256)
