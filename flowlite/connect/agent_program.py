"""Finds the node's program that was built last in a FLOW_HOME (`bundle/agent_zip.py`), for callers without a task."""

from __future__ import annotations

import json
from pathlib import Path

from flowlite.errors import ProviderError


def built_last(home: Path) -> Path:
    """Returns the program that was built last, a file named by its hash. Raises ProviderError if there is none."""
    directory = home / "agents"
    try:
        sha256 = str(json.loads((directory / "index.json").read_bytes())["sha256"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ProviderError(f"there is no node agent in {directory}: {error}") from error
    return directory / f"{sha256}.pyz"
