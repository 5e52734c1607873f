"""The daily copy of the store: begun by the first command or program of a day, in a process that nobody waits for."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from flowlite.state import backups


def copy_in_background(home: Path) -> bool:
    """Starts a process that copies the store, if nobody has today. Costs one look at a directory.

    Returns:
        Whether one was started.
    """
    if not backups.is_due(home):
        return False
    from flowlite.supervise.background import run_detached

    # Whoever comes next need not start another one, even if this one fails.
    backups.begin(home)
    return run_detached(home, "flowlite.supervise.cleanup.store_copy")


def main() -> None:
    """The process of its own. Says nothing: `flow store check` tells when the last copy was made."""
    from flowlite.errors import FlowError

    os.nice(10)
    home = Path(os.environ["FLOW_HOME"])
    with suppress(FlowError, OSError):
        backups.take(home / "state.db", backups.DAILY)
