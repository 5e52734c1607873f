"""Looking after rented machines beside what was asked for: every `flow` command sets right what crashes have left.

It is done by a process of its own, at most every ten minutes, and only where a provider was ever paid, so that no
command waits for it and nobody else notices it.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path

EVERY_SECONDS = 600.0
_PAID = "paid-providers"
_LAST = "tidied"
# The price of this machine is a rehearsal.
FREE = frozenset({"local"})


def remember_paid(home: Path, provider: str) -> None:
    """Notes that a provider is paid, before it is."""
    if provider in FREE or provider in paid_providers(home):
        return
    descriptor = os.open(home / _PAID, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    with open(descriptor, "w") as file:
        file.write(f"{provider}\n")


def paid_providers(home: Path) -> frozenset[str]:
    """Providers that were ever paid from this FLOW_HOME."""
    try:
        return frozenset((home / _PAID).read_text().split())
    except OSError:
        return frozenset()


def tidy_in_background(home: Path) -> bool:
    """Starts a process that tidies up, if something may be left and nobody looked lately. Costs two looks at files.

    Returns:
        Whether one was started.
    """
    if any(home.glob("revisiting-*")):
        # Only here: hardly ever is there something to come back to.
        from flowlite.supervise.attempt import unreachable_nodes

        unreachable_nodes.begin_again(home)
    if not (home / _PAID).exists() or not _due(home):
        return False
    with suppress(OSError):
        # Whoever comes next need not start another one, even if this one fails.
        (home / _LAST).touch(mode=0o600)
        from flowlite.supervise.background import run_detached

        return run_detached(home, "flowlite.supervise.cleanup.background_gc")
    return False


def main() -> None:
    """The process of its own. Says nothing: what it cannot set right, `flow gc` tells."""
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
