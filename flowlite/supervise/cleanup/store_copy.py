"""Starts the daily copy of the store, in a detached process, from the first command or program of a day."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from flowlite.state import backups


def copy_in_background(home: Path) -> bool:
    """Starts a process that copies the store, unless there was one today. Looks only at a directory.

    Returns:
        Whether a process was started.
    """
    if not backups.is_due(home):
        return False
    from flowlite.supervise.background import run_detached

    # Noted first, so that the next command does not start another process even if this one fails.
    backups.begin(home)
    return run_detached(home, "flowlite.supervise.cleanup.store_copy") is not None


def main() -> None:
    """Entry point of the copying process. Prints nothing: `flow store check` shows the time of the last copy."""
    from flowlite.errors import FlowError

    os.nice(10)
    home = Path(os.environ["FLOW_HOME"])
    with suppress(FlowError, OSError):
        backups.take(home / "state.db", backups.DAILY)
