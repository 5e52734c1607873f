"""The same with flowlite, torch imported at the top: the client pays for the import too."""

import sys
import time
from pathlib import Path

import torch.distributed as dist

from flowlite import FlowApp

app = FlowApp()


@app.function(num_instances=int(sys.argv[1]), processes_per_node=2)
def barrier(marks: str) -> None:
    """Joins the process group, passes a barrier, leaves a mark."""
    dist.init_process_group("gloo")
    dist.barrier()
    Path(marks, str(dist.get_rank())).write_text(repr(time.monotonic()))
    dist.destroy_process_group()


if __name__ == "__main__":
    barrier.remote(sys.argv[2])
