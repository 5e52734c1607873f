"""A trainer that crashes once, and goes on from its last checkpoint, on any node, also after it was started anew.

    python examples/resume.py                                 # keeps its checkpoints below /tmp/flowlite-resume
    python examples/resume.py s3://bucket/runs/resume         # in a bucket; AWS_ENDPOINT_URL names another server

Run it again and it has nothing left to do; give it another place and it begins anew.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from flowlite import Checkpoint, FlowApp

app = FlowApp()


def train(epochs: int = 6, crash_in: int = 4) -> dict[str, int]:
    """Trains up to an epoch; the first attempt crashes on the way."""
    here = Path(os.environ["FLOW_CHECKPOINT_DIR"])
    done = sorted(int(path.stem.removeprefix("epoch_")) for path in here.glob("epoch_*.bin"))
    began = done[-1] if done else 0
    print(f"rank {os.environ['RANK']}: {began} epochs are done")
    for epoch in range(began + 1, epochs + 1):
        time.sleep(1.0)
        if epoch == crash_in and os.environ["FLOW_ATTEMPT"] == "1":
            raise RuntimeError("the kind of thing that happens at night")
        if os.environ["RANK"] == "0":
            # Under a name that says so until it is whole: then not even a power cut leaves half of it.
            partial = here / f"epoch_{epoch}.tmp"
            partial.write_bytes(bytes(1_000_000))
            partial.rename(here / f"epoch_{epoch}.bin")
    return {"began": began, "epochs": epochs}


def main(sync: str) -> None:
    """Runs it on two nodes, with one new attempt after a failure."""
    checkpoint = Checkpoint("/flowlite-ckpt", sync, every=0.5)
    resumable = app.function(name="resume", num_instances=2, checkpoint=checkpoint, retries=1)(
        train
    )
    task = resumable.spawn()
    print(task.result())
    print(*[event.text for event in task.events() if event.kind == "checkpoint"][-1:])


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "/tmp/flowlite-resume")
