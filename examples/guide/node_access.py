"""Node-specific access: every `flow ssh` line of the guide, on a task that is running.

Locally a node is a process group of this machine, and `flow ssh` enters its environment; over SSH it logs in. Lines
that ask `nvidia-smi` are left out, and said to be, where there is none.
"""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

from scale import scaled

from flowlite import FlowApp

app = FlowApp()
TASK = "training-task-xyz"
LOG = "/var/log/training.log"


@app.function(name=TASK, gpu="h100:8", num_instances=4)
def long_training():
    print(f"Node {os.environ['FLOW_NODE_RANK']} is training", flush=True)
    time.sleep(600)


def flow(*arguments, stdin=""):
    """Runs the `flow` command and shows what it says."""
    print("$ flow", *(f"'{a}'" if " " in a else a for a in arguments), flush=True)
    command = [sys.executable, "-m", "flowlite.cli", *arguments]
    done = subprocess.run(command, input=stdin, text=True, capture_output=True, check=False)
    print(done.stdout + done.stderr, end="", flush=True)
    return done.returncode


if __name__ == "__main__":
    task = scaled(long_training).spawn()
    try:
        for line in task.logs(follow=True):
            print(line)
            break
        nodes = range(task.num_instances)

        # SSH to specific nodes in your cluster; the shell reads its commands from here
        for node in nodes:
            flow("ssh", TASK, "--node", str(node), stdin="echo shell on node $FLOW_NODE_RANK\n")

        # Run commands on specific nodes
        queries = "--query-gpu=utilization.gpu --format=csv,noheader"
        if shutil.which("nvidia-smi"):
            flow("ssh", TASK, "--node", "1", "--command", "nvidia-smi")
            for node in nodes:
                print(f"=== Node {node} GPU Status ===")
                flow("ssh", TASK, "--node", str(node), "--command", f"nvidia-smi {queries}")
        else:
            print("nvidia-smi: left out, there is none on this machine")
        last = str(task.num_instances - 1)
        flow("ssh", TASK, "--node", last, "--command", "ps aux | grep python | head -3")

        # Check NCCL communication logs
        for node in nodes:
            print(f"=== Node {node} NCCL Status ===")
            if Path(LOG).exists():
                command = f"grep 'NCCL' {LOG} | tail -5"
                flow("ssh", TASK, "--node", str(node), "--command", command)
            else:
                print(f"{LOG}: left out, it is not on this machine; the workers' output is in:")
                flow("logs", TASK, "--node", str(node), "--tail", "5")
    finally:
        task.cancel()
        task.wait()
