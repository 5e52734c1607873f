"""A trainer whose steps take a fixed time, with a checkpoint after each.

It ends after so many samples, of which each rank has one in a step, or when there is a certain file.
"""

import json
import os
import sys
import time
from pathlib import Path

seconds, samples, enough = float(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
here = Path(os.environ["FLOW_CHECKPOINT_DIR"])
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
saved = max(here.glob("*.json"), key=lambda path: int(path.stem), default=None)
state = json.loads(saved.read_text()) if saved else {"step": 0, "samples": 0}
begun = {
    "attempt": int(os.environ["FLOW_ATTEMPT"]),
    "restarts": int(os.environ["FLOW_RESTART_COUNT"]),
    "rank": rank,
    "world": world,
    "bounds": [int(os.environ["FLOW_NUM_NODES_MIN"]), int(os.environ["FLOW_NUM_NODES_MAX"])],
    "node": os.uname().nodename,
    "from": state["step"],
}
print(json.dumps(begun), flush=True)
while state["samples"] < samples and not enough.exists():
    time.sleep(seconds)
    state = {"step": state["step"] + 1, "samples": state["samples"] + world}
    if rank == 0:
        partial = here / "next.tmp"
        partial.write_text(json.dumps(state))
        partial.rename(here / f"{state['step']}.json")
