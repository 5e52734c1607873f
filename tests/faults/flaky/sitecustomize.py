"""Makes nodes of the local provider fail as remote ones do, for supervisors. Found through PYTHONPATH.

In FLOW_HOME, a file `unreachable-<instance>` cuts the connection to a node; a number in `launch-fails` or
`terminate-fails` is how often that call still fails.
"""

import os
import sys
from pathlib import Path
from typing import Any


def _arm(home: Path) -> None:
    sys.path.insert(0, sys.orig_argv[-1])
    from flowlite.errors import NodeUnreachable, ProviderError
    from flowlite.supervise.attempt import attempt
    from provider_adapters.local import LocalProvider

    connect = LocalProvider.connect
    launch, terminate = LocalProvider.launch, LocalProvider.terminate

    def fail(what: str) -> None:
        counter = home / f"{what}-fails"
        left = int(counter.read_text()) if counter.exists() else 0
        if left:
            counter.write_text(str(left - 1))
            raise ProviderError(f"{what} failed") if what == "terminate" else TimeoutError(what)

    def flaky_connect(self: LocalProvider, instance: Any) -> Any:
        if (home / f"unreachable-{instance.id}").exists():
            raise NodeUnreachable(f"{instance.id} does not answer")
        connection = connect(self, instance)
        run = connection.run

        def checked_run(*arguments: Any, **options: Any) -> Any:
            flaky_connect(self, instance)
            return run(*arguments, **options)

        connection.run = checked_run
        return connection

    def flaky_launch(self: LocalProvider, intent: Any) -> Any:
        found = launch(self, intent)
        fail("launch")
        return found

    def flaky_terminate(self: LocalProvider, instances: Any) -> None:
        fail("terminate")
        terminate(self, instances)

    LocalProvider.connect = flaky_connect
    LocalProvider.launch = flaky_launch
    LocalProvider.terminate = flaky_terminate
    attempt._PROBE_EVERY = 0.1


if "flowlite.supervise.process.main" in " ".join(sys.orig_argv):
    _arm(Path(os.environ["FLOW_HOME"]))
