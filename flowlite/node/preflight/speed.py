"""Measures how fast this machine multiplies matrices: on each of its GPUs, or on its processors.

    speed          prints one of these:
                   {"unit", "speeds": {"GPU 0": ..., }} or {"unit", "speeds": {"CPU": ...}}
                   {"why": why there is no figure}
                   {"broken": which GPU fails, and how}
                   {"error": what fails that need not be the machine, such as torch itself}

It runs in the workers' Python, with its torch or numpy. The best of several short rounds counts, so that other work on
the machine, which comes and goes, does not make it look slow.
"""

from __future__ import annotations

import json
import os
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_ROUNDS, _SECONDS = 12, 1.5
_GPU_SIZE, _CPU_SIZE = 8192, 512
# Exists where NVIDIA's driver is loaded.
_DEVICE = "/dev/nvidiactl"


def main(arguments: list[str]) -> int:
    """`speed`: prints the figures as one line of JSON."""
    # Another torch process must not look for what the worker's environment describes.
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        os.environ.pop(name, None)
    # On all cores it would be a measure of what else runs there. The libraries read these when they are imported.
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = "1"
    try:
        found = _gpus() or _cpu()
    except Exception as error:
        found = {"error": f"{type(error).__name__}: {error}"[:500]}
    sys.stdout.write(json.dumps(found) + "\n")
    return 0


def _gpus() -> dict[str, Any]:
    """The speed of each GPU that torch sees; empty if the machine has none, or no torch for GPUs."""
    try:
        import torch
    except ImportError:
        return {}
    if not torch.cuda.is_available():
        if torch.version.cuda is None or not os.path.exists(_DEVICE):
            return {}
        needs = f"torch {torch.__version__} finds no GPU, and needs a driver for CUDA {torch.version.cuda}"
        return {"error": needs}
    speeds = {}
    for index in range(torch.cuda.device_count()):
        device = torch.device("cuda", index)
        kind = torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float16
        left = torch.randn(_GPU_SIZE, _GPU_SIZE, device=device, dtype=kind)

        def multiply(left: Any = left, device: Any = device) -> None:
            for _ in range(4):
                left @ left
            torch.cuda.synchronize(device)

        try:
            seconds = _best(multiply, time.perf_counter)
        except RuntimeError as error:
            return {"broken": f"GPU {index}: {error}"[:500]}
        speeds[f"GPU {index}"] = 4 * 2 * _GPU_SIZE**3 / seconds / 1e12
        del left
        torch.cuda.empty_cache()
    return {"unit": "TFLOPS", "speeds": speeds}


def _cpu() -> dict[str, Any]:
    """The speed of one core, with torch or numpy."""
    left: Any
    try:
        import numpy

        left = numpy.ones((_CPU_SIZE, _CPU_SIZE), dtype=numpy.float32)
    except ImportError:
        try:
            import torch
        except ImportError:
            return {"why": "neither numpy nor torch is installed for the workers"}
        torch.set_num_threads(1)
        left = torch.ones(_CPU_SIZE, _CPU_SIZE)
    # Time of the processor, which does not pass while another process has it.
    taken = _best(lambda: left @ left, time.process_time)
    return {"unit": "GFLOPS", "speeds": {"CPU": 2 * _CPU_SIZE**3 / taken / 1e9}}


def _best(multiply: Callable[[], Any], clock: Callable[[], float]) -> float:
    """Seconds of the fastest round by a clock, after one round that warms up."""
    multiply()
    best, until = float("inf"), time.perf_counter() + _SECONDS
    for _ in range(_ROUNDS):
        began = clock()
        multiply()
        best = min(best, clock() - began)
        if time.perf_counter() > until:
            break
    return best
