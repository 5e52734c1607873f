"""Runs `true` on as many hosts of the pool as the first argument says, to the end of the task."""

import sys

from flowlite import Flow, TaskConfig

if __name__ == "__main__":
    task = Flow().run(TaskConfig(command=["true"], num_instances=int(sys.argv[1])))
    if not task.wait(600) or task.status != "completed":
        sys.exit(f"{task.status}: {task.reason}")
