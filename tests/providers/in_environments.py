"""Functions that run in environments without pytest."""

from __future__ import annotations

import os
import sys

from flowlite import FlowApp

app = FlowApp("env", processes_per_node=1)


@app.function(dependencies=["flowlite-probe-one"], num_instances=2)
def version_of_probe() -> tuple[str, str, int]:
    """The version of the probe that was installed, where, and who asks."""
    import flowlite_probe_one

    return flowlite_probe_one.VERSION, sys.prefix, int(os.environ["RANK"])


@app.function(image="localhost/flowlite-test:1", num_instances=2)
def inside() -> tuple[int, str, list[str]]:
    """Who asks, in which root directory, and with which Python."""
    return int(os.environ["RANK"]), sys.prefix, sorted(os.listdir("/"))
