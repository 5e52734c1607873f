"""A worker that works in steps and asks after each whether to stop: `stopping_program.py MOST SLOWEST [save SECONDS]`.

Prints at which call it was told, as `stopped at 17`, or `finished`. Ranks go at different speeds.
"""

import os
import random
import signal
import sys
import time

from flowlite import should_stop

most, slowest = int(sys.argv[1]), float(sys.argv[2])
rank = int(os.environ.get("RANK", os.environ["FLOW_NODE_RANK"]))


def asked_to_end(number: int, _: object) -> None:
    """Says by which signal it was asked, and goes well."""
    print(f"signal {number}", flush=True)
    sys.exit(0)


signal.signal(signal.SIGTERM, asked_to_end)
wait = random.Random(rank)
print("begun", flush=True)
for step in range(1, most + 1):
    time.sleep(wait.uniform(0, slowest))
    if "never" not in sys.argv and should_stop():
        print(f"stopped at {step}", flush=True)
        sys.exit(int("fail" in sys.argv))
    if step == 5:
        print("working", flush=True)
print("finished", flush=True)
