"""Makes a supervisor kill itself with SIGKILL at one chosen point of its work, once. Found through PYTHONPATH.

Points are counted in the order in which a supervisor comes by: before and after every write to the store, after every
call to the provider that changes something, after every process it starts, and after every event of the gang.
"""

import os
import signal
import sys
from pathlib import Path


def _arm(at: int, marker: Path) -> None:
    sys.path.insert(0, sys.orig_argv[-1])
    from flowlite.connect.local import LocalConnection
    from flowlite.state.store import Store
    from flowlite.supervise.process.journal import Journal
    from provider_adapters.local import LocalProvider

    passed = 0

    def point(name: str) -> None:
        nonlocal passed
        passed += 1
        if passed == at:
            marker.write_text(name)
            os.kill(os.getpid(), signal.SIGKILL)

    def around(owner: type, name: str, *, before: bool) -> None:
        original = getattr(owner, name)

        def wrapped(*arguments: object, **options: object) -> object:
            if before:
                point(f"before {name}")
            found = original(*arguments, **options)
            point(f"after {name}")
            return found

        setattr(owner, name, wrapped)

    for name in ("acquire_lease", "transition", "put_intent", "put_instances", "settle_intent"):
        around(Store, name, before=True)
    for name in ("launch", "terminate"):
        around(LocalProvider, name, before=False)
    around(LocalConnection, "start", before=False)
    around(Journal, "gang_event", before=False)


if "flowlite.supervise.process.main" in " ".join(sys.orig_argv) and os.environ.get("CRASH_AT"):
    _marker = Path(os.environ["CRASH_MARKER"])
    if not _marker.exists():
        _arm(int(os.environ["CRASH_AT"]), _marker)
