"""The same with submitit: one job of four tasks on its local executor; notes the seconds that the call took."""

import sys
import time
from pathlib import Path

import submitit


def nothing() -> int:
    """Does nothing."""
    return 1


if __name__ == "__main__":
    executor = submitit.LocalExecutor(folder=sys.argv[1])
    executor.update_parameters(tasks_per_node=4, timeout_min=1)
    start = time.monotonic()
    job = executor.submit(nothing)
    assert job.results() == [1, 1, 1, 1]
    Path(sys.argv[1], "seconds").write_text(repr(time.monotonic() - start))
