"""Eight ranks write numbered lines; the client follows them to the end and counts. Notes the seconds of all that."""

import os
import sys
import time
from pathlib import Path

from flowlite import FlowApp

app = FlowApp()


@app.function(num_instances=4, processes_per_node=2)
def write(lines: int, width: int) -> None:
    """Writes lines of `width` bytes, numbered."""
    filler = "x" * (width - 12)
    out = os.fdopen(1, "w", buffering=1 << 16, closefd=False)
    for number in range(lines):
        out.write(f"{number:010} {filler}\n")
    out.flush()


if __name__ == "__main__":
    lines, width = int(sys.argv[2]), int(sys.argv[3])
    start = time.monotonic()
    task = write.spawn(lines, width)
    following = [0] * 8
    for line in task.logs(follow=True):
        if int(line.text[:10]) != following[line.rank]:
            sys.exit(f"rank {line.rank}: wanted line {following[line.rank]}, got {line.text[:10]}")
        following[line.rank] += 1
    task.result()
    Path(sys.argv[1], "seconds").write_text(repr(time.monotonic() - start))
    if following != [lines] * 8:
        sys.exit(f"lines read by rank: {following}, wanted {lines} of each")
