"""Fills FLOW_HOME with one finished task of eight ranks that has written so many bytes in a day; prints its id.

make_long_log.py BYTES
"""

import sys
import time

from flowlite import FlowApp
from flowlite.settings import settings
from flowlite.supervise.attempt.log_writer import Collector
from flowlite.supervise.record.paths import TaskPaths

CHUNK = b"".join(b"%010d %s\n" % (number, b"x" * 88) for number in range(160))
RANKS, RANKS_PER_NODE, DAY = 8, 2, 86400.0

app = FlowApp()


@app.function(num_instances=RANKS // RANKS_PER_NODE, processes_per_node=RANKS_PER_NODE)
def nothing() -> None:
    """Does nothing."""


if __name__ == "__main__":
    task = nothing.spawn()
    task.wait()
    collector = Collector(TaskPaths(settings.home(), task.id), attempt=1)
    chunks = int(sys.argv[1]) // RANKS // len(CHUNK)
    begin = time.time() - DAY
    for number in range(chunks):
        seen = begin + DAY * number / chunks
        for rank in range(RANKS):
            offset = number * len(CHUNK)
            collector.add(rank, rank // RANKS_PER_NODE, "out", offset, seen, CHUNK)
    collector.close()
    print(task.id)
