"""Runs `true` on as many hosts of the pool as the first argument says, to the end of the task.

The second argument is the directory whose project travels; without it, it is the empty one in which this is run.
"""

import os
import sys

from flowlite import Flow, TaskConfig

if __name__ == "__main__":
    if len(sys.argv) > 2:
        os.chdir(sys.argv[2])
    task = Flow().run(TaskConfig(command=["true"], num_instances=int(sys.argv[1])))
    if not task.wait(600) or task.status != "completed":
        sys.exit(f"{task.status}: {task.reason}")
