"""The same number of clients join torch's TCPStore and pass a barrier in it; notes the seconds from the first dial.

The server is in a process of its own. A few threads act for all clients, which is kinder to the store than one blocked
thread for each: every client connects, counts itself in and leaves its facts; the last one opens the barrier; every
client then waits for that and reads the roster.
"""

import json
import multiprocessing
import multiprocessing.connection
import resource
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

from torch.distributed import TCPStore

THREADS = 8
FACTS = json.dumps({"hostname": "host", "python": "3.11.7", "code": "c" * 64, "agent": "a" * 64})
PATIENCE = timedelta(minutes=5)


def serve(ready: multiprocessing.connection.Connection) -> None:
    """The store; never returns."""
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=PATIENCE)
    ready.send(store.port)
    time.sleep(3600)


def main() -> None:
    """Serves in a child, joins here."""
    count = int(sys.argv[2])
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    here, there = multiprocessing.Pipe()
    server = multiprocessing.Process(target=serve, args=(there,), daemon=True)
    server.start()
    port = here.recv()

    def join(number: int) -> TCPStore:
        store = TCPStore("127.0.0.1", port, is_master=False, timeout=PATIENCE)
        store.set(f"facts/{number}", FACTS)
        if store.add("joined", 1) == count:
            store.set("roster", " ".join(f"node-{i:05}" for i in range(count)))
        return store

    with ThreadPoolExecutor(THREADS) as threads:
        begin = time.monotonic()
        stores = list(threads.map(join, range(count)))
        rosters = list(threads.map(lambda store: store.get("roster"), stores))
        taken = time.monotonic() - begin
    assert len(rosters) == count
    server.kill()
    Path(sys.argv[1], "seconds").write_text(repr(taken))


if __name__ == "__main__":
    multiprocessing.set_start_method("fork")
    main()
