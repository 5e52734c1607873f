"""Functions on a GPU: `functions.py KIND first|pinned`. Prints one line of JSON."""

import json
import os
import sys
import time
from typing import Any

from flowlite import FlowApp

app = FlowApp(provider="local", gpu=f"{sys.argv[1]}:1" if sys.argv[1:] else None)


@app.function
def first(device: str) -> dict[str, Any]:
    """How long the first call of CUDA takes."""
    import torch

    untouched = not torch.cuda.is_initialized()
    began = time.perf_counter()
    torch.zeros(1, device=device).item()
    return {"untouched": untouched, "seconds": time.perf_counter() - began}


@app.function
def total(values: Any) -> list[float]:
    """What arrives of a tensor."""
    return [float(values.double().sum()), float(values.is_pinned()), float(values.numel())]


def main() -> Any:
    """The calls."""
    import torch

    device = os.environ["GPU_CHECK_DEVICE"]
    if sys.argv[2] == "pinned":
        values = torch.arange(1 << 22, dtype=torch.float32)
        values = values.pin_memory() if device == "cuda" else values
        return {"sent": float(values.double().sum()), "arrived": total.remote(values)}
    found = {}
    for start in ("fork", "spawn", "fork"):
        began = time.monotonic()
        found[start] = first.options(start=start, keep_warm="2m").remote(device)
        found[start]["call"] = time.monotonic() - began
    return found


if __name__ == "__main__":
    print("found", json.dumps(main()))
