"""A script as torchrun starts it: joins its process group, passes a barrier, leaves a mark."""

import sys
import time
from pathlib import Path

import torch.distributed as dist

dist.init_process_group("gloo")
dist.barrier()
Path(sys.argv[1], str(dist.get_rank())).write_text(repr(time.monotonic()))
dist.destroy_process_group()
