"""`.remote()` of a function that does nothing, 2 x 2; notes the seconds that the call took."""

import sys
import time
from pathlib import Path

from flowlite import FlowApp

app = FlowApp()


@app.function(num_instances=2, processes_per_node=2)
def nothing() -> int:
    """Does nothing."""
    return 1


if __name__ == "__main__":
    start = time.monotonic()
    assert nothing.remote() == 1
    Path(sys.argv[1], "seconds").write_text(repr(time.monotonic() - start))
