"""The uv of this machine is found from several threads at once, since nodes are prepared in parallel."""

from __future__ import annotations

import subprocess
import sys

# The first calls in a process are those that meet.
PROGRAM = """\
import threading
from flowlite.connect.uv import uv_here

found, together = [], threading.Barrier(8)

def look():
    together.wait()
    found.append(uv_here())

threads = [threading.Thread(target=look) for _ in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(len(found), len(set(found)))
"""


def test_it_is_found_by_all_threads() -> None:
    for _ in range(5):
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60, check=True
        )
        assert (done.stdout, done.stderr) == ("8 1\n", "")
