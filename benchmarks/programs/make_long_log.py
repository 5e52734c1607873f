"""Runs a task of 8 ranks and gives it a log of some gigabytes, with a time for every few lines; notes its id.

The files of the ranks are links to one file, and so are their indexes, so that little of the disk is needed.
"""

import os
import sys
import time
from pathlib import Path

from flowlite import FlowApp
from flowlite.output.log_files import INDEX_RECORD, Stream, index_of
from flowlite.settings import settings

app = FlowApp()
RANKS, WIDTH, LINES_AT_A_TIME = 8, 100, 40
BLOCK = 10_000 * LINES_AT_A_TIME


@app.function(num_instances=4, processes_per_node=2)
def nothing() -> None:
    """Does nothing."""


def fill(log: Path, size: int, began: float, seconds: float) -> None:
    """Writes numbered lines, and the times at which they were seen."""
    lines = size // WIDTH
    chunk = LINES_AT_A_TIME * WIDTH
    with open(log, "wb") as text, open(index_of(log), "wb") as index:
        for first in range(0, lines, BLOCK):
            text.write(
                b"".join(b"%011d %s\n" % (n, b"x" * 87) for n in range(first, first + BLOCK))
            )
            index.write(
                b"".join(
                    INDEX_RECORD.pack(at, began + seconds * at / size)
                    for at in range(first * WIDTH, (first + BLOCK) * WIDTH, chunk)
                )
            )


if __name__ == "__main__":
    size = int(sys.argv[2]) // RANKS
    task = nothing.spawn()
    task.wait()
    logs = settings.home() / "tasks" / task.id / "logs"
    files = [logs / Stream(1, rank // 2, rank, "out").file for rank in range(RANKS)]
    for file in (*files, *map(index_of, files)):
        file.unlink(missing_ok=True)
    fill(files[0], size, time.time() - 7200, 7200)
    for file in files[1:]:
        os.link(files[0], file)
        os.link(index_of(files[0]), index_of(file))
    Path(sys.argv[1]).write_text(task.id)
