"""A gang, 2 x 2, of which each worker leaves its process id and waits; with "fail", rank 3 then fails."""

import os
import sys
import time
from pathlib import Path

from flowlite import FlowApp

app = FlowApp()


@app.function(num_instances=2, processes_per_node=2)
def wait(directory: str, fail: bool) -> None:
    """Waits to be stopped."""
    rank = int(os.environ["RANK"])
    Path(directory, f"{rank}.new").write_text(str(os.getpid()))
    Path(directory, f"{rank}.new").rename(Path(directory, f"{rank}.pid"))
    if fail and rank == 3:
        while len(list(Path(directory).glob("*.pid"))) < 4:
            time.sleep(0.005)
        Path(directory, "failed").write_text(repr(time.monotonic()))
        raise RuntimeError("the first failure")
    time.sleep(600)


if __name__ == "__main__":
    print(wait.spawn(sys.argv[1], sys.argv[2] == "fail").id)
