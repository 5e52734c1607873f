"""Ends leftover machines in the background, as a side effect of `flow` commands.

A detached process does it, at most every ten minutes and only if a paid provider was ever used. No command waits for
it.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path

EVERY_SECONDS = 600.0
_PAID = "paid-providers"
_LAST = "tidied"


def remember_paid(home: Path, provider: str) -> None:
    """Records that a provider is paid, before the first launch there."""
    # Imported only at a submission: every `flow` command imports this module.
    from flowlite.provider.plan import REHEARSED

    if provider in REHEARSED or provider in paid_providers(home):
        return
    descriptor = os.open(home / _PAID, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    with open(descriptor, "w") as file:
        file.write(f"{provider}\n")


def paid_providers(home: Path) -> frozenset[str]:
    """Returns the paid providers that were ever used from this FLOW_HOME."""
    try:
        return frozenset((home / _PAID).read_text().split())
    except OSError:
        return frozenset()


def tidy_in_background(home: Path) -> bool:
    """Starts the cleanup process if machines may be left over and none ran recently. Looks only at two files.

    Returns:
        Whether a process was started.
    """
    if any(home.glob("revisiting-*")):
        # Imported only when an unreachable host was given up, which is rare.
        from flowlite.supervise.attempt import unreachable_nodes

        unreachable_nodes.begin_again(home)
    if not (home / _PAID).exists() or not _due(home):
        return False
    with suppress(OSError):
        # Touched first, so that the next command does not start another process even if this one fails.
        (home / _LAST).touch(mode=0o600)
        from flowlite.supervise.background import run_detached

        return run_detached(home, "flowlite.supervise.cleanup.background_gc") is not None
    return False


def main() -> None:
    """Entry point of the cleanup process. Prints nothing: `flow gc` reports what could not be cleaned up."""
    from flowlite.errors import FlowError
    from flowlite.state.store import Store
    from flowlite.supervise.cleanup.reconcile import reconcile

    home = Path(os.environ["FLOW_HOME"])
    with suppress(FlowError, OSError):
        reconcile(Store(home / "state.db", skip_damaged=True), home, providers=paid_providers(home))


def _due(home: Path) -> bool:
    try:
        return not 0 <= time.time() - (home / _LAST).stat().st_mtime <= EVERY_SECONDS
    except OSError:
        return True
