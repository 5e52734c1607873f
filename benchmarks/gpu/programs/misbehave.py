"""What goes wrong on GPUs: `misbehave.py HOW [FILE]`. FILE gets the process id, the visible GPUs and the
monotonic time when the GPU's memory is taken.
"""

import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

how, device = sys.argv[1], os.environ["GPU_CHECK_DEVICE"]
cuda = device == "cuda"


def out_of_memory() -> None:
    """Asks for a petabyte."""
    if not cuda:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1.00 PiB (rehearsed)")
    torch.empty(1 << 50, dtype=torch.uint8, device=device)


def illegal_access() -> None:
    """Writes to memory that was given back."""
    if not cuda:
        raise RuntimeError("CUDA error: an illegal memory access was encountered (rehearsed)")
    values = torch.zeros(1 << 20, device=device)
    values.untyped_storage().resize_(0)
    values.add_(1)
    torch.cuda.synchronize()


def hang() -> None:
    """Rank 1 waits for a kernel that does not end, and rank 0 for rank 1."""
    dist.init_process_group("gloo")
    dist.barrier()
    print("all are there", flush=True)
    if dist.get_rank() == 1:
        never_ends()
    dist.barrier()


def never_ends() -> None:
    """Waits for a kernel of about a day."""
    if not cuda:
        time.sleep(3600)
    torch.cuda._sleep(10**14)
    torch.cuda.synchronize()


def _write(path: str, text: str) -> None:
    """Writes a file that nobody sees in part."""
    part = Path(f"{path}.part")
    part.write_text(text)
    part.rename(path)


def hold() -> None:
    """Takes 2 GB of the GPU, and keeps it. Its end is noted in FILE.end."""
    kept = torch.ones(1 << 29, device=device) if cuda else None
    if cuda:
        torch.cuda.synchronize()
    note = f"{os.getpid()} {os.environ.get('CUDA_VISIBLE_DEVICES')} {time.monotonic()}"
    _write(sys.argv[2], note)
    until = time.monotonic() + (float(sys.argv[3]) if sys.argv[3:] else 3600.0)
    while time.monotonic() < until:
        time.sleep(0.05)
    _write(f"{sys.argv[2]}.end", str(time.monotonic()))
    del kept


{"oom": out_of_memory, "illegal": illegal_access, "hang": hang, "hold": hold}[how]()
