"""Log aggregation: the output of all nodes, labelled, of one node, and live."""

import os
import time

from scale import scaled

from flowlite import Flow, FlowApp

app = FlowApp()


@app.function(name="training-task-xyz", gpu="h100:8", num_instances=4)
def talkative_training():
    for epoch in range(3):
        if os.environ["LOCAL_RANK"] == "0":
            print(f"Epoch {epoch} on node {os.environ['FLOW_NODE_RANK']}", flush=True)
        time.sleep(0.2)


if __name__ == "__main__":
    scaled(talkative_training).spawn()

    # Get logs from all nodes, timestamped and labelled
    flow = Flow()
    task = flow.get_task("training-task-xyz")

    # Stream logs in real time
    for line in task.logs(follow=True):
        print(line)

    # All of them
    logs = task.logs()
    print(logs)

    # Get logs from specific nodes
    node_1_logs = task.logs(node=1)  # debug a problematic node
    print("Node 1 specific logs:", node_1_logs)
