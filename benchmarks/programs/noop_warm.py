"""A function that does nothing, called twice on nodes that are kept; notes the seconds that the second call took."""

import sys
import time
from pathlib import Path

from flowlite import FlowApp

app = FlowApp(keep_warm="10m")


@app.function(num_instances=2, processes_per_node=2)
def nothing() -> int:
    """Does nothing."""
    return 1


if __name__ == "__main__":
    nothing.remote()
    start = time.monotonic()
    assert nothing.remote() == 1
    Path(sys.argv[1], "seconds").write_text(repr(time.monotonic() - start))
