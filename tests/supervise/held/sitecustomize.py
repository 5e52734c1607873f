"""Has supervisors stand still where a test wants it: a call waits as long as there is `hold-WHAT` in FLOW_HOME.

`held-WHAT` says that it does. `full` makes results and logs have no room here. Found through PYTHONPATH.
"""

import errno
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


def _arm(home: Path) -> None:
    sys.path.insert(0, sys.orig_argv[-1])
    from flowlite.connect.local import LocalConnection
    from flowlite.errors import ProviderError
    from flowlite.supervise.attempt.node_handle import Node
    from provider_adapters.local import LocalProvider

    def hold(what: str) -> None:
        while (home / f"hold-{what}").exists():
            (home / f"held-{what}").touch()
            time.sleep(0.02)

    def holding(owner: type, method: str, what: str) -> None:
        do: Callable[..., Any] = getattr(owner, method)

        def held(*arguments: Any, **options: Any) -> Any:
            hold(what)
            return do(*arguments, **options)

        setattr(owner, method, held)

    for method in ("launch", "terminate", "list_instances"):
        holding(LocalProvider, method, method)
    holding(LocalConnection, "put_many", "put")
    holding(LocalConnection, "start", "start")
    holding(LocalConnection, "get", "get")
    holding(Node, "get_log", "get")
    holding(Node, "put_leader", "join")
    terminate = LocalProvider.terminate

    def filling(owner: type, method: str) -> None:
        do: Callable[..., Any] = getattr(owner, method)

        def full(*arguments: Any, **options: Any) -> Any:
            if (home / "full").exists():
                (home / "held-full").touch()
                raise OSError(errno.ENOSPC, "No space left on device: 40 MB are to come")
            return do(*arguments, **options)

        setattr(owner, method, full)

    def failing(self: LocalProvider, instances: Any) -> None:
        if (home / "terminate-fails").exists():
            raise ProviderError("the cloud is down")
        terminate(self, instances)

    filling(LocalConnection, "get")
    filling(Node, "get_log")
    LocalProvider.terminate = failing


if "flowlite.supervise.process.main" in " ".join(sys.orig_argv):
    _arm(Path(os.environ["FLOW_HOME"]))
