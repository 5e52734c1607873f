"""A large array as argument and another as result of one `.remote()`; notes the seconds that the call took."""

import sys
import time
from pathlib import Path

import numpy as np

from flowlite import FlowApp

app = FlowApp()


@app.function
def take(array: np.ndarray) -> float:
    """Reads the whole argument."""
    return float(array.sum())


@app.function
def give(count: int) -> np.ndarray:
    """Makes the result."""
    return np.ones(count)


if __name__ == "__main__":
    way, count = sys.argv[2], int(sys.argv[3])
    array = np.ones(count if way == "argument" else 1)
    start = time.monotonic()
    if way == "argument":
        assert take.remote(array) == count
    else:
        assert give.remote(count).sum() == count
    Path(sys.argv[1], "seconds").write_text(repr(time.monotonic() - start))
